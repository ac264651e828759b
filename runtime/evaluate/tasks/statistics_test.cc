#include "runtime/evaluate/tasks/statistics.h"

#include <gtest/gtest.h>

#include <vector>

namespace tq {
namespace {

TEST(WilsonInterval, AgreesWithPublishedValues) {
  // Newcombe 1998, "Two-sided confidence intervals for the single proportion", table I, method 3.
  const Interval a = WilsonInterval(81, 263), b = WilsonInterval(15, 148),
                 c = WilsonInterval(0, 20), d = WilsonInterval(1, 29);
  EXPECT_NEAR(a.low, 0.2553, 5e-5);
  EXPECT_NEAR(a.high, 0.3662, 5e-5);
  EXPECT_NEAR(b.low, 0.0624, 5e-5);
  EXPECT_NEAR(b.high, 0.1605, 5e-5);
  EXPECT_EQ(c.low, 0);
  EXPECT_NEAR(c.high, 0.1611, 5e-5);
  EXPECT_NEAR(d.low, 0.0061, 5e-5);
  EXPECT_NEAR(d.high, 0.1718, 5e-5);
  EXPECT_EQ(WilsonInterval(20, 20).high, 1);
  EXPECT_EQ(WilsonInterval(0, 0).high, 1);
}

TEST(DifferenceOfShares, FollowsTheFormula) {
  // up = 2/22, down = 9/22: center -7/22, variance (11/22 - 49/484) / 22.
  const PairedDifference d = DifferenceOfShares(1, 8, 20);
  EXPECT_NEAR(d.difference, -0.35, 1e-12);
  EXPECT_NEAR(d.interval.low, -0.5820, 5e-4);
  EXPECT_NEAR(d.interval.high, -0.0543, 5e-4);
}

TEST(DifferenceOfShares, NoDifferenceInFewTrialsIsNoProofOfNone) {
  const PairedDifference few = DifferenceOfShares(0, 0, 5), many = DifferenceOfShares(0, 0, 500);
  EXPECT_EQ(few.difference, 0);
  EXPECT_LT(few.interval.low, -0.2);
  EXPECT_GT(few.interval.high, 0.2);
  EXPECT_GT(many.interval.low, -0.01);
  EXPECT_EQ(DifferenceOfShares(0, 0, 0).interval.low, -1);
}

TEST(Bootstrap, CoversTheMeanAndRepeatsWithTheSeed) {
  std::vector<double> values;
  for (int i = 0; i < 200; ++i) values.push_back(i % 10);  // mean 4.5, standard error 0.203
  const Interval a = BootstrapMeanInterval(values, 1), again = BootstrapMeanInterval(values, 1),
                 other = BootstrapMeanInterval(values, 2);
  EXPECT_NEAR(a.low, 4.5 - 1.96 * 0.203, 0.06);
  EXPECT_NEAR(a.high, 4.5 + 1.96 * 0.203, 0.06);
  EXPECT_EQ(a.low, again.low);
  EXPECT_EQ(a.high, again.high);
  EXPECT_NE(a.low, other.low);
  EXPECT_EQ(BootstrapMeanInterval({}, 1).high, 0);
}

}  // namespace
}  // namespace tq
