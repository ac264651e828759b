// One-byte logarithmic scales: c = base * 2^((code - 255) / 16), code 0 = exactly zero.
#pragma once

#include <cmath>
#include <cstdint>

#include "turboquant/base/numeric.h"

namespace tq {

// [256] of 2^((code - 255) / 16); entry 0 is 0.
const float* Log8Table();
// [16] of 2^(part / 16): an entry c of the table is part (c + 1) % 16 of these times 2^((c + 1) /
// 16
// - 16), exactly.
const float* Log8Parts();

// The largest scale of a record as its base: bfloat16, rounded up. 0 for a record of zeros.
inline bf16_t Log8Base(float largest) {
  return largest > 0 ? BF16FromF32RoundUp(largest) : 0;
}

// Nearest code. Below half of the smallest step the scale becomes 0: a tiny vector must not grow.
inline uint8_t Log8Encode(float scale, float base) {
  if (!(scale > 0)) return 0;
  const float exact = 255.f + 16.f * std::log2(scale / base);
  if (exact < -15.f) return 0;
  const float code = std::nearbyint(exact);
  return static_cast<uint8_t>(code < 1 ? 1 : code > 255 ? 255 : code);
}

// The smallest code whose scale is not below `scale` (8-bit codes must not clip).
inline uint8_t Log8EncodeUp(float scale, float base) {
  if (!(scale > 0)) return 0;
  const float exact = 255.f + 16.f * std::log2(scale / base);
  if (exact < -15.f) return 0;
  const float code = std::ceil(exact - 1e-4f);
  return static_cast<uint8_t>(code < 1 ? 1 : code > 255 ? 255 : code);
}

}  // namespace tq
