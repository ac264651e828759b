#include "runtime/model/v_skip_totals.h"

#include <gtest/gtest.h>

#include <vector>

namespace tq {
namespace {

TEST(VSkipTotals, CountsABlockOnceForAKvHeadAndMassesForEachQueryHead) {
  CacheConfig config;
  config.num_layers = 2;
  config.num_kv_heads = 2;
  config.head_dim = 16;
  config.recent_len = 64;
  config.formats.assign(4, HeadFormat{});
  config.windows = {0, 100};
  const auto cache = *KvCache::Create(config);
  // Positions of blocks 9 and 10: one sink block, one recent block and their own are open.
  std::vector<SkippedV> skipped(2 * 6);
  for (int h = 0; h < 6; ++h) skipped[h] = {0.1f, 0.5f, h < 3 ? 4 : 1};
  const AttentionItem item{0, 10 * kPageLen - 1, 2, nullptr, nullptr, skipped.data()};
  VSkipTotals totals;
  totals.Add(*cache, 0, {.num_q_heads = 6}, {&item, 1});
  EXPECT_EQ(totals.blocks, (7 + 8) * 2);
  EXPECT_EQ(totals.skipped, 5);
  EXPECT_EQ(totals.rows, 12);
  EXPECT_NEAR(totals.mean_mass(), 0.05, 1e-6);
  EXPECT_NEAR(totals.mean_bound(), 0.25, 1e-6);
  EXPECT_NEAR(totals.skipped_share(), 5 / 30., 1e-9);
  totals.Add(*cache, 1, {.num_q_heads = 6}, {&item, 1});  // a layer with a window
  const AttentionItem early{0, 3 * kPageLen - 1, 1, nullptr, nullptr, skipped.data()};
  totals.Add(*cache, 0, {.num_q_heads = 6}, {&early, 1});  // sees nothing sealed
  const AttentionItem unasked{0, 10 * kPageLen, 1, nullptr, nullptr, nullptr};
  totals.Add(*cache, 0, {.num_q_heads = 6}, {&unasked, 1});
  EXPECT_EQ(totals.blocks, 30);
  EXPECT_EQ(VSkipTotals().skipped_share(), 0);
}

}  // namespace
}  // namespace tq
