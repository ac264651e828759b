// FP8 e4m3 (OCP 8-bit floating point, 2023): 4 exponent bits with bias 7, 3 mantissa bits, no
// infinities, largest value 448.
#pragma once

#include <cmath>
#include <cstdint>

#include "turboquant/base/numeric.h"

namespace tq {

inline constexpr float kMaxFP8 = 448.f;

// Exponents lie 8 apart from those of a half: shifted into one and scaled, subnormals included.
// The NaN code never occurs in a cache.
inline float F32FromFP8(uint8_t b) {
  return 256.f * F32FromF16(static_cast<f16_t>((b & 0x80) << 8 | (b & 0x7F) << 7));
}

// The four numbers of a word as halves, divided by kFP8ToHalf: bytes 0 and 2, bytes 1 and 3.
inline constexpr float kFP8ToHalf = 256.f;
inline constexpr uint32_t HalvesOfEvenFP8(uint32_t word) {
  return (word << 8 & 0x80008000u) | (word << 7 & 0x3F803F80u);
}
inline constexpr uint32_t HalvesOfOddFP8(uint32_t word) {
  return (word & 0x80008000u) | (word >> 1 & 0x3F803F80u);
}

// Nearest, ties to even; |f| <= kMaxFP8 (the writer clamps).
inline uint8_t FP8FromF32(float f) {
  const uint8_t sign = std::signbit(f) ? 0x80 : 0;
  const float magnitude = std::fabs(f);
  if (magnitude < 0x1p-6f) {  // subnormal: steps of 2^-9; 8 steps are the first normal number
    return static_cast<uint8_t>(sign | static_cast<uint8_t>(std::nearbyint(magnitude * 0x1p9f)));
  }
  const uint32_t bits = std::bit_cast<uint32_t>(magnitude);
  const uint32_t rounded = bits + 0x7FFFFu + ((bits >> 20) & 1u);
  return static_cast<uint8_t>(sign | ((rounded >> 20) - (120u << 3)));
}

}  // namespace tq
