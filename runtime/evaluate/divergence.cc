// Windows through streams in lockstep, chunk by chunk.
#include "runtime/evaluate/divergence.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "runtime/engine/session.h"
#include "runtime/model/scoped_probe.h"

namespace tq {
namespace {

// Sums the cosine of each head's attention output to the reference's, chunk by chunk.
class CosineProbe {
 public:
  CosineProbe(const Architecture& arch, int64_t first_scored)
      : num_layers_(arch.num_layers),
        num_heads_(arch.num_q_heads),
        dim_(arch.head_dim),
        first_scored_(first_scored),
        outputs_(static_cast<size_t>(num_layers_)) {}

  Model::AttentionProbe ForReference() {
    return [this](int layer, const KvCache&, const AttentionParams&,
                  std::span<const AttentionItem> items) {
      const AttentionItem& item = items.front();  // a session runs one sequence
      std::vector<float>& out = outputs_[static_cast<size_t>(layer)];
      out.assign(item.out, item.out + static_cast<size_t>(item.num_tokens) * num_heads_ * dim_);
    };
  }
  Model::AttentionProbe ForCandidate(std::vector<RunningMean>* sums) {
    sums->resize(static_cast<size_t>(num_layers_) * num_heads_);
    return [this, sums](int layer, const KvCache&, const AttentionParams&,
                        std::span<const AttentionItem> items) {
      const AttentionItem& item = items.front();
      const float* reference = outputs_[static_cast<size_t>(layer)].data();
      for (int t = 0; t < item.num_tokens; ++t) {
        if (item.first_pos + t < first_scored_) continue;
        for (int h = 0; h < num_heads_; ++h) {
          const size_t at = (static_cast<size_t>(t) * num_heads_ + h) * dim_;
          (*sums)[static_cast<size_t>(layer) * num_heads_ + h].Add(
              Cosine(reference + at, item.out + at));
        }
      }
    };
  }

 private:
  double Cosine(const float* a, const float* b) const {
    double dot = 0, aa = 0, bb = 0;
    for (int i = 0; i < dim_; ++i) {
      dot += double{a[i]} * b[i];
      aa += double{a[i]} * a[i];
      bb += double{b[i]} * b[i];
    }
    if (aa == 0 || bb == 0) return aa == bb ? 1 : 0;
    return dot / std::sqrt(aa * bb);
  }

  int num_layers_, num_heads_, dim_;
  int64_t first_scored_;
  std::vector<std::vector<float>> outputs_;  // of the chunk, [layers][tokens * heads * dim]
};

Status Check(const Stream& reference, std::span<const Stream> candidates,
             std::span<const std::vector<TokenId>> windows, const DivergenceOptions& options) {
  if (candidates.empty()) return InvalidArgument("divergence: there are no candidates");
  if (windows.empty()) return InvalidArgument("divergence: there are no windows of tokens");
  if (options.at_once < 1 || options.first_scored < 0) {
    return InvalidArgument("divergence: at_once = ", options.at_once,
                           " (expected 1 or more), first_scored = ", options.first_scored,
                           " (expected 0 or more)");
  }
  const int64_t least = options.first_scored + (options.score_last ? 1 : 2);
  for (size_t w = 0; w < windows.size(); ++w) {
    if (static_cast<int64_t>(windows[w].size()) >= least) continue;
    return InvalidArgument("window ", w, " has ", windows[w].size(), " tokens; at least ", least,
                           " are needed to score from position ", options.first_scored);
  }
  const Architecture& a = reference.model->arch();
  for (const Stream& c : candidates) {
    const Architecture& b = c.model->arch();
    if (b.vocab_size != a.vocab_size) {
      return InvalidArgument(c.name, " has a vocabulary of ", b.vocab_size, " tokens, ",
                             reference.name, " one of ", a.vocab_size,
                             ": only models with the same vocabulary can be compared");
    }
    if (options.head_cosine && (b.num_layers != a.num_layers || b.num_q_heads != a.num_q_heads ||
                                b.head_dim != a.head_dim)) {
      return InvalidArgument(c.name, " has ", b.num_layers, " layers of ", b.num_q_heads,
                             " heads of ", b.head_dim, ", ", reference.name, " ", a.num_layers,
                             " of ", a.num_q_heads, " of ", a.head_dim,
                             ": their attention cannot be compared head by head");
    }
  }
  return OkStatus();
}

// A candidate on its way through one window.
struct Lane {
  const Stream* stream = nullptr;
  std::unique_ptr<Session> session;
  StreamScores* result = nullptr;
  std::vector<RunningMean>* cosines = nullptr;
  std::vector<PositionScore> scores;  // of the chunk
  RunningMean window;
};

class Measurement {
 public:
  Measurement(const Stream& reference, std::span<const Stream> candidates,
              std::span<const std::vector<TokenId>> windows, const DivergenceOptions& options)
      : reference_(reference),
        candidates_(candidates),
        windows_(windows),
        options_(options),
        probe_(reference.model->arch(), options.first_scored),
        rows_(static_cast<size_t>(reference.model->arch().vocab_size), options.pool),
        results_(candidates.size()),
        cosines_(candidates.size()) {
    const size_t groups = DivCeil<size_t>(candidates.size(), GroupLen());
    for (const std::vector<TokenId>& w : windows) total_ += w.size();
    total_ *= groups + candidates.size();
  }

