#include "turboquant/calibrate/format_choice.h"

#include <gtest/gtest.h>

#include <cmath>

#include "turboquant/codec/record_layout.h"

namespace tq {
namespace {

const std::vector<int> kBits = {2, 3, 4, 5, 6, 8};

// Costs fall by four with each bit, from what each site is given at 2 bits.
SiteCosts Costs(int layers, int heads, int head_dim, double k, double v) {
  SiteCosts c{layers, heads, head_dim, std::vector<bool>(static_cast<size_t>(layers)), {}};
  c.costs.resize(static_cast<size_t>(layers * heads));
  for (auto& head : c.costs) {
    for (const int bits : kBits) {
      head[0].push_back(k * std::pow(4.0, 2 - bits));
      head[1].push_back(v * std::pow(4.0, 2 - bits));
    }
  }
  return c;
}

void Scale(std::vector<double>& costs, double factor) {
  for (double& c : costs) c *= factor;
}

TEST(FormatChoice, FindsThePlantedLayerAndHead) {
  const FormatLadder ladder = *MakeLadder(*ParsePreset("k3v2"), kBits, true);
  SiteCosts costs = Costs(4, 2, 64, 1, 0.2);
  for (int h = 0; h < 2; ++h) Scale(costs.costs[2 * 2 + h][0], 100);  // K of layer 2
  Scale(costs.costs[1 * 2 + 1][1], 500);                              // V of layer 1, head 1
  ChoiceRequest request{.max_bits = 2.75};
  request.granularity = Granularity::kHead;
  const auto chosen = ChooseFormats(ladder, costs, request);
  ASSERT_TRUE(chosen.ok()) << chosen.status().ToString();
  EXPECT_LE(chosen->bits, 2.75);
  for (int h = 0; h < 2; ++h) EXPECT_GT(chosen->rungs[4 + h][0], chosen->rungs[0][0]);
  EXPECT_GT(chosen->rungs[3][1], chosen->rungs[2][1]);
  EXPECT_EQ(chosen->rungs[2][1], chosen->rungs[0][1]);
  // Layer by layer, the other head of layer 1 goes with it.
  request.granularity = Granularity::kLayer;
  const auto layers = ChooseFormats(ladder, costs, request);
  EXPECT_EQ(layers->rungs[2], layers->rungs[3]);
  EXPECT_LE(chosen->cost, layers->cost);
  // With K, V too, whatever it needs.
  request.granularity = Granularity::kPair;
  const auto pairs = ChooseFormats(ladder, costs, request);
  ASSERT_TRUE(pairs.ok()) << pairs.status().ToString();
  for (const auto& rungs : pairs->rungs) EXPECT_EQ(rungs[0], rungs[1]);
  EXPECT_GT(pairs->rungs[4][0], pairs->rungs[0][0]);
  EXPECT_LE(pairs->bits, 2.75);
  EXPECT_LT(layers->cost, pairs->cost);
}

TEST(FormatChoice, BitsAreThoseOfTheRecords) {
  for (const char* name : {"k3v2", "k3v2-anchor1", "k4v4-group32", "k3v2-trellis-anchor2"}) {
    for (const int head_dim : {64, 80, 128}) {
      const FormatLadder ladder = *MakeLadder(*ParsePreset(name), kBits, false);
      const SiteCosts costs = Costs(3, 2, head_dim, 1, 1);
      ChosenFormats chosen;
      chosen.rungs.assign(6, {1, 0});
      EXPECT_NEAR(BitsOf(ladder, costs, chosen), BitsPerValue(ladder.Format(1, 0), head_dim),
                  1e-12);
      // A budget of exactly these bits is used to the last byte, and not exceeded.
      const double budget = BitsOf(ladder, costs, chosen);
      const auto a = ChooseFormats(ladder, costs, {.max_bits = budget});
      ASSERT_TRUE(a.ok()) << name << ' ' << head_dim << ' ' << a.status().ToString();
      EXPECT_LE(a->bits, budget + 1e-9);
      EXPECT_GT(a->bits, budget - 1.0 / 3);
    }
  }
}

TEST(FormatChoice, AtACostTakesTheFewestBits) {
  const FormatLadder ladder = *MakeLadder(*ParsePreset("k3v2"), kBits, true);
  const SiteCosts costs = Costs(5, 3, 64, 0.01, 0.002);
  double last = 100;
  for (const double target : {0.001, 0.01, 0.1}) {
    const auto a = ChooseFormats(ladder, costs, {.max_cost = target});
    ASSERT_TRUE(a.ok());
    EXPECT_LE(a->cost, target);
    EXPECT_LT(a->bits, last);
    last = a->bits;
  }
  EXPECT_EQ(ChooseFormats(ladder, costs, {.max_cost = 1e-9}).status().code(),
            StatusCode::kInvalidArgument);
}

TEST(FormatChoice, KeepsLeastRungsAndFixedLayers) {
  const FormatLadder ladder = *MakeLadder(*ParsePreset("k3v2"), kBits, true);
  SiteCosts costs = Costs(4, 2, 64, 1, 1);
  costs.fixed[3] = true;
  ChoiceRequest request{.max_bits = 3.2};
  request.least_rungs.assign(8, {0, 0});
  request.least_rungs[1] = {0, 4};  // V of layer 0: head 1 takes head 0 along
  const auto a = ChooseFormats(ladder, costs, request);
  ASSERT_TRUE(a.ok());
  EXPECT_EQ(a->rungs[0][1], 4);
  EXPECT_EQ(a->rungs[1][1], 4);
  EXPECT_EQ(a->rungs[6], (std::array<int, 2>{0, 0}));
  EXPECT_LE(a->bits, 3.2);
  const auto none = ChooseFormats(ladder, costs, {.max_bits = 2.0});
  EXPECT_NE(none.status().message().find("a budget of 2 bits per value; the smallest formats take "
                                         "2.1328"),
            std::string::npos)
      << none.status().message();
}

TEST(FormatChoice, ALadderKeepsTheAxesOfItsBase) {
  const FormatLadder ladder = *MakeLadder(*ParsePreset("k3v2-trellis-anchor1"), kBits, true);
  EXPECT_EQ(ladder.k[1].codebook, Codebook::kTrellis);
  EXPECT_EQ(ladder.k[1].center, Center::kRopeMean);
  EXPECT_EQ(ladder.k[1].gain, Gain::kUnbiased);
  EXPECT_EQ(ladder.v[2].codebook, Codebook::kTrellis);
  EXPECT_EQ(ladder.v[3].codebook, Codebook::kUniform);
  EXPECT_EQ(ladder.Format(0, 5).anchors, 1);
  const FormatLadder grouped = *MakeLadder(*ParsePreset("k3v2"), {2, 3}, true, {kGroupHead, 32});
  ASSERT_EQ(grouped.v.size(), 4u);
  EXPECT_EQ(grouped.v[1].group_len, 32);
  EXPECT_EQ(grouped.v[1].zero, Zero::kSymmetric);
  EXPECT_EQ(grouped.v[2].group_len, kGroupHead);
  // Trellis codes have no groups; affine groups are those of the base.
  EXPECT_EQ(MakeLadder(*ParsePreset("k3v2-trellis"), {2, 8}, true, {kGroupHead, 32})->k.size(), 3u);
  EXPECT_EQ(MakeLadder(*ParsePreset("k4v4-group64"), {2, 8}, false, {kGroupHead, 32})->k.size(),
            2u);
  EXPECT_EQ(MakeLadder(*ParsePreset("k3v2"), {7}, true).status().code(), StatusCode::kUnsupported);
}

}  // namespace
}  // namespace tq
