#include "runtime/evaluate/compare.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <span>
#include <utility>

#include "runtime/evaluate/divergence.h"
#include "runtime/evaluate/footprint.h"
#include "runtime/evaluate/tasks/statistics.h"
#include "turboquant/attention/attention.h"
#include "turboquant/base/numeric.h"

namespace tq {
namespace {

bool Cancelled(const std::atomic<bool>* cancel) {
  return cancel != nullptr && cancel->load();
}

// One cache on its way through the document.
struct Lane {
  const CompareFormat* format = nullptr;
  std::unique_ptr<Session> session;
  std::vector<PositionScore> scores;
  std::vector<DepthTime> by_depth;
};

class Comparison {
 public:
  Comparison(Model& model, const Tokenizer& tokenizer, const Document& document,
             const CompareOptions& options)
      : model_(model),
        tokenizer_(tokenizer),
        document_(document),
        options_(options),
        plain_rows_(static_cast<size_t>(model.arch().vocab_size), nullptr) {}

  Status Run(CompareResult* result) {
    TQ_RETURN_IF_ERROR(MakeLanes());
    TQ_RETURN_IF_ERROR(ReadDocument());
    std::vector<CompareRow> measured;
    for (Lane& lane : lanes_) {
      TQ_ASSIGN_OR_RETURN(CompareRow row, Finish(lane));
      measured.push_back(std::move(row));
      lane.session.reset();
    }
    const auto find = [&](const std::string& name) {
      return *std::find_if(measured.begin(), measured.end(),
                           [&](const CompareRow& row) { return row.name == name; });
    };
    result->plain = find(options_.plain.name);
    result->floor_name = options_.floor.name;
    result->floor = find(options_.floor.name).all;
    for (const CompareFormat& f : options_.formats) result->rows.push_back(find(f.name));
    MarkParetoFront(&result->rows);
    return OkStatus();
  }

 private:
  // The plain cache first, every other format once.
  Status MakeLanes() {
    std::vector<const CompareFormat*> formats = {&options_.plain, &options_.floor};
    for (const CompareFormat& f : options_.formats) formats.push_back(&f);
    for (const CompareFormat* f : formats) {
      const bool known = std::any_of(lanes_.begin(), lanes_.end(), [&](const Lane& lane) {
        return lane.format->name == f->name;
      });
      if (known) continue;
      Lane lane;
      lane.format = f;
      Result<std::unique_ptr<Session>> session =
          Session::Create(model_, f->config, options_.context);
      if (!session.ok()) return session.status().WithContext(f->name);
      lane.session = std::move(*session);
      lane.scores.reserve(document_.tokens.size());
      lanes_.push_back(std::move(lane));
    }
    const size_t answers = lanes_.size() * static_cast<size_t>(options_.answer_tokens);
    total_ = lanes_.size() * document_.tokens.size() + answers;
    return OkStatus();
  }

  Status ReadDocument() {
    const int64_t n = static_cast<int64_t>(document_.tokens.size());
    const int64_t steps = CompareOptions::kWarmupTokens + CompareOptions::kTimedTokens;
    int64_t pos = 0;
    for (int point = 1; point <= options_.depth_points; ++point) {
      const int64_t depth = n * point / (options_.depth_points + 1);
      if (depth < pos || depth + steps > n) continue;
      TQ_RETURN_IF_ERROR(PrefillTo(&pos, depth));
      TQ_RETURN_IF_ERROR(StepTo(&pos, depth + steps));
    }
    return PrefillTo(&pos, n);
  }