  Result<std::vector<StreamScores>> Run() {
    for (size_t first = 0; first < candidates_.size(); first += GroupLen()) {
      const size_t end = std::min(first + GroupLen(), candidates_.size());
      for (const std::vector<TokenId>& window : windows_) {
        TQ_RETURN_IF_ERROR(RunWindow(window, first, end));
      }
    }
    for (size_t c = 0; c < candidates_.size(); ++c) {
      results_[c].name = candidates_[c].name;
      for (const RunningMean& m : cosines_[c]) results_[c].head_cosine.push_back(m.mean());
    }
    return std::move(results_);
  }

 private:
  size_t GroupLen() const { return static_cast<size_t>(options_.at_once); }

  Status RunWindow(std::span<const TokenId> window, size_t first, size_t end) {
    const auto context = static_cast<int64_t>(window.size());
    const auto open = [&](const Stream& s) -> Result<std::unique_ptr<Session>> {
      Result<std::unique_ptr<Session>> session = Session::Create(*s.model, s.config, context);
      if (!session.ok()) return session.status().WithContext(s.name);
      return session;
    };
    TQ_ASSIGN_OR_RETURN(const std::unique_ptr<Session> reference, open(reference_));
    std::vector<Lane> lanes;
    for (size_t c = first; c < end; ++c) {
      Lane& lane = lanes.emplace_back();
      lane.stream = &candidates_[c];
      TQ_ASSIGN_OR_RETURN(lane.session, open(candidates_[c]));
      lane.result = &results_[c];
      lane.cosines = &cosines_[c];
    }
    for (int64_t from = 0; from < context;) {
      // Cut where scoring starts, so that what comes before needs no logits.
      const int64_t cut = from < options_.first_scored ? options_.first_scored : context;
      const int64_t to = std::min({from + Session::kPrefillChunk, cut, context});
      TQ_RETURN_IF_ERROR(RunChunk(window, from, to, *reference, lanes));
      from = to;
    }
    for (Lane& lane : lanes) {
      lane.result->window_means.push_back(lane.window.mean());
      lane.result->window_positions.push_back(lane.window.count());
    }
    return OkStatus();
  }

  Status RunChunk(std::span<const TokenId> window, int64_t from, int64_t to, Session& reference,
                  std::vector<Lane>& lanes) {
    const auto chunk = window.subspan(static_cast<size_t>(from), static_cast<size_t>(to - from));
    const bool scored = from >= options_.first_scored;
    const auto read = [&](const Stream& stream, Session& session, Model::AttentionProbe probe,
                          const Session::LogitsSink& sink) -> Status {
      const ScopedOutputProbe scope(*stream.model, std::move(probe));
      const Status status =
          session.Prefill(chunk, scored ? sink : Session::LogitsSink(), {}, options_.cancel);
      if (!status.ok()) return status.WithContext(stream.name);
      return Progress(chunk.size());
    };
    const bool probed = options_.head_cosine;
    TQ_RETURN_IF_ERROR(read(reference_, reference,
                            probed ? probe_.ForReference() : Model::AttentionProbe(),
                            [&](int64_t first_pos, std::span<const float> logits) {
                              rows_.Start(first_pos);
                              return rows_.Add(logits);
                            }));
    for (Lane& lane : lanes) {
      TQ_RETURN_IF_ERROR(read(*lane.stream, *lane.session, ProbeOf(lane),
                              [&](int64_t first_pos, std::span<const float> logits) {
                                lane.scores.clear();
                                return rows_.Score(window, lane.session->cache().rule(), first_pos,
                                                   logits, &lane.scores);
                              }));
      if (!scored) continue;
      if (!options_.score_last && to == static_cast<int64_t>(window.size())) lane.scores.pop_back();
      for (const PositionScore& s : lane.scores) {
        lane.window.Add(s.kld);
        lane.result->kld.Add(s.kld);
        if (options_.keep_scores) lane.result->scores.push_back(s);
      }
      if (options_.on_scores) {
        options_.on_scores(static_cast<size_t>(lane.result - results_.data()), lane.scores);
      }
    }
    return OkStatus();
  }

  // Of a candidate: what was asked for, and what skipping of V skips.
  Model::AttentionProbe ProbeOf(Lane& lane) {
    Model::AttentionProbe cosine;
    if (options_.head_cosine) cosine = probe_.ForCandidate(lane.cosines);
    if (lane.stream->config.v_skip == 0) return cosine;
    return [cosine, totals = &lane.result->v_skip](int layer, const KvCache& cache,
                                                   const AttentionParams& params,
                                                   std::span<const AttentionItem> items) {
      totals->Add(cache, layer, params, items);
      if (cosine) cosine(layer, cache, params, items);
    };
  }

