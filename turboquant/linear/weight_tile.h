// What a thread unpacks a part of a panel into, to multiply it with many rows.
#pragma once

#include <cstdint>

#include "turboquant/linear/weight.h"

namespace tq {

// 16-bit codes (offset taken off) with float scales and minima; or float weights. What is in use of
// it fits into the first- or second-level cache beside a few rows of activations.
struct WeightTile {
  static constexpr int kBlocks = 32;                            // of 32 inputs, at most
  alignas(64) int16_t codes[kBlocks * kBlockLen * kPanelRows];  // [pairs of inputs][16 rows][2]
  alignas(64) float scales[kBlocks * 2 * kPanelRows];           // [blocks][groups][16 rows]
  alignas(64) float mins[kBlocks * 2 * kPanelRows];
  static constexpr int kFloatInputs = 512;
  alignas(64) float weights[kFloatInputs * kPanelRows];  // [inputs][16 rows]
  static constexpr int kRows = 480;                      // of activations, at most
  alignas(64) float sums[kRows * kPanelRows];            // [rows][16 rows of weights]
};

}  // namespace tq
