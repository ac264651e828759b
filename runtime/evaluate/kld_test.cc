#include "runtime/evaluate/kld.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "turboquant/base/isa.h"
#include "turboquant/base/numeric.h"

namespace tq {
namespace {

std::vector<float> RandomLogits(size_t n, uint64_t seed, float spread) {
  std::vector<float> x(n);
  for (float& v : x) v = spread * (static_cast<float>(SplitMix64(seed) >> 40) * 0x1p-24f - 0.5f);
  return x;
}

Status Compare(const ReferenceRow& row, std::span<const float> logits, int64_t target,
               PositionScore* score) {
  AlignedBuffer<float> work;
  return row.Compare(logits, target, &work, score);
}

// The definition in plain double loops.
double PlainKld(const std::vector<float>& a, const std::vector<float>& b, double* tvd) {
  const auto softmax = [](const std::vector<float>& x) {
    std::vector<double> p;
    double sum = 0;
    for (const float v : x) sum += std::exp(static_cast<double>(v));
    for (const float v : x) p.push_back(std::exp(static_cast<double>(v)) / sum);
    return p;
  };
  const std::vector<double> p = softmax(a), q = softmax(b);
  double kld = 0, absolute = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    kld += p[i] * std::log(p[i] / q[i]);
    absolute += std::abs(p[i] - q[i]);
  }
  *tvd = absolute / 2;
  return kld;
}

class EveryIsa : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { ASSERT_TRUE(ForceIsa(GetParam()).ok()); }
  void TearDown() override { ResetIsa(); }
};
INSTANTIATE_TEST_SUITE_P(Kld, EveryIsa, testing::ValuesIn(AvailableIsas()),
                         [](const auto& isa) { return isa.param; });

TEST_P(EveryIsa, MatchesTheDefinitionInDouble) {
  for (const size_t n : {1, 2, 7, 63, 1024, 1025, 49152}) {
    const std::vector<float> a = RandomLogits(n, n, 24);
    std::vector<float> b = RandomLogits(n, n + 99, 0.8f);
    for (size_t i = 0; i < n; ++i) b[i] += a[i];
    ReferenceRow row;
    ASSERT_TRUE(row.Set(a).ok());
    PositionScore score;
    ASSERT_TRUE(Compare(row, b, 0, &score).ok());
    double tvd = 0;
    const double kld = PlainKld(a, b, &tvd);
    // Float exp is good to 2^-22; the sums are in double.
    EXPECT_NEAR(score.kld, kld, 2e-6 * kld + 2e-7) << n;
    EXPECT_NEAR(score.tvd, tvd, 1e-6) << n;
  }
}

TEST_P(EveryIsa, IdenticalRowsAreExactlyZeroApart) {
  const std::vector<float> a = RandomLogits(49152, 3, 30);
  ReferenceRow row;
  ASSERT_TRUE(row.Set(a).ok());
  PositionScore score;
  ASSERT_TRUE(Compare(row, a, 5, &score).ok());
  EXPECT_EQ(score.kld, 0);
  EXPECT_TRUE(score.same_top);
  EXPECT_EQ(score.ref_logprob, score.q_logprob);
}

TEST(Kld, SmallDivergencesAreNotLostInRounding) {
  const std::vector<float> a = RandomLogits(49152, 11, 20);
  std::vector<float> b = RandomLogits(49152, 12, 0.01f);
  for (size_t i = 0; i < a.size(); ++i) b[i] += a[i];
  ReferenceRow row;
  ASSERT_TRUE(row.Set(a).ok());
  PositionScore score;
  ASSERT_TRUE(Compare(row, b, -1, &score).ok());
  double tvd = 0;
  const double kld = PlainKld(a, b, &tvd);
  EXPECT_LT(kld, 1e-5);
  EXPECT_NEAR(score.kld, kld, 0.01 * kld + 1e-9);
}

