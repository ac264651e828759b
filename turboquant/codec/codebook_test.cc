#include "turboquant/codec/codebook.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <vector>

namespace tq {
namespace {

// Mean squared error of a book on N(0, 1), by summing over a fine grid.
double GaussianError(const CodebookTable& book) {
  double error = 0, weight = 0;
  for (double x = -8; x <= 8; x += 1e-4) {
    int code = 0;
    while (code + 1 < book.num_levels && x > book.thresholds[code]) ++code;
    const double p = std::exp(-x * x / 2);
    const double d = x - book.unit * book.levels[code];
    error += p * d * d;
    weight += p;
  }
  return error / weight;
}

TEST(Codebook, LloydLevelsLoseUnderThreeThousandthsByRounding) {
  // Max, "Quantizing for minimum distortion" (1960), table I: 4, 8 and 16 levels.
  const double optimal[] = {0.1175, 0.03454, 0.009497};
  for (int bits = 2; bits <= 4; ++bits) {
    const double error = GaussianError(GetCodebook(Codebook::kLloyd, bits));
    EXPECT_LT(error, optimal[bits - 2] * 1.003) << bits;
    EXPECT_GT(error, optimal[bits - 2] * 0.999) << bits;
  }
}

TEST(Codebook, UniformStepsAreTheBestOfTheirWidth) {
  const double optimal[] = {0.1188, 0.03744, 0.01154};  // the same paper, table II
  for (int bits = 2; bits <= 4; ++bits) {
    EXPECT_NEAR(GaussianError(GetCodebook(Codebook::kUniform, bits)), optimal[bits - 2],
                optimal[bits - 2] * 0.002)
        << bits;
  }
}

TEST(Codebook, SumsFitIntoSixteenBits) {
  for (const Codebook kind : {Codebook::kUniform, Codebook::kLloyd}) {
    for (int bits = 2; bits <= (kind == Codebook::kLloyd ? 4 : 6); ++bits) {
      const CodebookTable& book = GetCodebook(kind, bits);
      ASSERT_EQ(book.num_levels, 1 << bits);
      const int top = book.levels[book.num_levels - 1];
      EXPECT_EQ(book.levels[0], -top);
      EXPECT_GE(book.max_k_sums, 1);
      EXPECT_GE(book.max_v_sums, 1);
      EXPECT_LE(book.max_k_sums * 2 * (top + book.offset) * kMaxKDigit, 32767);
      EXPECT_LE(book.max_v_sums * 2 * top * kMaxVDigit, 32767);
      EXPECT_LE(top + book.offset, 127);
    }
  }
}

TEST(Codebook, CalibratedLevelsKeepTheirPlaces) {
  const std::vector<float> levels = {-1.7f, -0.4f, 0.55f, 1.5f};
  const Result<CodebookTable> book = MakeCodebook(levels);
  ASSERT_TRUE(book.ok());
  for (int i = 0; i < 4; ++i) EXPECT_NEAR(book->unit * book->levels[i], levels[i], 0.02f);
  EXPECT_EQ(book->offset, -book->levels[0]);
  EXPECT_LE(book->levels[3] + book->offset, 127);
  EXPECT_GE(book->max_k_sums, 1);
  EXPECT_GE(book->max_v_sums, 1);
}

TEST(Codebook, RefusesBadCalibratedLevels) {
  const auto error = [](std::vector<float> levels) {
    return MakeCodebook(levels).status().message();
  };
  EXPECT_EQ(error({1, 2}), "a calibrated code book has 2 levels; supported: 4, 8, 16");
  EXPECT_EQ(error({-1, 0, 0, 1}), "levels are not ascending: 0, 0");
  EXPECT_EQ(error({-1, 0, 1, NAN}), "level 3 is not finite");
  EXPECT_EQ(
      error({-1e6, 0, 1e-3f, 1e6}),
      "levels lie too far apart for 7-bit integers: the largest is 1e+06 and two of them round "
      "to one");
}

}  // namespace
}  // namespace tq
