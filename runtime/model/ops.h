// The elementwise steps of a forward pass on the CPU, over rows of floats.
//
// Float operations are unfused and in one order (ops_ref.cc), so every instruction set gives the
// same bits.
#pragma once

#include <cstdint>

namespace tq {

// out = x / sqrt(mean(x^2) + eps) * weight. x, out: [rows][n], may be the same.
void RmsNorm(const float* x, const float* weight, int rows, int64_t n, float eps, float* out);

// What stands between the two matrices of a feed-forward part and the third, with
// s(z) = 1 / (1 + exp(-z)):
//   kSilu         gate s(gate) * up
//   kGelu         gate s(2 sqrt(2/pi) (gate + 0.044715 gate^3)) * up: GELU in its tanh form
//   kClampedSilu  g s(1.702 g) * (u + 1), g = min(gate, 7), u = up within +-7 (gpt-oss)
enum class Activation : uint8_t { kSilu, kGelu, kClampedSilu };

// gate = activation(gate, up).
void GatedMul(Activation activation, float* gate, const float* up, int64_t n);

// x = cap * tanh(x / cap), within 1e-6 cap.
void Softcap(float cap, float* x, int64_t n);

// x += y.
void Add(float* x, const float* y, int64_t n);

// Turns every head of x [rows][heads][head_dim] in place: channels i and i + half of a row by the
// angle of cos, sin [rows][half], half = rope_dim / 2. Channels from rope_dim on stay.
void ApplyRope(float* x, const float* cos, const float* sin, int rows, int heads, int head_dim,
               int rope_dim);

// The kernels behind them.
struct ModelOps {
  void (*rms_norm)(const float*, const float*, int, int64_t, float, float*);
  void (*gated_mul)(Activation, float*, const float*, int64_t);
  void (*softcap)(float, float*, int64_t);
  void (*add)(float*, const float*, int64_t);
  void (*apply_rope)(float*, const float*, const float*, int, int, int, int);
};
const ModelOps& ModelOpsRef();
const ModelOps& ModelOpsSimd();

// Number of partial sums in RmsNorm: lane i adds the squares of channels i, i + 16, ...
inline constexpr int kNormLanes = 16;

struct ActivationConstants {
  static constexpr float kGeluLinear = 1.595769122f, kGeluCubic = 0.0713548163f;
  static constexpr float kClamp = 7.0f, kClampedSlope = 1.702f;
};

// exp(x) = 2^n exp(r), |r| <= ln 2 / 2, by the Taylor series to r^7: its rest is below 1e-8.
struct ExpConstants {
  static constexpr float kLog2E = 1.44269504f;
  static constexpr float kLn2Hi = 0.693359375f, kLn2Lo = -2.12194440e-4f;  // n * kLn2Hi is exact
  static constexpr float kLow = -87.0f, kHigh = 88.0f;
  static constexpr float kPoly[6] = {1.0f / 5040, 1.0f / 720, 1.0f / 120,
                                     1.0f / 24,   1.0f / 6,   1.0f / 2};
};

}  // namespace tq
