#include "runtime/evaluate/footprint.h"

#include <gtest/gtest.h>

#include <vector>

#include "turboquant/base/thread_pool.h"

namespace tq {
namespace {

CacheConfig Config(const std::vector<std::string>& presets, int head_dim) {
  CacheConfig c;
  c.num_layers = static_cast<int>(presets.size());
  c.num_kv_heads = 2;
  c.head_dim = head_dim;
  for (const std::string& preset : presets) {
    const Result<HeadFormat> f = ParsePreset(preset);
    EXPECT_TRUE(f.ok()) << f.status().ToString();
    c.formats.insert(c.formats.end(), 2, *f);
  }
  return c;
}

void ExpectEqualsCache(const CacheConfig& config) {
  ThreadPool pool(1);
  Result<std::unique_ptr<KvCache>> cache = KvCache::Create(config);
  ASSERT_TRUE(cache.ok()) << cache.status().ToString();
  const SeqId seq = (*cache)->NewSequence();
  int64_t length = 0;
  for (const int n : {1, 62, 1, 1, 63, 128, 64, 64, 1, 100, 200, 3, 400}) {
    const std::vector<float> rows(static_cast<size_t>(n) * 2 * config.head_dim, 0.5f);
    ASSERT_TRUE((*cache)->BeginAppend(seq, n).ok());
    for (int layer = 0; layer < config.num_layers; ++layer) {
      ASSERT_TRUE((*cache)->AppendLayer(seq, layer, rows.data(), rows.data(), pool).ok());
    }
    ASSERT_TRUE((*cache)->CommitAppend(seq).ok());
    length += n;
    const CacheBytes want = (*cache)->Bytes();
    const CacheBytes got = CacheFootprint(config, length);
    EXPECT_EQ(got.payload, want.payload) << length;
    EXPECT_EQ(got.scales, want.scales) << length;
    EXPECT_EQ(got.window, want.window) << length;
    EXPECT_EQ(got.sliding, want.sliding) << length;
    EXPECT_EQ(got.tables, want.tables) << length;
    EXPECT_EQ(F16Footprint(config, length), (*cache)->F16Bytes()) << length;
  }
  EXPECT_DOUBLE_EQ(SealedBitsPerValue(config), (*cache)->BitsPerValue());
}

TEST(Footprint, EqualsTheCacheToTheByte) {
  ExpectEqualsCache(Config({"k3v2", "k8v4", "f16"}, 64));
  CacheConfig no_sinks = Config({"k4v4"}, 80);
  no_sinks.sink_len = 0;
  no_sinks.recent_len = 100;
  no_sinks.rollback_len = 130;
  ExpectEqualsCache(no_sinks);
  CacheConfig f16_window = Config({"k2v2"}, 128);
  f16_window.recent = RecentType::kF16;
  f16_window.recent_len = 0;
  f16_window.rollback_len = 0;
  f16_window.sink_len = 65;
  ExpectEqualsCache(f16_window);
}

TEST(Footprint, SlidingWindowsEqualTheCacheToo) {
  for (const int window : {1, 63, 64, 65, 200, 10000}) {
    for (const int rollback : {0, 1, 64}) {
      CacheConfig config = Config({"f16", "k4v4", "k8v8"}, 64);
      config.windows = {window, 0, window};
      config.rollback_len = rollback;
      ExpectEqualsCache(config);
      config.windows[1] = window;
      config.formats = Config({"f16", "k8v8", "bf16"}, 64).formats;
      ExpectEqualsCache(config);
    }
  }
}

TEST(Footprint, CountsTheCentreTable) {
  CacheConfig config = Config({"k4v4"}, 64);
  for (HeadFormat& f : config.formats) f.k = WithCenter(f.k, Center::kRopeMean);
  for (int i = 0; i < 32; ++i) config.rope.inv_freq.push_back(1.0f / static_cast<float>(1 + i));
  const std::vector<float> mean(64, 1.0f);
  config.centers.assign(2, MakeHeadCenter(mean, config.rope));
  ExpectEqualsCache(config);
}

TEST(Footprint, KnownSizes) {
  // head_dim 64, K3V2: 1536 + 64 + 64 + 1024 bytes a record, 8 beside it (codec/record_layout.h).
  const CacheConfig k3v2 = Config({"k3v2"}, 64);
  EXPECT_NEAR(SealedBitsPerValue(k3v2), 8.0 * 2696 / 8192, 1e-12);
  EXPECT_NEAR(ScalesShare(k3v2), 136.0 / 2696, 1e-12);
  EXPECT_GT(FootprintRatio(k3v2, 131072), 5.9);
  EXPECT_LT(FootprintRatio(k3v2, 131072), 16 / SealedBitsPerValue(k3v2));
  EXPECT_EQ(CacheFootprint(k3v2, 0).total(), 0u);
  EXPECT_EQ(FootprintRatio(k3v2, 0), 0);
}

}  // namespace
}  // namespace tq
