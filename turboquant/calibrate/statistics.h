// What the vectors of each head look like: sums over tokens, streamed, so that memory does not grow
// with the text.
#pragma once

#include <cstdint>
#include <vector>

#include "turboquant/codec/center.h"

namespace tq {

// One kind of vector (K, Q or V) of all layers and heads.
class VectorStatistics {
 public:
  // `rope`: turns back what RoPE has turned, so that sums are of vectors before it; without
  // frequencies (V) vectors are taken as they are. `heads`: of a layer.
  VectorStatistics(const RopeFrequencies& rope, int head_dim, int num_layers, int heads);

  // rows: [count][heads][head_dim] of consecutive positions.
  void Add(int layer, int64_t first_pos, int count, const float* rows);

  // head = layer * heads + head of the layer. All 0 before the first token.
  std::vector<float> Mean(size_t head) const;  // [head_dim]
  // Root mean square of a channel over tokens and channels.
  double Rms(size_t head) const;
  // The channel with the largest root mean square, and that over Rms: 1 = all alike.
  struct Outlier {
    int channel = 0;
    double ratio = 1;
  };
  Outlier LargestChannel(size_t head) const;

 private:
  void SetPositions(int64_t first_pos, int count);

  RopeFrequencies rope_;
  int head_dim_, heads_;
  std::vector<int64_t> tokens_;         // [layers]
  std::vector<double> sums_, squares_;  // [layers * heads][head_dim]
  // Of the rows that were added last: layers come one after the other at the same positions.
  int64_t first_pos_ = -1;
  std::vector<float> cos_, sin_;  // [count][frequencies]
  std::vector<float> row_;        // one vector
};

}  // namespace tq
