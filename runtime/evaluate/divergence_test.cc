#include "runtime/evaluate/divergence.h"

#include <gtest/gtest.h>

#include "runtime/evaluate/fakes_for_test.h"

namespace tq {
namespace {

class DivergenceTest : public testing::Test {
 protected:
  // Pseudo-random bytes; windows of different lengths that do not divide into chunks.
  std::vector<std::vector<TokenId>> Windows(std::vector<size_t> lengths) {
    uint64_t seed = 3;
    std::vector<std::vector<TokenId>> windows;
    for (const size_t n : lengths) {
      std::vector<TokenId>& w = windows.emplace_back();
      while (w.size() < n) w.push_back(static_cast<TokenId>(SplitMix64(seed) % 256));
    }
    return windows;
  }
  Stream Of(const std::string& preset) { return {preset, &model_, model_.Config(preset)}; }
  std::vector<StreamScores> Measure(const std::vector<Stream>& candidates,
                                    const std::vector<std::vector<TokenId>>& windows,
                                    const DivergenceOptions& options) {
    Result<std::vector<StreamScores>> r =
        MeasureDivergence(Of("f16"), candidates, windows, options);
    EXPECT_TRUE(r.ok()) << r.status().ToString();
    return r.ok() ? std::move(*r) : std::vector<StreamScores>(candidates.size());
  }

