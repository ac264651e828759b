// Scales and offsets of grouped codecs: value = scale * level + offset, a pair for each group of
// each token.
//
// Bytes (record_layout.h): a plane [group][64] of scales, then, if affine, one of offsets. log8
// scales take one byte, offsets then one more: int8 in eighths of the step between two levels. f16
// scales and offsets are relative to the record's base, so that no float32 value is out of range.
#pragma once

#include <cstdint>

#include "turboquant/codec/codec.h"
#include "turboquant/codec/record_layout.h"

namespace tq {

inline constexpr int kMaxGroups = kMaxHeadDim / 16;

// Distance of neighbouring levels: integer codes of 8 bits count by 1, the others by 2.
inline constexpr int LevelStep(const Codec& codec) {
  return codec.bits == 8 ? 1 : 2;
}
inline constexpr int LargestLevel(const Codec& codec) {
  return codec.bits == 8 ? 127 : (1 << codec.bits) - 1;
}

// scale, offset: [num_groups][64]. Offsets of symmetric codecs become 0.
void LoadGroupScales(const Codec& codec, int num_groups, const uint8_t* bytes, float base,
                     float* scale, float* offset);

// The record's base for these scales and offsets: bfloat16, not below any of them.
float GroupBase(const Codec& codec, int num_groups, const float* scale, const float* offset,
                bf16_t* base);

// Stores one pair; *scale and *offset become what LoadGroupScales gives for it. Affine scales are
// rounded up, so that the ends of the range stay in reach.
void StoreGroupScale(const Codec& codec, int num_groups, int group, int token, float base,
                     float* scale, float* offset, uint8_t* bytes);

}  // namespace tq
