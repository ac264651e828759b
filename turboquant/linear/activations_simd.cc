// The int16 form of a row, for every instruction set: the same bits as activations_ref.cc.
#include "turboquant/linear/activations.h"
#include "turboquant/linear/weight.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "turboquant/linear/activations_simd.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace tq {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

void QuantizeRow(const float* x, int64_t num_blocks, int16_t* codes, float* scales, int32_t* sums,
                 float* scaled_sums) {
  const hn::CappedTag<float, kBlockLen / 2> df;
  const hn::RebindToSigned<decltype(df)> di;
  const hn::Rebind<int16_t, decltype(df)> d16;
  const int lanes = static_cast<int>(hn::Lanes(df));
  for (int64_t b = 0; b < num_blocks; ++b, x += kBlockLen, codes += kBlockLen) {
    const auto magnitude = hn::Set(di, 0x7FFFFFFF);
    auto max_bits = hn::Zero(di);
    for (int i = 0; i < kBlockLen; i += lanes) {
      max_bits = hn::Max(max_bits, hn::And(hn::BitCast(di, hn::LoadU(df, x + i)), magnitude));
    }
    const int32_t bits = hn::GetLane(hn::MaxOfLanes(di, max_bits));
    const float max = hn::GetLane(hn::BitCast(df, hn::Set(di, bits)));
    const bool finite = bits < 0x7F800000;
    if (!finite || max < 1e-30f) {
      for (int i = 0; i < kBlockLen; ++i) codes[i] = 0;
      scales[b] = finite ? 0.0f : hn::GetLane(hn::BitCast(df, hn::Set(di, 0x7FC00000)));
      sums[2 * b] = sums[2 * b + 1] = 0;
      scaled_sums[b] = scales[b] * 0.0f;
      continue;
    }
    const auto inverse = hn::Set(df, 32767.0f / max);
    for (int half = 0; half < 2; ++half) {
      auto sum = hn::Zero(di);
      for (int i = half * kBlockLen / 2; i < (half + 1) * kBlockLen / 2; i += lanes) {
        const auto code = hn::NearestInt(hn::Mul(hn::LoadU(df, x + i), inverse));
        sum = hn::Add(sum, code);
        hn::StoreU(hn::DemoteTo(d16, code), d16, codes + i);
      }
      sums[2 * b + half] = hn::GetLane(hn::SumOfLanes(di, sum));
    }
    scales[b] = max / 32767.0f;
    scaled_sums[b] = scales[b] * static_cast<float>(sums[2 * b] + sums[2 * b + 1]);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tq
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tq {

HWY_EXPORT(QuantizeRow);

void QuantizeRowSimd(const float* x, int64_t num_blocks, int16_t* codes, float* scales,
                     int32_t* sums, float* scaled_sums) {
  HWY_DYNAMIC_DISPATCH(QuantizeRow)(x, num_blocks, codes, scales, sums, scaled_sums);
}

}  // namespace tq
#endif
