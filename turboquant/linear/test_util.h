// Random weight rows for the tests of this folder.
#pragma once

#include <cstring>
#include <vector>

#include "turboquant/base/numeric.h"
#include "turboquant/linear/weight.h"

namespace tq {

inline float RandomFloat(uint64_t& state) {  // in [-1, 1)
  return static_cast<float>(static_cast<int64_t>(SplitMix64(state)) >> 40) * 0x1p-23f;
}

// Rows as a file holds them: random codes, scales of both signs.
inline std::vector<std::byte> RandomRows(WeightType type, int64_t out_dim, int64_t in_dim,
                                         uint64_t seed) {
  const size_t block_bytes = static_cast<size_t>(WeightBlockBytes(type));
  const size_t blocks = static_cast<size_t>(out_dim * in_dim / WeightBlockLen(type));
  std::vector<std::byte> rows(blocks * block_bytes);
  for (std::byte& b : rows) b = static_cast<std::byte>(SplitMix64(seed));
  for (size_t b = 0; b < blocks; ++b) {
    std::byte* p = rows.data() + b * block_bytes;
    const float value = RandomFloat(seed);
    const f16_t half = F16FromF32(value);
    if (type == WeightType::kF32) {
      std::memcpy(p, &value, 4);
    } else if (type == WeightType::kBF16) {
      const bf16_t bf16 = BF16FromF32(value);
      std::memcpy(p, &bf16, 2);
    } else {
      std::memcpy(p, &half, 2);
    }
    if (type == WeightType::kQ4_1) {
      const f16_t minimum = F16FromF32(RandomFloat(seed));
      std::memcpy(p + 2, &minimum, 2);
    }
  }
  return rows;
}

inline constexpr WeightType kAllWeightTypes[] = {WeightType::kF32,  WeightType::kF16,
                                                 WeightType::kBF16, WeightType::kQ4_0,
                                                 WeightType::kQ4_1, WeightType::kQ8_0};

}  // namespace tq
