#include "runtime/evaluate/far_attention.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "runtime/engine/session.h"
#include "turboquant/attention/attention.h"
#include "turboquant/base/numeric.h"

namespace tq {
namespace {

constexpr std::array<int64_t, 3> kDistances = {1024, 4096, 16384};
constexpr int64_t kQueries = 32;  // sampled over the text

// Sums the mass of sampled queries; the cache holds every row as f16.
class Probe {
 public:
  Probe(int num_q_heads, int64_t stride) : num_q_heads_(num_q_heads), stride_(stride) {}

  // Layers with a sliding window look at nothing far, whatever the text: they are left out.
  void Look(int layer, const KvCache& cache, const AttentionParams& params,
            std::span<const AttentionItem> items) {
    if (cache.config().window(layer) > 0) return;
    for (const AttentionItem& item : items) {
      for (int t = 0; t < item.num_tokens; ++t) {
        const int64_t position = item.first_pos + t;
        if ((position + 1) % stride_ != 0 || position < kDistances[0]) continue;
        for (int head = 0; head < cache.config().num_kv_heads; ++head) {
          LookFrom(cache, layer, head, params, item, t);
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
  // The query heads that share one KV head.
  void LookFrom(const KvCache& cache, int layer, int head, const AttentionParams& params,
                const AttentionItem& item, int token) {
    const int dim = cache.config().head_dim;
    const int group = num_q_heads_ / cache.config().num_kv_heads;
    const int64_t tokens = item.first_pos + token + 1;
    const KvCache::HeadLayout& l = cache.layout(layer, head);
    keys_.resize(static_cast<size_t>(dim) * kPageLen);
    scores_.assign(static_cast<size_t>(group), std::vector<float>(static_cast<size_t>(tokens)));
    const float scale = params.scale > 0 ? params.scale : 1.f / std::sqrt(static_cast<float>(dim));
    for (int64_t first = 0; first < tokens; first += kPageLen) {
      const auto* rows = reinterpret_cast<const f16_t*>(cache.OpenSlot(item.seq, first / kPageLen) +
                                                        l.open_offset + l.open.k_values);
      const int count = static_cast<int>(std::min<int64_t>(kPageLen, tokens - first));
      for (int c = 0; c < dim; ++c) {
        for (int r = 0; r < count; ++r) {
          keys_[static_cast<size_t>(c) * kPageLen + r] = F32FromF16(rows[F16Index(r, c, kPageLen)]);
        }
      }
      for (int g = 0; g < group; ++g) {
        const float* q =
            item.q + (static_cast<size_t>(token) * num_q_heads_ + head * group + g) * dim;
        float* out = scores_[static_cast<size_t>(g)].data() + first;
        std::fill_n(out, count, 0.f);
        for (int c = 0; c < dim; ++c) {
          const float* key = keys_.data() + static_cast<size_t>(c) * kPageLen;
          for (int r = 0; r < count; ++r) out[r] += q[c] * scale * key[r];
        }
      }
    }
    for (int g = 0; g < group; ++g) {
      std::vector<float>& scores = scores_[static_cast<size_t>(g)];
      for (float& s : scores) {
        if (params.softcap > 0) s = params.softcap * std::tanh(s / params.softcap);
      }
      AddMass(scores, params.sinks == nullptr ? nullptr : params.sinks + head * group + g);
    }
  }

  void AddMass(const std::vector<float>& scores, const float* sink) {
    float top = *std::max_element(scores.begin(), scores.end());
    if (sink != nullptr) top = std::max(top, *sink);
    const auto tokens = static_cast<int64_t>(scores.size());
    double sum = sink == nullptr ? 0 : std::exp(static_cast<double>(*sink - top));
    std::array<double, kDistances.size()> far = {};
    for (int64_t j = 0; j < tokens; ++j) {
      const double p = std::exp(static_cast<double>(scores[static_cast<size_t>(j)] - top));
      sum += p;
      for (size_t d = 0; d < kDistances.size(); ++d) {
        if (tokens - 1 - j >= kDistances[d]) far[d] += p;
      }
    }
    for (size_t d = 0; d < kDistances.size(); ++d) {
      if (tokens - 1 < kDistances[d]) continue;
      sums_[d] += far[d] / sum;
      ++heads_[d];
    }
  }

  int num_q_heads_;
  int64_t stride_;
  std::vector<float> keys_;  // [head_dim][64]
  std::vector<std::vector<float>> scores_;
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
  Probe probe(model.arch().num_q_heads, std::max<int64_t>(1, count / kQueries));
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
