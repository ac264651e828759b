// Every size and offset of the cache, in one place: cache, kernels and planner all ask here.
// docs/formats/record.md is the same in words.
//
// A block is 64 tokens. The record of one KV head in a sealed block is
//   [K codes | K scales | K anchors | V scales | V anchors | V codes], padded to 64 bytes,
// and 8 bytes beside it (RecordSideInfo), followed by 6 bytes for each anchor (AnchorInfo). The V
// codes come last so that they can be left unread.
// An open block holds the same head as int8 rows with one f32 scale a row, or as float rows.
#pragma once

#include <cstddef>
#include <cstdint>

#include "turboquant/base/numeric.h"
#include "turboquant/codec/codec.h"

namespace tq {

inline constexpr int kPageLen = 64;      // tokens of a block
inline constexpr int kDimMultiple = 16;  // head_dim is padded with zeros to this
inline constexpr int kMinHeadDim = 2;
inline constexpr int kMaxHeadDim = 512;
inline constexpr size_t kRecordAlign = 64;

// The 8 bytes that each (block, layer, KV head) has beside its record.
struct RecordSideInfo {
  bf16_t k_base = 0;  // the largest K scale of the record, rounded up
  bf16_t v_base = 0;
  bf16_t v_bound = 0;  // upper bound of |v| over the record's tokens
  uint16_t flags = 0;  // bit 0: sealed
};
static_assert(sizeof(RecordSideInfo) == 8, "counted in bits_per_value");

inline constexpr int PaddedDim(int head_dim) {
  return RoundUp(head_dim, kDimMultiple);
}

// Bytes of the values of one side of a block: codes, int8 or f16 (bits = 16).
inline constexpr size_t ValueBytes(int bits, int head_dim) {
  return static_cast<size_t>(kPageLen) * PaddedDim(head_dim) * bits / 8;
}
// What each anchor has beside its residual rows.
struct AnchorInfo {
  uint16_t token = 0;  // in the block, 0 to 63
  bf16_t k_scale = 0, v_scale = 0;
};
static_assert(sizeof(AnchorInfo) == 6, "counted in bits_per_value");

inline constexpr int GroupLen(const Codec& codec, int head_dim) {
  return codec.group_len == kGroupHead ? PaddedDim(head_dim) : codec.group_len;
}
// Groups of one vector; the last may be shorter.
inline constexpr int NumGroups(const Codec& codec, int head_dim) {
  return DivCeil(PaddedDim(head_dim), GroupLen(codec, head_dim));
}
// Bytes of the scales (and offsets) of one side of a sealed block: a plane [group][64] of scales,
// then, if affine, one of offsets.
inline constexpr size_t ScaleBytes(const Codec& codec, int head_dim) {
  const size_t each = codec.scale == ScaleType::kNone ? 0 : codec.scale == ScaleType::kLog8 ? 1 : 2;
  return kPageLen * each * NumGroups(codec, head_dim) * (codec.zero == Zero::kAffine ? 2 : 1);
}
// Bytes of the residual rows of one side.
inline constexpr size_t AnchorBytes(const HeadFormat& f, int head_dim) {
  return static_cast<size_t>(f.anchors) * PaddedDim(head_dim) * f.anchor_bits / 8;
}
inline constexpr size_t SideInfoBytes(const HeadFormat& f) {
  return sizeof(RecordSideInfo) + f.anchors * sizeof(AnchorInfo);
}

struct RecordLayout {
  size_t k_codes = 0, k_scales = 0, k_anchors = 0, v_scales = 0, v_anchors = 0, v_codes = 0;
  size_t bytes = 0;  // padded size
  static constexpr RecordLayout For(const HeadFormat& f, int head_dim) {
    RecordLayout l;
    l.k_codes = 0;
    l.k_scales = ValueBytes(f.k.bits, head_dim);
    l.k_anchors = l.k_scales + ScaleBytes(f.k, head_dim);
    l.v_scales = l.k_anchors + AnchorBytes(f, head_dim);
    l.v_anchors = l.v_scales + ScaleBytes(f.v, head_dim);
    l.v_codes = l.v_anchors + AnchorBytes(f, head_dim);
    l.bytes = RoundUp(l.v_codes + ValueBytes(f.v.bits, head_dim), kRecordAlign);
    return l;
  }
};

// Precision of rows in the recent window and the sinks.
enum class RecentType : uint8_t { kQ8, kF16 };

// Rows of one side while it is open: float codecs stay what they are, all others follow `recent`.
inline constexpr ValueType OpenType(const Codec& codec, RecentType recent) {
  return codec.is_float()             ? codec.type
         : recent == RecentType::kF16 ? ValueType::kF16
                                      : ValueType::kInt;
}
inline constexpr int OpenBits(ValueType type) {
  return type == ValueType::kInt || type == ValueType::kFP8 ? 8 : 16;
}

struct OpenLayout {
  size_t k_values = 0, k_scales = 0, v_values = 0, v_scales = 0;  // offsets; scales are f32
  size_t bytes = 0;
  ValueType k_type = ValueType::kInt, v_type = ValueType::kInt;
  static constexpr OpenLayout For(const HeadFormat& f, RecentType recent, int head_dim) {
    const auto scales = [](ValueType type) {
      return type == ValueType::kInt ? kPageLen * sizeof(float) : 0;
    };
    OpenLayout l;
    l.k_type = OpenType(f.k, recent);
    l.v_type = OpenType(f.v, recent);
    l.k_values = 0;
    l.k_scales = ValueBytes(OpenBits(l.k_type), head_dim);
    l.v_values = l.k_scales + scales(l.k_type);
    l.v_scales = l.v_values + ValueBytes(OpenBits(l.v_type), head_dim);
    l.bytes = RoundUp(l.v_scales + scales(l.v_type), kRecordAlign);
    return l;
  }
};

// Bits per stored value of a sealed block: codes, scales, side info and padding, all counted.
inline constexpr double BitsPerValue(const HeadFormat& f, int head_dim) {
  const size_t bytes = RecordLayout::For(f, head_dim).bytes + SideInfoBytes(f);
  return 8.0 * static_cast<double>(bytes) / (2.0 * kPageLen * head_dim);
}

// --- Order of the values ---------------------------------------------------------------------
// Every product runs over a `depth` with results in `lanes`. QK: lanes are the 64 tokens, depth
// the channels. PV: lanes are the channels, depth the 64 tokens. Per side:
//   16 bit: index = depth * lanes + lane
//    8 bit: pairs of depth:  (depth / 2 * lanes + lane) * 2 + depth % 2
//   <= 6 bit: cells of 16 lanes x 4 depth; cell = lane / 16 * (num_depth / 4) + depth / 4, and the
//             code lies at byte lane % 16 * 4 + depth % 4 of its cell. A block side has PaddedDim
//             cells. Bit planes of 4, 2 or 1 bits: each 64 bytes of a plane of w bits hold 8 / w
//             consecutive cells, the first in the lowest bits. 3 bits = a 2-bit plane with the low
//             bits, then a 1-bit plane; 5 = 4 + 1; 6 = 4 + 2.
inline constexpr int NumLanes(Side side, int head_dim) {
  return side == Side::kK ? kPageLen : PaddedDim(head_dim);
}
inline constexpr int NumDepth(Side side, int head_dim) {
  return side == Side::kK ? PaddedDim(head_dim) : kPageLen;
}
inline constexpr size_t F16Index(int lane, int depth, int num_lanes) {
  return static_cast<size_t>(depth) * num_lanes + lane;
}
inline constexpr size_t Int8Index(int lane, int depth, int num_lanes) {
  return (static_cast<size_t>(depth / 2) * num_lanes + lane) * 2 + depth % 2;
}
// Index into the unpacked codes of a block side (PaddedDim x 64 bytes).
inline constexpr size_t CodeIndex(int lane, int depth, int num_depth) {
  return (static_cast<size_t>(lane / 16) * (num_depth / 4) + depth / 4) * 64 + lane % 16 * 4 +
         depth % 4;
}

}  // namespace tq
