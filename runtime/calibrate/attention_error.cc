#include "runtime/calibrate/attention_error.h"

#include <algorithm>
#include <cmath>

#include "runtime/calibrate/plain.h"
#include "runtime/engine/session.h"
#include "runtime/evaluate/attention_weights.h"
#include "runtime/evaluate/divergence.h"
#include "runtime/model/scoped_probe.h"
#include "turboquant/linear/file_block.h"

namespace tq {
namespace {

// Sums of one configuration.
struct Lane {
  std::unique_ptr<KvCache> cache;
  SeqId seq = 0;
  std::vector<AttentionError> sums;             // [layers * KV heads]
  std::vector<int64_t> queries, score_queries;  // of each
};

class Comparison {
 public:
  Comparison(Model& model, const OutputMetric& metric, const AttentionErrorOptions& options)
      : model_(model), metric_(metric), options_(options) {}

  Status RunWindow(std::span<const TokenId> window, std::vector<Lane>& lanes) {
    const auto context = static_cast<int64_t>(window.size());
    TQ_ASSIGN_OR_RETURN(const auto session,
                        Session::Create(model_, PlainConfig(model_, context), context));
    for (Lane& lane : lanes) lane.seq = lane.cache->NewSequence();
    status_ = OkStatus();
    const ScopedOutputProbe probe(
        model_, [&](int layer, const KvCache& cache, const AttentionParams& params,
                    std::span<const AttentionItem> items) {
          if (status_.ok()) status_ = Look(layer, cache, params, items.front(), lanes);
        });
    for (size_t from = 0; from < window.size(); from += Session::kPrefillChunk) {
      const size_t n = std::min<size_t>(Session::kPrefillChunk, window.size() - from);
      for (Lane& lane : lanes) {
        TQ_RETURN_IF_ERROR(lane.cache->BeginAppend(lane.seq, static_cast<int>(n)));
      }
      TQ_RETURN_IF_ERROR(session->Prefill(window.subspan(from, n), {}, {}, options_.cancel));
      TQ_RETURN_IF_ERROR(status_);
      for (Lane& lane : lanes) TQ_RETURN_IF_ERROR(lane.cache->CommitAppend(lane.seq));
      TQ_RETURN_IF_ERROR(on_chunk_(n));
    }
    for (Lane& lane : lanes) TQ_RETURN_IF_ERROR(lane.cache->Free(lane.seq));
    return OkStatus();
  }
  void set_on_chunk(std::function<Status(size_t)> fn) { on_chunk_ = std::move(fn); }

 private:
  Status Look(int layer, const KvCache& plain, const AttentionParams& params,
              const AttentionItem& item, std::vector<Lane>& lanes) {
    const int heads = plain.config().num_kv_heads, dim = plain.config().head_dim;
    if (plain.config().window(layer) > 0) {
      // Such layers are not compared; their rows only have to be there.
      const size_t n = static_cast<size_t>(item.num_tokens) * heads * dim;
      k_.assign(n, 0.f);
      v_.assign(n, 0.f);
    } else {
      ReadPlainRows(plain, item.seq, layer, Side::kK, item.first_pos, item.num_tokens, &k_);
      ReadPlainRows(plain, item.seq, layer, Side::kV, item.first_pos, item.num_tokens, &v_);
    }
    for (Lane& lane : lanes) {
      TQ_RETURN_IF_ERROR(
          lane.cache->AppendLayer(lane.seq, layer, k_.data(), v_.data(), *options_.pool));
    }
    const int sampled =
        static_cast<int>(std::min<int64_t>(options_.queries_of_chunk, item.num_tokens));
    const int first = item.num_tokens - sampled;
    if (plain.config().window(layer) > 0 ||
        QuantizedBehind(lanes.front().cache->rule(), item.first_pos + first) == 0) {
      return OkStatus();
    }
    const size_t row = static_cast<size_t>(params.num_q_heads) * dim;
    AttentionItem some = item;
    some.first_pos += first;
    some.num_tokens = sampled;
    some.q += static_cast<size_t>(first) * row;
    out_.resize(static_cast<size_t>(sampled) * row);
    some.out = out_.data();
    if (options_.scores) LookAtScores(layer, plain, params, item, lanes);
    for (Lane& lane : lanes) {
      some.seq = lane.seq;
      TQ_RETURN_IF_ERROR(Attend(*lane.cache, layer, params, {&some, 1}, *options_.pool));
      const float* expected = item.out + static_cast<size_t>(first) * row;
      options_.pool->ParallelFor(static_cast<size_t>(heads), [&](size_t head, int) {
        const size_t at = static_cast<size_t>(layer) * heads + head;
        AddErrors(layer, static_cast<int>(head), params, sampled, expected, out_.data(), dim, heads,
                  &lane.sums[at]);
        lane.queries[at] += int64_t{sampled} * params.num_q_heads / heads;
      });
    }
    return OkStatus();
  }

