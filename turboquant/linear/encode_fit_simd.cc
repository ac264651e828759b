// Guesses of scales tried on a group, for every instruction set: the bits of encode_fit_ref.cc.
#include "turboquant/base/isa.h"
#include "turboquant/linear/encode_fit.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "turboquant/linear/encode_fit_simd.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace tq {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

void FitCodes(const FitGroup& g, const FitLanes& inverse, const FitLanes& minimum, FitSums& out) {
  const hn::CappedTag<float, kFitLanes> df;
  const auto low = hn::Set(df, g.low), high = hn::Set(df, g.high);
  for (size_t i = 0; i < kFitLanes; i += hn::Lanes(df)) {
    const auto inv = hn::Load(df, inverse.v + i), min = hn::Load(df, minimum.v + i);
    auto wc = hn::Zero(df), wcc = hn::Zero(df), wxc = hn::Zero(df);
    for (int k = 0; k < g.n; ++k) {
      const auto x = hn::Set(df, g.x[k]);
      const auto level = hn::Round(hn::Mul(hn::Sub(x, min), inv));
      const auto c = hn::Min(hn::Max(level, low), high);
      const auto weighted = hn::Mul(hn::Set(df, g.w[k]), c);
      wc = hn::Add(wc, weighted);
      wcc = hn::Add(wcc, hn::Mul(weighted, c));
      wxc = hn::Add(wxc, hn::Mul(weighted, x));
    }
    hn::Store(wc, df, out.wc.v + i);
    hn::Store(wcc, df, out.wcc.v + i);
    hn::Store(wxc, df, out.wxc.v + i);
  }
}

void FitError(const FitGroup& g, const FitLanes& scale, const FitLanes& inverse,
              const FitLanes& minimum, FitLanes& error) {
  const hn::CappedTag<float, kFitLanes> df;
  const auto low = hn::Set(df, g.low), high = hn::Set(df, g.high);
  for (size_t i = 0; i < kFitLanes; i += hn::Lanes(df)) {
    const auto inv = hn::Load(df, inverse.v + i), min = hn::Load(df, minimum.v + i);
    const auto step = hn::Load(df, scale.v + i);
    auto sum = hn::Zero(df);
    for (int k = 0; k < g.n; ++k) {
      const auto above = hn::Sub(hn::Set(df, g.x[k]), min);
      const auto level = hn::Round(hn::Mul(above, inv));
      const auto c = hn::Min(hn::Max(level, low), high);
      const auto difference = hn::Sub(above, hn::Mul(step, c));
      sum = hn::Add(sum, hn::Mul(hn::Mul(difference, difference), hn::Set(df, g.w[k])));
    }
    hn::Store(sum, df, error.v + i);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tq
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tq {

HWY_EXPORT(FitCodes);
HWY_EXPORT(FitError);

void FitCodesSimd(const FitGroup& g, const FitLanes& inverse, const FitLanes& minimum,
                  FitSums& out) {
  HWY_DYNAMIC_DISPATCH(FitCodes)(g, inverse, minimum, out);
}
void FitErrorSimd(const FitGroup& g, const FitLanes& scale, const FitLanes& inverse,
                  const FitLanes& minimum, FitLanes& error) {
  HWY_DYNAMIC_DISPATCH(FitError)(g, scale, inverse, minimum, error);
}

void FitCodes(const FitGroup& g, const FitLanes& inverse, const FitLanes& minimum, FitSums& out) {
  (UseReferenceKernels() ? FitCodesRef : FitCodesSimd)(g, inverse, minimum, out);
}
void FitError(const FitGroup& g, const FitLanes& scale, const FitLanes& inverse,
              const FitLanes& minimum, FitLanes& error) {
  (UseReferenceKernels() ? FitErrorRef : FitErrorSimd)(g, scale, inverse, minimum, error);
}

}  // namespace tq
#endif
