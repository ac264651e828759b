#include "turboquant/linear/weight.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <vector>

#include "turboquant/linear/test_util.h"

namespace tq {
namespace {

// One weight straight from the file's layout.
float FileWeight(WeightType type, const std::vector<std::byte>& rows, int64_t in_dim, int64_t row,
                 int64_t k) {
  const int64_t len = WeightBlockLen(type);
  const std::byte* p = rows.data() + (row * (in_dim / len) + k / len) * WeightBlockBytes(type);
  const auto half = [&](int at) {
    uint16_t h;
    std::memcpy(&h, p + at, 2);
    return h;
  };
  const int i = static_cast<int>(k % len);
  const auto nibble = [&](int at) {
    const int byte = std::to_integer<int>(p[at + i % 16]);
    return static_cast<float>(i < 16 ? byte & 15 : byte >> 4);
  };
  switch (type) {
    case WeightType::kF32: {
      float f;
      std::memcpy(&f, p, 4);
      return f;
    }
    case WeightType::kF16: return F32FromF16(half(0));
    case WeightType::kBF16: return F32FromBF16(half(0));
    case WeightType::kQ4_0: return F32FromF16(half(0)) * (nibble(2) - 8);
    case WeightType::kQ4_1: return F32FromF16(half(0)) * nibble(4) + F32FromF16(half(2));
    case WeightType::kQ8_0:
      return F32FromF16(half(0)) * static_cast<float>(static_cast<int8_t>(p[2 + i]));
  }
  return 0;
}

TEST(PackedMatrix, DecodesEveryTypeInTheOrderAskedFor) {
  ThreadPool pool(2);
  for (const WeightType type : kAllWeightTypes) {
    for (const int64_t out : {1, 16, 37}) {
      const int64_t in = IsBlockType(type) ? 96 : 35;
      const std::vector<std::byte> rows = RandomRows(type, out, in, 3);
      std::vector<int32_t> order(static_cast<size_t>(out));
      std::iota(order.rbegin(), order.rend(), 0);
      for (const bool reverse : {false, true}) {
        auto m =
            PackedMatrix::Pack(type, out, in, rows, reverse ? order : std::vector<int32_t>(), pool);
        ASSERT_TRUE(m.ok()) << m.status().ToString();
        for (int64_t r = 0; r < out; ++r) {
          std::vector<float> y(static_cast<size_t>(in));
          m->DecodeRow(r, y.data());
          for (int64_t k = 0; k < in; ++k) {
            ASSERT_EQ(y[static_cast<size_t>(k)],
                      FileWeight(type, rows, in, reverse ? out - 1 - r : r, k))
                << WeightTypeName(type) << " row " << r << " input " << k;
          }
        }
      }
    }
  }
}

TEST(PackedMatrix, TakesAsManyBytesAsTheFile) {
  ThreadPool pool(1);
  for (const WeightType type : kAllWeightTypes) {
    const std::vector<std::byte> rows = RandomRows(type, 64, 128, 3);
    EXPECT_EQ(PackedMatrix::Pack(type, 64, 128, rows, {}, pool)->bytes(), rows.size());
  }
}

TEST(PackedMatrix, RefusesSizesThatDoNotAgree) {
  ThreadPool pool(1);
  const std::vector<std::byte> rows(20 * 4);
  const auto error = [&](WeightType type, int64_t out, int64_t in,
                         std::vector<int32_t> order = {}) {
    const Status s = PackedMatrix::Pack(type, out, in, rows, order, pool).status();
    EXPECT_EQ(s.code(), StatusCode::kInvalidArgument);
    return s.message();
  };
  EXPECT_EQ(error(WeightType::kQ4_1, 0, 32), "matrix of 0 x 32: both must be positive");
  EXPECT_EQ(error(WeightType::kQ4_1, 2, 33),
            "Q4_1 rows of 33 inputs: not a multiple of the block of 32");
  EXPECT_EQ(error(WeightType::kQ4_1, 3, 32),
            "3 rows of 32 Q4_1 inputs have 20 bytes each; found 80 bytes in all");
  EXPECT_EQ(error(WeightType::kQ4_1, 4, 32, {0, 1}), "row order of 2 entries for 4 rows");
  EXPECT_EQ(error(WeightType::kQ4_1, 4, 32, {0, 1, 4, 2}), "row order names row 4 of 4");
}

TEST(PackedMatrix, RefusesScalesThatAreNotFinite) {
  ThreadPool pool(1);
  std::vector<std::byte> rows = RandomRows(WeightType::kQ8_0, 3, 64, 1);
  const f16_t infinity = 0x7C00;
  std::memcpy(rows.data() + 3 * 34, &infinity, 2);
  const Status s = PackedMatrix::Pack(WeightType::kQ8_0, 3, 64, rows, {}, pool).status();
  EXPECT_EQ(s.code(), StatusCode::kDataLoss);
  EXPECT_EQ(s.message(), "row 1 of 3 has a scale that is not finite");
}

}  // namespace
}  // namespace tq
