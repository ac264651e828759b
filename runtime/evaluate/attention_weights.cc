#include "runtime/evaluate/attention_weights.h"

#include <algorithm>
#include <cmath>

#include "turboquant/codec/anchor.h"
#include "turboquant/codec/decode.h"

namespace tq {
namespace {

// Keys of one block in the head's basis, as a query in `query_block` reads them.
void DecodeKeys(const KvCache& cache, SeqId seq, const KvCache::HeadLayout& l, int64_t block,
                int64_t query_block, float* out) {
  const int dim = cache.config().head_dim;
  if (cache.rule().ReadsOpen(block, query_block)) {
    const std::byte* s = cache.OpenSlot(seq, block) + l.open_offset;
    DecodeOpenSide({Side::kK, dim, l.open.k_type, s + l.open.k_values,
                    reinterpret_cast<const float*>(s + l.open.k_scales)},
                   out);
    return;
  }
  const std::byte* s = cache.SealedSlot(seq, block);
  const auto* record = reinterpret_cast<const uint8_t*>(s + l.record_offset);
  const auto* info = reinterpret_cast<const RecordSideInfo*>(s + l.side_offset);
  DecodeSealedSide(l.format.k, &l.k_book, Side::kK, dim, record + l.record.k_codes,
                   record + l.record.k_scales, info->k_base, out);
  const auto* anchors = reinterpret_cast<const AnchorInfo*>(info + 1);
  float residual[kMaxHeadDim];
  for (int a = 0; a < l.format.anchors; ++a) {
    const size_t bytes = AnchorBytes(l.format, dim) / static_cast<size_t>(l.format.anchors);
    DecodeAnchorRow(l.format.anchor_bits, record + l.record.k_anchors + a * bytes,
                    anchors[a].k_scale, PaddedDim(dim), residual);
    float* row = out + static_cast<size_t>(anchors[a].token) * dim;
    for (int c = 0; c < dim; ++c) row[c] += residual[c];
  }
}

}  // namespace

const std::vector<std::vector<float>>& AttentionWeights::Of(const KvCache& cache, int layer,
                                                            int head, const AttentionParams& params,
                                                            const AttentionItem& item, int token) {
  const int dim = cache.config().head_dim;
  const int group = params.num_q_heads / cache.config().num_kv_heads;
  const KvCache::HeadLayout& l = cache.layout(layer, head);
  const int64_t position = item.first_pos + token;
  const float* queries =
      item.q + (static_cast<size_t>(token) * params.num_q_heads + head * group) * dim;
  rotated_.assign(queries, queries + static_cast<size_t>(group) * dim);
  for (int g = 0; g < group; ++g) l.k_rotation.ForwardQuery(&rotated_[g * dim]);
  weights_.assign(static_cast<size_t>(group),
                  std::vector<float>(static_cast<size_t>(position) + 1));
  keys_.resize(static_cast<size_t>(kPageLen) * dim);
  const float scale = params.scale > 0 ? params.scale : 1.f / std::sqrt(static_cast<float>(dim));
  float centre[kMaxHeadDim];
  for (int64_t first = 0; first <= position; first += kPageLen) {
    DecodeKeys(cache, item.seq, l, first / kPageLen, position / kPageLen, keys_.data());
    const int64_t count = std::min<int64_t>(kPageLen, position + 1 - first);
    for (int64_t t = 0; t < count; ++t) {
      const float* key = &keys_[static_cast<size_t>(t) * dim];
      const bool centred = !l.center.empty();
      if (centred) {
        std::fill_n(centre, dim, 0.f);
        cache.center_table().Subtract(l.center, first + t, centre);
      }
      for (int g = 0; g < group; ++g) {
        float s = 0;
        for (int c = 0; c < dim; ++c) s += rotated_[g * dim + c] * key[c];
        if (centred) {
          for (int c = 0; c < dim; ++c) s -= queries[g * dim + c] * centre[c];
        }
        s *= scale;
        if (params.softcap > 0) s = params.softcap * std::tanh(s / params.softcap);
        weights_[static_cast<size_t>(g)][static_cast<size_t>(first + t)] = s;
      }
    }
  }
  for (int g = 0; g < group; ++g) {
    std::vector<float>& w = weights_[static_cast<size_t>(g)];
    const float* sink = params.sinks == nullptr ? nullptr : params.sinks + head * group + g;
    float top = *std::max_element(w.begin(), w.end());
    if (sink != nullptr) top = std::max(top, *sink);
    double sum = sink == nullptr ? 0 : std::exp(double{*sink} - top);
    for (float& x : w) sum += x = std::exp(x - top);
    for (float& x : w) x = static_cast<float>(x / sum);
  }
  return weights_;
}

}  // namespace tq