  // Chunk by chunk: the plain cache's logits are kept for one chunk, all others are compared.
  Status PrefillTo(int64_t* pos, int64_t end) {
    while (*pos < end) {
      const int64_t rows = std::min<int64_t>(Session::kPrefillChunk, end - *pos);
      const std::span<const TokenId> chunk(document_.tokens.data() + *pos, rows);
      plain_rows_.Start(*pos);
      for (size_t i = 0; i < lanes_.size(); ++i) {
        const auto sink = [&](int64_t first_pos, std::span<const float> logits) {
          return i > 0 ? Score(&lanes_[i], first_pos, logits) : plain_rows_.Add(logits);
        };
        TQ_RETURN_IF_ERROR(lanes_[i].session->Prefill(chunk, sink, {}, options_.cancel));
        TQ_RETURN_IF_ERROR(Progress(rows, "reading"));
      }
      *pos += rows;
    }
    return OkStatus();
  }

  // Token by token, timed: the same results as PrefillTo, since they do not depend on chunking.
  Status StepTo(int64_t* pos, int64_t end) {
    const int64_t first = *pos;
    plain_rows_.Start(first);
    for (size_t i = 0; i < lanes_.size(); ++i) {
      Lane& lane = lanes_[i];
      std::vector<double> milliseconds;
      for (int64_t p = first; p < end; ++p) {
        const auto start = std::chrono::steady_clock::now();
        TQ_RETURN_IF_ERROR(lane.session->Decode(document_.tokens[static_cast<size_t>(p)]));
        const std::chrono::duration<double, std::milli> took =
            std::chrono::steady_clock::now() - start;
        if (p - first >= CompareOptions::kWarmupTokens) milliseconds.push_back(took.count());
        const std::span<const float> logits = lane.session->last_logits();
        TQ_RETURN_IF_ERROR(i > 0 ? Score(&lane, p, logits) : plain_rows_.Add(logits));
        TQ_RETURN_IF_ERROR(Progress(1, "timing"));
      }
      lane.by_depth.push_back({first, Median(std::move(milliseconds))});
    }
    *pos = end;
    return OkStatus();
  }

  // Compares rows that begin at position `first_pos` with the plain cache's.
  Status Score(Lane* lane, int64_t first_pos, std::span<const float> logits) {
    const Status status = plain_rows_.Score(document_.tokens, lane->session->cache().rule(),
                                            first_pos, logits, &lane->scores);
    return status.ok() ? status : status.WithContext(lane->format->name);
  }

  // Sizes at the end of the document, then the answer with its timing.
  Result<CompareRow> Finish(Lane& lane) {
    CompareRow row;
    row.name = lane.format->name;
    row.is_plain = &lane == lanes_.data();
    row.config = lane.format->config;
    row.kernel = KernelNames(row.config);
    const KvCache& cache = lane.session->cache();
    row.bytes = cache.Bytes();
    row.f16_bytes = cache.F16Bytes();
    row.ratio = static_cast<double>(row.f16_bytes) / static_cast<double>(row.bytes.total());
    row.bits_per_value = cache.BitsPerValue();
    row.ratio_sealed = row.bits_per_value > 0 ? 16 / row.bits_per_value : 0;
    row.ratio_at_131072 = FootprintRatio(row.config, 131072);
    row.scales_share = ScalesShare(row.config);

    GenerateOptions generate;
    generate.max_tokens = options_.answer_tokens;
    generate.ignore_stop_tokens = true;  // every cache is timed over the same number of steps
    generate.cancel = options_.cancel;
    TQ_ASSIGN_OR_RETURN(GenerateResult generated, lane.session->Generate(tokenizer_, generate));
    TQ_RETURN_IF_ERROR(Progress(options_.answer_tokens, "answering"));
    std::vector<double> milliseconds;
    for (size_t i = CompareOptions::kWarmupTokens; i < generated.token_seconds.size(); ++i) {
      milliseconds.push_back(1e3 * generated.token_seconds[i]);
    }
    row.decode_ms = Median(std::move(milliseconds));
    row.by_depth = std::move(lane.by_depth);
    row.by_depth.push_back({static_cast<int64_t>(document_.tokens.size()), row.decode_ms});
    std::vector<TokenId> answer = generated.tokens;
    const auto stop = std::find_if(answer.begin(), answer.end(),
                                   [&](TokenId id) { return tokenizer_.IsStop(id); });
    answer.erase(stop, answer.end());
    row.answer = tokenizer_.Decode(answer);
    row.answer_is_right =
        !document_.expected.empty() && row.answer.find(document_.expected) != std::string::npos;
    if (row.is_plain) {
      // The plain cache differs from itself in nothing; only its perplexity needs computing.
      row.all = Summarize(lanes_[1].scores);
      row.behind = SummarizeBehind(lanes_[1].scores, CompareResult::kBehind);
      for (DivergenceSummary* s : {&row.all, &row.behind}) {
        DivergenceSummary same;
        same.positions = s->positions;
        same.targets = s->targets;
        same.same_top = same.one_minus_tvd = s->positions > 0 ? 1 : 0;
        same.ppl_ref = same.ppl_q = s->ppl_ref;
        same.ppl_ratio = s->targets > 0 ? 1 : 0;
        *s = same;
      }
      return row;
    }
    row.all = Summarize(lane.scores);
    row.behind = SummarizeBehind(lane.scores, CompareResult::kBehind);
    row.by_position = ByPosition(lane.scores);
    return row;
  }

