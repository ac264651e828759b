#include "turboquant/codec/center.h"

#include <algorithm>
#include <cmath>

#include "turboquant/codec/record_layout.h"

namespace tq {

HeadCenter MakeHeadCenter(std::span<const float> mean, const RopeFrequencies& rope, int max_pairs,
                          double share) {
  HeadCenter center;
  const int head_dim = static_cast<int>(mean.size());
  const int half = rope.rope_dim() / 2;
  for (int i = 0; i < half && i + half < head_dim; ++i) {
    center.pairs.push_back({i, i + half, i, mean[i], mean[i + half]});
  }
  // Channels behind a partial RoPE pair up with their neighbours and do not turn.
  for (int i = 2 * half; i < head_dim; i += 2) {
    const int j = std::min(i + 1, head_dim - 1);
    center.pairs.push_back({i, j, -1, mean[i], j == i ? 0.f : mean[j]});
  }
  const auto energy = [](const HeadCenter::Pair& p) { return p.mu_i * p.mu_i + p.mu_j * p.mu_j; };
  std::stable_sort(center.pairs.begin(), center.pairs.end(),
                   [&](const auto& a, const auto& b) { return energy(a) > energy(b); });
  double total = 0;
  for (const HeadCenter::Pair& p : center.pairs) total += static_cast<double>(energy(p));
  // A mean longer than this is longer than the keys around it: what is left over of it is judged
  // by them.
  constexpr double kLongestKey = 50;
  const double may_stay = (1 - share) * std::min(total, kLongestKey * kLongestKey);
  double left = total;
  size_t n = 0;
  while (n < center.pairs.size() && static_cast<int>(n) < max_pairs &&
         energy(center.pairs[n]) > 0 && left > may_stay) {
    left -= static_cast<double>(energy(center.pairs[n++]));
  }
  center.pairs.resize(n);
  return center;
}

CenterTable::CenterTable(const RopeFrequencies& rope)
    : num_freq_(rope.inv_freq.size()),
      attention_scale_(rope.attention_scale),
      inv_freq_(rope.inv_freq.begin(), rope.inv_freq.end()),
      offsets_((num_freq_ + 1) * 2 * kPageLen) {
  for (size_t f = 0; f <= num_freq_; ++f) {
    for (int j = 0; j < kPageLen; ++j) {
      const double angle = f == num_freq_ ? 0.0 : inv_freq_[f] * j;
      offsets_[2 * f * kPageLen + j] = static_cast<float>(std::cos(angle));
      offsets_[(2 * f + 1) * kPageLen + j] = static_cast<float>(std::sin(angle));
    }
  }
}

void CenterTable::EnsureBlocks(int64_t num_blocks) {
  for (int64_t b = this->num_blocks(); b < num_blocks; ++b) {
    for (size_t f = 0; f <= num_freq_; ++f) {
      const double angle = f == num_freq_ ? 0.0 : inv_freq_[f] * static_cast<double>(b * kPageLen);
      const double scale = f == num_freq_ ? 1.0 : attention_scale_;
      starts_.push_back(static_cast<float>(scale * std::cos(angle)));
      starts_.push_back(static_cast<float>(scale * std::sin(angle)));
    }
  }
}

void CenterTable::Subtract(const HeadCenter& center, int64_t position, float* k) const {
  const float* start = BlockStart(position / kPageLen);
  const int64_t offset = position % kPageLen;
  for (const HeadCenter::Pair& p : center.pairs) {
    const size_t f = Slot(p.freq);
    const float c0 = start[2 * f], s0 = start[2 * f + 1];
    const float cj = CosOffsets(p.freq)[offset], sj = SinOffsets(p.freq)[offset];
    const float c = c0 * cj - s0 * sj;
    const float s = s0 * cj + c0 * sj;
    k[p.i] -= p.mu_i * c - p.mu_j * s;
    if (p.j != p.i) k[p.j] -= p.mu_j * c + p.mu_i * s;
  }
}

void CenterTable::Unrotate(int half, int64_t position, float* k) const {
  const float* start = BlockStart(position / kPageLen);
  const int64_t offset = position % kPageLen;
  const float plain = 1.f / attention_scale_;  // the block starts carry it
  for (int f = 0; f < half; ++f) {
    const float c0 = start[2 * f], s0 = start[2 * f + 1];
    const float cj = CosOffsets(f)[offset], sj = SinOffsets(f)[offset];
    const float c = (c0 * cj - s0 * sj) * plain, s = (s0 * cj + c0 * sj) * plain;
    const float x = k[f], y = k[f + half];
    k[f] = x * c + y * s;
    k[f + half] = y * c - x * s;
  }
}

}  // namespace tq