TEST(Kld, HandComputedRow) {
  // p = (1/2, 1/4, 1/4), q = (1/4, 1/2, 1/4): KL = 1/4 log 2, total variation 1/4.
  const std::vector<float> a = {std::log(2.0f), 0, 0}, b = {0, std::log(2.0f), 0};
  ReferenceRow row;
  ASSERT_TRUE(row.Set(a).ok());
  PositionScore score;
  ASSERT_TRUE(Compare(row, b, 0, &score).ok());
  EXPECT_NEAR(score.kld, 0.25 * std::log(2.0), 1e-7);
  EXPECT_NEAR(score.tvd, 0.25, 1e-7);
  EXPECT_FALSE(score.same_top);
  EXPECT_NEAR(std::exp(score.ref_logprob), 0.5, 1e-7);
  EXPECT_NEAR(std::exp(score.q_logprob), 0.25, 1e-7);
}

TEST(Kld, RefusesRowsWithoutADistribution) {
  ReferenceRow row;
  EXPECT_EQ(row.Set({}).code(), StatusCode::kInvalidArgument);
  std::vector<float> bad = {0, 1, std::numeric_limits<float>::quiet_NaN()};
  EXPECT_EQ(row.Set(bad).code(), StatusCode::kDataLoss);
  bad[2] = std::numeric_limits<float>::infinity();
  EXPECT_EQ(row.Set(bad).code(), StatusCode::kDataLoss);
  const std::vector<float> good = {0, 1, 2};
  ASSERT_TRUE(row.Set(good).ok());
  PositionScore score;
  EXPECT_EQ(Compare(row, bad, 0, &score).code(), StatusCode::kDataLoss);
  const Status shape = Compare(row, std::vector<float>{0, 1}, 0, &score);
  EXPECT_EQ(shape.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(shape.message(), "a row of 2 logits cannot be compared with one of 3");
  EXPECT_EQ(Compare(row, good, 3, &score).message(),
            "target token 3 is outside the vocabulary of 3");
}

PositionScore Score(int64_t position, double kld, double ref, double q, int64_t behind = 0) {
  PositionScore s;
  s.position = position;
  s.quantized_behind = behind;
  s.kld = kld;
  s.tvd = kld / 10;
  s.same_top = kld < 0.25;
  s.has_target = true;
  s.ref_logprob = std::log(ref);
  s.q_logprob = std::log(q);
  return s;
}

TEST(Summarize, HandComputedStatistics) {
  const std::vector<PositionScore> scores = {Score(0, 0.1, 0.5, 0.5), Score(1, 0.2, 0.5, 0.25),
                                             Score(2, 0.3, 0.5, 0.5), Score(3, 0.4, 0.5, 0.25)};
  const DivergenceSummary s = Summarize(scores);
  EXPECT_EQ(s.positions, 4);
  EXPECT_NEAR(s.mean, 0.25, 1e-12);
  // Sample variance 0.05 / 3, over 4 positions.
  EXPECT_NEAR(s.mean_stderr, std::sqrt(0.05 / 3 / 4), 1e-12);
  EXPECT_NEAR(s.median, 0.25, 1e-12);
  EXPECT_NEAR(s.p90, 0.37, 1e-12);
  EXPECT_NEAR(s.max, 0.4, 1e-12);
  EXPECT_NEAR(s.same_top, 0.5, 1e-12);
  EXPECT_NEAR(s.same_top_stderr, std::sqrt(1.0 / 3 / 4), 1e-12);
  EXPECT_NEAR(s.one_minus_tvd, 1 - 0.025, 1e-12);
  EXPECT_NEAR(s.ppl_ref, 2, 1e-12);
  EXPECT_NEAR(s.ppl_ratio, std::sqrt(2.0), 1e-12);
  EXPECT_NEAR(s.ppl_q, 2 * std::sqrt(2.0), 1e-12);
  // dNLL is 0, log 2, 0, log 2: variance log(2)^2 / 3.
  EXPECT_NEAR(s.ppl_ratio_stderr, std::sqrt(2.0) * std::log(2.0) / std::sqrt(12.0), 1e-12);
  EXPECT_NEAR(s.delta_p_rms, std::sqrt(0.0625 / 2), 1e-12);
}

// Groups of 10 and 30: mean (10 + 90) / 40; squares of 10 x 1.5 and 30 x 0.5, twice, over 40.
TEST(GroupedMean, WeighsGroupsByTheirSize) {
  GroupedMean mean;
  mean.Add(1, 10);
  EXPECT_EQ(mean.stderr_of_mean(), 0);
  mean.Add(3, 30);
  mean.Add(7, 0);
  EXPECT_EQ(mean.groups(), 2);
  EXPECT_NEAR(mean.mean(), 2.5, 1e-12);
  EXPECT_NEAR(mean.stderr_of_mean(), std::sqrt(2 * (225.0 + 225.0)) / 40, 1e-12);
  GroupedMean equal;
  RunningMean plain;
  for (const double x : {0.1, 0.7, 0.2}) {
    equal.Add(x, 5);
    plain.Add(x);
  }
  EXPECT_NEAR(equal.stderr_of_mean(), plain.stderr_of_mean(), 1e-12);
}

// Positions of a window that are all alike are one observation.
TEST(Summarize, ErrorsCountWindowsThatAreAllAlikeWithin) {
  std::vector<PositionScore> scores;
  for (int i = 0; i < 4; ++i) scores.push_back(Score(i, 0.1, 0.5, 0.5));
  for (int i = 0; i < 4; ++i) scores.push_back(Score(i, 0.4, 0.5, 0.25));
  const int64_t windows[] = {4, 4};
  const DivergenceSummary s = Summarize(scores, windows);
  EXPECT_EQ(s.positions, 8);
  EXPECT_NEAR(s.mean_stderr, 0.15, 1e-12);
  EXPECT_NEAR(s.same_top_stderr, 0.5, 1e-12);
  EXPECT_NEAR(s.ppl_ratio_stderr, std::sqrt(2.0) * std::log(2.0) / 2, 1e-12);
  EXPECT_LT(Summarize(scores).same_top_stderr, 0.2);
  EXPECT_NEAR(SummarizeBehind(scores, 0, windows).same_top_stderr, 0.5, 1e-12);
}

TEST(Summarize, EmptyAndSingle) {
  EXPECT_EQ(Summarize({}).positions, 0);
  const std::vector<PositionScore> one = {Score(0, 0.5, 0.5, 0.5)};
  EXPECT_EQ(Summarize(one).p999, 0.5);
  EXPECT_EQ(Summarize(one).mean_stderr, 0);
}

TEST(Summarize, BehindKeepsOnlyPositionsWithQuantizedTokens) {
  const std::vector<PositionScore> scores = {
      Score(0, 0.1, 0.5, 0.5, 0), Score(1, 0.3, 0.5, 0.5, 1023), Score(2, 0.7, 0.5, 0.5, 1024)};
  EXPECT_EQ(SummarizeBehind(scores, 1024).positions, 1);
  EXPECT_NEAR(SummarizeBehind(scores, 1024).mean, 0.7, 1e-12);
  EXPECT_EQ(SummarizeBehind(scores, 4096).positions, 0);
}

TEST(ByPosition, BucketsAreMultiplesOf64AndCoverAll) {
  std::vector<PositionScore> scores;
  for (int i = 0; i < 1000; ++i) scores.push_back(Score(i, i < 512 ? 1 : 3, 0.5, 0.5));
  const std::vector<PositionBucket> buckets = ByPosition(scores, 2);
  ASSERT_EQ(buckets.size(), 2u);
  EXPECT_EQ(buckets[0].end, 512);
  EXPECT_EQ(buckets[0].kld_mean, 1);
  EXPECT_EQ(buckets[1].end, 1000);
  EXPECT_EQ(buckets[1].kld_mean, 3);
  EXPECT_EQ(buckets[1].positions, 488);
  EXPECT_TRUE(ByPosition({}, 4).empty());
}

}  // namespace
}  // namespace tq
