// The shared memory of a thread block; behind it lie the index of the heads and the rings.
#pragma once

#include "turboquant/attention/decode_units.cuh"

namespace tq {
namespace {

template <int kDim, int kTiles>
struct alignas(32) Shared {
  static constexpr int kRows = 4 * kTiles;
  // Digits of the queries, high and low: for codes, and at 16 bits for 8-bit rows.
  int8_t code_digits[kRows][2][kDim];
  int8_t row_digits[kRows][2][kDim];
  float code_scale[kRows], row_scale[kRows];
  float code_offset[kRows];
  // Centre: a and b of each pair (DecodeCenter) in digits, and what a product of digits is worth.
  float center_ab[kRows][kDecodePairs][2];
  float center_scale[kRows];
  uint32_t center_turns[kDecodePairs];  // DecodeCenter::turns
  float log8[256];                      // Log8Table
  alignas(16) uint32_t constants[8];    // LoopConstants
  // Skipping of V (decode_skip.cuh), of the unit at hand: log2 of what masses are relative to, and
  // what a page may have.
  float reference[kRows], skip_limit[kRows];
  bool is_last;
  bool cut_again;  // work[0] was cut too early: work[1] comes first
  Ranges ranges;
  Work work[2];  // at hand and next, in turns
  DecodeHead head;
};
// What each warp has, in front of its ring of two stages.
template <int kTiles>
struct alignas(kDecodeStageAlign) WarpShared {
  static constexpr int kRows = 4 * kTiles;
  float scales[2][kPageLen];  // K, V of the page at hand
  float m[kRows], l[kRows];   // of its state, at the end of a unit
  float skipped[kRows][2];    // mass and mass x bound of |v| of pages whose V was skipped
  uint32_t ids[64];           // slots of pages, from the one at hand on; Ring
  uint32_t state_at;          // where in the ring the state is then
  int masked_end;             // MaskedEnd of the unit
  // Of the head whose pages are asked for: where slot 0 lies, what is copied of a record at first,
  // and of its side info.
  struct alignas(8) {
    const uint8_t *record, *side;
    uint32_t bytes, side_bytes;
  } from;
  // Of the stages, where copies are bulk copies; with skipping, of their K and of their V parts.
  alignas(32) uint64_t barriers[4];
};
// Behind the ring, the centres of center_pages pages (DecodeParams).
template <int kTiles>
__host__ __device__ constexpr size_t WarpBytes(uint32_t stage_bytes, int center_pages) {
  return sizeof(WarpShared<kTiles>) + 2 * size_t{stage_bytes} +
         (center_pages > 1 ? center_pages * kPageLen * sizeof(float) : 0);
}
// Whether centres of several pages are made at once; not in wide kernels, which lack registers.
template <int kTiles, bool kWide>
__device__ __forceinline__ bool PacksCenters(const DecodeParams& p) {
  return kTiles == 1 && !kWide && p.center_pages > 1;
}
// A warp's state in its ring, padded so that lanes write without conflicts.
template <int kDim>
constexpr int kStateStride = kDim + 8;

}  // namespace
}  // namespace tq
