#include "runtime/calibrate/observe.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "runtime/calibrate/plain.h"
#include "runtime/engine/session.h"
#include "runtime/evaluate/attention_weights.h"
#include "runtime/model/scoped_probe.h"

namespace tq {
namespace {

constexpr int64_t kLookEvery = 512;  // one query in so many is asked where it looks

class Observer {
 public:
  explicit Observer(const Architecture& arch)
      : keys_(arch.rope, arch.head_dim, arch.num_layers, arch.num_kv_heads),
        values_({}, arch.head_dim, arch.num_layers, arch.num_kv_heads),
        queries_(arch.rope, arch.head_dim, arch.num_layers, arch.num_q_heads),
        sums_(static_cast<size_t>(arch.num_layers)),
        counts_(sums_.size()) {}

  void Look(int layer, const KvCache& cache, const AttentionParams& params,
            const AttentionItem& item) {
    ReadPlainRows(cache, item.seq, layer, Side::kK, item.first_pos, item.num_tokens, &rows_);
    keys_.Add(layer, item.first_pos, item.num_tokens, rows_.data());
    ReadPlainRows(cache, item.seq, layer, Side::kV, item.first_pos, item.num_tokens, &rows_);
    values_.Add(layer, item.first_pos, item.num_tokens, rows_.data());
    queries_.Add(layer, item.first_pos, item.num_tokens, item.q);
    for (int t = 0; t < item.num_tokens; ++t) {
      if ((item.first_pos + t + 1) % kLookEvery != 0) continue;
      for (int head = 0; head < cache.config().num_kv_heads; ++head) {
        for (const auto& weights : weights_.Of(cache, layer, head, params, item, t)) {
          AddWeights(layer, weights);
        }
      }
    }
  }

  ModelStatistics Result(const Architecture& arch) const {
    ModelStatistics s;
    const int group = arch.num_q_heads / arch.num_kv_heads;
    for (int layer = 0; layer < arch.num_layers; ++layer) {
      for (int head = 0; head < arch.num_kv_heads; ++head) {
        HeadStatistics& h = s.heads.emplace_back();
        if (arch.window(layer) > 0) continue;
        const auto at = static_cast<size_t>(layer) * arch.num_kv_heads + head;
        h.k_mean = keys_.Mean(at);
        double square = 0;
        for (int g = 0; g < group; ++g) {
          const size_t q = at * group + g;
          h.queries.means.push_back(queries_.Mean(q));
          square += queries_.Rms(q) * queries_.Rms(q) / group;
        }
        h.queries.rms = static_cast<float>(std::sqrt(square));
        h.k_rms = keys_.Rms(at);
        h.v_rms = values_.Rms(at);
        h.k_outlier = keys_.LargestChannel(at);
        h.v_outlier = values_.LargestChannel(at);
      }
      LayerAttention a = sums_[static_cast<size_t>(layer)];
      const Counts& c = counts_[static_cast<size_t>(layer)];
      a.sinks /= std::max<double>(1, static_cast<double>(c.sinks));
      for (size_t d = 0; d < a.beyond.size(); ++d) {
        a.beyond[d] /= std::max<double>(1, static_cast<double>(c.beyond[d]));
      }
      s.attention.push_back(a);
    }
    return s;
  }

 private:
  struct Counts {
    int64_t sinks = 0;
    std::array<int64_t, LayerAttention::kDistances.size()> beyond{};
  };

  void AddWeights(int layer, const std::vector<float>& weights) {
    LayerAttention& sum = sums_[static_cast<size_t>(layer)];
    Counts& count = counts_[static_cast<size_t>(layer)];
    const auto tokens = static_cast<int64_t>(weights.size());
    if (tokens > kPageLen) {
      sum.sinks += std::accumulate(weights.begin(), weights.begin() + kPageLen, 0.0);
      ++count.sinks;
    }
    for (size_t d = 0; d < LayerAttention::kDistances.size(); ++d) {
      const int64_t distance = LayerAttention::kDistances[d];
      if (tokens <= distance) continue;
      sum.beyond[d] += std::accumulate(weights.begin(), weights.end() - distance, 0.0);
      ++count.beyond[d];
    }
  }

  VectorStatistics keys_, values_, queries_;
  AttentionWeights weights_;
  std::vector<float> rows_;
  std::vector<LayerAttention> sums_;  // [layers]
  std::vector<Counts> counts_;
};

}  // namespace

Result<ModelStatistics> MeasureStatistics(Model& model,
                                          std::span<const std::vector<TokenId>> windows,
                                          const ProgressSink& progress,
                                          const std::atomic<bool>* cancel) {
  const Architecture& arch = model.arch();
  Observer observer(arch);
  size_t done = 0, total = 0;
  for (const std::vector<TokenId>& w : windows) total += w.size();
  for (const std::vector<TokenId>& w : windows) {
    const auto context = static_cast<int64_t>(w.size());
    TQ_ASSIGN_OR_RETURN(const auto session,
                        Session::Create(model, PlainConfig(model, context), context));
    const ScopedOutputProbe probe(
        model, [&](int layer, const KvCache& cache, const AttentionParams& params,
                   std::span<const AttentionItem> items) {
          if (arch.window(layer) == 0) observer.Look(layer, cache, params, items.front());
        });
    const auto within = [&](size_t part, size_t, const std::string& what) {
      return ReportProgress(progress, done + part, total, what);
    };
    TQ_RETURN_IF_ERROR(session->Prefill(w, {}, within, cancel));
    done += w.size();
  }
  ModelStatistics s = observer.Result(arch);
  s.tokens = static_cast<int64_t>(total);
  return s;
}

}  // namespace tq
