#include "turboquant/base/numeric.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace tq {

float F32FromF16(f16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  const uint32_t exponent = (h >> 10) & 31u;
  const uint32_t mantissa = h & 1023u;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7F800000u | (mantissa << 13));
  if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  // Subnormal: mantissa * 2^-24 is exact in float32.
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
}

f16_t F16FromF32(float f) {
  const uint32_t bits = std::bit_cast<uint32_t>(f);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return static_cast<f16_t>(sign | 0x7E00u);
  if (magnitude >= 0x477FF000u) return static_cast<f16_t>(sign | 0x7C00u);
  if (magnitude < 0x38800000u) {
    // Adding 0.5 puts the 10 subnormal bits at the bottom of the float's mantissa, rounded.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<f16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3F000000u));
  }
  const uint32_t odd = (magnitude >> 13) & 1u;
  return static_cast<f16_t>(sign | ((magnitude - 0x38000000u + 0xFFFu + odd) >> 13));
}

bf16_t BF16FromF32(float f) {
  const uint32_t bits = std::bit_cast<uint32_t>(f);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<bf16_t>((bits >> 16) | 0x40u);
  return static_cast<bf16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

bf16_t BF16FromF32RoundUp(float f) {
  const uint32_t bits = std::bit_cast<uint32_t>(f);
  return static_cast<bf16_t>((bits + 0xFFFFu) >> 16);
}

uint64_t Hash64(std::span<const std::byte> bytes, uint64_t seed) {
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

}  // namespace tq
