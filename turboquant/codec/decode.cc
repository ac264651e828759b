#include "turboquant/codec/decode.h"

#include <algorithm>
#include <vector>

#include "turboquant/base/aligned.h"
#include "turboquant/codec/codebook.h"
#include "turboquant/codec/fp8.h"
#include "turboquant/codec/group_scales.h"
#include "turboquant/codec/log8.h"
#include "turboquant/codec/pack.h"
#include "turboquant/codec/trellis.h"

namespace tq {
namespace {

// out[token][channel] = value(token, channel, lane, depth).
template <typename Value>
void Gather(Side side, int head_dim, const Value& value, float* out) {
  for (int t = 0; t < kPageLen; ++t) {
    for (int c = 0; c < head_dim; ++c) {
      const int lane = side == Side::kK ? t : c;
      const int depth = side == Side::kK ? c : t;
      out[t * head_dim + c] = value(t, c, lane, depth);
    }
  }
}

}  // namespace

void DecodeSealedSide(const Codec& codec, const CodebookTable* calibrated, Side side, int head_dim,
                      const uint8_t* codes, const uint8_t* scales, bf16_t base, float* out) {
  if (codec.is_float()) {
    return DecodeOpenSide(
        {side, head_dim, codec.type, reinterpret_cast<const std::byte*>(codes), nullptr}, out);
  }
  const int lanes = NumLanes(side, head_dim), num_depth = NumDepth(side, head_dim);
  const int padded = PaddedDim(head_dim);
  // Levels in the order of CodeIndex, or of Int8Index for 8 bits.
  AlignedBuffer<uint8_t> levels(static_cast<size_t>(padded) * kPageLen);
  if (codec.bits == 8) {
    std::copy_n(codes, levels.size(), levels.data());
  } else if (codec.codebook == Codebook::kTrellis) {
    UnpackTrellis(codec.bits, codes, lanes / 16, num_depth / 4, 0, levels.data());
  } else {
    uint8_t table[kMaxLevels];
    LevelTable(BookOf(codec, calibrated), 0, table);
    UnpackCodes(codec.bits, codes, padded, table, levels.data());
  }
  const auto level = [&](int lane, int depth) {
    const size_t i =
        codec.bits == 8 ? Int8Index(lane, depth, lanes) : CodeIndex(lane, depth, num_depth);
    return static_cast<float>(static_cast<int8_t>(levels[i]));
  };
  const float base_value = F32FromBF16(base);
  if (!codec.is_grouped()) {
    return Gather(
        side, head_dim,
        [&](int t, int, int lane, int depth) {
          return base_value * Log8Table()[scales[t]] * level(lane, depth);
        },
        out);
  }
  const int num_groups = NumGroups(codec, head_dim), len = GroupLen(codec, head_dim);
  std::vector<float> scale(static_cast<size_t>(num_groups) * kPageLen), offset(scale.size());
  LoadGroupScales(codec, num_groups, scales, base_value, scale.data(), offset.data());
  Gather(
      side, head_dim,
      [&](int t, int c, int lane, int depth) {
        const size_t i = static_cast<size_t>(c / len) * kPageLen + t;
        return scale[i] * level(lane, depth) + offset[i];
      },
      out);
}

void DecodeOpenSide(const OpenSide& open, float* out) {
  const int lanes = NumLanes(open.side, open.head_dim);
  const auto* bytes = reinterpret_cast<const uint8_t*>(open.values);
  const auto* halves = reinterpret_cast<const uint16_t*>(open.values);
  Gather(
      open.side, open.head_dim,
      [&](int t, int, int lane, int depth) {
        switch (open.type) {
          case ValueType::kInt:
            return open.scales[t] *
                   static_cast<float>(static_cast<int8_t>(bytes[Int8Index(lane, depth, lanes)]));
          case ValueType::kFP8: return F32FromFP8(bytes[Int8Index(lane, depth, lanes)]);
          case ValueType::kBF16: return F32FromBF16(halves[F16Index(lane, depth, lanes)]);
          case ValueType::kF16: break;
        }
        return F32FromF16(halves[F16Index(lane, depth, lanes)]);
      },
      out);
}

}  // namespace tq
