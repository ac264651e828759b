#include "turboquant/cache/device_cache.h"

#include <gtest/gtest.h>

#include <cmath>

#include "turboquant/cache/cache_test_util.h"

namespace tq {
namespace {

using testing_util::Driver;
using testing_util::SmallConfig;

TEST(DeviceCache, WithoutADeviceItIsUnavailable) {
  if (GetCudaDeviceInfo().ok()) GTEST_SKIP() << "this machine has a device";
  const auto stream = DeviceStream::Create();
  ASSERT_FALSE(stream.ok());
  EXPECT_EQ(stream.status().code(), StatusCode::kUnavailable);
}

class OnDevice : public testing::Test {
 protected:
  void SetUp() override {
    if (!GetCudaDeviceInfo().ok()) GTEST_SKIP() << GetCudaDeviceInfo().status().ToString();
    stream_ = std::make_unique<DeviceStream>(*DeviceStream::Create());
  }

  // Tokens that are appended, n at a time or as parts of a prompt, and sealed on the device have
  // the bytes that the CPU gives them.
  void CheckAppends(const CacheConfig& config, int n, bool as_prompt = false) {
    auto cpu = *KvCache::Create(config);
    const SeqId seq = cpu->NewSequence();
    auto device = DeviceCache::Create(
        config, {.max_sequences = 2, .max_tokens = 640, .open_slots = 12, .sealed_slots = 12},
        *stream_);
    ASSERT_TRUE(device.ok()) << device.status().ToString();
    (*device)->ShuffleFreeSlots(5);
    const size_t values = static_cast<size_t>(n) * 2 * config.head_dim;
    const auto k_device = *DeviceBuffer::Allocate(values * 4);
    const auto v_device = *DeviceBuffer::Allocate(values * 4);
    const auto ids = *DeviceBuffer::Allocate(4);
    const int32_t one = 1;
    ASSERT_TRUE(ids.Upload(&one, 4, 0, *stream_).ok());
    ThreadPool pool(2);
    uint64_t state = 9;
    const int total = 640;
    for (int at = 0; at < total; at += n) {
      Status s = (*device)->Reserve(1, n, *stream_);
      ASSERT_TRUE(s.ok()) << s.ToString();
      ASSERT_TRUE((*device)->Advance(ids.as<int32_t>(), 1, n, *stream_).ok());
      ASSERT_TRUE(cpu->BeginAppend(seq, n).ok());
      for (int layer = 0; layer < 2; ++layer) {
        std::vector<float> k(values), v(values);
        for (std::vector<float>* x : {&k, &v}) {
          for (float& f : *x) {
            f = static_cast<float>(static_cast<int64_t>(SplitMix64(state))) * 0x1p-62f;
          }
        }
        if (at == 100) k[1] = INFINITY, v[0] = NAN, k[config.head_dim] = 3e20f;
        if (at == 200) std::fill(v.begin(), v.begin() + config.head_dim, 0.f);
        ASSERT_TRUE(cpu->AppendLayer(seq, layer, k.data(), v.data(), pool).ok());
        ASSERT_TRUE(k_device.Upload(k.data(), values * 4, 0, *stream_).ok());
        ASSERT_TRUE(v_device.Upload(v.data(), values * 4, 0, *stream_).ok());
        s = as_prompt ? (*device)->AppendPrompt(layer, 1, n, k_device.data(), v_device.data(),
                                                DeviceIo::kF32, *stream_)
                      : (*device)->Append(layer, ids.as<int32_t>(), 1, n, k_device.data(),
                                          v_device.data(), DeviceIo::kF32, *stream_);
        ASSERT_TRUE(s.ok()) << s.ToString();
        ASSERT_TRUE(stream_->Synchronize().ok());
      }
      ASSERT_TRUE(cpu->CommitAppend(seq).ok());
    }
    std::vector<std::byte> open(cpu->open_slot_bytes()), sealed(cpu->sealed_slot_bytes());
    int compared = 0;
    for (int64_t b = 0; b < total / kPageLen; ++b) {
      if (cpu->OpenSlot(seq, b) != nullptr) {
        ASSERT_TRUE((*device)->Export(1, b, open.data(), nullptr, *stream_).ok()) << b;
        EXPECT_EQ(0, std::memcmp(open.data(), cpu->OpenSlot(seq, b), open.size())) << b;
      }
      if (cpu->SealedSlot(seq, b) != nullptr) {
        ASSERT_TRUE((*device)->Export(1, b, nullptr, sealed.data(), *stream_).ok()) << b;
        EXPECT_EQ(0, std::memcmp(sealed.data(), cpu->SealedSlot(seq, b), sealed.size())) << b;
        ++compared;
      }
    }
    EXPECT_EQ(compared, 6);
    const auto counters = (*device)->Counters(*stream_);
    ASSERT_TRUE(counters.ok());
    EXPECT_EQ(counters->nonfinite_values, cpu->counters().nonfinite_values);
    EXPECT_EQ(counters->clamped_values, cpu->counters().clamped_values);
  }

