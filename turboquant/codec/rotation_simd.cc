// The rotation on vectors. Every element sees the operations of rotation_ref.cc in the same order
// (no fused multiply-add), so the results are equal bit for bit on every instruction set.
#include <cstddef>

#include "turboquant/codec/rotation_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "turboquant/codec/rotation_simd.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace tq {
namespace HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

// Butterflies at distance h, h a multiple of the vector length.
template <class D>
HWY_INLINE void Wide(D d, int n, int h, float* x) {
  const int lanes = static_cast<int>(hn::Lanes(d));
  for (int i = 0; i < n; i += 2 * h) {
    for (int j = i; j < i + h; j += lanes) {
      const auto a = hn::LoadU(d, x + j);
      const auto b = hn::LoadU(d, x + j + h);
      hn::StoreU(hn::Add(a, b), d, x + j);
      hn::StoreU(hn::Sub(a, b), d, x + j + h);
    }
  }
}

void Hadamard(int n, float norm, float* x) {
  const hn::ScalableTag<float> d;
  const hn::CappedTag<float, 4> d4;
  const int lanes = static_cast<int>(hn::Lanes(d));
  int h = n / 2;
  for (; h >= lanes; h /= 2) Wide(d, n, h, x);
  if (n >= 4 && hn::Lanes(d4) == 4) {
    for (; h >= 4; h /= 2) Wide(d4, n, h, x);
    // Distances 2 and 1 inside a vector: [a + b, a - b] = own value added to or taken from the
    // other's, lane by lane.
    const auto upper2 = hn::Eq(hn::And(hn::Iota(hn::RebindToUnsigned<decltype(d4)>(), 0),
                                       hn::Set(hn::RebindToUnsigned<decltype(d4)>(), 2)),
                               hn::Set(hn::RebindToUnsigned<decltype(d4)>(), 2));
    const auto upper1 = hn::Eq(hn::And(hn::Iota(hn::RebindToUnsigned<decltype(d4)>(), 0),
                                       hn::Set(hn::RebindToUnsigned<decltype(d4)>(), 1)),
                               hn::Set(hn::RebindToUnsigned<decltype(d4)>(), 1));
    const auto m2 = hn::RebindMask(d4, upper2);
    const auto m1 = hn::RebindMask(d4, upper1);
    const auto scale = hn::Set(d4, norm);
    for (int i = 0; i < n; i += 4) {
      auto v = hn::LoadU(d4, x + i);
      auto s = hn::Shuffle1032(v);
      v = hn::IfThenElse(m2, hn::Sub(s, v), hn::Add(v, s));
      s = hn::Shuffle2301(v);
      v = hn::IfThenElse(m1, hn::Sub(s, v), hn::Add(v, s));
      hn::StoreU(hn::Mul(v, scale), d4, x + i);
    }
    return;
  }
  for (; h >= 1; h /= 2) Wide(hn::CappedTag<float, 1>(), n, h, x);
  for (int i = 0; i < n; ++i) x[i] *= norm;
}

void Signs(const Rotation::Plan& plan, float* x) {
  const int n = plan.odd * plan.pow2;
  for (int i = 0; i < n; ++i) x[i] *= plan.signs[static_cast<size_t>(i)];
}

// One output row at a time over all columns: the sum over k in order, as in the reference.
void Dct(const Rotation::Plan& plan, bool transpose, float* x) {
  const int m = plan.odd, n = plan.pow2;
  float out[kMaxHeadDim];
  for (int i = 0; i < m; ++i) {
    for (int j = 0; j < n; ++j) out[i * n + j] = 0;
    for (int k = 0; k < m; ++k) {
      const float w = plan.dct[static_cast<size_t>(transpose ? k * m + i : i * m + k)];
      for (int j = 0; j < n; ++j) out[i * n + j] += w * x[k * n + j];
    }
  }
  for (int i = 0; i < m * n; ++i) x[i] = out[i];
}

void ApplyRotation(const Rotation::Plan& plan, bool inverse, float* x) {
  if (!inverse) {
    Signs(plan, x);
  } else if (plan.odd > 1) {
    Dct(plan, true, x);
  }
  for (int i = 0; i < plan.odd; ++i) Hadamard(plan.pow2, plan.norm, x + i * plan.pow2);
  if (!inverse) {
    if (plan.odd > 1) Dct(plan, false, x);
  } else {
    Signs(plan, x);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace tq
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tq {
HWY_EXPORT(ApplyRotation);
void RotateSimd(const Rotation::Plan& plan, bool inverse, float* x) {
  HWY_DYNAMIC_DISPATCH(ApplyRotation)(plan, inverse, x);
}
}  // namespace tq
#endif
