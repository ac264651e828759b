// The algebra of attention over parts: (m, l, o) = (max, sum of weights, weighted sum), and merge.
#pragma once

#include <cmath>
#include <limits>

#include "turboquant/attention/attention_kernels.h"

namespace tq {

inline void ResetState(int num_rows, int padded_dim, SoftmaxState s) {
  for (int r = 0; r < num_rows; ++r) {
    s.m[r] = -std::numeric_limits<float>::infinity();
    s.l[r] = 0;
  }
  for (int i = 0; i < num_rows * padded_dim; ++i) s.o[i] = 0;
  for (int r = 0; s.skipped != nullptr && r < num_rows; ++r) s.skipped[r] = {};
}

// into = merge(into, part), row by row. An empty part (m = -inf) changes nothing; max() keeps two
// empty states from making NaN.
inline void MergeState(int num_rows, int padded_dim, SoftmaxState into, SoftmaxState part) {
  for (int r = 0; r < num_rows; ++r) {
    if (into.skipped != nullptr) {
      into.skipped[r].share += part.skipped[r].share;
      into.skipped[r].bound += part.skipped[r].bound;
      into.skipped[r].blocks += part.skipped[r].blocks;
    }
    const float m = into.m[r] > part.m[r] ? into.m[r] : part.m[r];
    if (m == -std::numeric_limits<float>::infinity()) continue;
    const float a = std::exp2(into.m[r] - m), b = std::exp2(part.m[r] - m);
    into.m[r] = m;
    into.l[r] = into.l[r] * a + part.l[r] * b;
    float* o = into.o + static_cast<size_t>(r) * padded_dim;
    const float* p = part.o + static_cast<size_t>(r) * padded_dim;
    for (int c = 0; c < padded_dim; ++c) o[c] = o[c] * a + p[c] * b;
  }
}

}  // namespace tq
