// The elementwise steps for every instruction set: the same bits as ops_ref.cc.
#include "runtime/model/ops.h"

#include <bit>
#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/model/ops_simd.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace tq {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::CappedTag<float, kNormLanes>;
using DI = hn::RebindToSigned<DF>;
using VF = hn::Vec<DF>;
constexpr int kLanes = static_cast<int>(hn::MaxLanes(DF()));
constexpr int kVecs = kNormLanes / kLanes;

void RmsNorm(const float* x, const float* HWY_RESTRICT weight, int rows, int64_t n, float eps,
             float* out) {
  const DF df;
  for (int r = 0; r < rows; ++r, x += n, out += n) {
    VF acc[kVecs];
    for (int v = 0; v < kVecs; ++v) acc[v] = hn::Zero(df);
    int64_t i = 0;
    for (; i + kNormLanes <= n; i += kNormLanes) {
      for (int v = 0; v < kVecs; ++v) {
        const VF a = hn::LoadU(df, x + i + v * kLanes);
        acc[v] = hn::Add(acc[v], hn::Mul(a, a));
      }
    }
    HWY_ALIGN float sums[kNormLanes];
    for (int v = 0; v < kVecs; ++v) hn::Store(acc[v], df, sums + v * kLanes);
    for (int lane = 0; i < n; ++i, ++lane) sums[lane] += x[i] * x[i];
    for (int half = kNormLanes / 2; half >= 1; half /= 2) {
      for (int k = 0; k < half; ++k) sums[k] += sums[k + half];
    }
    const float scale = 1.0f / std::sqrt(sums[0] / static_cast<float>(n) + eps);
    const VF scales = hn::Set(df, scale);
    for (i = 0; i + kLanes <= n; i += kLanes) {
      const VF a = hn::Mul(hn::LoadU(df, x + i), scales);
      hn::StoreU(hn::Mul(a, hn::LoadU(df, weight + i)), df, out + i);
    }
    for (; i < n; ++i) out[i] = x[i] * scale * weight[i];
  }
}

HWY_INLINE VF Exp(VF x) {
  using C = ExpConstants;
  const DF df;
  const DI di;
  x = hn::Min(hn::Max(x, hn::Set(df, C::kLow)), hn::Set(df, C::kHigh));
  const auto n_int = hn::NearestInt(hn::Mul(x, hn::Set(df, C::kLog2E)));
  const VF n = hn::ConvertTo(df, n_int);
  const VF r = hn::Sub(hn::Sub(x, hn::Mul(n, hn::Set(df, C::kLn2Hi))),
                       hn::Mul(n, hn::Set(df, C::kLn2Lo)));
  VF p = hn::Set(df, C::kPoly[0]);
  for (int i = 1; i < 6; ++i) p = hn::Add(hn::Mul(p, r), hn::Set(df, C::kPoly[i]));
  const VF y = hn::Add(hn::Add(hn::Mul(p, hn::Mul(r, r)), r), hn::Set(df, 1.0f));
  const auto power = hn::ShiftLeft<23>(hn::Add(n_int, hn::Set(di, 127)));
  return hn::Mul(y, hn::BitCast(df, power));
}

HWY_INLINE VF SiluMulVec(VF gate, VF up) {
  const VF e = Exp(hn::Neg(gate));
  const VF y = hn::Mul(hn::Div(gate, hn::Add(hn::Set(DF(), 1.0f), e)), up);
  // Min and max drop a NaN on some sets: it comes back here.
  return hn::IfThenElse(hn::IsNaN(gate), gate, y);
}

void SiluMul(float* HWY_RESTRICT gate, const float* HWY_RESTRICT up, int64_t n) {
  const DF df;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    hn::StoreU(SiluMulVec(hn::LoadU(df, gate + i), hn::LoadU(df, up + i)), df, gate + i);
  }
  if (i == n) return;
  HWY_ALIGN float g[kLanes] = {}, u[kLanes] = {};
  for (int64_t k = i; k < n; ++k) g[k - i] = gate[k], u[k - i] = up[k];
  hn::Store(SiluMulVec(hn::Load(df, g), hn::Load(df, u)), df, g);
  for (int64_t k = i; k < n; ++k) gate[k] = g[k - i];
}

void Add(float* HWY_RESTRICT x, const float* HWY_RESTRICT y, int64_t n) {
  const DF df;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    hn::StoreU(hn::Add(hn::LoadU(df, x + i), hn::LoadU(df, y + i)), df, x + i);
  }
  for (; i < n; ++i) x[i] += y[i];
}

void ApplyRope(float* HWY_RESTRICT x, const float* HWY_RESTRICT cos,
               const float* HWY_RESTRICT sin, int rows, int heads, int head_dim) {
  const DF df;
  const int half = head_dim / 2;
  for (int r = 0; r < rows; ++r, cos += half, sin += half) {
    for (int h = 0; h < heads; ++h, x += head_dim) {
      int i = 0;
      for (; i + kLanes <= half; i += kLanes) {
        const VF a = hn::LoadU(df, x + i), b = hn::LoadU(df, x + half + i);
        const VF c = hn::LoadU(df, cos + i), s = hn::LoadU(df, sin + i);
        hn::StoreU(hn::Sub(hn::Mul(a, c), hn::Mul(b, s)), df, x + i);
        hn::StoreU(hn::Add(hn::Mul(b, c), hn::Mul(a, s)), df, x + half + i);
      }
      for (; i < half; ++i) {
        const float a = x[i], b = x[i + half];
        x[i] = a * cos[i] - b * sin[i];
        x[i + half] = b * cos[i] + a * sin[i];
      }
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tq
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tq {

HWY_EXPORT(RmsNorm);
HWY_EXPORT(SiluMul);
HWY_EXPORT(Add);
HWY_EXPORT(ApplyRope);

const ModelOps& ModelOpsSimd() {
  static constexpr ModelOps kOps = {
      [](const float* x, const float* weight, int rows, int64_t n, float eps, float* out) {
        HWY_DYNAMIC_DISPATCH(RmsNorm)(x, weight, rows, n, eps, out);
      },
      [](float* gate, const float* up, int64_t n) {
        HWY_DYNAMIC_DISPATCH(SiluMul)(gate, up, n);
      },
      [](float* x, const float* y, int64_t n) { HWY_DYNAMIC_DISPATCH(Add)(x, y, n); },
      [](float* x, const float* cos, const float* sin, int rows, int heads, int head_dim) {
        HWY_DYNAMIC_DISPATCH(ApplyRope)(x, cos, sin, rows, heads, head_dim);
      }};
  return kOps;
}

}  // namespace tq
#endif
