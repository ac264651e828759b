#include "runtime/evaluate/f32_model.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "runtime/evaluate/fakes_for_test.h"

namespace tq {
namespace {

class F32ModelTest : public testing::Test {
 protected:
  std::unique_ptr<KvCache> Cache(const std::string& preset, size_t max_bytes = 0) {
    CacheConfig config = model_.Config(preset);
    config.max_bytes = max_bytes;
    Result<std::unique_ptr<KvCache>> cache = KvCache::Create(config);
    EXPECT_TRUE(cache.ok()) << cache.status().ToString();
    return std::move(*cache);
  }
  std::vector<float> Read(Model& model, KvCache& cache, SeqId seq, int first, int count) {
    std::vector<TokenId> tokens;
    for (int i = first; i < first + count; ++i) tokens.push_back(i * 7 % 256);
    const ForwardItem item = {seq, tokens, true};
    std::vector<float> logits;
    status_ = model.Forward(cache, {&item, 1}, &logits);
    return logits;
  }

  ThreadPool pool_{2};
  TinyModel model_{pool_};
  F32Model exact_{model_, pool_};
  Status status_;
};

TEST_F(F32ModelTest, WhateverTheCacheHoldsTheLogitsAreThose) {
  const auto f16 = Cache("f16"), k2v2 = Cache("k2v2");
  const std::vector<float> all = Read(exact_, *f16, f16->NewSequence(), 0, 700);
  ASSERT_TRUE(status_.ok()) << status_.ToString();
  const SeqId seq = k2v2->NewSequence();
  std::vector<float> parts;
  for (int first = 0; first < 700; first += 140) {
    const std::vector<float> part = Read(exact_, *k2v2, seq, first, 140);
    ASSERT_TRUE(status_.ok()) << status_.ToString();
    parts.insert(parts.end(), part.begin(), part.end());
  }
  EXPECT_EQ(all, parts);
  const auto other = Cache("k2v2");
  EXPECT_NE(all, Read(model_, *other, other->NewSequence(), 0, 700));
}

TEST_F(F32ModelTest, SeveralSequencesAtOnceAreRefused) {
  const auto cache = Cache("f16");
  const std::vector<TokenId> tokens = {1, 2, 3};
  const ForwardItem items[] = {{cache->NewSequence(), tokens}, {cache->NewSequence(), tokens}};
  const Status status = exact_.Forward(*cache, items, nullptr);
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_NE(status.message().find("2 sequences"), std::string::npos) << status.message();
}

TEST_F(F32ModelTest, ASequenceThatOthersBeganIsRefused) {
  const auto cache = Cache("f16");
  const SeqId seq = cache->NewSequence();
  Read(model_, *cache, seq, 0, 5);
  ASSERT_TRUE(status_.ok()) << status_.ToString();
  Read(exact_, *cache, seq, 5, 5);
  EXPECT_EQ(status_.code(), StatusCode::kUnsupported);
  EXPECT_NE(status_.message().find("5 tokens"), std::string::npos) << status_.message();
}

TEST_F(F32ModelTest, AfterACallThatFailedOnlyANewSequenceIsRead) {
  const auto small = Cache("f16", 200 << 10);
  const SeqId seq = small->NewSequence();
  int read = 0;
  while (status_.ok() && read < 4096) Read(exact_, *small, seq, read, 64), read += 64;
  ASSERT_EQ(status_.code(), StatusCode::kResourceExhausted) << read << ' ' << status_.ToString();
  Read(exact_, *small, seq, 0, 1);
  EXPECT_FALSE(status_.ok());
  const auto cache = Cache("f16");
  const std::vector<float> again = Read(exact_, *cache, cache->NewSequence(), 0, 20);
  ASSERT_TRUE(status_.ok()) << status_.ToString();
  F32Model fresh(model_, pool_);
  const auto other = Cache("f16");
  EXPECT_EQ(again, Read(fresh, *other, other->NewSequence(), 0, 20));
}

}  // namespace
}  // namespace tq
