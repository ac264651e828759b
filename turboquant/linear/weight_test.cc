#include "turboquant/linear/weight.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "turboquant/linear/file_block.h"
#include "turboquant/linear/test_util.h"

namespace tq {
namespace {

std::vector<std::byte> FromHex(const std::string& hex) {
  std::vector<std::byte> bytes(hex.size() / 2);
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::byte>(std::stoi(hex.substr(2 * i, 2), nullptr, 16));
  }
  return bytes;
}

// tests/golden/weight_blocks.json: made by PyPI's gguf.
TEST(DequantizeFileRow, GivesTheValuesOfTheGgufPackage) {
  std::ifstream in(TQ_SOURCE_DIR "/tests/golden/weight_blocks.json");
  const nlohmann::json golden = nlohmann::json::parse(in);
  size_t types = 0;
  for (const auto& [name, parts] : golden["types"].items()) {
    const auto type = WeightTypeOf(name);
    ASSERT_TRUE(type.ok()) << type.status().ToString();
    const std::vector<std::byte> blocks = FromHex(parts["blocks"]),
                                 bytes = FromHex(parts["values"]);
    std::vector<float> want(bytes.size() / sizeof(float)), got(want.size());
    std::memcpy(want.data(), bytes.data(), bytes.size());
    ASSERT_EQ(want.size(), 4u * WeightBlockLen(*type));
    ASSERT_EQ(blocks.size(), 4u * WeightBlockBytes(*type));
    DequantizeFileRow(*type, blocks.data(), got);
    EXPECT_EQ(got, want) << name;
    ++types;
  }
  EXPECT_EQ(types, std::size(kWeightLayouts) - 3);  // all but the float types
}

TEST(WeightTypeOf, RefusesWhatThereIsNotWithAList) {
  const Status s = WeightTypeOf("IQ4_XS").status();
  EXPECT_EQ(s.code(), StatusCode::kUnsupported);
  EXPECT_EQ(
      s.message(),
      "weights of type IQ4_XS are not supported; supported: F32, F16, BF16, Q4_0, Q4_1, Q5_0, "
      "Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, MXFP4");
}

// The whole range of E8M0: powers of two from 2^-127 on, of which the least two are subnormal.
TEST(Float4Scale, IsHalfThePowerOfTwoOfEveryExponent) {
  for (int e = 0; e <= kFloat4MaxExponent; ++e) {
    EXPECT_EQ(Float4Scale(static_cast<uint8_t>(e)), std::ldexp(1.0f, e - 128)) << e;
  }
}

TEST(PackedMatrix, DecodesEveryTypeInTheOrderAskedFor) {
  ThreadPool pool(2);
  for (const WeightType type : AllWeightTypes()) {
    for (const int64_t out : {1, 16, 37}) {
      const int64_t in = IsBlockType(type) ? 3 * WeightBlockLen(type) : 35;
      const std::vector<std::byte> rows = RandomRows(type, out, in, 3);
      const size_t row_bytes = rows.size() / static_cast<size_t>(out);
      std::vector<int32_t> order(static_cast<size_t>(out));
      std::iota(order.rbegin(), order.rend(), 0);
      for (const bool reverse : {false, true}) {
        auto m =
            PackedMatrix::Pack(type, out, in, rows, reverse ? order : std::vector<int32_t>(), pool);
        ASSERT_TRUE(m.ok()) << m.status().ToString();
        EXPECT_EQ(m->bytes(), PackedMatrixBytes(type, out, in));
        for (int64_t r = 0; r < out; ++r) {
          std::vector<float> got(static_cast<size_t>(in)), want(got.size());
          const auto source = static_cast<size_t>(reverse ? out - 1 - r : r);
          m->DecodeRow(r, got.data());
          DequantizeFileRow(type, rows.data() + source * row_bytes, want);
          ASSERT_EQ(got, want) << WeightTypeName(type) << " row " << r;
        }
      }
    }
  }
}

// Of 6-bit integers four bytes a block are added.
TEST(PackedMatrix, TakesAboutAsManyBytesAsTheFile) {
  ThreadPool pool(1);
  for (const WeightType type : AllWeightTypes()) {
    const bool six_bits =
        type == WeightType::kQ3_K || type == WeightType::kQ4_K || type == WeightType::kQ5_K;
    const std::vector<std::byte> rows = RandomRows(type, 64, 256, 3);
    EXPECT_EQ(PackedMatrix::Pack(type, 64, 256, rows, {}, pool)->bytes(),
              rows.size() + (six_bits ? 64 * 4 : 0))
        << WeightTypeName(type);
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

  rows = RandomRows(WeightType::kMXFP4, 3, 64, 1);
  rows[4 * 17] = std::byte{kFloat4MaxExponent + 1};
  EXPECT_EQ(PackedMatrix::Pack(WeightType::kMXFP4, 3, 64, rows, {}, pool).status().message(),
            "row 2 of 3 has a scale that is not finite");

  for (const WeightType type : AllWeightTypes()) {
    for (const size_t at : HalvesOf(type)) {
      rows = RandomRows(type, 1, 256, 1);
      std::memcpy(rows.data() + at, &infinity, 2);
      EXPECT_EQ(PackedMatrix::Pack(type, 1, 256, rows, {}, pool).status().code(),
                StatusCode::kDataLoss)
          << WeightTypeName(type);
    }
  }
}

}  // namespace
}  // namespace tq