  ThreadPool pool_{2};
  TinyModel model_{pool_};
};

TEST_F(DivergenceTest, ScoresEveryPositionOfEveryWindow) {
  const auto windows = Windows({700, 333});
  const auto r = Measure({Of("f16"), Of("k4v4"), Of("k2v2")}, windows, {});
  ASSERT_EQ(r.size(), 3u);
  for (const StreamScores& s : r) {
    ASSERT_EQ(s.scores.size(), 1033u) << s.name;
    EXPECT_EQ(s.kld.count(), 1033);
    ASSERT_EQ(s.window_means.size(), 2u);
    EXPECT_NEAR(700 * s.window_means[0] + 333 * s.window_means[1], 1033 * s.kld.mean(), 1e-9);
    EXPECT_EQ(s.scores[699].position, 699);
    EXPECT_FALSE(s.scores[699].has_target);
    EXPECT_EQ(s.scores[700].position, 0);
    EXPECT_TRUE(s.scores[700].has_target);
    EXPECT_TRUE(s.head_cosine.empty());
  }
  EXPECT_EQ(r[0].kld.mean(), 0);
  EXPECT_GT(r[1].kld.mean(), 0);
  EXPECT_GT(r[2].kld.mean(), 2 * r[1].kld.mean());
  EXPECT_GT(OverWindows(r[2]).stderr_of_mean(), 0);
  EXPECT_EQ(r[2].window_positions, (std::vector<int64_t>{700, 333}));
  EXPECT_NEAR(OverWindows(r[2]).mean(), r[2].kld.mean(), 1e-9) << "longer windows weigh more";
}

// The same bits, whatever runs beside a candidate, in which groups, with which threads.
TEST_F(DivergenceTest, ResultsDoNotDependOnHowTheWorkIsCut) {
  const auto windows = Windows({500, 450});
  const auto all = Measure({Of("k8v4"), Of("k3v2"), Of("k2v2")}, windows, {});
  DivergenceOptions cut;
  cut.at_once = 1;
  cut.pool = &pool_;
  cut.head_cosine = true;
  const auto one = Measure({Of("k3v2")}, windows, cut);
  const auto grouped = Measure({Of("k2v2"), Of("k3v2")}, windows, cut);
  for (const StreamScores* s : {&one[0], &grouped[1]}) {
    ASSERT_EQ(s->scores.size(), all[1].scores.size());
    for (size_t i = 0; i < s->scores.size(); ++i) {
      ASSERT_EQ(s->scores[i].kld, all[1].scores[i].kld) << i;
      ASSERT_EQ(s->scores[i].q_logprob, all[1].scores[i].q_logprob) << i;
    }
    EXPECT_EQ(s->window_means, all[1].window_means);
    EXPECT_EQ(s->head_cosine, one[0].head_cosine);
  }
}

TEST_F(DivergenceTest, ScoresFromAPositionOn) {
  const auto windows = Windows({600});
  const auto all = Measure({Of("k2v2")}, windows, {});
  DivergenceOptions options;
  options.first_scored = 301;
  options.score_last = false;
  const auto part = Measure({Of("k2v2")}, windows, options);
  ASSERT_EQ(part[0].scores.size(), 600u - 301 - 1);
  for (size_t i = 0; i < part[0].scores.size(); ++i) {
    EXPECT_EQ(part[0].scores[i].kld, all[0].scores[301 + i].kld);
    EXPECT_TRUE(part[0].scores[i].has_target);
  }
  options.keep_scores = false;
  const auto lean = Measure({Of("k2v2")}, windows, options);
  EXPECT_TRUE(lean[0].scores.empty());
  EXPECT_EQ(lean[0].kld.mean(), part[0].kld.mean());
  EXPECT_EQ(lean[0].window_means, part[0].window_means);
}

TEST_F(DivergenceTest, CosineOfAttentionFallsWithBits) {
  DivergenceOptions options;
  options.head_cosine = true;
  const auto r = Measure({Of("f16"), Of("k4v4"), Of("k2v2")}, Windows({800}), options);
  ASSERT_EQ(r[0].head_cosine.size(), static_cast<size_t>(TinyModel::kLayers * TinyModel::kHeads));
  for (size_t h = 0; h < r[0].head_cosine.size(); ++h) {
    EXPECT_NEAR(r[0].head_cosine[h], 1, 1e-12);
    EXPECT_LT(r[1].head_cosine[h], 1);
    EXPECT_LT(r[2].head_cosine[h], r[1].head_cosine[h]);
  }
  EXPECT_NEAR(LayerCosine(r[2], TinyModel::kHeads)[1],
              (r[2].head_cosine[2] + r[2].head_cosine[3]) / 2, 1e-12);
}

// A candidate may be a whole other model, as for other weights.
TEST_F(DivergenceTest, ComparesTwoModels) {
  TinyModel other(pool_, 8);
  const auto r = Measure({{"other", &other, other.Config("f16")}}, Windows({100}), {});
  EXPECT_GT(r[0].kld.mean(), 0.1);
}

TEST_F(DivergenceTest, RefusesWhatCannotBeCompared) {
  const auto windows = Windows({100});
  const std::vector<Stream> one = {Of("k4v4")};
  const auto error = [&](const std::vector<Stream>& candidates,
                         const std::vector<std::vector<TokenId>>& w, const DivergenceOptions& o) {
    return MeasureDivergence(Of("f16"), candidates, w, o).status();
  };
  EXPECT_EQ(error({}, windows, {}).message(), "divergence: there are no candidates");
  EXPECT_EQ(error(one, {}, {}).message(), "divergence: there are no windows of tokens");
  DivergenceOptions from;
  from.first_scored = 100;
  EXPECT_EQ(error(one, windows, from).message(),
            "window 0 has 100 tokens; at least 101 are needed to score from position 100");
  DivergenceOptions none;
  none.at_once = 0;
  EXPECT_EQ(error(one, windows, none).code(), StatusCode::kInvalidArgument);
  std::atomic<bool> cancel = true;
  DivergenceOptions stopped;
  stopped.cancel = &cancel;
  EXPECT_EQ(error(one, windows, stopped).code(), StatusCode::kCancelled);
  DivergenceOptions refused;
  refused.progress = [](size_t done, size_t total, const std::string&) {
    EXPECT_EQ(total, 200u);
    return done < 100;
  };
  EXPECT_EQ(error(one, windows, refused).message(),
            "the measurement was stopped after 100 of 200 tokens");
}

TEST(QuantizedBehind, CountsSealedBlocksOnly) {
  const PrecisionRule rule{1, 4};
  EXPECT_EQ(QuantizedBehind(rule, 0), 0);
  EXPECT_EQ(QuantizedBehind(rule, 64 * 5), 0);  // blocks 1..5 are recent, 0 is the sink
  EXPECT_EQ(QuantizedBehind(rule, 64 * 6), 64);
  EXPECT_EQ(QuantizedBehind(rule, 64 * 22), 1088);
}

}  // namespace
}  // namespace tq
