// Half and bfloat16 as plain 16-bit integers, with exact conversions (round to nearest even).
// Portable bit arithmetic: the specification for the SIMD paths that use hardware conversions.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

namespace tq {

using f16_t = uint16_t;
using bf16_t = uint16_t;

float F32FromF16(f16_t h);
f16_t F16FromF32(float f);  // overflow becomes infinity, NaN stays NaN

inline float F32FromBF16(bf16_t b) { return std::bit_cast<float>(static_cast<uint32_t>(b) << 16); }
bf16_t BF16FromF32(float f);
// The smallest bfloat16 that is not below f, for f >= 0 and finite.
bf16_t BF16FromF32RoundUp(float f);

// Deterministic 64-bit generator, used for rotation signs and synthetic data (Steele et al. 2014).
inline uint64_t SplitMix64(uint64_t& state) {
  uint64_t z = (state += 0x9E3779B97F4A7C15ull);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

template <typename T>
constexpr T RoundUp(T n, T multiple) { return (n + multiple - 1) / multiple * multiple; }
template <typename T>
constexpr T DivCeil(T n, T d) { return (n + d - 1) / d; }

// XXH3 64-bit of a byte range.
uint64_t Hash64(std::span<const std::byte> bytes, uint64_t seed = 0);
inline uint64_t Hash64(const void* p, size_t n, uint64_t seed = 0) {
  return Hash64({static_cast<const std::byte*>(p), n}, seed);
}

}  // namespace tq
