// The encoder's inner loops on vectors. Integer sums and single-rounded float operations only, so
// every instruction set gives the bytes of encode_ref.cc.
#include <cfloat>
#include <cstring>

#include "turboquant/codec/encode_kernels.h"
#include "turboquant/codec/record_layout.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "turboquant/codec/encode_simd.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "turboquant/base/hwy_compat-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tq {
namespace HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

float QuantizeRow(const float* x, int head_dim, int padded_dim, int8_t* q) {
  const hn::CappedTag<float, kDimMultiple> d;
  const hn::Rebind<int8_t, decltype(d)> d8;
  const int lanes = static_cast<int>(hn::Lanes(d));
  // Whole vectors: the tail is copied behind zeros.
  HWY_ALIGN float padded[kMaxHeadDim];
  std::memcpy(padded, x, static_cast<size_t>(head_dim) * sizeof(float));
  for (int i = head_dim; i < padded_dim; ++i) padded[i] = 0;
  auto largest = hn::Zero(d);
  for (int i = 0; i < padded_dim; i += lanes) {
    largest = hn::Max(largest, hn::Abs(hn::LoadU(d, padded + i)));
  }
  const float top = hn::GetLane(hn::MaxOfLanes(d, largest));
  const float scale = top / 127.f;
  if (scale < FLT_MIN) {
    std::memset(q, 0, static_cast<size_t>(padded_dim));
    return 0;
  }
  const auto inverse = hn::Set(d, 127.f / top);
  for (int i = 0; i < padded_dim; i += lanes) {
    const auto v = hn::NearestInt(hn::Mul(hn::LoadU(d, padded + i), inverse));
    hn::StoreU(hn::DemoteTo(d8, v), d8, q + i);
  }
  return scale;
}

RowSums CodeRow(const CodebookTable& book, const int8_t* row, int n, int padded_n, uint8_t* codes) {
  const hn::CappedTag<int8_t, kDimMultiple> d8;  // padded_n is a multiple of 16
  const hn::RebindToUnsigned<decltype(d8)> du8;
  const hn::CappedTag<int16_t, 8> d16;
  const hn::RepartitionToWide<decltype(d16)> d32;
  const hn::Rebind<int8_t, decltype(d16)> d8h;
  RowSums sums;
  auto rr = hn::Zero(d32);
  auto top = hn::Zero(d16);
  for (int i = 0; i < padded_n; i += 8) {
    const auto r = hn::PromoteTo(d16, hn::LoadU(d8h, row + i));
    rr = MulAddPairs(d32, r, r, rr);
    top = hn::Max(top, hn::Abs(r));
  }
  sums.rr = hn::GetLane(hn::SumOfLanes(d32, rr));
  sums.top = hn::GetLane(hn::MaxOfLanes(d16, top));
  int8_t thresholds[kMaxLevels];
  IntegerThresholds(book, BookReference(book, sums, n), thresholds);
  // Books of more than 16 levels are linear: levels count by 2.
  const bool linear = book.num_levels > 16;
  const auto lowest = hn::Set(d8, book.levels[0]);
  HWY_ALIGN int8_t levels[16];
  for (int i = 0; i < 16; ++i) levels[i] = i < book.num_levels ? book.levels[i] : int8_t{0};
  const auto table = hn::Load(d8, levels);
  auto rl = hn::Zero(d32), ll = hn::Zero(d32);
  for (int i = 0; i < padded_n; i += kDimMultiple) {
    const auto r = hn::LoadU(d8, row + i);
    auto code = hn::Zero(d8);
    for (int t = 0; t + 1 < book.num_levels; ++t) {
      // A true comparison is -1.
      code = hn::Sub(code, hn::VecFromMask(d8, hn::Gt(r, hn::Set(d8, thresholds[t]))));
    }
    hn::StoreU(hn::BitCast(du8, code), du8, codes + i);
    auto level = linear ? hn::Add(hn::Add(code, code), lowest) : hn::TableLookupBytes(table, code);
    if (i + kDimMultiple > n) {  // the padding does not count
      level = hn::IfThenElseZero(hn::FirstN(d8, static_cast<size_t>(n > i ? n - i : 0)), level);
    }
    const auto r_lo = hn::PromoteTo(d16, hn::LowerHalf(r));
    const auto r_hi = hn::PromoteTo(d16, hn::UpperHalf(d8h, r));
    const auto l_lo = hn::PromoteTo(d16, hn::LowerHalf(level));
    const auto l_hi = hn::PromoteTo(d16, hn::UpperHalf(d8h, level));
    rl = MulAddPairs(d32, r_lo, l_lo, MulAddPairs(d32, r_hi, l_hi, rl));
    ll = MulAddPairs(d32, l_lo, l_lo, MulAddPairs(d32, l_hi, l_hi, ll));
  }
  sums.rl = hn::GetLane(hn::SumOfLanes(d32, rl));
  sums.ll = hn::GetLane(hn::SumOfLanes(d32, ll));
  if (sums.rr == 0) sums = {};
  return sums;
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace tq
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tq {
HWY_EXPORT(QuantizeRow);
HWY_EXPORT(CodeRow);
float QuantizeRowSimd(const float* x, int head_dim, int padded_dim, int8_t* q) {
  return HWY_DYNAMIC_DISPATCH(QuantizeRow)(x, head_dim, padded_dim, q);
}
RowSums CodeRowSimd(const CodebookTable& book, const int8_t* row, int n, int padded_n,
                    uint8_t* codes) {
  return HWY_DYNAMIC_DISPATCH(CodeRow)(book, row, n, padded_n, codes);
}
}  // namespace tq
#endif