  void AddErrors(int layer, int head, const AttentionParams& params, int queries,
                 const float* expected, const float* found, int dim, int heads,
                 AttentionError* sum) const {
    const int group = params.num_q_heads / heads;
    std::vector<float> e(static_cast<size_t>(dim));
    for (int t = 0; t < queries; ++t) {
      for (int g = 0; g < group; ++g) {
        const int q_head = head * group + g;
        const size_t from = (static_cast<size_t>(t) * params.num_q_heads + q_head) * dim;
        double dot = 0, aa = 0, bb = 0;
        for (int i = 0; i < dim; ++i) {
          const float a = expected[from + i], b = found[from + i];
          e[i] = b - a;
          dot += double{a} * b;
          aa += double{a} * a;
          bb += double{b} * b;
        }
        sum->error += metric_.Norm2(layer, q_head, e.data());
        sum->energy += metric_.Norm2(layer, q_head, expected + from);
        sum->cosine += aa > 0 && bb > 0 ? dot / std::sqrt(aa * bb) : aa == bb;
      }
    }
  }

  void LookAtScores(int layer, const KvCache& plain, const AttentionParams& params,
                    const AttentionItem& item, std::vector<Lane>& lanes) {
    const int heads = plain.config().num_kv_heads, last = item.num_tokens - 1;
    for (int head = 0; head < heads; ++head) {
      const auto expected = weights_.Of(plain, layer, head, params, item, last);
      for (Lane& lane : lanes) {
        AttentionItem there = item;
        there.seq = lane.seq;
        const auto& found = weights_.Of(*lane.cache, layer, head, params, there, last);
        const size_t at = static_cast<size_t>(layer) * heads + head;
        for (size_t g = 0; g < found.size(); ++g) {
          double variation = 0;
          for (size_t t = 0; t < found[g].size(); ++t) {
            variation += std::abs(double{found[g][t]} - expected[g][t]) / 2;
          }
          lane.sums[at].score_agreement += 1 - variation;
          ++lane.score_queries[at];
        }
      }
    }
  }

