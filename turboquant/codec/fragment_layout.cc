#include "turboquant/codec/fragment_layout.h"

#include <cstring>

#include "turboquant/base/aligned.h"
#include "turboquant/codec/pack.h"
#include "turboquant/codec/rotation.h"

namespace tq {
namespace {

enum class Direction { kToFragments, kFromFragments };

// Numbers of one or two bytes: open rows, 8-bit codes, floats.
void ConvertNumbers(Side side, int head_dim, size_t bytes, Direction direction, const uint8_t* from,
                    uint8_t* to) {
  const int lanes = NumLanes(side, head_dim);
  for (int t = 0; t < kPageLen; ++t) {
    for (int c = 0; c < head_dim; ++c) {
      const int lane = side == Side::kK ? t : c, depth = side == Side::kK ? c : t;
      const size_t cpu =
          bytes == 1 ? Int8Index(lane, depth, lanes) : 2 * F16Index(lane, depth, lanes);
      const size_t device = bytes == 1 ? FragmentByte(FragmentOf(side, head_dim, t, c))
                                       : FragmentHalfByte(side, head_dim, t, c);
      const bool forward = direction == Direction::kToFragments;
      std::memcpy(to + (forward ? device : cpu), from + (forward ? cpu : device), bytes);
    }
  }
}

// Planes of scales and offsets, `bytes` each.
void ConvertScales(size_t num_planes, size_t bytes, Direction direction, const uint8_t* from,
                   uint8_t* to) {
  for (size_t plane = 0; plane < num_planes; ++plane) {
    for (int t = 0; t < kPageLen; ++t) {
      const size_t cpu = (plane * kPageLen + t) * bytes;
      const size_t device = (plane * kPageLen + FragmentScaleIndex(t)) * bytes;
      const bool forward = direction == Direction::kToFragments;
      std::memcpy(to + (forward ? device : cpu), from + (forward ? cpu : device), bytes);
    }
  }
}

// One code in the words of the fragment order.
int GetCode(int bits, bool in_place, const uint8_t* packed, const FragmentSlot& s) {
  const auto word = [&](int w) {
    uint32_t value;
    std::memcpy(&value, packed + FragmentWordByte(s.lane, w), 4);
    return value;
  };
  if (!FragmentIsSpread(bits, s.reg)) {
    const FragmentField f = FragmentFieldOf(bits, in_place, s.reg, s.byte);
    return static_cast<int>(word(f.word) >> f.shift) & ((1 << bits) - 1);
  }
  const int shift = 4 * (s.byte + 4 * (s.reg % 2)) + 3;
  int code = 0;
  for (int i = 0; i < 3; ++i) code |= static_cast<int>(word(s.reg / 8 * 3 + i) >> shift & 1) << i;
  return code;
}

void OrCode(int bits, bool in_place, uint8_t* packed, const FragmentSlot& s, int code) {
  const auto set = [&](int w, int value, int shift) {
    uint32_t old;
    uint8_t* at = packed + FragmentWordByte(s.lane, w);
    std::memcpy(&old, at, 4);
    old |= static_cast<uint32_t>(value) << shift;
    std::memcpy(at, &old, 4);
  };
  if (!FragmentIsSpread(bits, s.reg)) {
    const FragmentField f = FragmentFieldOf(bits, in_place, s.reg, s.byte);
    return set(f.word, code, f.shift);
  }
  const int shift = 4 * (s.byte + 4 * (s.reg % 2)) + 3;
  for (int i = 0; i < 3; ++i) set(s.reg / 8 * 3 + i, code >> i & 1, shift);
}

void ConvertCodes(const Codec& codec, Side side, int head_dim, Direction direction,
                  const uint8_t* from, uint8_t* to) {
  const int num_depth = NumDepth(side, head_dim), bits = codec.bits;
  const bool in_place = IsInPlaceCodec(codec);
  static thread_local AlignedBuffer<uint8_t> cells;
  cells.Reserve(static_cast<size_t>(head_dim) * kPageLen);
  uint8_t identity[kMaxLevels];
  for (int i = 0; i < kMaxLevels; ++i) identity[i] = static_cast<uint8_t>(i);
  const bool forward = direction == Direction::kToFragments;
  if (forward) {
    UnpackCodesRef(bits, from, head_dim, identity, cells.data());
    std::memset(to, 0, ValueBytes(bits, head_dim));
  }
  for (int t = 0; t < kPageLen; ++t) {
    for (int c = 0; c < head_dim; ++c) {
      const int lane = side == Side::kK ? t : c, depth = side == Side::kK ? c : t;
      const FragmentSlot slot = FragmentOf(side, head_dim, t, c);
      uint8_t& cell = cells[CodeIndex(lane, depth, num_depth)];
      if (forward) {
        OrCode(bits, in_place, to, slot, cell);
      } else {
        cell = static_cast<uint8_t>(GetCode(bits, in_place, from, slot));
      }
    }
  }
  if (!forward) PackCodes(bits, cells.data(), head_dim, to);
}

void ConvertOpen(const OpenLayout& l, int head_dim, Direction direction, const std::byte* from,
                 std::byte* to) {
  std::memcpy(to, from, l.bytes);
  if (!HasFragmentOrder(head_dim)) return;
  const auto convert = [&](Side side, ValueType type, size_t offset) {
    ConvertNumbers(side, head_dim, static_cast<size_t>(OpenBits(type)) / 8, direction,
                   reinterpret_cast<const uint8_t*>(from) + offset,
                   reinterpret_cast<uint8_t*>(to) + offset);
  };
  convert(Side::kK, l.k_type, l.k_values);
  convert(Side::kV, l.v_type, l.v_values);
}

void ConvertRecord(const HeadFormat& f, int head_dim, Direction direction, const std::byte* from,
                   std::byte* to) {
  const RecordLayout l = RecordLayout::For(f, head_dim);
  std::memcpy(to, from, l.bytes);
  if (!HasFragmentOrder(head_dim)) return;
  const auto convert = [&](Side side, const Codec& codec, size_t codes, size_t scales) {
    if (!IsFragmentCodec(codec)) return;
    const auto* source = reinterpret_cast<const uint8_t*>(from);
    auto* target = reinterpret_cast<uint8_t*>(to);
    if (codec.bits >= 8) {
      ConvertNumbers(side, head_dim, static_cast<size_t>(codec.bits) / 8, direction, source + codes,
                     target + codes);
    } else {
      ConvertCodes(codec, side, head_dim, direction, source + codes, target + codes);
    }
    const size_t bytes = codec.scale == ScaleType::kF16 ? 2 : 1;
    ConvertScales(ScaleBytes(codec, head_dim) / (kPageLen * bytes), bytes, direction,
                  source + scales, target + scales);
  };
  convert(Side::kK, f.k, l.k_codes, l.k_scales);
  convert(Side::kV, f.v, l.v_codes, l.v_scales);
}

}  // namespace

void PackSigns(const Rotation& rotation, uint32_t* words) {
  for (int c = 0; c < rotation.head_dim(); ++c) {
    if (rotation.plan().signs[static_cast<size_t>(c)] < 0) words[c / 32] |= 1u << (c % 32);
  }
}

void OpenToFragments(const OpenLayout& layout, int head_dim, const std::byte* from, std::byte* to) {
  ConvertOpen(layout, head_dim, Direction::kToFragments, from, to);
}
void OpenFromFragments(const OpenLayout& layout, int head_dim, const std::byte* from,
                       std::byte* to) {
  ConvertOpen(layout, head_dim, Direction::kFromFragments, from, to);
}
void RecordToFragments(const HeadFormat& format, int head_dim, const std::byte* from,
                       std::byte* to) {
  ConvertRecord(format, head_dim, Direction::kToFragments, from, to);
}
void RecordFromFragments(const HeadFormat& format, int head_dim, const std::byte* from,
                         std::byte* to) {
  ConvertRecord(format, head_dim, Direction::kFromFragments, from, to);
}

}  // namespace tq
