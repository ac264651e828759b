#include "turboquant/calibrate/allocation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "turboquant/base/numeric.h"

namespace tq {
namespace {

double Uniform(uint64_t& seed) {
  return static_cast<double>(SplitMix64(seed) >> 11) * 0x1p-53;
}

// Sites whose costs fall with bytes, not always convexly.
std::vector<AllocationSite> RandomSites(uint64_t seed, int num_sites, int max_choices) {
  std::vector<AllocationSite> sites(static_cast<size_t>(num_sites));
  for (AllocationSite& site : sites) {
    const auto choices = 1 + SplitMix64(seed) % static_cast<uint64_t>(max_choices);
    for (uint64_t c = 0; c < choices; ++c) {
      site.choices.push_back({64 * (8 + SplitMix64(seed) % 24), 0});
      site.choices.back().cost = Uniform(seed) * 1000 / static_cast<double>(site.choices[c].bytes);
    }
  }
  return sites;
}

struct BruteForce {
  const std::vector<AllocationSite>& sites;
  size_t max_bytes;
  double least = std::numeric_limits<double>::infinity();
  void Try(size_t site, size_t bytes, double cost) {
    if (bytes > max_bytes) return;
    if (site == sites.size()) {
      least = std::min(least, cost);
      return;
    }
    for (const AllocationChoice& c : sites[site].choices) {
      Try(site + 1, bytes + c.bytes, cost + c.cost);
    }
  }
};

TEST(Allocation, EqualsBruteForceAtEveryBudget) {
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    const auto sites = RandomSites(seed, 5, 4);
    const auto frontier = AllocationFrontier::Create(sites);
    ASSERT_TRUE(frontier.ok());
    for (size_t budget = frontier->min_bytes(); budget < frontier->min_bytes() + 3000;
         budget += 37) {
      const auto a = frontier->AtBytes(budget);
      ASSERT_TRUE(a.ok());
      BruteForce all{sites, budget};
      all.Try(0, 0, 0);
      EXPECT_EQ(a->cost, all.least) << "seed " << seed << ", budget " << budget;
    }
  }
}

TEST(Allocation, IsNeverOverBudgetAndNeverWorseWithMoreBytes) {
  const auto frontier = AllocationFrontier::Create(RandomSites(7, 60, 6));
  ASSERT_TRUE(frontier.ok());
  double last = std::numeric_limits<double>::infinity();
  for (size_t budget = frontier->min_bytes(); budget < frontier->min_bytes() + 60 * 24 * 64;
       budget += 997) {
    const auto a = frontier->AtBytes(budget);
    ASSERT_TRUE(a.ok());
    EXPECT_LE(a->bytes, budget);
    EXPECT_LE(a->cost, last);
    last = a->cost;
  }
}

TEST(Allocation, ByCostTakesTheFewestBytesThatReachIt) {
  const auto frontier = AllocationFrontier::Create(RandomSites(3, 20, 5));
  ASSERT_TRUE(frontier.ok());
  for (size_t budget = frontier->min_bytes(); budget < frontier->min_bytes() + 20000;
       budget += 511) {
    const auto within = frontier->AtBytes(budget);
    const auto reached = frontier->AtCost(within->cost);
    ASSERT_TRUE(reached.ok());
    EXPECT_EQ(reached->cost, within->cost);
    EXPECT_LE(reached->bytes, within->bytes);
    if (reached->bytes > frontier->min_bytes()) {
      EXPECT_GT(frontier->AtBytes(reached->bytes - 1)->cost, within->cost);
    }
  }
}

TEST(Allocation, EqualCostsKeepTheFewestBytes) {
  AllocationSite same;
  same.choices = {{300, 1.0}, {100, 1.0}, {100, 1.0}};
  const auto frontier = AllocationFrontier::Create({same, same});
  const auto a = frontier->AtBytes(1000);
  EXPECT_EQ(a->choices, (std::vector<int>{1, 1}));
  EXPECT_EQ(a->bytes, 200u);
}

// Sizes without a common unit, so many that the table would not fit: budgets hold all the same.
TEST(Allocation, CoarsensTheUnitOfHugeProblems) {
  uint64_t seed = 5;
  std::vector<AllocationSite> sites(4000);
  for (AllocationSite& site : sites) {
    for (int c = 0; c < 3; ++c) {
      const size_t bytes = 1000 + SplitMix64(seed) % 100000;
      site.choices.push_back({bytes, 1e6 / static_cast<double>(bytes)});
    }
  }
  const auto frontier = AllocationFrontier::Create(std::move(sites));
  ASSERT_TRUE(frontier.ok());
  double last = std::numeric_limits<double>::infinity();
  for (const double factor : {1.0, 1.1, 1.5, 3.0}) {
    const auto budget = static_cast<size_t>(static_cast<double>(frontier->min_bytes()) * factor);
    const auto a = frontier->AtBytes(budget);
    ASSERT_TRUE(a.ok());
    EXPECT_LE(a->bytes, budget);
    EXPECT_LT(a->cost, last);
    last = a->cost;
  }
}

TEST(Allocation, RefusesWhatCannotBe) {
  const auto code = [](const auto& r) { return r.status().code(); };
  EXPECT_EQ(code(AllocationFrontier::Create({})), StatusCode::kInvalidArgument);
  EXPECT_EQ(code(AllocationFrontier::Create({AllocationSite{}})), StatusCode::kInvalidArgument);
  AllocationSite bad;
  bad.choices = {{64, std::nan("")}};
  const auto not_finite = AllocationFrontier::Create({bad});
  EXPECT_NE(not_finite.status().message().find("choice 0 of site 0 costs nan"), std::string::npos);
  AllocationSite good;
  good.choices = {{64, 0.5}, {128, 0.25}};
  const auto frontier = AllocationFrontier::Create({good});
  EXPECT_EQ(frontier->AtBytes(63).status().message(),
            "allocation: a budget of 63 bytes; the smallest formats take 64");
  EXPECT_EQ(frontier->AtCost(0.2).status().message(),
            "allocation: a cost of at most 0.2; the best formats cost 0.25");
}

}  // namespace
}  // namespace tq
