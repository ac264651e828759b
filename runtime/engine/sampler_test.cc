#include "runtime/engine/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <set>

namespace tq {
namespace {

const float kNan = std::nanf(""), kInf = std::numeric_limits<float>::infinity();

std::map<int32_t, int> Draw(SamplingParams params, const std::vector<float>& logits, int n,
                            const std::vector<int32_t>& history = {}) {
  EXPECT_TRUE(params.Validate().ok());
  Sampler sampler(params);
  std::map<int32_t, int> counts;
  for (int i = 0; i < n; ++i) ++counts[sampler.Sample(logits, history)];
  return counts;
}

TEST(Sampler, GreedyTakesTheLowestIdOfTheLargest) {
  EXPECT_EQ(Sampler({}).Sample(std::vector<float>{1, 3, 3, 2}, {}), 1);
  EXPECT_EQ(Sampler({}).Sample(std::vector<float>{kNan, 3, kNan, 5}, {}), 3);
  EXPECT_EQ(Sampler({}).Sample(std::vector<float>{-kInf, -kInf}, {}), 0);
  EXPECT_EQ(Sampler({}).Sample(std::vector<float>{kNan, kNan}, {}), -1);
  EXPECT_EQ(Sampler({}).Sample({}, {}), -1);
}

TEST(Sampler, DrawsInProportion) {
  // exp(logit / 0.5): weights 1, 2, 4.
  const std::vector<float> logits = {0, 0.5f * std::log(2.0f), 0.5f * std::log(4.0f), kNan, -kInf};
  const auto counts = Draw({.temperature = 0.5f, .seed = 3}, logits, 70000);
  ASSERT_EQ(counts.size(), 3u);
  // Five standard deviations of a binomial.
  EXPECT_NEAR(counts.at(0), 10000, 5 * std::sqrt(70000 / 7.0 * 6 / 7));
  EXPECT_NEAR(counts.at(1), 20000, 5 * std::sqrt(70000 * 2 / 7.0 * 5 / 7));
  EXPECT_NEAR(counts.at(2), 40000, 5 * std::sqrt(70000 * 4 / 7.0 * 3 / 7));
}

std::set<int32_t> Drawn(SamplingParams params, const std::vector<float>& logits) {
  params.temperature = 1;
  std::set<int32_t> ids;
  for (const auto& [id, count] : Draw(params, logits, 5000)) ids.insert(id);
  return ids;
}

TEST(Sampler, TopKTopPAndMinPRestrict) {
  // Probabilities 0.1, 0.4, 0.2, 0.3.
  const std::vector<float> logits = {std::log(1.0f), std::log(4.0f), std::log(2.0f),
                                     std::log(3.0f)};
  EXPECT_EQ(Drawn({}, logits), (std::set<int32_t>{0, 1, 2, 3}));
  EXPECT_EQ(Drawn({.top_k = 1}, logits), (std::set<int32_t>{1}));
  EXPECT_EQ(Drawn({.top_k = 3}, logits), (std::set<int32_t>{1, 2, 3}));
  EXPECT_EQ(Drawn({.top_k = 100}, logits), (std::set<int32_t>{0, 1, 2, 3}));
  EXPECT_EQ(Drawn({.top_p = 0.39f}, logits), (std::set<int32_t>{1}));
  EXPECT_EQ(Drawn({.top_p = 0.65f}, logits), (std::set<int32_t>{1, 3}));
  EXPECT_EQ(Drawn({.top_p = 0.75f}, logits), (std::set<int32_t>{1, 2, 3}));
  EXPECT_EQ(Drawn({.top_p = 1e-6f}, logits), (std::set<int32_t>{1}));
  EXPECT_EQ(Drawn({.min_p = 0.6f}, logits), (std::set<int32_t>{1, 3}));
  EXPECT_EQ(Drawn({.min_p = 1}, logits), (std::set<int32_t>{1}));
  // top_p is a share of what top_k leaves: 4/7 = 0.57.
  EXPECT_EQ(Drawn({.top_k = 2, .top_p = 0.5f}, logits), (std::set<int32_t>{1}));
  EXPECT_EQ(Drawn({.top_k = 2, .top_p = 0.6f}, logits), (std::set<int32_t>{1, 3}));
  // Equals: the lowest ids.
  EXPECT_EQ(Drawn({.top_k = 2}, std::vector<float>(5, 1.0f)), (std::set<int32_t>{0, 1}));
}

TEST(Sampler, TheSeedDecides) {
  const std::vector<float> logits(1000, 0.0f);
  const auto sequence = [&](uint64_t seed) {
    Sampler sampler({.temperature = 1, .seed = seed});
    std::vector<int32_t> ids;
    for (int i = 0; i < 20; ++i) ids.push_back(sampler.Sample(logits, {}));
    return ids;
  };
  EXPECT_EQ(sequence(7), sequence(7));
  EXPECT_NE(sequence(7), sequence(8));
}

TEST(Sampler, RepetitionPenaltyReachesAsFarBackAsItSays) {
  const std::vector<float> logits = {3, 2.5f, -1};
  SamplingParams params = {.repetition_penalty = 1.5f, .penalty_last = 2};
  EXPECT_EQ(Sampler(params).Sample(logits, std::vector<int32_t>{0, 0}), 1);
  EXPECT_EQ(Sampler(params).Sample(logits, std::vector<int32_t>{0, 2, 2}), 0);
  // Counted once however often it occurs, ids outside the vocabulary are passed over.
  EXPECT_EQ(Sampler(params).Sample(std::vector<float>{3, 1.9f}, std::vector<int32_t>{0, 0}), 0);
  EXPECT_EQ(Sampler(params).Sample(logits, std::vector<int32_t>{-1, 5000}), 0);
  // Negative logits become smaller.
  EXPECT_EQ(Sampler(params).Sample(std::vector<float>{-1, -1.2f}, std::vector<int32_t>{0}), 1);
  params.penalty_last = 0;
  EXPECT_EQ(Sampler(params).Sample(logits, std::vector<int32_t>{0, 0}), 0);
}

TEST(Sampler, PresenceCountsOnceFrequencyEachTime) {
  const std::vector<float> logits = {3, 2.5f, 1};
  Sampler presence({.presence_penalty = 1});
  std::vector<int32_t> ids;
  for (int i = 0; i < 4; ++i) ids.push_back(presence.Sample(logits, {}));
  EXPECT_EQ(ids, (std::vector<int32_t>{0, 1, 0, 0})) << "2 and 1.5 from then on";
  Sampler frequency({.frequency_penalty = 1});
  ids.clear();
  for (int i = 0; i < 5; ++i) ids.push_back(frequency.Sample(logits, {}));
  EXPECT_EQ(ids, (std::vector<int32_t>{0, 1, 0, 1, 0})) << "3 2.5, 2 2.5, 2 1.5, 1 1.5, 1 0.5";
  EXPECT_EQ(Sampler({.presence_penalty = 2}).Sample(logits, std::vector<int32_t>{0, 0}), 0)
      << "the prompt does not count";
}

TEST(Sampler, LogitBiasComesFirst) {
  const std::vector<float> logits = {3, 2.5f, 1};
  EXPECT_EQ(Sampler({.logit_bias = {{2, 5.0f}}}).Sample(logits, {}), 2);
  EXPECT_EQ(Sampler({.logit_bias = {{0, -100.0f}, {1, -100.0f}}}).Sample(logits, {}), 2);
  EXPECT_EQ(Sampler({.logit_bias = {{7, 100.0f}}}).Sample(logits, {}), 0)
      << "not in the vocabulary";
  // 2.5 + 2 = 4.5, halved: 2.25 < 3.
  EXPECT_EQ(Sampler({.repetition_penalty = 2, .logit_bias = {{1, 2.0f}}})
                .Sample(logits, std::vector<int32_t>{1}),
            0);
}

TEST(Logprobs, AreThoseOfTheModel) {
  // Probabilities 1/7, 2/7, 4/7.
  const std::vector<float> logits = {1, 1 + std::log(2.0f), 1 + std::log(4.0f), kNan, -kInf};
  const Logprobs got = ComputeLogprobs(logits, 1, 2);
  EXPECT_EQ(got.chosen.id, 1);
  EXPECT_NEAR(got.chosen.logprob, std::log(2.0 / 7), 1e-6);
  ASSERT_EQ(got.top.size(), 2u);
  EXPECT_EQ(got.top[0].id, 2);
  EXPECT_NEAR(got.top[0].logprob, std::log(4.0 / 7), 1e-6);
  EXPECT_EQ(got.top[1].id, 1);
  EXPECT_EQ(ComputeLogprobs(logits, 3, 0).chosen.logprob, -kInf);
  EXPECT_EQ(ComputeLogprobs(logits, 0, 100).top.size(), 5u);
  EXPECT_EQ(ComputeLogprobs(std::vector<float>{0, 0}, 0, 2).top[0].id, 0) << "the lowest of equals";
  EXPECT_EQ(ComputeLogprobs(std::vector<float>{1, kInf}, 1, 0).chosen.logprob, 0);
  EXPECT_EQ(ComputeLogprobs(std::vector<float>{kNan}, 0, 3).top.size(), 0u);
  EXPECT_EQ(ComputeLogprobs({}, 0, 3).chosen.id, -1);
}

TEST(SamplingParams, ValidateNamesParameterValueAndRange) {
  const auto message = [](const SamplingParams& p) {
    EXPECT_EQ(p.Validate().code(), StatusCode::kInvalidArgument);
    return p.Validate().message();
  };
  EXPECT_TRUE(SamplingParams().Validate().ok());
  EXPECT_EQ(message({.temperature = -1}), "temperature = -1: expected 0 to 100");
  EXPECT_EQ(message({.temperature = kNan}), "temperature = nan: expected 0 to 100");
  EXPECT_EQ(message({.top_k = -2}), "top_k = -2: expected 0 or more");
  EXPECT_EQ(message({.top_p = 0}), "top_p = 0: expected more than 0 to 1");
  EXPECT_EQ(message({.top_p = 1.5f}), "top_p = 1.5: expected more than 0 to 1");
  EXPECT_EQ(message({.min_p = 2}), "min_p = 2: expected 0 to 1");
  EXPECT_EQ(message({.repetition_penalty = 0}),
            "repetition_penalty = 0: expected more than 0 to 100");
  EXPECT_EQ(message({.penalty_last = -1}), "penalty_last = -1: expected 0 or more");
  EXPECT_EQ(message({.presence_penalty = 3}), "presence_penalty = 3: expected -2 to 2");
  EXPECT_EQ(message({.frequency_penalty = -3}), "frequency_penalty = -3: expected -2 to 2");
  EXPECT_EQ(message({.logit_bias = {{-1, 0.0f}}}),
            "a token of logit_bias = -1: expected 0 or more");
  EXPECT_EQ(message({.logit_bias = {{1, 101.0f}}}),
            "a value of logit_bias = 101: expected -100 to 100");
}

}  // namespace
}  // namespace tq
