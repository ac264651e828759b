#include "turboquant/codec/decode.h"

#include "turboquant/base/aligned.h"
#include "turboquant/codec/codebook.h"
#include "turboquant/codec/log8.h"
#include "turboquant/codec/pack.h"

namespace tq {
namespace {

// out[token][channel] = scale(token) * value(lane, depth).
template <typename Value, typename Scale>
void Gather(Side side, int head_dim, const Value& value, const Scale& scale, float* out) {
  for (int t = 0; t < kPageLen; ++t) {
    for (int c = 0; c < head_dim; ++c) {
      const int lane = side == Side::kK ? t : c;
      const int depth = side == Side::kK ? c : t;
      out[t * head_dim + c] = scale(t) * value(lane, depth);
    }
  }
}

}  // namespace

void DecodeSealedSide(const Codec& codec, Side side, int head_dim, const uint8_t* codes,
                      const uint8_t* scales, bf16_t base, float* out) {
  const int lanes = NumLanes(side, head_dim), num_depth = NumDepth(side, head_dim);
  if (codec.is_f16()) {
    return DecodeOpenSide(side, head_dim, 16, reinterpret_cast<const std::byte*>(codes), nullptr,
                          out);
  }
  const float base_value = F32FromBF16(base);
  const auto scale = [&](int t) { return base_value * Log8Table()[scales[t]]; };
  if (codec.bits == 8) {
    const auto* v = reinterpret_cast<const int8_t*>(codes);
    return Gather(
        side, head_dim,
        [&](int lane, int depth) { return float{1} * v[Int8Index(lane, depth, lanes)]; }, scale,
        out);
  }
  const CodebookTable& book = GetCodebook(codec.codebook, codec.bits);
  uint8_t table[kMaxLevels] = {};
  for (int i = 0; i < book.num_levels; ++i) table[i] = static_cast<uint8_t>(book.levels[i]);
  const int padded = PaddedDim(head_dim);
  AlignedBuffer<uint8_t> levels(static_cast<size_t>(padded) * kPageLen);
  UnpackCodes(codec.bits, codes, padded, table, levels.data());
  Gather(
      side, head_dim,
      [&](int lane, int depth) {
        return static_cast<float>(static_cast<int8_t>(levels[CodeIndex(lane, depth, num_depth)]));
      },
      scale, out);
}

void DecodeOpenSide(Side side, int head_dim, int open_bits, const std::byte* values,
                    const float* scales, float* out) {
  const int lanes = NumLanes(side, head_dim);
  if (open_bits == 8) {
    const auto* v = reinterpret_cast<const int8_t*>(values);
    return Gather(
        side, head_dim,
        [&](int lane, int depth) { return float{1} * v[Int8Index(lane, depth, lanes)]; },
        [&](int t) { return scales[t]; }, out);
  }
  const auto* v = reinterpret_cast<const f16_t*>(values);
  Gather(
      side, head_dim,
      [&](int lane, int depth) { return F32FromF16(v[F16Index(lane, depth, lanes)]); },
      [](int) { return 1.f; }, out);
}

}  // namespace tq
