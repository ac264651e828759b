// The elementwise steps for every instruction set: the same bits as ops_ref.cc.
#include <bit>
#include <cmath>

#include "runtime/model/ops.h"

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
  const VF r =
      hn::Sub(hn::Sub(x, hn::Mul(n, hn::Set(df, C::kLn2Hi))), hn::Mul(n, hn::Set(df, C::kLn2Lo)));
  VF p = hn::Set(df, C::kPoly[0]);
  for (int i = 1; i < 6; ++i) p = hn::Add(hn::Mul(p, r), hn::Set(df, C::kPoly[i]));
  const VF y = hn::Add(hn::Add(hn::Mul(p, hn::Mul(r, r)), r), hn::Set(df, 1.0f));
  const auto power = hn::ShiftLeft<23>(hn::Add(n_int, hn::Set(di, 127)));
  return hn::Mul(y, hn::BitCast(df, power));
}

template <Activation kActivation>
HWY_INLINE VF GatedMulVec(VF gate, VF up) {
  using C = ActivationConstants;
  const DF df;
  const VF one = hn::Set(df, 1.0f);
  VF g = gate, u = up, z = gate;
  if constexpr (kActivation == Activation::kGelu) {
    const VF cubic = hn::Mul(hn::Set(df, C::kGeluCubic), hn::Mul(g, g));
    z = hn::Mul(g, hn::Add(hn::Set(df, C::kGeluLinear), cubic));
  } else if constexpr (kActivation == Activation::kClampedSilu) {
    const VF most = hn::Set(df, C::kClamp);
    g = hn::Min(g, most);
    u = hn::Add(hn::Max(hn::Min(u, most), hn::Neg(most)), one);
    z = hn::Mul(hn::Set(df, C::kClampedSlope), g);
  }
  const VF y = hn::Mul(hn::Div(g, hn::Add(one, Exp(hn::Neg(z)))), u);
  // Min and max drop a NaN on some sets: it comes back here.
  const VF sum = hn::Add(gate, up);
  return hn::IfThenElse(hn::Or(hn::IsNaN(gate), hn::IsNaN(up)), sum, y);
}

// x = fn(x, y) over n values; the rest that fills no vector is padded with zeros.
template <class Fn>
HWY_INLINE void ForVectors(float* x, const float* y, int64_t n, const Fn& fn) {
  const DF df;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    hn::StoreU(fn(hn::LoadU(df, x + i), hn::LoadU(df, y + i)), df, x + i);
  }
  if (i == n) return;
  HWY_ALIGN float a[kLanes] = {}, b[kLanes] = {};
  for (int64_t k = i; k < n; ++k) a[k - i] = x[k], b[k - i] = y[k];
  hn::Store(fn(hn::Load(df, a), hn::Load(df, b)), df, a);
  for (int64_t k = i; k < n; ++k) x[k] = a[k - i];
}

void GatedMul(Activation activation, float* HWY_RESTRICT gate, const float* HWY_RESTRICT up,
              int64_t n) {
  const auto run = [&](auto kernel) { ForVectors(gate, up, n, kernel); };
  switch (activation) {
    case Activation::kSilu:
      return run([](VF g, VF u) HWY_ATTR { return GatedMulVec<Activation::kSilu>(g, u); });
    case Activation::kGelu:
      return run([](VF g, VF u) HWY_ATTR { return GatedMulVec<Activation::kGelu>(g, u); });
    case Activation::kClampedSilu:
      return run([](VF g, VF u) HWY_ATTR { return GatedMulVec<Activation::kClampedSilu>(g, u); });
  }
}

void Softcap(float cap, float* HWY_RESTRICT x, int64_t n) {
  const DF df;
  const VF factor = hn::Set(df, -2.0f / cap), one = hn::Set(df, 1.0f), caps = hn::Set(df, cap);
  ForVectors(x, x, n, [&](VF v, VF) HWY_ATTR {
    const VF e = Exp(hn::Mul(factor, hn::Abs(v)));
    const VF y = hn::Mul(caps, hn::Div(hn::Sub(one, e), hn::Add(one, e)));
    return hn::IfThenElse(hn::IsNaN(v), v, hn::CopySignToAbs(y, v));
  });
}

void Add(float* HWY_RESTRICT x, const float* HWY_RESTRICT y, int64_t n) {
  const DF df;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    hn::StoreU(hn::Add(hn::LoadU(df, x + i), hn::LoadU(df, y + i)), df, x + i);
  }
  for (; i < n; ++i) x[i] += y[i];
}

void ApplyRope(float* HWY_RESTRICT x, const float* HWY_RESTRICT cos, const float* HWY_RESTRICT sin,
               int rows, int heads, int head_dim, int rope_dim) {
  const DF df;
  const int half = rope_dim / 2;
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
HWY_EXPORT(GatedMul);
HWY_EXPORT(Softcap);
HWY_EXPORT(Add);
HWY_EXPORT(ApplyRope);

const ModelOps& ModelOpsSimd() {
  static constexpr ModelOps kOps = {
      [](const float* x, const float* weight, int rows, int64_t n, float eps, float* out) {
        HWY_DYNAMIC_DISPATCH(RmsNorm)(x, weight, rows, n, eps, out);
      },
      [](Activation activation, float* gate, const float* up, int64_t n) {
        HWY_DYNAMIC_DISPATCH(GatedMul)(activation, gate, up, n);
      },
      [](float cap, float* x, int64_t n) { HWY_DYNAMIC_DISPATCH(Softcap)
                                           (cap, x, n); },
      [](float* x, const float* y, int64_t n) { HWY_DYNAMIC_DISPATCH(Add)
                                                (x, y, n); },
      [](float* x, const float* cos, const float* sin, int rows, int heads, int head_dim,
         int rope_dim) {
        HWY_DYNAMIC_DISPATCH(ApplyRope)(x, cos, sin, rows, heads, head_dim, rope_dim);
      }};
  return kOps;
}

}  // namespace tq
#endif
