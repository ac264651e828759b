#include "turboquant/linear/activations.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "turboquant/base/isa.h"
#include "turboquant/linear/test_util.h"

namespace tq {
namespace {

struct Row {
  std::vector<int16_t> codes;
  std::vector<float> scales, scaled_sums;
  std::vector<int32_t> sums;
  explicit Row(size_t blocks)
      : codes(blocks * kBlockLen), scales(blocks), scaled_sums(blocks), sums(2 * blocks) {}
};

TEST(QuantizeRow, CodesScaleAndSumOfAKnownBlock) {
  std::vector<float> x(kBlockLen, 0.0f);
  x[0] = -3276.7f;
  x[1] = 0.25f;  // 2.5 steps: to even
  x[2] = 1000.0f;
  x[16] = 300.0f;
  Row row(1);
  QuantizeRowRef(x.data(), 1, row.codes.data(), row.scales.data(), row.sums.data(),
                 row.scaled_sums.data());
  EXPECT_EQ(row.codes[0], -32767);
  EXPECT_EQ(row.codes[1], 2);
  EXPECT_EQ(row.codes[2], 10000);
  EXPECT_EQ(row.codes[3], 0);
  EXPECT_FLOAT_EQ(row.scales[0], 0.1f);
  EXPECT_EQ(row.sums[0], row.codes[0] + row.codes[1] + row.codes[2]);
  EXPECT_EQ(row.sums[1], 3000);
  EXPECT_EQ(row.scaled_sums[0], row.scales[0] * static_cast<float>(row.sums[0] + row.sums[1]));
}

TEST(QuantizeRow, ZeroTinyAndNonFiniteBlocks) {
  for (const std::string& isa : AvailableIsas()) {
    ASSERT_TRUE(ForceIsa(isa).ok());
    const auto quantize = UseReferenceKernels() ? QuantizeRowRef : QuantizeRowSimd;
    std::vector<float> x(4 * kBlockLen, 0.0f);
    x[kBlockLen] = 1e-38f;
    x[2 * kBlockLen + 31] = std::numeric_limits<float>::infinity();
    x[3 * kBlockLen + 5] = std::nanf("");
    Row row(4);
    quantize(x.data(), 4, row.codes.data(), row.scales.data(), row.sums.data(),
             row.scaled_sums.data());
    for (const int16_t code : row.codes) EXPECT_EQ(code, 0);
    EXPECT_EQ(row.scales[0], 0.0f);
    EXPECT_EQ(row.scales[1], 0.0f);
    EXPECT_TRUE(std::isnan(row.scales[2]));
    EXPECT_TRUE(std::isnan(row.scales[3]));
    EXPECT_TRUE(std::isnan(row.scaled_sums[3]));
  }
  ResetIsa();
}

TEST(QuantizeRow, EveryInstructionSetGivesTheBitsOfTheReference) {
  uint64_t seed = 7;
  for (const size_t blocks : {1u, 3u, 48u}) {
    std::vector<float> x(blocks * kBlockLen);
    for (float& v : x) v = RandomFloat(seed) * std::exp2(10 * RandomFloat(seed));
    Row want(blocks);
    QuantizeRowRef(x.data(), static_cast<int64_t>(blocks), want.codes.data(), want.scales.data(),
                   want.sums.data(), want.scaled_sums.data());
    for (const std::string& isa : AvailableIsas()) {
      if (isa == "ref") continue;
      ASSERT_TRUE(ForceIsa(isa).ok());
      Row got(blocks);
      QuantizeRowSimd(x.data(), static_cast<int64_t>(blocks), got.codes.data(), got.scales.data(),
                      got.sums.data(), got.scaled_sums.data());
      EXPECT_EQ(got.codes, want.codes) << isa;
      EXPECT_EQ(got.scales, want.scales) << isa;
      EXPECT_EQ(got.sums, want.sums) << isa;
      EXPECT_EQ(got.scaled_sums, want.scaled_sums) << isa;
    }
  }
  ResetIsa();
}

}  // namespace
}  // namespace tq
