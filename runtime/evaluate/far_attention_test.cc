#include "runtime/evaluate/far_attention.h"

#include <gtest/gtest.h>

#include "runtime/evaluate/fakes_for_test.h"

namespace tq {
namespace {

TEST(FarAttention, SharesOfRandomTextFollowTheDistance) {
  ThreadPool pool(1);
  TinyModel model(pool);
  // One byte again and again: all keys are equal, so that each token gets the same attention.
  const std::vector<TokenId> tokens(3000, 65);
  const Result<FarAttention> far = MeasureFarAttention(model, tokens);
  ASSERT_TRUE(far.ok()) << far.status().ToString();
  EXPECT_EQ(far->tokens, 3000);
  ASSERT_EQ(far->masses.size(), 3u);
  // Queries at positions p = 93 k - 1 from 1,024 on: the mean of (p + 1 - 1024) / (p + 1).
  double sum = 0;
  int queries = 0;
  for (int p = 92; p < 3000; p += 93) {
    if (p < 1024) continue;
    sum += (p + 1.0 - 1024) / (p + 1.0);
    ++queries;
  }
  EXPECT_EQ(far->masses[0].distance, 1024);
  EXPECT_EQ(far->masses[0].queries, queries * TinyModel::kLayers * TinyModel::kHeads);
  EXPECT_NEAR(*far->masses[0].mean, sum / queries, 1e-3);
  // No query has 4,096 tokens before it.
  EXPECT_FALSE(far->masses[1].mean);
  EXPECT_EQ(far->masses[1].queries, 0);
}

TEST(FarAttention, NeedsTokens) {
  ThreadPool pool(1);
  TinyModel model(pool);
  const Status status = MeasureFarAttention(model, {}).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "far attention: there are no tokens to read");
}

}  // namespace
}  // namespace tq
