// Skipping of V: its default, and what the CPU's kernels share; decode_skip.cuh is the device's.
//
// A sealed block is treated as masked, and its V codes are not read, where its exact softmax mass
// is at most `eps` times the mass of the open rows (sinks and window) that the same row sees, for
// every query head of the KV head (on a device also for every query of a call).
// docs/decisions/skipping-values.md has what that costs and saves.
#pragma once

#include "turboquant/base/numeric.h"
#include "turboquant/codec/record_layout.h"

namespace tq {

// Where skipping is asked for without a number. What it costs is in bench/results/v_skip.json.
inline constexpr float kDefaultVSkip = 0.001f;

// What was skipped of one row, and what that can change: |out - out without skipping| <=
// share |out| + bound.
struct SkippedV {
  float share = 0;  // of the whole softmax mass
  float bound = 0;  // the same, each block's mass times its bound of |v|
  int blocks = 0;
};

// RecordSideInfo has a bound of the codes' rows; an anchor's residual takes a row back to its 8-bit
// one, which is as long up to the rounding of a log8 scale, 2.2 %: so much is the bound raised.
inline constexpr float kAnchorBoundFactor = 1.03f;
// Bound of |v| over a sealed block.
inline float SkipBound(const RecordSideInfo& info, int num_anchors) {
  return F32FromBF16(info.v_bound) * (num_anchors > 0 ? kAnchorBoundFactor : 1.f);
}

}  // namespace tq