  Model& model_;
  const OutputMetric& metric_;
  const AttentionErrorOptions& options_;
  std::function<Status(size_t)> on_chunk_;
  AttentionWeights weights_;
  std::vector<float> k_, v_, out_;
  Status status_;
};

}  // namespace

Result<OutputMetric> OutputMetric::FromModel(const Model& model) {
  const Architecture& a = model.arch();
  OutputMetric m;
  m.num_q_heads_ = a.num_q_heads;
  m.dim_ = static_cast<size_t>(a.head_dim);
  const size_t matrix = m.dim_ * m.dim_, row_len = m.dim_ * static_cast<size_t>(a.num_q_heads);
  m.metrics_.assign(matrix * static_cast<size_t>(a.num_q_heads) * a.num_layers, 0.f);
  std::vector<float> row(row_len);
  for (int layer = 0; layer < a.num_layers; ++layer) {
    const std::string name = StrCat("blk.", layer, ".attn_output.weight");
    const GgufTensor* tensor = model.file().FindTensor(name);
    if (tensor == nullptr) return NotFound("the model has no tensor '", name, "'");
    TQ_ASSIGN_OR_RETURN(const WeightType type, WeightTypeOf(GgmlTypeName(tensor->type)));
    const TensorData data = model.file().Data(*tensor);
    const size_t row_bytes = row_len / WeightBlockLen(type) * WeightBlockBytes(type);
    for (int64_t r = 0; r < a.hidden_dim; ++r) {
      DequantizeFileRow(type, data.bytes().data() + static_cast<size_t>(r) * row_bytes, row);
      for (int h = 0; h < a.num_q_heads; ++h) {
        const float* w = &row[static_cast<size_t>(h) * m.dim_];
        float* out = &m.metrics_[(static_cast<size_t>(layer) * a.num_q_heads + h) * matrix];
        for (size_t i = 0; i < m.dim_; ++i) {
          for (size_t j = 0; j < m.dim_; ++j) out[i * m.dim_ + j] += w[i] * w[j];
        }
      }
    }
  }
  return m;
}

double OutputMetric::Norm2(int layer, int q_head, const float* e) const {
  const float* m = &metrics_[(static_cast<size_t>(layer) * num_q_heads_ + q_head) * dim_ * dim_];
  double sum = 0;
  // M is symmetric: columns are summed side by side, which the compiler does on vectors if it knows
  // how many there are.
  constexpr size_t kTile = 16;
  const auto add = [&](size_t from, size_t n) {
    float columns[kTile] = {};
    for (size_t i = 0; i < dim_; ++i) {
      for (size_t j = 0; j < n; ++j) columns[j] += m[i * dim_ + from + j] * e[i];
    }
    for (size_t j = 0; j < n; ++j) sum += double{columns[j]} * e[from + j];
  };
  size_t from = 0;
  for (; from + kTile <= dim_; from += kTile) add(from, kTile);
  if (from < dim_) add(from, dim_ - from);
  return sum;
}

Result<std::vector<std::vector<AttentionError>>> MeasureAttentionErrors(
    Model& model, const OutputMetric& metric, std::span<const CacheConfig> configs,
    std::span<const std::vector<TokenId>> windows, const AttentionErrorOptions& options) {
  size_t longest = 0, tokens = 0;
  for (const std::vector<TokenId>& w : windows) {
    longest = std::max(longest, w.size());
    tokens += w.size();
  }
  const auto heads = static_cast<size_t>(model.arch().num_layers) * model.arch().num_kv_heads;
  const auto at_once = static_cast<size_t>(
      CachesAtOnce(model.MakeCacheConfig(), static_cast<int64_t>(longest), options.max_bytes, 64));
  const size_t groups = DivCeil(configs.size(), at_once);
  Comparison comparison(model, metric, options);
  size_t done = 0;
  comparison.set_on_chunk([&](size_t n) -> Status {
    done += n;
    if (ReportProgress(options.progress, done, tokens * groups, "measuring formats")) {
      return OkStatus();
    }
    return Cancelled("measuring formats was stopped");
  });
  std::vector<std::vector<AttentionError>> results;
  for (size_t first = 0; first < configs.size(); first += at_once) {
    std::vector<Lane> lanes;
    for (size_t c = first; c < std::min(first + at_once, configs.size()); ++c) {
      Lane& lane = lanes.emplace_back();
      TQ_ASSIGN_OR_RETURN(lane.cache, KvCache::Create(configs[c]));
      lane.sums.resize(heads);
      lane.queries.resize(heads);
      lane.score_queries.resize(heads);
    }
    for (const std::vector<TokenId>& w : windows) {
      TQ_RETURN_IF_ERROR(comparison.RunWindow(w, lanes));
    }
    for (Lane& lane : lanes) {
      if (*std::max_element(lane.queries.begin(), lane.queries.end()) == 0) {
        return InvalidArgument("the longest of ", windows.size(), " windows has ", longest,
                               " tokens: none reads anything behind the recent window of ",
                               lane.cache->config().recent_len, " tokens; use longer texts");
      }
      for (size_t h = 0; h < heads; ++h) {
        lane.sums[h].cosine /= std::max<double>(1, static_cast<double>(lane.queries[h]));
        lane.sums[h].score_agreement /=
            std::max<double>(1, static_cast<double>(lane.score_queries[h]));
      }
      results.push_back(std::move(lane.sums));
    }
  }
  return results;
}

}  // namespace tq
