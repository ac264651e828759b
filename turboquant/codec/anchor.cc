#include "turboquant/codec/anchor.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

namespace tq {
namespace {

// Distances at which the mean query looks back, in octaves from the first.
constexpr int kProbeDistances = 6;

float Dot(const float* a, const float* b, int n) {
  // Eight sums in a fixed order: vectorizes without reassociation.
  float sum[8] = {};
  int i = 0;
  for (; i + 8 <= n; i += 8) {
    for (int k = 0; k < 8; ++k) sum[k] += a[i + k] * b[i + k];
  }
  for (; i < n; ++i) sum[0] += a[i] * b[i];
  return ((sum[0] + sum[4]) + (sum[2] + sum[6])) + ((sum[1] + sum[5]) + (sum[3] + sum[7]));
}

// One residual as a row; returns its scale.
bf16_t EncodeAnchorRow(int bits, const float* residual, int head_dim, int padded, uint8_t* row) {
  const int top = bits == 4 ? 7 : 127;
  float largest = 0;
  for (int c = 0; c < head_dim; ++c) largest = std::max(largest, std::fabs(residual[c]));
  const bf16_t scale = BF16FromF32RoundUp(largest / static_cast<float>(top));
  const float value = F32FromBF16(scale);
  for (int c = 0; c < padded; ++c) {
    const float level = c < head_dim && value > 0 ? std::nearbyint(residual[c] / value) : 0.f;
    const int code =
        static_cast<int>(std::clamp(level, static_cast<float>(-top), static_cast<float>(top)));
    if (bits == 8) {
      row[c] = static_cast<uint8_t>(static_cast<int8_t>(code));
    } else if (c % 2 == 0) {
      row[c / 2] = static_cast<uint8_t>(code + 8);
    } else {
      row[c / 2] |= static_cast<uint8_t>((code + 8) << 4);
    }
  }
  return scale;
}

}  // namespace

AnchorScorer::AnchorScorer(const QueryStatistics& queries, const RopeFrequencies& rope,
                           int head_dim, const HeadCenter& center, int first_distance)
    : head_dim_(head_dim), half_(rope.rope_dim() / 2), query_rms_(queries.rms) {
  const float scale = 1.f / std::sqrt(static_cast<float>(head_dim));
  for (const std::vector<float>& mean : queries.means) {
    for (int step = 0; step < kProbeDistances; ++step) {
      const double distance = static_cast<double>(std::max(first_distance, kPageLen)) * (1 << step);
      std::vector<float> probe(mean.begin(), mean.end());
      for (int i = 0; i < half_; ++i) {
        const double angle = static_cast<double>(rope.inv_freq[i]) * distance;
        const float c = static_cast<float>(std::cos(angle)) * rope.attention_scale;
        const float s = static_cast<float>(std::sin(angle)) * rope.attention_scale;
        const float x = mean[i], y = mean[i + half_];
        probe[i] = x * c - y * s;
        probe[i + half_] = y * c + x * s;
      }
      float offset = 0;
      for (const HeadCenter::Pair& p : center.pairs) {
        offset += probe[p.i] * p.mu_i + (p.j != p.i ? probe[p.j] * p.mu_j : 0.f);
      }
      for (float& v : probe) v *= scale;
      probes_.insert(probes_.end(), probe.begin(), probe.end());
      offsets_.push_back(offset * scale);
    }
  }
  num_probes_ = static_cast<int>(offsets_.size());
}

float AnchorScorer::Score(const CenterTable& rope, int64_t position, float* k) const {
  rope.Unrotate(half_, position, k);
  float score[kMaxScored];
  float top = -std::numeric_limits<float>::infinity();
  const int n = num_scored();
  for (int p = 0; p < n; ++p) {
    score[p] = Dot(&probes_[static_cast<size_t>(p) * head_dim_], k, head_dim_) + offsets_[p];
    top = std::max(top, score[p]);
  }
  float sum = 0;
  for (int p = 0; p < n; ++p) sum += std::exp(score[p] - top);
  return top + std::log(sum);
}

void SealAnchors(const AnchorBlock& b, uint8_t* k_rows, uint8_t* v_rows, AnchorInfo* info) {
  const int head_dim = b.k.head_dim, padded = PaddedDim(head_dim);
  const HeadFormat& f = *b.format;
  alignas(kCacheLine) int8_t k8[kPageLen][kMaxHeadDim], v8[kPageLen][kMaxHeadDim];
  float k_scale[kPageLen], v_scale[kPageLen];
  ReadInt8Rows(b.k, k8, k_scale);
  ReadInt8Rows(b.v, v8, v_scale);
  const auto residual = [&](const int8_t* row, float scale, const float* decoded, float* out) {
    for (int c = 0; c < head_dim; ++c) out[c] = scale * static_cast<float>(row[c]) - decoded[c];
  };
  const auto row_of = [&](const float* rows, int t) {
    return rows + static_cast<size_t>(t) * head_dim;
  };

  std::array<float, kPageLen> score;
  // (q . e)^2 of a random query, times the squared scale of the softmax.
  const float weight = b.scorer->query_rms() * b.scorer->query_rms() / static_cast<float>(head_dim);
  float x[kMaxHeadDim], e[kMaxHeadDim];
  for (int t = 0; t < kPageLen; ++t) {
    residual(k8[t], k_scale[t], row_of(b.k_decoded, t), e);
    const float k_error = Dot(e, e, head_dim);
    residual(v8[t], v_scale[t], row_of(b.v_decoded, t), e);
    const float v_error = Dot(e, e, head_dim);
    for (int c = 0; c < head_dim; ++c) x[c] = v_scale[t] * static_cast<float>(v8[t][c]);
    const float v_energy = Dot(x, x, head_dim);
    for (int c = 0; c < head_dim; ++c) x[c] = k_scale[t] * static_cast<float>(k8[t][c]);
    b.k_rotation->Inverse(x);
    const float error = v_error + weight * k_error * v_energy;
    score[t] = error > 0 ? b.scorer->Score(*b.rope, b.first_pos + t, x) + 0.5f * std::log(error)
                         : -std::numeric_limits<float>::infinity();
  }
  std::array<int, kPageLen> order;
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int c) { return score[a] > score[c]; });
  std::sort(order.begin(), order.begin() + f.anchors);
  const size_t row_bytes = static_cast<size_t>(padded) * f.anchor_bits / 8;
  for (int a = 0; a < f.anchors; ++a) {
    const int t = order[a];
    info[a].token = static_cast<uint16_t>(t);
    residual(k8[t], k_scale[t], row_of(b.k_decoded, t), e);
    info[a].k_scale = EncodeAnchorRow(f.anchor_bits, e, head_dim, padded, k_rows + a * row_bytes);
    residual(v8[t], v_scale[t], row_of(b.v_decoded, t), e);
    info[a].v_scale = EncodeAnchorRow(f.anchor_bits, e, head_dim, padded, v_rows + a * row_bytes);
  }
}

void DecodeAnchorRow(int bits, const uint8_t* row, bf16_t scale, int padded_dim, float* out) {
  const float value = F32FromBF16(scale);
  for (int c = 0; c < padded_dim; ++c) {
    const int level =
        bits == 8 ? static_cast<int8_t>(row[c]) : ((row[c / 2] >> (c % 2 * 4)) & 15) - 8;
    out[c] = value * static_cast<float>(level);
  }
}

}  // namespace tq
