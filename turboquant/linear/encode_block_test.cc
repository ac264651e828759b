// What the encoder writes is what the reader reads, close to the weights, and the same everywhere.
#include "turboquant/linear/encode_block.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "turboquant/base/isa.h"
#include "turboquant/linear/encode_feedback.h"
#include "turboquant/linear/encode_fit.h"
#include "turboquant/linear/file_block.h"
#include "turboquant/linear/test_util.h"

namespace tq {
namespace {

std::vector<WeightType> BlockTypes() {  // that are written
  std::vector<WeightType> types;
  for (const WeightType type : AllWeightTypes()) {
    if (IsBlockType(type) && IsWritable(type)) types.push_back(type);
  }
  return types;
}

// About normal, as weights are.
std::vector<float> RandomWeights(size_t n, uint64_t seed) {
  std::vector<float> x(n);
  for (float& value : x) {
    value = 0;
    for (int i = 0; i < 6; ++i) value += RandomFloat(seed);
    value *= 0.03f;
  }
  return x;
}

// A few columns matter much more than the others.
std::vector<float> RandomImportance(size_t n, uint64_t seed) {
  std::vector<float> w(n);
  for (float& value : w) value = std::exp(3 * RandomFloat(seed));
  return w;
}

std::vector<float> Decoded(WeightType type, const std::vector<std::byte>& bytes, size_t n) {
  std::vector<float> out(n);
  DequantizeFileRow(type, bytes.data(), out);
  return out;
}

std::vector<std::byte> Encoded(WeightType type, const std::vector<float>& x,
                               const std::vector<float>& w) {
  std::vector<std::byte> bytes(x.size() / WeightBlockLen(type) *
                               static_cast<size_t>(WeightBlockBytes(type)));
  const Status status = EncodeFileRow(type, x, w, bytes);
  EXPECT_TRUE(status.ok()) << status.ToString();
  return bytes;
}

double WeightedError(const std::vector<float>& x, const std::vector<float>& w,
                     const std::vector<float>& stored) {
  double error = 0, all = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double weight = w.empty() ? 1 : w[i], difference = double{x[i]} - stored[i];
    error += weight * difference * difference;
    all += weight * x[i] * x[i];
  }
  return std::sqrt(error / all);
}

TEST(WriteFileBlock, WritesTheBytesThatWereRead) {
  std::ifstream in(TQ_SOURCE_DIR "/tests/golden/weight_blocks.json");
  const nlohmann::json golden = nlohmann::json::parse(in);
  size_t types = 0;
  for (const auto& [name, parts] : golden["types"].items()) {
    const WeightType type = *WeightTypeOf(name);
    if (type == WeightType::kMXFP4) continue;  // read only
    const std::string hex = parts["blocks"];
    const auto size = static_cast<size_t>(WeightBlockBytes(type));
    for (size_t at = 0; at < hex.size(); at += 2 * size) {
      std::vector<std::byte> bytes(size), again(size, std::byte{0xEE});
      for (size_t i = 0; i < size; ++i) {
        bytes[i] = static_cast<std::byte>(std::stoi(hex.substr(at + 2 * i, 2), nullptr, 16));
      }
      FileBlock block;
      ReadFileBlock(type, bytes.data(), block);
      WriteFileBlock(type, block, again.data());
      EXPECT_EQ(again, bytes) << name;
    }
    ++types;
  }
  EXPECT_EQ(types, BlockTypes().size());
}

// Relative errors of normal weights: a step of the type is about range / codes; the bounds are a
// tenth above what was found, so that a worse search shows.
TEST(EncodeFileRow, KeepsTheErrorOfEachTypeSmall) {
  const std::vector<float> x = RandomWeights(8192, 1);
  const std::map<std::string, double> bounds = {
      {"Q4_0", 0.09}, {"Q4_1", 0.08}, {"Q5_0", 0.045}, {"Q5_1", 0.04}, {"Q8_0", 0.006},
      {"Q2_K", 0.34}, {"Q3_K", 0.17}, {"Q4_K", 0.08},  {"Q5_K", 0.04}, {"Q6_K", 0.02}};
  for (const WeightType type : BlockTypes()) {
    const double error = WeightedError(x, {}, Decoded(type, Encoded(type, x, {}), x.size()));
    EXPECT_LT(error, bounds.at(WeightTypeName(type))) << WeightTypeName(type);
    EXPECT_GT(error, bounds.at(WeightTypeName(type)) / 2) << WeightTypeName(type);
  }
}

TEST(EncodeFileRow, SpendsItsErrorWhereInputsAreSmall) {
  const std::vector<float> x = RandomWeights(8192, 2), w = RandomImportance(8192, 3);
  for (const WeightType type : BlockTypes()) {
    if (type == WeightType::kQ8_0) continue;  // a step is too fine for a choice
    const auto with = Decoded(type, Encoded(type, x, w), x.size());
    const auto without = Decoded(type, Encoded(type, x, {}), x.size());
    EXPECT_LT(WeightedError(x, w, with), 0.97 * WeightedError(x, w, without))
        << WeightTypeName(type);
    EXPECT_GT(WeightedError(x, {}, with), WeightedError(x, {}, without)) << WeightTypeName(type);
  }
}

TEST(EncodeFileRow, GivesTheSameBytesOnEveryInstructionSet) {
  const std::vector<float> x = RandomWeights(1024, 4), w = RandomImportance(1024, 5);
  for (const WeightType type : BlockTypes()) {
    ASSERT_TRUE(ForceIsa("ref").ok());
    const std::vector<std::byte> want = Encoded(type, x, w);
    for (const std::string& isa : AvailableIsas()) {
      ASSERT_TRUE(ForceIsa(isa).ok());
      EXPECT_EQ(Encoded(type, x, w), want) << WeightTypeName(type) << " " << isa;
    }
    ResetIsa();
  }
}

// What is on a type's grid already comes back: the search finds the scale that made it.
TEST(EncodeFileRow, FindsTheGridOfWeightsThatLieOnOne) {
  const std::pair<WeightType, double> bounds[] = {
      {WeightType::kQ4_1, 2e-3}, {WeightType::kQ5_1, 0.01}, {WeightType::kQ8_0, 3e-3}};
  for (const auto& [type, bound] : bounds) {
    uint64_t seed = 7;
    std::vector<std::byte> bytes = RandomRows(type, 1, 2048, 7);
    for (size_t b = 0; b < bytes.size(); b += static_cast<size_t>(WeightBlockBytes(type))) {
      const f16_t d = F16FromF32(0.01f + 0.005f * std::abs(RandomFloat(seed)));
      const f16_t m = F16FromF32(-0.05f);
      std::memcpy(bytes.data() + b, &d, 2);
      if (LayoutOf(type).has_min) std::memcpy(bytes.data() + b + 2, &m, 2);
    }
    const std::vector<float> x = Decoded(type, bytes, 2048);
    EXPECT_LT(WeightedError(x, {}, Decoded(type, Encoded(type, x, {}), x.size())), bound)
        << WeightTypeName(type);
  }
}

// Inputs that move together: feedback lowers the error of what comes out, whatever the type.
TEST(EncodeFileRowsWithFeedback, LowersTheErrorOfOutputs) {
  constexpr int kN = 512, kRows = 6, kInputs = 600;
  uint64_t seed = 9;
  std::vector<float> inputs(static_cast<size_t>(kInputs) * kN);
  for (int i = 0; i < kInputs; ++i) {
    float shared = 0;
    for (int k = 0; k < kN; ++k) {
      if (k % 16 == 0) shared = RandomFloat(seed);
      inputs[static_cast<size_t>(i * kN + k)] = shared + 0.3f * RandomFloat(seed);
    }
  }
  std::vector<double> moments(static_cast<size_t>(kN) * kN);
  for (int i = 0; i < kInputs; ++i) {
    const float* x = inputs.data() + static_cast<size_t>(i) * kN;
    for (int a = 0; a < kN; ++a) {
      for (int b = 0; b <= a; ++b) moments[static_cast<size_t>(a * kN + b)] += double{x[a]} * x[b];
    }
  }
  ASSERT_TRUE(InverseFactor(moments, kN, 0.01).ok());
  const std::vector<float> factor(moments.begin(), moments.end());
  const std::vector<float> weights = RandomWeights(static_cast<size_t>(kRows) * kN, 10);
  const auto output_error = [&](const std::vector<float>& stored) {
    double error = 0;
    for (int r = 0; r < kRows; ++r) {
      for (int i = 0; i < kInputs; ++i) {
        double sum = 0;
        for (int k = 0; k < kN; ++k) {
          const auto at = static_cast<size_t>(r * kN + k);
          sum += (double{stored[at]} - weights[at]) * inputs[static_cast<size_t>(i * kN + k)];
        }
        error += sum * sum;
      }
    }
    return error;
  };
  for (const WeightType type : BlockTypes()) {
    const std::vector<std::byte> plain = Encoded(type, weights, {});
    std::vector<float> rows = weights;
    std::vector<std::byte> bytes(plain.size());
    const Status status = EncodeFileRowsWithFeedback(type, rows, kN, {}, factor, bytes);
    ASSERT_TRUE(status.ok()) << status.ToString();
    EXPECT_LT(output_error(Decoded(type, bytes, weights.size())),
              0.5 * output_error(Decoded(type, plain, weights.size())))
        << WeightTypeName(type);
  }
}

// Unrelated inputs have nothing to make good: the codes are those of rows alone.
TEST(EncodeFileRowsWithFeedback, IsPlainEncodingWhereInputsAreUnrelated) {
  constexpr int kN = 256;
  std::vector<double> moments(static_cast<size_t>(kN) * kN);
  for (int i = 0; i < kN; ++i) moments[static_cast<size_t>(i * kN + i)] = 2;
  ASSERT_TRUE(InverseFactor(moments, kN, 0).ok());
  EXPECT_NEAR(moments[0], std::sqrt(0.5), 1e-12);
  const std::vector<float> factor(moments.begin(), moments.end());
  for (const WeightType type : BlockTypes()) {
    std::vector<float> rows = RandomWeights(2 * kN, 11);
    const std::vector<std::byte> plain = Encoded(type, rows, {});
    std::vector<std::byte> bytes(plain.size());
    ASSERT_TRUE(EncodeFileRowsWithFeedback(type, rows, kN, {}, factor, bytes).ok());
    EXPECT_EQ(bytes, plain) << WeightTypeName(type);
  }
}

TEST(EncodeFileRowsWithFeedback, RefusesSizesThatDoNotAgree) {
  std::vector<double> moments(9);
  const auto message = [](const Status& s) {
    EXPECT_EQ(s.code(), StatusCode::kInvalidArgument);
    return s.message();
  };
  EXPECT_EQ(message(InverseFactor(moments, 2, 0)), "moments of 9 values are no square of 2");
  EXPECT_EQ(message(InverseFactor(moments, 3, 0)), "moments whose diagonal has a mean of 0");
  moments = {1, 0, 2, 1};
  EXPECT_EQ(message(InverseFactor(moments, 2, 0)),
            "moments that are not positive definite at 0 of 2");
  std::vector<float> rows(64), factor(32 * 32);
  std::vector<std::byte> out(36);
  const auto encode = [&](WeightType type, int64_t n) {
    return message(EncodeFileRowsWithFeedback(type, rows, n, {}, factor, out));
  };
  EXPECT_EQ(encode(WeightType::kF16, 32), "rows of 32 values are no whole blocks of F16");
  EXPECT_EQ(encode(WeightType::kQ4_K, 32), "rows of 32 values are no whole blocks of Q4_K");
  EXPECT_EQ(encode(WeightType::kQ4_0, 64), "64 values and a factor of 1024 for rows of 64");
  EXPECT_EQ(encode(WeightType::kQ4_1, 32),
            "2 rows of 32 values of Q4_1 take 40 bytes; 36 were given");
}

TEST(EncodeFileRow, DegenerateRowsAreFinite) {
  for (const WeightType type : BlockTypes()) {
    const auto n = static_cast<size_t>(WeightBlockLen(type));
    for (const float value : {0.f, -0.f, 1e-38f, 1e-30f, 1e-9f, -0.25f, 0.25f, 1000.f}) {
      std::vector<float> x(n, value);
      std::vector<float> stored = Decoded(type, Encoded(type, x, {}), n);
      for (const float s : stored) {
        ASSERT_NEAR(s, value, 0.02f * std::abs(value) + 1e-6f) << WeightTypeName(type);
      }
      x[n / 2] = -3 * value;  // one outlier
      stored = Decoded(type, Encoded(type, x, {}), n);
      for (const float s : stored) ASSERT_TRUE(std::isfinite(s)) << WeightTypeName(type);
    }
  }
}

TEST(EncodeFileRow, RoundsFloats) {
  const std::vector<float> x = {1.0f / 3, -65504, 0};
  for (const WeightType type : {WeightType::kF32, WeightType::kF16, WeightType::kBF16}) {
    const auto stored = Decoded(type, Encoded(type, x, {}), x.size());
    const float unit = type == WeightType::kF32   ? 0.f
                       : type == WeightType::kF16 ? 0x1p-11f
                                                  : 0x1p-8f;
    for (size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(stored[i], x[i], unit * std::abs(x[i]));
  }
}

TEST(EncodeFileRow, RefusesWhatATypeCannotHold) {
  std::vector<float> x(256, 0.5f);
  std::vector<std::byte> out(18 * 8);
  const auto error = [&](WeightType type, std::vector<float> w = {}) {
    const Status s = EncodeFileRow(type, x, w, out);
    EXPECT_EQ(s.code(), StatusCode::kInvalidArgument);
    return s.message();
  };
  EXPECT_EQ(error(WeightType::kQ4_1), "256 values of Q4_1 take 160 bytes; 144 were given");
  EXPECT_EQ(error(WeightType::kQ4_0, {1, 2}), "2 importances for 256 values");
  std::vector<float> w(256, 1.f);
  w[3] = 0;
  EXPECT_EQ(error(WeightType::kQ4_0, w), "importance 3 of a row is 0; it must be above 0");
  x[5] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(error(WeightType::kQ4_0), "value 5 of a row is not finite");
  x[5] = 1e20f;
  EXPECT_EQ(error(WeightType::kQ4_0), "value 5 of a row is 1e+20, too large for Q4_0");
  x[5] = 1e7f;
  EXPECT_NE(error(WeightType::kQ4_0).find("does not fit into the f16 of Q4_0"), std::string::npos);
  x.resize(40);
  EXPECT_EQ(error(WeightType::kQ4_0), "Q4_0 rows of 40 values: not a multiple of the block of 32");
  x.assign(32, 0.5f);
  const Status read_only = EncodeFileRow(WeightType::kMXFP4, x, {}, out);
  EXPECT_EQ(read_only.code(), StatusCode::kUnsupported);
  EXPECT_EQ(read_only.message(), "MXFP4 weights are read, not written");
  x = {1e6f};
  out.resize(2);
  EXPECT_EQ(error(WeightType::kF16), "a value of 1e+06 does not fit into F16");
}

}  // namespace
}  // namespace tq
