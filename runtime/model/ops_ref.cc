// The elementwise steps in plain loops: the specification.
#include <algorithm>
#include <bit>
#include <cmath>

#include "runtime/model/ops.h"

namespace tq {
namespace {

void RmsNormRef(const float* x, const float* weight, int rows, int64_t n, float eps, float* out) {
  for (int r = 0; r < rows; ++r, x += n, out += n) {
    float sums[kNormLanes] = {};
    for (int64_t i = 0; i < n; ++i) sums[i % kNormLanes] += x[i] * x[i];
    for (int half = kNormLanes / 2; half >= 1; half /= 2) {
      for (int i = 0; i < half; ++i) sums[i] += sums[i + half];
    }
    const float scale = 1.0f / std::sqrt(sums[0] / static_cast<float>(n) + eps);
    for (int64_t i = 0; i < n; ++i) out[i] = x[i] * scale * weight[i];
  }
}

float Exp(float x) {
  using C = ExpConstants;
  if (std::isnan(x)) return x;
  x = std::min(std::max(x, C::kLow), C::kHigh);
  const float n = std::nearbyint(x * C::kLog2E);
  const float r = (x - n * C::kLn2Hi) - n * C::kLn2Lo;
  float p = C::kPoly[0];
  for (int i = 1; i < 6; ++i) p = p * r + C::kPoly[i];
  const float y = (p * (r * r) + r) + 1.0f;
  return y * std::bit_cast<float>((static_cast<int32_t>(n) + 127) << 23);
}

void GatedMulRef(Activation activation, float* gate, const float* up, int64_t n) {
  using C = ActivationConstants;
  for (int64_t i = 0; i < n; ++i) {
    float g = gate[i], u = up[i], z = g;
    switch (activation) {
      case Activation::kSilu: break;
      case Activation::kGelu: z = g * (C::kGeluLinear + C::kGeluCubic * (g * g)); break;
      case Activation::kClampedSilu:
        if (g > C::kClamp) g = C::kClamp;
        if (u > C::kClamp) u = C::kClamp;
        if (u < -C::kClamp) u = -C::kClamp;
        u = u + 1.0f;
        z = C::kClampedSlope * g;
        break;
    }
    gate[i] = g / (1.0f + Exp(-z)) * u;
  }
}

void SoftcapRef(float cap, float* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const float e = Exp(-2.0f / cap * std::fabs(x[i]));
    x[i] = std::copysign(cap * ((1.0f - e) / (1.0f + e)), x[i]);
  }
}

void AddRef(float* x, const float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] += y[i];
}

void ApplyRopeRef(float* x, const float* cos, const float* sin, int rows, int heads, int head_dim,
                  int rope_dim) {
  const int half = rope_dim / 2;
  for (int r = 0; r < rows; ++r, cos += half, sin += half) {
    for (int h = 0; h < heads; ++h, x += head_dim) {
      for (int i = 0; i < half; ++i) {
        const float a = x[i], b = x[i + half];
        x[i] = a * cos[i] - b * sin[i];
        x[i + half] = b * cos[i] + a * sin[i];
      }
    }
  }
}

}  // namespace

const ModelOps& ModelOpsRef() {
  static constexpr ModelOps kOps = {RmsNormRef, GatedMulRef, SoftcapRef, AddRef, ApplyRopeRef};
  return kOps;
}

}  // namespace tq
