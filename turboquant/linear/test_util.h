// Random weight rows for the tests of this folder.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <utility>
#include <vector>

#include "turboquant/base/numeric.h"
#include "turboquant/linear/weight.h"

namespace tq {

inline float RandomFloat(uint64_t& state) {  // in [-1, 1)
  return static_cast<float>(static_cast<int64_t>(SplitMix64(state)) >> 40) * 0x1p-23f;
}

// Where the half-precision numbers of a block lie.
inline std::vector<size_t> HalvesOf(WeightType type) {
  switch (type) {
    case WeightType::kF32:
    case WeightType::kBF16:
    case WeightType::kMXFP4: return {};
    case WeightType::kF16:
    case WeightType::kQ4_0:
    case WeightType::kQ5_0:
    case WeightType::kQ8_0: return {0};
    case WeightType::kQ4_1:
    case WeightType::kQ5_1:
    case WeightType::kQ4_K:
    case WeightType::kQ5_K: return {0, 2};
    case WeightType::kQ2_K: return {80, 82};
    case WeightType::kQ3_K: return {108};
    case WeightType::kQ6_K: return {208};
  }
  return {};
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
    if (type == WeightType::kF32) {
      std::memcpy(p, &value, 4);
    } else if (type == WeightType::kBF16) {
      const bf16_t bf16 = BF16FromF32(value);
      std::memcpy(p, &bf16, 2);
    } else if (type == WeightType::kMXFP4) {
      p[0] = static_cast<std::byte>(117 + SplitMix64(seed) % 20);  // 2^-10 to 2^9
    } else {
      for (const size_t at : HalvesOf(type)) {
        const f16_t half = F16FromF32(RandomFloat(seed));
        std::memcpy(p + at, &half, 2);
      }
    }
  }
  return rows;
}

inline PackedMatrix RandomMatrix(WeightType type, int64_t out, int64_t in, uint64_t seed) {
  ThreadPool pool(1);
  auto m = PackedMatrix::Pack(type, out, in, RandomRows(type, out, in, seed), {}, pool);
  EXPECT_TRUE(m.ok()) << m.status().ToString();
  return std::move(*m);
}

inline std::vector<float> RandomVector(size_t n, uint64_t seed) {
  std::vector<float> x(n);
  for (float& v : x) v = RandomFloat(seed);
  return x;
}

inline std::vector<WeightType> AllWeightTypes() {
  std::vector<WeightType> types;
  for (size_t i = 0; i < std::size(kWeightLayouts); ++i)
    types.push_back(static_cast<WeightType>(i));
  return types;
}

}  // namespace tq
