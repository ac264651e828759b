// The Viterbi pass behind TrellisEncode, as reference and as SIMD: equal results bit for bit.
//
// Costs are 16-bit integers. They saturate, but never where it matters: the costs of two states
// differ by at most the errors of the steps that a state remembers, and kMaxError leaves room for
// one more. Each step therefore subtracts one of the minima instead of searching for the smallest.
#pragma once

#include <cstdint>

#include "turboquant/codec/trellis.h"

namespace tq {

inline constexpr int kMaxLevelTarget = 1 << 14;
inline constexpr int16_t kDontCare = INT16_MIN;  // target of an element of weight 0

template <int kBits>
struct TrellisSearch {
  static_assert(kBits >= 2 && kBits <= 4);
  static constexpr int kBranches = 1 << kBits;
  // All that a state passes on: the overlap with its successor, state >> bits.
  static constexpr int kOverlaps = kTrellisStates >> kBits;
  static constexpr int kMemory = (8 - 1) / kBits;  // steps that an overlap determines
  // error = min((target - level)^2 >> 16, kMaxError)
  static constexpr int kMaxError = 32767 / (kMemory + 1);
  static constexpr int kForbidden = 32767 - kMaxError;
  static_assert(kForbidden > kMemory * kMaxError && (kMemory + 1) * kMaxError <= 32767);
  // Targets are clamped so near to the levels that the outermost level keeps the smallest error.
  static constexpr int kMaxBeyond = kMaxLevelTarget / 2;
  // The ring is cut where a pass over this many steps on both sides crosses the cut.
  static constexpr int kSeam = 64 / kBits;
};

// Targets and levels are compared as level << shift, at most kMaxLevelTarget.
inline int TargetShift(const TrellisTable& table) {
  int shift = 0;
  while (table.offset << (shift + 1) <= kMaxLevelTarget) ++shift;
  return shift;
}

// Costs of every state at every step, computed from the last step to the first:
//   costs[i][s] = error(targets[i], s) + least[s >> bits],
//   least[k] = the smallest of costs[i + 1][k | t << (8 - bits)] over t,
// less one constant per step. Behind the last step, `overlap` is the only one allowed (-1: all
// are).
void TrellisCostsRef(const TrellisTable& table, const int16_t* targets, int num_steps, int overlap,
                     int16_t* costs);
void TrellisCostsSimd(const TrellisTable& table, const int16_t* targets, int num_steps, int overlap,
                      int16_t* costs);

// TrellisEncode with the pass given.
using TrellisCosts = void (*)(const TrellisTable& table, const int16_t* targets, int num_steps,
                              int overlap, int16_t* costs);
void TrellisEncodeWith(TrellisCosts pass, int bits, const float* x, int num_valid, int n,
                       uint8_t* symbols, int8_t* levels);

}  // namespace tq