  std::unique_ptr<DeviceStream> stream_;
};

TEST_F(OnDevice, ImportedBlocksComeBackAsTheyWere) {
  for (const char* preset : {"k3v2", "k4v4-group32", "k16vfp8", "k5v8"}) {
    for (const int dim : {64, 32}) {
      CacheConfig config = SmallConfig(preset);
      config.head_dim = dim;
      Driver driver(config);
      const SeqId seq = driver.cache->NewSequence();
      driver.Append(seq, 700);
      DeviceCacheOptions options{.max_tokens = 704, .open_slots = 6, .sealed_slots = 20};
      auto device = DeviceCache::Create(config, options, *stream_);
      ASSERT_TRUE(device.ok()) << device.status().ToString();
      (*device)->ShuffleFreeSlots(3);
      const Status s = (*device)->Import(*driver.cache, seq, 0, *stream_);
      ASSERT_TRUE(s.ok()) << s.ToString();
      EXPECT_EQ((*device)->length(0), 700);
      std::vector<std::byte> open(driver.cache->open_slot_bytes());
      std::vector<std::byte> sealed(driver.cache->sealed_slot_bytes());
      for (int64_t b = 0; b <= 10; ++b) {
        ASSERT_EQ((*device)->HasOpen(b, 700), driver.cache->OpenSlot(seq, b) != nullptr) << b;
        ASSERT_EQ((*device)->HasSealed(b, 700), driver.cache->SealedSlot(seq, b) != nullptr) << b;
        if ((*device)->HasOpen(b, 700)) {
          ASSERT_TRUE((*device)->Export(0, b, open.data(), nullptr, *stream_).ok());
          EXPECT_EQ(0, std::memcmp(open.data(), driver.cache->OpenSlot(seq, b), open.size()));
        }
        if ((*device)->HasSealed(b, 700)) {
          ASSERT_TRUE((*device)->Export(0, b, nullptr, sealed.data(), *stream_).ok());
          EXPECT_EQ(0, std::memcmp(sealed.data(), driver.cache->SealedSlot(seq, b), sealed.size()));
        }
      }
      EXPECT_EQ((*device)->Export(0, 0, nullptr, sealed.data(), *stream_).code(),
                StatusCode::kNotFound);
    }
  }
}

TEST_F(OnDevice, RunningOutOfSlotsLeavesTheSequenceEmpty) {
  const CacheConfig config = SmallConfig("k4v4");
  Driver driver(config);
  const SeqId seq = driver.cache->NewSequence();
  driver.Append(seq, 700);
  auto device = DeviceCache::Create(config, {.max_tokens = 704, .open_slots = 6, .sealed_slots = 6},
                                    *stream_);
  ASSERT_TRUE(device.ok()) << device.status().ToString();
  const Status s = (*device)->Import(*driver.cache, seq, 0, *stream_);
  EXPECT_EQ(s.code(), StatusCode::kResourceExhausted) << s.ToString();
  EXPECT_NE(s.message().find("6 sealed blocks"), std::string::npos) << s.message();
  EXPECT_EQ((*device)->length(0), 0);
  // What was taken is free again.
  const SeqId shorter = driver.cache->NewSequence();
  driver.Append(shorter, 500);
  EXPECT_TRUE((*device)->Import(*driver.cache, shorter, 0, *stream_).ok());
}

// Means of K, and mean queries for anchors.
void AddCentersAndAnchors(int anchors, int anchor_bits, CacheConfig* config) {
  config->rope.attention_scale = 1.1f;
  uint64_t state = 17;
  const auto random = [&](float size) {
    std::vector<float> x(static_cast<size_t>(config->head_dim));
    for (float& f : x) {
      f = static_cast<float>(static_cast<int64_t>(SplitMix64(state))) * 0x1p-63f * size;
    }
    return x;
  };
  for (HeadFormat& f : config->formats) {
    f.k = WithCenter(f.k, Center::kRopeMean);
    f.anchors = anchors;
    f.anchor_bits = anchor_bits;
    config->centers.push_back(MakeHeadCenter(random(2), config->rope));
    HeadTensors t;
    t.queries.means = {random(2), random(1), random(3)};
    t.queries.rms = 1.5f;
    config->tensors.push_back(t);
  }
}

// Few launches of every kind, for the sanitizers.
TEST_F(OnDevice, OneTokenSealsABlock) {
  for (const int dim : {64, 128, 256}) {
    CacheConfig config = SmallConfig("k3v2");
    config.head_dim = dim;
    AddCentersAndAnchors(2, 4, &config);
    Driver driver(config);
    const SeqId seq = driver.cache->NewSequence();
    driver.Append(seq, 256);
    auto device = DeviceCache::Create(
        config, {.max_tokens = 320, .open_slots = 6, .sealed_slots = 4}, *stream_);
    ASSERT_TRUE(device.ok()) << device.status().ToString();
    ASSERT_TRUE((*device)->Import(*driver.cache, seq, 0, *stream_).ok());
    const auto rows = *DeviceBuffer::Allocate(static_cast<size_t>(2) * dim * 4);
    const auto ids = *DeviceBuffer::Allocate(4);
    ASSERT_TRUE(rows.Fill(0, *stream_).ok());
    ASSERT_TRUE(ids.Fill(0, *stream_).ok());
    ASSERT_TRUE((*device)->Reserve(0, 1, *stream_).ok());
    ASSERT_TRUE((*device)->Advance(ids.as<int32_t>(), 1, 1, *stream_).ok());
    for (int layer = 0; layer < 2; ++layer) {
      const Status s = (*device)->Append(layer, ids.as<int32_t>(), 1, 1, rows.data(), rows.data(),
                                         DeviceIo::kF32, *stream_);
      ASSERT_TRUE(s.ok()) << s.ToString();
    }
    ASSERT_TRUE(stream_->Synchronize().ok());
    driver.Append(seq, 1);  // seals block 1 from the same rows
    std::vector<std::byte> sealed(driver.cache->sealed_slot_bytes());
    ASSERT_TRUE((*device)->Export(0, 1, nullptr, sealed.data(), *stream_).ok());
    EXPECT_EQ(0, std::memcmp(sealed.data(), driver.cache->SealedSlot(seq, 1), sealed.size()));
  }
}

TEST_F(OnDevice, AppendsAndSealsAsTheCpuDoes) {
  for (const char* preset : {"k4v4", "k3v2", "k2v3", "k3v2-anchor1", "k2v2-anchor4"}) {
    for (const int dim : {64, 128, 256}) {
      for (const int n : {1, 5}) {
        SCOPED_TRACE(StrCat(preset, " head_dim ", dim, ", ", n, " at a time"));
        CacheConfig config = SmallConfig(preset);
        config.head_dim = dim;
        if (const int anchors = config.formats[0].anchors; anchors > 0) {
          AddCentersAndAnchors(anchors, anchors == 1 ? 4 : 8, &config);
        }
        CheckAppends(config, n);
      }
    }
  }
}

TEST_F(OnDevice, AppendsAndSealsOtherFormatsAsTheCpuDoes) {
  for (const char* preset : {"k8v8", "k8v4", "k3v8", "f16", "bf16", "fp8", "k16v3", "kfp8vbf16",
                             "k4v4-group32", "k2v8-group16", "k8v3-group64", "k3v2-group128"}) {
    for (const int dim : {64, 128, 256}) {
      SCOPED_TRACE(StrCat(preset, " head_dim ", dim));
      CacheConfig config = SmallConfig(preset);
      config.head_dim = dim;
      if (dim == 128) AddCentersAndAnchors(0, 4, &config);
      CheckAppends(config, 5);
    }
  }
}

// Parts that end inside blocks, at their ends, and behind the window.
TEST_F(OnDevice, PartsOfAPromptHaveTheBytesOfTheCpu) {
  const std::pair<const char*, int> shapes[] = {
      {"k3v2-anchor1", 64}, {"k4v4", 128}, {"k2v2", 256}, {"k8v4", 128}, {"f16", 64}};
  for (const auto& [preset, dim] : shapes) {
    for (const int n : {40, 320, 640}) {
      SCOPED_TRACE(StrCat(preset, " head_dim ", dim, ", ", n, " at a time"));
      CacheConfig config = SmallConfig(preset);
      config.head_dim = dim;
      if (const int anchors = config.formats[0].anchors; anchors > 0) {
        AddCentersAndAnchors(anchors, 4, &config);
      }
      CheckAppends(config, n, true);
    }
  }
}

TEST_F(OnDevice, AnAppendThatWasNotReservedIsRefused) {
  CacheConfig config = SmallConfig("k4v4");
  config.head_dim = 64;
  auto device = *DeviceCache::Create(
      config, {.max_tokens = 640, .open_slots = 12, .sealed_slots = 6}, *stream_);
  const auto append = [&](int layer, int sequence, int n) {
    return device->AppendPrompt(layer, sequence, n, nullptr, nullptr, DeviceIo::kF32, *stream_)
        .code();
  };
  EXPECT_EQ(append(0, 0, 1), StatusCode::kInvalidArgument);
  ASSERT_TRUE(device->Reserve(0, 100, *stream_).ok());
  EXPECT_EQ(append(0, 0, 101), StatusCode::kInvalidArgument);
  EXPECT_EQ(append(2, 0, 100), StatusCode::kInvalidArgument);
  EXPECT_EQ(append(0, 1, 100), StatusCode::kInvalidArgument);
  const auto* const odd = reinterpret_cast<const void*>(2);
  EXPECT_EQ(device->AppendPrompt(0, 0, 100, odd, odd, DeviceIo::kF16, *stream_).code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(device->Append(0, nullptr, 1, 9, nullptr, nullptr, DeviceIo::kF32, *stream_).code(),
            StatusCode::kInvalidArgument);
}

// Axes that presets do not name.
TEST_F(OnDevice, AppendsAndSealsEveryKindOfScaleAsTheCpuDoes) {
  struct Case {
    const char* name;
    void (*change)(Codec*);
  };
  const Case cases[] = {
      {"rotated groups of a book", [](Codec* c) { c->group_len = 32; }},
      {"groups without a gain", [](Codec* c) { c->group_len = 16, c->gain = Gain::kNone; }},
      {"f16 scale a token, unbiased",
       [](Codec* c) { c->scale = ScaleType::kF16, c->gain = Gain::kUnbiased; }},
      {"log8 scales with offsets",
       [](Codec* c) { *c = WithGroups(*c, 64), c->scale = ScaleType::kLog8; }},
      {"no rotation and no gain",
       [](Codec* c) { c->rotate = Rotate::kNone, c->gain = Gain::kNone; }},
  };
  for (const Case& c : cases) {
    for (const char* preset : {"k4v4", "k3v2"}) {
      SCOPED_TRACE(StrCat(c.name, " ", preset));
      CacheConfig config = SmallConfig(preset);
      config.head_dim = 128;
      for (HeadFormat& f : config.formats) c.change(&f.k), c.change(&f.v);
      CheckAppends(config, 5);
    }
  }
}

TEST_F(OnDevice, WhatCannotBeAppendedIsNamed) {
  for (const char* preset : {"k5v4", "k3v2-trellis", "k8v8-anchor1", "k4v4-group32-anchor2"}) {
    CacheConfig config = SmallConfig(preset);
    config.head_dim = 64;
    if (const int anchors = config.formats[0].anchors; anchors > 0) {
      AddCentersAndAnchors(anchors, 4, &config);
    }
    auto device = DeviceCache::Create(
        config, {.max_tokens = 64, .open_slots = 2, .sealed_slots = 1}, *stream_);
    ASSERT_TRUE(device.ok()) << device.status().ToString();
    const Status s = (*device)->CheckAppend();
    EXPECT_EQ(s.code(), StatusCode::kUnsupported) << preset;
    EXPECT_NE(s.message().find("cannot be appended on the device; supported: f16, bf16, fp8 and "),
              std::string::npos)
        << s.message();
  }
}

}  // namespace
}  // namespace tq
