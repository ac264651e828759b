// RoPE with the angles of a plain llama, for tests.
#pragma once

#include <cmath>

#include "turboquant/codec/center.h"

namespace tq {

inline RopeFrequencies TestRope(int dim) {
  RopeFrequencies rope;
  for (int i = 0; i < dim / 2; ++i) {
    rope.inv_freq.push_back(
        std::pow(10000.f, -2.f * static_cast<float>(i) / static_cast<float>(dim)));
  }
  return rope;
}

}  // namespace tq
