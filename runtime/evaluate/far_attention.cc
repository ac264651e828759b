#include "runtime/evaluate/far_attention.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "runtime/engine/session.h"
#include "runtime/evaluate/attention_weights.h"

namespace tq {
namespace {

constexpr std::array<int64_t, 3> kDistances = {1024, 4096, 16384};
constexpr int64_t kQueries = 32;  // sampled over the text

// Sums the mass of sampled queries; the cache holds every row as f16.
class Probe {
 public:
  explicit Probe(int64_t stride) : stride_(stride) {}

  // Layers with a sliding window look at nothing far, whatever the text: they are left out.
  void Look(int layer, const KvCache& cache, const AttentionParams& params,
            std::span<const AttentionItem> items) {
    if (cache.config().window(layer) > 0) return;
    for (const AttentionItem& item : items) {
      for (int t = 0; t < item.num_tokens; ++t) {
        const int64_t position = item.first_pos + t;
        if ((position + 1) % stride_ != 0 || position < kDistances[0]) continue;
        for (int head = 0; head < cache.config().num_kv_heads; ++head) {
          for (const auto& weights : weights_.Of(cache, layer, head, params, item, t)) {
            AddMass(weights);
          }
        }
      }
    }
  }

  FarAttention Result() const {
    FarAttention far;
    for (size_t d = 0; d < kDistances.size(); ++d) {
      FarAttention::Mass mass{kDistances[d], {}, 0};
      if (heads_[d] > 0) mass.mean = sums_[d] / static_cast<double>(heads_[d]);
      mass.queries = heads_[d];
      far.masses.push_back(mass);
    }
    return far;
  }

 private:
  void AddMass(const std::vector<float>& weights) {
    const auto tokens = static_cast<int64_t>(weights.size());
    for (size_t d = 0; d < kDistances.size(); ++d) {
      if (tokens - 1 < kDistances[d]) continue;
      sums_[d] += std::accumulate(weights.begin(), weights.end() - kDistances[d], 0.0);
      ++heads_[d];
    }
  }

  int64_t stride_;
  AttentionWeights weights_;
  std::array<double, kDistances.size()> sums_ = {};
  std::array<int64_t, kDistances.size()> heads_ = {};  // query heads that were summed
};

}  // namespace

Result<FarAttention> MeasureFarAttention(Model& model, std::span<const TokenId> tokens,
                                         const ProgressSink& progress,
                                         const std::atomic<bool>* cancel) {
  const auto count = static_cast<int64_t>(tokens.size());
  if (count == 0) return InvalidArgument("far attention: there are no tokens to read");
  CacheConfig config = model.MakeCacheConfig();
  // Every row stays open, as f16.
  config.recent_len = static_cast<int>(std::min<int64_t>(count + kPageLen, 1 << 24));
  config.recent = RecentType::kF16;
  TQ_ASSIGN_OR_RETURN(const std::unique_ptr<Session> session,
                      Session::Create(model, std::move(config), count));
  Probe probe(std::max<int64_t>(1, count / kQueries));
  model.set_attention_probe(
      [&](int layer, const KvCache& cache, const AttentionParams& params,
          std::span<const AttentionItem> items) { probe.Look(layer, cache, params, items); });
  const Status status = session->Prefill(tokens, {}, progress, cancel);
  model.set_attention_probe({});
  TQ_RETURN_IF_ERROR(status);
  FarAttention far = probe.Result();
  far.tokens = count;
  return far;
}

}  // namespace tq
