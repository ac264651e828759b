// Sides of a block that are multiplied as floats, for inlining into kernels.
#if defined(TURBOQUANT_ATTENTION_FLOAT_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TURBOQUANT_ATTENTION_FLOAT_TILE_INL_H_
#undef TURBOQUANT_ATTENTION_FLOAT_TILE_INL_H_
#else
#define TURBOQUANT_ATTENTION_FLOAT_TILE_INL_H_
#endif

#include <hwy/highway.h>

#include "turboquant/attention/attention_kernels.h"
#include "turboquant/codec/group_scales.h"
#include "turboquant/codec/pack.h"
#include "turboquant/codec/unpack-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tq {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Values of a side that is neither codes nor int8 nor f16, as floats [depth][lanes].
static HWY_NOINLINE void FillFloats(const BlockSide& side, Side which, int dim,
                                    AlignedBuffer<uint8_t>* tile, AlignedBuffer<float>* floats) {
  const hn::CappedTag<float, 16> d;
  const hn::RebindToSigned<decltype(d)> di;
  const hn::RebindToUnsigned<decltype(d)> du;
  const hn::Rebind<uint16_t, decltype(d)> du16;
  const hn::Rebind<hwy::float16_t, decltype(d)> df16;
  constexpr int kLanes = static_cast<int>(hn::MaxLanes(d));
  const int lanes = which == Side::kK ? kPageLen : dim, depth = which == Side::kK ? dim : kPageLen;
  floats->Reserve(static_cast<size_t>(dim) * kPageLen);
  float* HWY_RESTRICT out = floats->data();
  const auto* words = reinterpret_cast<const uint16_t*>(side.values);
  if (side.type == ValueType::kBF16) {
    for (int i = 0; i < dim * kPageLen; i += kLanes) {
      const auto v = hn::ShiftLeft<16>(hn::PromoteTo(du, hn::LoadU(du16, words + i)));
      hn::StoreU(hn::BitCast(d, v), d, out + i);
    }
    return;
  }
  if (side.type == ValueType::kFP8) {
    // A half with the exponent shifted by 8: see fp8.h.
    const auto sign = hn::Set(du16, uint16_t{0x8000}), rest = hn::Set(du16, uint16_t{0x3F80});
    const auto scale = hn::Set(d, 256.f);
    for (int pair = 0; pair < depth / 2; ++pair) {
      for (int lane = 0; lane < lanes; lane += kLanes) {
        const auto w = hn::LoadU(du16, words + static_cast<size_t>(pair) * lanes + lane);
        const auto put = [&](int i, auto high) HWY_ATTR {  // value in the upper byte
          const auto half = hn::Or(hn::And(high, sign), hn::And(hn::ShiftRight<1>(high), rest));
          hn::StoreU(hn::Mul(hn::PromoteTo(d, hn::BitCast(df16, half)), scale), d,
                     out + static_cast<size_t>(2 * pair + i) * lanes + lane);
        };
        put(0, hn::ShiftLeft<8>(w));
        put(1, w);
      }
    }
    return;
  }
  TQ_DCHECK(side.grouped != nullptr);
  const Codec& codec = *side.grouped;
  const int num_groups = NumGroups(codec, dim), len = GroupLen(codec, dim);
  HWY_ALIGN float scale[kMaxGroups * kPageLen];
  HWY_ALIGN float offset[kMaxGroups * kPageLen];
  LoadGroupScales(codec, num_groups, side.group_scales, side.base, scale, offset);
  // lanes are tokens (K: one group, a scale each) or channels (V: 16 of one group, one token).
  const auto store = [&](int lane, int dep, hn::Vec<decltype(di)> level) HWY_ATTR {
    const int group = (which == Side::kK ? dep : lane) / len;
    const float* s = scale + group * kPageLen;
    const float* z = offset + group * kPageLen;
    const auto value = hn::ConvertTo(d, level);
    const auto result = which == Side::kK
                            ? hn::MulAdd(value, hn::LoadU(d, s + lane), hn::LoadU(d, z + lane))
                            : hn::MulAdd(value, hn::Set(d, s[dep]), hn::Set(d, z[dep]));
    hn::StoreU(result, d, out + static_cast<size_t>(dep) * lanes + lane);
  };
  if (codec.bits == 8) {
    for (int pair = 0; pair < depth / 2; ++pair) {
      for (int lane = 0; lane < lanes; lane += kLanes) {
        const auto w = hn::BitCast(
            di,
            hn::PromoteTo(du, hn::LoadU(du16, words + static_cast<size_t>(pair) * lanes + lane)));
        store(lane, 2 * pair, hn::ShiftRight<24>(hn::ShiftLeft<24>(w)));
        store(lane, 2 * pair + 1, hn::ShiftRight<24>(hn::ShiftLeft<16>(w)));
      }
    }
    return;
  }
  HWY_ALIGN uint8_t table[kMaxLevels];
  LevelTable(*side.book, 0, table);
  tile->Reserve(static_cast<size_t>(dim) * kPageLen);
  UnpackCodes(codec.bits, side.values, dim, table, tile->data());
  for (int group = 0; group < lanes / 16; ++group) {
    for (int quad = 0; quad < depth / 4; ++quad) {
      const uint8_t* cell = tile->data() + (static_cast<size_t>(group) * (depth / 4) + quad) * 64;
      for (int lane = 0; lane < 16; lane += kLanes) {
        const auto w = hn::LoadU(di, reinterpret_cast<const int32_t*>(cell) + lane);
        store(group * 16 + lane, quad * 4, hn::ShiftRight<24>(hn::ShiftLeft<24>(w)));
        store(group * 16 + lane, quad * 4 + 1, hn::ShiftRight<24>(hn::ShiftLeft<16>(w)));
        store(group * 16 + lane, quad * 4 + 2, hn::ShiftRight<24>(hn::ShiftLeft<8>(w)));
        store(group * 16 + lane, quad * 4 + 3, hn::ShiftRight<24>(w));
      }
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tq
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