  Status Progress(int64_t tokens, const std::string& what) {
    done_ += static_cast<size_t>(tokens);
    if (Cancelled(options_.cancel) || !ReportProgress(options_.progress, done_, total_, what)) {
      return tq::Cancelled("the comparison was stopped");
    }
    return OkStatus();
  }

  Model& model_;
  const Tokenizer& tokenizer_;
  const Document& document_;
  const CompareOptions& options_;
  std::vector<Lane> lanes_;   // [0] is the plain cache
  ReferenceRows plain_rows_;  // of the chunk
  size_t done_ = 0, total_ = 0;
};

}  // namespace

bool AnswersAreInformative(const CompareResult& result) {
  return result.document.expected.empty() || result.plain.answer_is_right;
}

std::string KernelNames(const CacheConfig& config) {
  std::vector<std::string> names;
  for (const HeadFormat& f : config.formats) {
    const std::string name = DescribeKernel(f);
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  std::string out;
  for (const std::string& name : names) out += (out.empty() ? "" : "; ") + name;
  return out;
}

void MarkParetoFront(std::vector<CompareRow>* rows) {
  for (CompareRow& row : *rows) {
    row.on_pareto_front = std::none_of(rows->begin(), rows->end(), [&](const CompareRow& other) {
      const bool no_worse =
          other.bits_per_value <= row.bits_per_value && other.all.mean <= row.all.mean;
      const bool better =
          other.bits_per_value < row.bits_per_value || other.all.mean < row.all.mean;
      return no_worse && better;
    });
  }
}

Result<CompareResult> Compare(Model& model, const Tokenizer& tokenizer, Document document,
                              const CompareOptions& options) {
  const int64_t tokens = static_cast<int64_t>(document.tokens.size());
  if (tokens < 2 || tokens + options.answer_tokens > options.context) {
    return InvalidArgument("a document of ", tokens, " tokens and an answer of ",
                           options.answer_tokens, " do not fit a context of ", options.context);
  }
  if (options.answer_tokens <= CompareOptions::kWarmupTokens) {
    return InvalidArgument("answer_tokens = ", options.answer_tokens, ": at least ",
                           CompareOptions::kWarmupTokens + 1, " are needed");
  }
  if (options.plain.name == options.floor.name || options.formats.empty()) {
    return InvalidArgument(
        "a comparison needs a plain format, another one as the floor, and at "
        "least one row");
  }
  CompareResult result;
  result.model_name = model.arch().model_name;
  result.tokens = tokens;
  result.document = std::move(document);
  Comparison comparison(model, tokenizer, result.document, options);
  TQ_RETURN_IF_ERROR(comparison.Run(&result));
  return result;
}

}  // namespace tq
