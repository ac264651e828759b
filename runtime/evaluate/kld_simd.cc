// The loops over a row of logits. Float lanes are summed over 1,024 values at a time, then in
// double, so that a vocabulary of 150,000 adds no visible rounding.
#include <algorithm>

#include "runtime/evaluate/kld.h"

// foreach_target compiles this file once for each instruction set; what follows it depends on that.
// clang-format off
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/evaluate/kld_simd.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include <hwy/contrib/math/math-inl.h>
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace tq {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr size_t kBlock = 1024;

float MaxImpl(const float* x, size_t n) {
  const hn::ScalableTag<float> d;
  const size_t lanes = hn::Lanes(d);
  auto best = hn::Set(d, hwy::LowestValue<float>());
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) best = hn::Max(best, hn::LoadU(d, x + i));
  float result = hn::GetLane(hn::MaxOfLanes(d, best));
  for (; i < n; ++i) result = std::max(result, x[i]);
  return result;
}

// exp of one value through the same polynomial as the lanes, so that the tail agrees.
float ExpOne(float x) {
  const hn::CappedTag<float, 1> d;
  return hn::GetLane(hn::Exp(d, hn::Set(d, x)));
}

double ExpSumImpl(const float* x, size_t n, float shift, float* out) {
  const hn::ScalableTag<float> d;
  const size_t lanes = hn::Lanes(d);
  const auto s = hn::Set(d, shift);
  double total = 0;
  // hn::Exp(NaN) is 0; 0 * x stays 0 for finite x and turns the sum into NaN for all others.
  auto poison = hn::Zero(d);
  size_t i = 0;
  while (i + lanes <= n) {
    const size_t end = std::min(n, i + kBlock);
    auto sum = hn::Zero(d);
    for (; i + lanes <= end; i += lanes) {
      const auto v = hn::Sub(hn::LoadU(d, x + i), s);
      const auto e = hn::Exp(d, v);
      poison = hn::MulAdd(v, hn::Zero(d), poison);
      hn::StoreU(e, d, out + i);
      sum = hn::Add(sum, e);
    }
    total += static_cast<double>(hn::GetLane(hn::SumOfLanes(d, sum)));
  }
  total += static_cast<double>(hn::GetLane(hn::SumOfLanes(d, poison)));
  for (; i < n; ++i) {
    out[i] = ExpOne(x[i] - shift);
    total += static_cast<double>(out[i] + (x[i] - shift) * 0.0f);
  }
  return total;
}

void ScaleImpl(float* x, size_t n, float factor) {
  const hn::ScalableTag<float> d;
  const size_t lanes = hn::Lanes(d);
  const auto f = hn::Set(d, factor);
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(hn::Mul(hn::LoadU(d, x + i), f), d, x + i);
  for (; i < n; ++i) x[i] *= factor;
}

void DivergenceImpl(const float* ref, const float* cand, const float* p, const float* e, size_t n,
                    float lse_difference, float inv_sum, double* kld, double* abs_difference) {
  const hn::ScalableTag<float> d;
  const size_t lanes = hn::Lanes(d);
  const auto c = hn::Set(d, lse_difference);
  const auto inv = hn::Set(d, inv_sum);
  double total_kld = 0, total_abs = 0;
  size_t i = 0;
  while (i + lanes <= n) {
    const size_t end = std::min(n, i + kBlock);
    auto sum_kld = hn::Zero(d);
    auto sum_abs = hn::Zero(d);
    for (; i + lanes <= end; i += lanes) {
      const auto vp = hn::LoadU(d, p + i);
      const auto difference = hn::Sub(hn::Mul(hn::LoadU(d, e + i), inv), vp);
      const auto log_ratio = hn::Sub(hn::Sub(hn::LoadU(d, ref + i), hn::LoadU(d, cand + i)), c);
      sum_kld = hn::Add(sum_kld, hn::MulAdd(vp, log_ratio, difference));
      sum_abs = hn::Add(sum_abs, hn::Abs(difference));
    }
    total_kld += static_cast<double>(hn::GetLane(hn::SumOfLanes(d, sum_kld)));
    total_abs += static_cast<double>(hn::GetLane(hn::SumOfLanes(d, sum_abs)));
  }
  for (; i < n; ++i) {
    const float difference = e[i] * inv_sum - p[i];
    total_kld += static_cast<double>(p[i] * (ref[i] - cand[i] - lse_difference) + difference);
    total_abs += static_cast<double>(difference < 0 ? -difference : difference);
  }
  *kld = total_kld;
  *abs_difference = total_abs;
}

}  // namespace HWY_NAMESPACE
}  // namespace tq
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tq::kld_kernel {

HWY_EXPORT(MaxImpl);
HWY_EXPORT(ExpSumImpl);
HWY_EXPORT(ScaleImpl);
HWY_EXPORT(DivergenceImpl);

float Max(const float* x, size_t n) {
  return HWY_DYNAMIC_DISPATCH(MaxImpl)(x, n);
}

double ExpSum(const float* x, size_t n, float shift, float* out) {
  return HWY_DYNAMIC_DISPATCH(ExpSumImpl)(x, n, shift, out);
}

void Scale(float* x, size_t n, float factor) {
  HWY_DYNAMIC_DISPATCH(ScaleImpl)(x, n, factor);
}

void Divergence(const float* ref, const float* cand, const float* p, const float* e, size_t n,
                float lse_difference, float inv_sum, double* kld, double* abs_difference) {
  HWY_DYNAMIC_DISPATCH(DivergenceImpl)
  (ref, cand, p, e, n, lse_difference, inv_sum, kld, abs_difference);
}

}  // namespace tq::kld_kernel
#endif
