// `center: rope_mean`: the mean of K before RoPE, taken out at write and put back into the score.
//
// k is stored as k_rope - R_t mu, and the score gets back q . R_t mu. For a RoPE pair with angle
// t * theta this is a cos(t theta) + b sin(t theta) with a = q_i mu_i + q_j mu_j and
// b = q_j mu_i - q_i mu_j, so a block needs (a, b) turned by its first position and one constant
// table over the 64 offsets: no table as long as the context.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "turboquant/base/aligned.h"

namespace tq {

// Angles of RoPE in Hugging Face order: pair i is (channel i, channel i + rope_dim / 2).
struct RopeFrequencies {
  std::vector<float> inv_freq;  // [rope_dim / 2] radians per position, all scaling included
  float attention_scale = 1;    // factor on cos and sin (YaRN); 1 otherwise
  int rope_dim() const { return 2 * static_cast<int>(inv_freq.size()); }
};

// The corrected part of one head's mean: the pairs of the largest energy, as many as kCenterEnergy
// of the whole takes, at most kMaxCenterPairs.
inline constexpr int kMaxCenterPairs = 16;
inline constexpr double kCenterEnergy = 0.99;
struct HeadCenter {
  struct Pair {
    int i = 0, j = 0;  // channels
    int freq = -1;     // index into inv_freq; -1 = not rotated (partial RoPE)
    float mu_i = 0, mu_j = 0;
  };
  std::vector<Pair> pairs;
  bool empty() const { return pairs.empty(); }
};

// Picks the pairs of `mean` ([head_dim], Hugging Face order, before RoPE, after bias and k-norm).
// A mean of zeros gives an empty centre.
HeadCenter MakeHeadCenter(std::span<const float> mean, const RopeFrequencies& rope,
                          int max_pairs = kMaxCenterPairs, double share = kCenterEnergy);

// cos and sin for the offsets inside a block and for the first positions of blocks.
class CenterTable {
 public:
  CenterTable() = default;
  explicit CenterTable(const RopeFrequencies& rope);
  bool empty() const { return offsets_.size() == 0; }
  // Makes BlockStart valid for blocks below num_blocks: 1/64 of a table for every position.
  void EnsureBlocks(int64_t num_blocks);
  int64_t num_blocks() const {
    return static_cast<int64_t>(starts_.size() / (2 * (num_freq_ + 1)));
  }
  // [64] each, for frequency f; freq -1 = not rotated (cos 1, sin 0).
  const float* CosOffsets(int freq) const { return &offsets_[2 * Slot(freq) * 64]; }
  const float* SinOffsets(int freq) const { return &offsets_[(2 * Slot(freq) + 1) * 64]; }
  // [num_freq + 1][cos, sin] at position 64 * block, times attention_scale; index with Slot().
  const float* BlockStart(int64_t block) const {
    return &starts_[static_cast<size_t>(block) * 2 * (num_freq_ + 1)];
  }
  size_t Slot(int freq) const { return freq < 0 ? num_freq_ : static_cast<size_t>(freq); }
  // k[i], k[j] -= (R_t mu) for every pair of the centre.
  void Subtract(const HeadCenter& center, int64_t position, float* k) const;
  // Undoes the RoPE of a position on the first `half` pairs of k (attention_scale stays in).
  void Unrotate(int half, int64_t position, float* k) const;
  // For kernels on a device: [num_slots][cos, sin][64] offsets, and BlockStart of block 0.
  size_t num_slots() const { return num_freq_ + 1; }
  float attention_scale() const { return attention_scale_; }
  size_t bytes() const { return (offsets_.size() + starts_.size()) * sizeof(float); }

 private:
  size_t num_freq_ = 0;
  float attention_scale_ = 1;
  std::vector<double> inv_freq_;
  AlignedBuffer<float> offsets_;  // [num_freq + 1][cos, sin][64]
  std::vector<float> starts_;     // [block][num_freq + 1][cos, sin]
};

}  // namespace tq
