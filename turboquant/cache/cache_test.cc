#include "turboquant/cache/cache.h"

#include <gtest/gtest.h>

#include <limits>

#include "turboquant/cache/cache_test_util.h"

namespace tq {
namespace {

using testing_util::Driver;
using testing_util::SmallConfig;

TEST(KvCache, CountsWhatItAllocates) {
  for (const char* preset : {"k3v2", "k4v4", "k8v8", "f16"}) {
    Driver d(SmallConfig(preset));
    const SeqId seq = d.cache->NewSequence();
    d.Append(seq, 64 * 10 + 5);
    const CacheBytes bytes = d.cache->Bytes();
    EXPECT_EQ(bytes.total(), bytes.payload + bytes.scales + bytes.window + bytes.tables);
    const HeadFormat f = *ParsePreset(preset);
    const size_t heads = 4;
    const size_t sealed = heads * (RecordLayout::For(f, 32).bytes + sizeof(RecordSideInfo));
    const size_t open = heads * OpenLayout::For(f, RecentType::kQ8, 32).bytes;
    // Block 10 is the query's; the window holds 8, 9; block 0 is the sink; 64 tokens of rollback
    // keep block 7. Blocks 1 to 7 are sealed.
    EXPECT_EQ(d.cache->num_sealed_slots(), 7);
    EXPECT_EQ(d.cache->num_open_slots(), 5);
    EXPECT_EQ(bytes.payload + bytes.scales, 7 * sealed);
    // One block more is being sealed; float rows will only be copied.
    EXPECT_EQ(bytes.window, 5 * open + (f.k.is_float() ? 0 : sealed));
    EXPECT_DOUBLE_EQ(d.cache->BitsPerValue(), BitsPerValue(f, 32));
    ASSERT_TRUE(d.cache->Free(seq).ok());
    EXPECT_EQ(d.cache->Bytes().total(), 0u);
  }
}

// Blocks that leave the window are sealed a few layers a token ahead; the codes are those of a
// block that is sealed at once, whatever comes between.
TEST(KvCache, SealingAheadGivesTheSameCodes) {
  for (const char* preset : {"k3v2", "k4v8", "k3v2-trellis"}) {
    CacheConfig config = SmallConfig(preset);
    config.num_layers = 3;
    config.formats.assign(6, config.formats[0]);
    config.sink_len = 0;
    config.recent_len = 64;
    for (const std::vector<int>& steps : {std::vector<int>{65, 200},
                                          {64, 1, 31, 1, 1, 64, 64},
                                          {65, -65, 65, 70},
                                          {140, -20, 100},
                                          {129, -1, 1, 64},
                                          {400, -200, 300}}) {
      Driver d(config);
      const SeqId seq = d.cache->NewSequence();
      for (const int n : steps) {
        if (n > 0) {
          d.Append(seq, n);
        } else {
          d.Truncate(seq, *d.cache->Length(seq) + n);
        }
      }
      if (d.cache->IsExact(seq)) d.ExpectEqualToFresh(seq);
    }
    Driver d(config);
    const SeqId seq = d.cache->NewSequence();
    d.Append(seq, 100);
    for (int i = 0; i < 100; ++i) d.Append(seq, 1);
    const SeqId child = d.Fork(seq);
    for (int i = 0; i < 40; ++i) d.Append(child, 1), d.Append(seq, 2);
    d.ExpectEqualToFresh(seq);
    d.ExpectEqualToFresh(child);
    ASSERT_TRUE(d.cache->BeginAppend(seq, 100).ok());
    ASSERT_TRUE(d.cache->AbortAppend(seq).ok());
    d.Append(seq, 70);
    d.ExpectEqualToFresh(seq);
  }
}

TEST(KvCache, MixedFormatsPerLayerAndHead) {
  CacheConfig config = SmallConfig("k3v2");
  config.formats[1] = *ParsePreset("k4v8");
  config.formats[2] = *ParsePreset("f16");
  config.formats[3] = *ParsePreset("k8v2");
  Driver d(config);
  const SeqId seq = d.cache->NewSequence();
  d.Append(seq, 700);
  size_t sealed = 0;
  for (const HeadFormat& f : config.formats) {
    sealed += RecordLayout::For(f, 32).bytes + sizeof(RecordSideInfo);
  }
  EXPECT_EQ(d.cache->Bytes().payload + d.cache->Bytes().scales,
            sealed * static_cast<size_t>(d.cache->num_sealed_slots()));
}

TEST(KvCache, ForksShareAndCopyOnWrite) {
  Driver d(SmallConfig("k3v2"));
  const SeqId a = d.cache->NewSequence();
  d.Append(a, 100);
  const int64_t slots = d.cache->num_open_slots();
  const SeqId b = d.Fork(a);
  EXPECT_EQ(d.cache->num_open_slots(), slots);
  d.Append(b, 3);  // the partial block is copied
  EXPECT_EQ(d.cache->num_open_slots(), slots + 1);
  EXPECT_EQ(*d.cache->Length(a), 100);
  EXPECT_EQ(*d.cache->Length(b), 103);
  d.ExpectEqualToFresh(a);
  d.ExpectEqualToFresh(b);
}

TEST(KvCache, ForksShareSealedBlocks) {
  Driver d(SmallConfig("k3v2"));
  const SeqId a = d.cache->NewSequence();
  d.Append(a, 256);
  const SeqId b = d.Fork(a);
  d.Append(a, 256);
  const int64_t sealed = d.cache->num_sealed_slots();
  d.Append(b, 64);  // reads block 1 sealed: a sealed it from the shared open block
  EXPECT_EQ(d.cache->num_sealed_slots(), sealed);
  d.ExpectEqualToFresh(a);
  d.ExpectEqualToFresh(b);
}

TEST(KvCache, ATruncatedForkDoesNotTakeTheCodesOfTheOther) {
  CacheConfig config = SmallConfig("k3v2");
  config.recent_len = 0;
  Driver d(config);
  const SeqId a = d.cache->NewSequence();
  d.Append(a, 150);  // block 1 is sealed
  const SeqId b = d.Fork(a);
  EXPECT_TRUE(d.Truncate(b, 100).exact);
  d.Append(b, 60);  // writes to block 1 and seals it in one append
  d.ExpectEqualToFresh(a);
  d.ExpectEqualToFresh(b);
}

TEST(KvCache, TruncateWithinRollbackIsExact) {
  for (const int back : {1, 5, 63, 64}) {
    for (const int length : {64, 65, 300, 448, 511}) {
      Driver d(SmallConfig("k3v2"));
      const SeqId seq = d.cache->NewSequence();
      d.Append(seq, length);
      const TruncateResult r = d.Truncate(seq, std::max(0, length - back));
      EXPECT_TRUE(r.exact) << length << " - " << back;
      d.Append(seq, 70);
      d.ExpectEqualToFresh(seq);
    }
  }
}

TEST(KvCache, TruncateFurtherSaysSo) {
  Driver d(SmallConfig("k3v2"));
  const SeqId seq = d.cache->NewSequence();
  d.Append(seq, 640);
  EXPECT_FALSE(d.Truncate(seq, 250).exact);
  EXPECT_EQ(*d.cache->Length(seq), 250);
  d.Append(seq, 200);  // goes on
  Driver e(SmallConfig("f16"));
  const SeqId f16 = e.cache->NewSequence();
  e.Append(f16, 640);
  EXPECT_TRUE(e.Truncate(f16, 250).exact);  // nothing was lost
  e.Append(f16, 100);
  e.ExpectEqualToFresh(f16);
}

TEST(KvCache, AbortLeavesTheSequenceAsItWas) {
  Driver d(SmallConfig("k3v2"));
  const SeqId seq = d.cache->NewSequence();
  d.Append(seq, 500);
  const int64_t open = d.cache->num_open_slots(), sealed = d.cache->num_sealed_slots();
  ASSERT_TRUE(d.cache->BeginAppend(seq, 200).ok());
  ASSERT_TRUE(d.cache->AbortAppend(seq).ok());
  EXPECT_EQ(*d.cache->Length(seq), 500);
  EXPECT_EQ(d.cache->num_open_slots(), open);
  EXPECT_EQ(d.cache->num_sealed_slots(), sealed);
  d.Append(seq, 200);
  d.ExpectEqualToFresh(seq);
}

TEST(KvCache, LimitRefusesAndKeeps) {
  CacheConfig config = SmallConfig("k3v2");
  config.max_bytes = 100000;
  Driver d(config);
  const SeqId seq = d.cache->NewSequence();
  d.Append(seq, 64);
  const Status s = d.cache->BeginAppend(seq, 100000);
  EXPECT_EQ(s.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(s.message().find("the limit is 100000"), std::string::npos) << s.message();
  d.Append(seq, 10);
  d.ExpectEqualToFresh(seq);
}

TEST(KvCache, CountsNonFiniteValuesAndLogsTheFirst) {
  CacheConfig config = SmallConfig("k3v2");
  std::vector<std::string> lines;
  config.log = [&](LogLevel, const std::string& m) { lines.push_back(m); };
  Driver d(config);
  const SeqId seq = d.cache->NewSequence();
  std::vector<float> k(3 * 2 * 32, 1.f), v(k);
  k[2 * 64 + 33] = std::numeric_limits<float>::quiet_NaN();
  v[5] = std::numeric_limits<float>::infinity();
  ASSERT_TRUE(d.cache->BeginAppend(seq, 3).ok());
  for (int layer = 0; layer < 2; ++layer) {
    ASSERT_TRUE(d.cache->AppendLayer(seq, layer, k.data(), v.data(), d.pool).ok());
  }
  ASSERT_TRUE(d.cache->CommitAppend(seq).ok());
  EXPECT_EQ(d.cache->counters().nonfinite_values, 4u);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_NE(lines[0].find("layer 0, KV head 0"), std::string::npos) << lines[0];
}

TEST(KvCache, Errors) {
  Driver d(SmallConfig("k3v2"));
  const SeqId seq = d.cache->NewSequence();
  EXPECT_EQ(d.cache->Length(99).status().message(), "cache: there is no sequence 99");
  EXPECT_EQ(d.cache->BeginAppend(seq, 0).message(), "cache: cannot append 0 tokens");
  EXPECT_EQ(d.cache->AppendLayer(seq, 0, nullptr, nullptr, d.pool).code(),
            StatusCode::kFailedPrecondition);
  EXPECT_EQ(d.cache->CommitAppend(seq).code(), StatusCode::kFailedPrecondition);
  d.Append(seq, 10);
  EXPECT_EQ(d.cache->Truncate(seq, 11).status().message(),
            StrCat("cache: cannot truncate sequence ", seq, " of 10 tokens to 11"));
  ASSERT_TRUE(d.cache->BeginAppend(seq, 1).ok());
  EXPECT_EQ(d.cache->Fork(seq).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(d.cache->BeginAppend(seq, 1).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(d.cache->CommitAppend(seq).message(),
            "cache: layer 0 of 2 was not written in this append");
}

TEST(CacheConfig, NamesWhatIsWrong) {
  CacheConfig c = SmallConfig("k3v2");
  c.head_dim = 1000;
  EXPECT_EQ(c.Validate().message(), "cache: head_dim = 1000; it must be 2 to 512");
  c = SmallConfig("k3v2");
  c.formats.pop_back();
  EXPECT_EQ(c.Validate().message(), "cache: 3 head formats for 2 layers x 2 KV heads = 4");
  c = SmallConfig("k3v2");
  c.formats[2].k.bits = 7;
  EXPECT_EQ(c.Validate().message(),
            "layer 1, KV head 0: K: no codec with 7 bits; supported: 2, 3, 4, 5, 6, 8, 16 (f16)");
  c = SmallConfig("k3v2");
  c.formats[0].k = WithCenter(c.formats[0].k, Center::kRopeMean);
  EXPECT_EQ(c.Validate().code(), StatusCode::kInvalidArgument);
}

TEST(KvCacheWindows, BlocksBehindTheWindowAreFreed) {
  CacheConfig config = SmallConfig("k4v4");
  Driver::SetWindow(&config, 0, 100);
  Driver d(config);
  const SeqId seq = d.cache->NewSequence();
  for (const int n : {30, 70, 900, 1, 1, 61, 1}) {
    d.Append(seq, n);
    const int64_t length = *d.cache->Length(seq);
    // After taking back 64 tokens the next query sees 100, its own included.
    const int64_t first = std::max<int64_t>(0, length - 64 - 99) / kPageLen;
    EXPECT_EQ(d.cache->num_window_slots(), DivCeil<int64_t>(length, kPageLen) - first) << length;
    EXPECT_EQ(d.cache->Bytes().sliding,
              static_cast<size_t>(d.cache->num_window_slots()) * d.cache->window_slot_bytes());
    d.ExpectEqualToFresh(seq);
  }
  // Only the other layer is sealed, and counted in bits.
  CacheConfig one = SmallConfig("k4v4");
  EXPECT_EQ(d.cache->sealed_slot_bytes() * 2, (*KvCache::Create(one))->sealed_slot_bytes());
  EXPECT_EQ(d.cache->BitsPerValue(), (*KvCache::Create(one))->BitsPerValue());
  // FP16 would keep 1064 tokens of one layer and 100 of the other.
  EXPECT_EQ(d.cache->F16Bytes(), (1064u + 100) * 2 * 2 * 2 * 32);
}

TEST(KvCacheWindows, TruncationBeyondWhatIsKeptIsRefused) {
  CacheConfig config = SmallConfig("k4v4");
  Driver::SetWindow(&config, 1, 100);
  Driver d(config);
  const SeqId seq = d.cache->NewSequence();
  d.Append(seq, 1000);
  const Status s = d.cache->Truncate(seq, 500).status();
  EXPECT_EQ(s.code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(s.message(),
            StrCat("cache: sequence ", seq,
                   " of 1000 tokens cannot be truncated to 500: its layers with a sliding window "
                   "of 100 tokens have released what the next token would see; at most 64 tokens "
                   "(rollback_len) can be taken back, or all"));
  EXPECT_EQ(*d.cache->Length(seq), 1000);
  d.ExpectEqualToFresh(seq);
  EXPECT_TRUE(d.Truncate(seq, 936).exact);
  d.Append(seq, 300);
  d.ExpectEqualToFresh(seq);
  EXPECT_TRUE(d.Truncate(seq, 0).exact);
  d.Append(seq, 300);
  d.ExpectEqualToFresh(seq);
}

TEST(KvCacheWindows, WhatALayerWithAWindowMayHave) {
  const auto error = [](const CacheConfig& config) {
    return KvCache::Create(config).status().message();
  };
  CacheConfig config = SmallConfig("k8v8");
  config.windows = {100};
  EXPECT_EQ(error(config), "cache: windows of 1 layers; there are 2");
  config.windows = {100, 0};
  EXPECT_EQ(error(config), "");
  config.windows = {100, 200};
  EXPECT_EQ(error(config),
            "cache: layers have windows of 100 and 200 tokens; one length is supported");
  config.windows = {0, -1};
  EXPECT_EQ(error(config),
            "cache: layer 1 has a window of -1 tokens; it must be 0 (none) to 1073741824");
  config = SmallConfig("k4v4");
  config.windows = {100, 0};
  EXPECT_EQ(
      error(config),
      "cache: layer 0 has a sliding window of 100 tokens and the format k4v4; such layers are "
      "kept in 16 or 8 bits, without centre and anchors: f16 or k8v8");
}

}  // namespace
}  // namespace tq
