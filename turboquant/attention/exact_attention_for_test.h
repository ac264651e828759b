// Softmax attention in double over the decoded rows of a cache: what every kernel must reach up to
// the rounding of its query and weight digits.
#pragma once

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "turboquant/attention/attention.h"
#include "turboquant/cache/cache.h"
#include "turboquant/codec/anchor.h"
#include "turboquant/codec/decode.h"

namespace tq::testing_util {

inline std::vector<float> Gaussian(size_t n, unsigned seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(n);
  for (float& v : x) v = normal(rng);
  return x;
}

// K and V of one block and head in the head's basis, [64][head_dim] each, in the form that a query
// in `query_block` reads.
inline void DecodeBlock(const KvCache& cache, SeqId seq, const KvCache::HeadLayout& l, int64_t b,
                        int64_t query_block, float* kd, float* vd) {
  const int dim = cache.config().head_dim;
  if (l.window > 0 || cache.rule().ReadsOpen(b, query_block)) {
    const std::byte* s =
        (l.window > 0 ? cache.WindowSlot(seq, b) : cache.OpenSlot(seq, b)) + l.open_offset;
    DecodeOpenSide({Side::kK, dim, l.open.k_type, s + l.open.k_values,
                    reinterpret_cast<const float*>(s + l.open.k_scales)},
                   kd);
    DecodeOpenSide({Side::kV, dim, l.open.v_type, s + l.open.v_values,
                    reinterpret_cast<const float*>(s + l.open.v_scales)},
                   vd);
    return;
  }
  const std::byte* s = cache.SealedSlot(seq, b);
  const auto* r = reinterpret_cast<const uint8_t*>(s + l.record_offset);
  const auto* info = reinterpret_cast<const RecordSideInfo*>(s + l.side_offset);
  DecodeSealedSide(l.format.k, &l.k_book, Side::kK, dim, r + l.record.k_codes,
                   r + l.record.k_scales, info->k_base, kd);
  DecodeSealedSide(l.format.v, &l.v_book, Side::kV, dim, r + l.record.v_codes,
                   r + l.record.v_scales, info->v_base, vd);
  const auto* anchors = reinterpret_cast<const AnchorInfo*>(info + 1);
  std::vector<float> row(static_cast<size_t>(PaddedDim(dim)));
  for (int a = 0; a < l.format.anchors; ++a) {
    const size_t bytes = AnchorBytes(l.format, dim) / l.format.anchors;
    const auto add = [&](size_t rows, bf16_t scale, float* target) {
      DecodeAnchorRow(l.format.anchor_bits, r + rows + a * bytes, scale, PaddedDim(dim),
                      row.data());
      for (int c = 0; c < dim; ++c) target[anchors[a].token * dim + c] += row[c];
    };
    add(l.record.k_anchors, anchors[a].k_scale, kd);
    add(l.record.v_anchors, anchors[a].v_scale, vd);
  }
}

// q: [num_q_heads][head_dim] of the query at `position`, after RoPE. `window`: tokens that it sees,
// its own included; 0: all.
inline std::vector<float> ExactAttention(const KvCache& cache, SeqId seq, int layer,
                                         const AttentionParams& params, const std::vector<float>& q,
                                         int64_t position, int64_t window) {
  const int dim = cache.config().head_dim, kv_heads = cache.config().num_kv_heads;
  const int group = params.num_q_heads / kv_heads;
  std::vector<float> out(static_cast<size_t>(params.num_q_heads) * dim);
  const int64_t query_block = position / kPageLen;
  const int64_t lowest = window > 0 ? std::max<int64_t>(0, position - window + 1) : 0;
  for (int head = 0; head < kv_heads; ++head) {
    const KvCache::HeadLayout& l = cache.layout(layer, head);
    std::vector<std::vector<float>> rotated;
    for (int g = 0; g < group; ++g) {
      const auto from = q.begin() + (static_cast<int64_t>(head) * group + g) * dim;
      rotated.emplace_back(from, from + dim);
      l.k_rotation.ForwardQuery(rotated.back().data());
    }
    std::vector<std::vector<double>> scores(static_cast<size_t>(group));
    std::vector<float> values;
    std::vector<float> kd(static_cast<size_t>(kPageLen) * dim), vd(kd.size());
    for (int64_t b = lowest / kPageLen; b <= query_block; ++b) {
      DecodeBlock(cache, seq, l, b, query_block, kd.data(), vd.data());
      for (int64_t t = 0; t < kPageLen; ++t) {
        const int64_t key = b * kPageLen + t;
        if (key < lowest || key > position) continue;
        values.insert(values.end(), vd.begin() + t * dim, vd.begin() + (t + 1) * dim);
        std::vector<float> minus(static_cast<size_t>(dim), 0.f);  // -R_t mu
        if (!l.center.empty()) cache.center_table().Subtract(l.center, key, minus.data());
        for (int g = 0; g < group; ++g) {
          const float* plain = &q[(static_cast<size_t>(head) * group + g) * dim];
          double s = 0;
          for (int c = 0; c < dim; ++c) {
            s += static_cast<double>(rotated[g][c]) * kd[t * dim + c] -
                 static_cast<double>(plain[c]) * minus[c];
          }
          s *= params.scale > 0 ? params.scale : 1 / std::sqrt(static_cast<double>(dim));
          if (params.softcap > 0) s = params.softcap * std::tanh(s / params.softcap);
          scores[g].push_back(s);
        }
      }
    }
    for (int g = 0; g < group; ++g) {
      const float* sink = params.sinks == nullptr ? nullptr : params.sinks + head * group + g;
      double top = sink == nullptr ? -1e300 : *sink;
      for (const double score : scores[g]) top = std::max(top, score);
      double sum = sink == nullptr ? 0 : std::exp(*sink - top);
      std::vector<double> o(static_cast<size_t>(dim), 0.0);
      for (size_t t = 0; t < scores[g].size(); ++t) {
        const double p = std::exp(scores[g][t] - top);
        sum += p;
        for (int c = 0; c < dim; ++c) o[c] += p * values[t * dim + c];
      }
      float* row = &out[(static_cast<size_t>(head) * group + g) * dim];
      for (int c = 0; c < dim; ++c) row[c] = static_cast<float>(o[c] / sum);
      l.v_rotation.Inverse(row);
    }
  }
  return out;
}

inline double RelativeDistance(const std::vector<float>& a, const std::vector<float>& b) {
  double d = 0, n = 0;
  for (size_t i = 0; i < a.size(); ++i) d += (a[i] - b[i]) * (a[i] - b[i]), n += b[i] * b[i];
  return std::sqrt(d / n);
}

}  // namespace tq::testing_util
