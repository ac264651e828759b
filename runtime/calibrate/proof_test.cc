// What the proof on held-out text says, and of which text.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>

#include "runtime/calibrate/planted_for_test.h"

namespace tq {
namespace {

using namespace planted;  // NOLINT(google-build-using-namespace)

// Runs of one token: a model whose output matrix is its embedding predicts the next token well.
std::vector<std::vector<TokenId>> Runs(int count, uint64_t seed) {
  constexpr size_t kRun = 60;
  auto windows = SomeWindows(count, seed);
  for (auto& w : windows) {
    for (size_t t = 0; t < w.size(); ++t) w[t] = w[t - t % kRun];
  }
  return windows;
}

TEST(Proof, TextThatThePlainModelOnlyGuessesProvesNothing) {
  Planted planted;
  Model& model = planted.Load();
  CalibrateOptions o = Options(planted);
  o.granularity = Granularity::kLayer;
  o.target_kld = 0.5;
  Journal journal;  // both read the same calibration text
  o.journal = &journal;
  const auto calibration = SomeWindows(4, 1);
  const auto guessed = Calibrate(model, calibration, SomeWindows(3, 2), o);
  ASSERT_TRUE(guessed.ok()) << guessed.status().ToString();
  EXPECT_LT(guessed->profile.quality->kld_mean, o.target_kld);
  EXPECT_FALSE(guessed->profile.quality->passed);
  EXPECT_NE(guessed->not_informative.find("not far from guessing (50)"), std::string::npos)
      << guessed->not_informative;
  EXPECT_EQ(std::count(guessed->log.begin(), guessed->log.end(),
                       "held-out text: " + guessed->not_informative),
            1);
  EXPECT_FALSE(CalibrateJson(*guessed)["informative"].get<bool>());
  EXPECT_FALSE(CalibrateJson(*guessed)["passed"].get<bool>());
  EXPECT_NE(CalibrateText(*guessed).find("NOT passed"), std::string::npos);
  EXPECT_NE(CalibrateText(*guessed).find(guessed->not_informative), std::string::npos);
  EXPECT_NE(CalibrateSection(*guessed).find("But: the plain model has a perplexity of"),
            std::string::npos);

  const auto predicted = Calibrate(model, calibration, Runs(3, 2), o);
  ASSERT_TRUE(predicted.ok()) << predicted.status().ToString();
  EXPECT_EQ(predicted->not_informative, "");
  EXPECT_TRUE(predicted->profile.quality->passed);
  EXPECT_TRUE(CalibrateJson(*predicted)["informative"].get<bool>());
}

// Two halves of the vocabulary are two kinds of traffic: tokens of one make layer 1 look sharply,
// those of the other layer 2. A calibration on one kind spends its bits on what the other kind
// does not need.
TEST(Proof, AnotherDomainIsWorseThanOnesOwn) {
  constexpr int kHalf = kVocab / 2, kChannels = 8;
  Planted planted;
  for (int token = 0; token < kVocab; ++token) {
    for (const int domain : {0, 1}) {
      const bool own = domain == token / kHalf;
      const int from = token * kHidden + domain * kChannels;
      planted.Scale("token_embd.weight", own ? 5 : 0.02f, kVocab * kHidden, from, from + kChannels);
    }
  }
  for (const int domain : {0, 1}) {
    const std::string layer = StrCat("blk.", 1 + domain);
    planted.ScaleAll(layer + ".attn_q.weight", 0.1f);
    planted.ScaleAll(layer + ".attn_q.bias", 0.1f);
    planted.Scale(layer + ".attn_q.weight", 80, kHidden, domain * kChannels,
                  (domain + 1) * kChannels);
    planted.ScaleAll(layer + ".attn_output.weight", 3);
  }
  Model& model = planted.Load();
  CalibrateOptions o = Options(planted);
  o.granularity = Granularity::kLayer;
  o.budget_bits = 2.8;
  std::array<std::array<double, 2>, 2> kld{};  // [calibrated on][proved on]
  for (const int on : {0, 1}) {
    Journal journal;
    o.journal = &journal;
    for (const int proved : {0, 1}) {
      const auto r = Calibrate(model, SomeWindows(4, 1, 420, on * kHalf, kHalf),
                               SomeWindows(3, 2, 420, proved * kHalf, kHalf), o);
      ASSERT_TRUE(r.ok()) << r.status().ToString();
      kld[on][proved] = r->held_out.kld.mean();
    }
  }
  // The same text, as many bits: they are where the traffic that they were measured on needs them.
  EXPECT_LT(kld[0][0], 0.7 * kld[1][0]);
  EXPECT_LT(kld[1][1], 0.7 * kld[0][1]);
  // And of one profile: what its own proof promises does not hold for other traffic. (Only this way
  // round: texts of the first kind lose more under whatever formats.)
  EXPECT_LT(kld[1][1], 0.5 * kld[1][0]);
}

}  // namespace
}  // namespace tq
