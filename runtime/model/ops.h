// The elementwise steps of a forward pass on the CPU, over rows of floats.
//
// Float operations are unfused and in one order (ops_ref.cc), so every instruction set gives the
// same bits.
#pragma once

#include <cstdint>

namespace tq {

// out = x / sqrt(mean(x^2) + eps) * weight. x, out: [rows][n], may be the same.
void RmsNorm(const float* x, const float* weight, int rows, int64_t n, float eps, float* out);

// gate = silu(gate) * up, silu(g) = g / (1 + exp(-g)).
void SiluMul(float* gate, const float* up, int64_t n);

// x += y.
void Add(float* x, const float* y, int64_t n);

// Turns every head of x [rows][heads][head_dim] in place: channels i and i + half of a row by the
// angle of cos, sin [rows][half], half = head_dim / 2.
void ApplyRope(float* x, const float* cos, const float* sin, int rows, int heads, int head_dim);

// The kernels behind them.
struct ModelOps {
  void (*rms_norm)(const float*, const float*, int, int64_t, float, float*);
  void (*silu_mul)(float*, const float*, int64_t);
  void (*add)(float*, const float*, int64_t);
  void (*apply_rope)(float*, const float*, const float*, int, int, int);
};
const ModelOps& ModelOpsRef();
const ModelOps& ModelOpsSimd();

// Number of partial sums in RmsNorm: lane i adds the squares of channels i, i + 16, ...
inline constexpr int kNormLanes = 16;

// exp(x) = 2^n exp(r), |r| <= ln 2 / 2, by the Taylor series to r^7: its rest is below 1e-8.
struct ExpConstants {
  static constexpr float kLog2E = 1.44269504f;
  static constexpr float kLn2Hi = 0.693359375f, kLn2Lo = -2.12194440e-4f;  // n * kLn2Hi is exact
  static constexpr float kLow = -87.0f, kHigh = 88.0f;
  static constexpr float kPoly[6] = {1.0f / 5040, 1.0f / 720, 1.0f / 120,
                                     1.0f / 24,   1.0f / 6,   1.0f / 2};
};

}  // namespace tq