  Status Progress(size_t tokens) {
    done_ += tokens;
    const bool stop = options_.cancel != nullptr && options_.cancel->load();
    if (stop || !ReportProgress(options_.progress, done_, total_, "reading")) {
      return Cancelled("the measurement was stopped after ", done_, " of ", total_, " tokens");
    }
    return OkStatus();
  }

  const Stream& reference_;
  std::span<const Stream> candidates_;
  std::span<const std::vector<TokenId>> windows_;
  const DivergenceOptions& options_;
  CosineProbe probe_;
  ReferenceRows rows_;
  std::vector<StreamScores> results_;              // [candidates]
  std::vector<std::vector<RunningMean>> cosines_;  // [candidates][layers * heads]
  size_t done_ = 0, total_ = 0;
};

}  // namespace

GroupedMean OverWindows(const StreamScores& scores) {
  GroupedMean mean;
  for (size_t w = 0; w < scores.window_means.size(); ++w) {
    mean.Add(scores.window_means[w], scores.window_positions[w]);
  }
  return mean;
}

GroupedMean OverWindows(const StreamScores& a, const StreamScores& b) {
  GroupedMean mean;
  for (size_t w = 0; w < a.window_means.size(); ++w) {
    mean.Add(a.window_means[w] - b.window_means[w], a.window_positions[w]);
  }
  return mean;
}

std::vector<double> LayerCosine(const StreamScores& scores, int num_q_heads) {
  std::vector<double> layers(scores.head_cosine.size() / static_cast<size_t>(num_q_heads), 0.0);
  for (size_t i = 0; i < scores.head_cosine.size(); ++i) {
    layers[i / static_cast<size_t>(num_q_heads)] += scores.head_cosine[i] / num_q_heads;
  }
  return layers;
}

Result<std::vector<StreamScores>> MeasureDivergence(const Stream& reference,
                                                    std::span<const Stream> candidates,
                                                    std::span<const std::vector<TokenId>> windows,
                                                    const DivergenceOptions& options) {
  TQ_RETURN_IF_ERROR(Check(reference, candidates, windows, options));
  return Measurement(reference, candidates, windows, options).Run();
}

ReferenceRows::ReferenceRows(size_t vocab_size, ThreadPool* pool)
    : vocab_size_(vocab_size),
      pool_(pool),
      work_(pool == nullptr ? 1 : static_cast<size_t>(pool->num_threads())) {}

void ReferenceRows::Start(int64_t first_pos) {
  first_pos_ = first_pos;
  num_rows_ = 0;
}

Status ReferenceRows::ForEach(size_t count, const std::function<Status(size_t, int)>& fn) {
  std::vector<Status> statuses(count);
  const auto run = [&](size_t i, int worker) { statuses[i] = fn(i, worker); };
  if (pool_ != nullptr) {
    pool_->ParallelFor(count, run);
  } else {
    for (size_t i = 0; i < count; ++i) run(i, 0);
  }
  for (const Status& s : statuses) TQ_RETURN_IF_ERROR(s);
  return OkStatus();
}

Status ReferenceRows::Add(std::span<const float> logits) {
  const size_t count = logits.size() / vocab_size_, old = num_rows_;
  while (rows_.size() < old + count) rows_.push_back(std::make_unique<Row>());
  num_rows_ += count;
  return ForEach(count, [&](size_t i, int) -> Status {
    Row& row = *rows_[old + i];
    const std::span<const float> from = logits.subspan(i * vocab_size_, vocab_size_);
    row.logits.assign(from.begin(), from.end());
    const Status status = row.reference.Set(row.logits);
    if (!status.ok()) {
      return status.WithContext(StrCat("position ", first_pos_ + static_cast<int64_t>(old + i)));
    }
    return OkStatus();
  });
}

Status ReferenceRows::Score(std::span<const TokenId> window, const PrecisionRule& rule,
                            int64_t first_pos, std::span<const float> logits,
                            std::vector<PositionScore>* scores) {
  const size_t count = logits.size() / vocab_size_, old = scores->size();
  const int64_t skipped = first_pos - first_pos_;
  TQ_CHECK(skipped >= 0 && static_cast<size_t>(skipped) + count <= num_rows_);
  scores->resize(old + count);
  return ForEach(count, [&](size_t i, int worker) -> Status {
    PositionScore& score = (*scores)[old + i];
    score.position = first_pos + static_cast<int64_t>(i);
    score.quantized_behind = QuantizedBehind(rule, score.position);
    const size_t next = static_cast<size_t>(score.position) + 1;
    const Status status = rows_[static_cast<size_t>(skipped) + i]->reference.Compare(
        logits.subspan(i * vocab_size_, vocab_size_), next < window.size() ? window[next] : -1,
        &work_[static_cast<size_t>(worker)], &score);
    if (!status.ok()) return status.WithContext(StrCat("position ", score.position));
    return OkStatus();
  });
}

int64_t QuantizedBehind(const PrecisionRule& rule, int64_t position) {
  const int64_t block = position / kPageLen;
  return std::max<int64_t>(0, block - rule.recent_blocks - rule.sink_blocks) * kPageLen;
}

}  // namespace tq
