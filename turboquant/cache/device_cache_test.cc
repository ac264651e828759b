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
  std::unique_ptr<DeviceStream> stream_;
};

TEST_F(OnDevice, ImportedBlocksComeBackAsTheyWere) {
  for (const char* preset : {"k3v2", "k4v4-group32"}) {
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

// Tokens that were appended and sealed on the device have the bytes that the CPU gives them.
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
        auto cpu = *KvCache::Create(config);
        const SeqId seq = cpu->NewSequence();
        auto device = DeviceCache::Create(
            config, {.max_sequences = 2, .max_tokens = 640, .open_slots = 12, .sealed_slots = 12},
            *stream_);
        ASSERT_TRUE(device.ok()) << device.status().ToString();
        (*device)->ShuffleFreeSlots(5);
        const size_t values = static_cast<size_t>(n) * 2 * dim;
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
            if (at == 100) k[1] = INFINITY, v[0] = NAN, k[dim] = 3e20f;
            if (at == 200) std::fill(v.begin(), v.begin() + dim, 0.f);
            ASSERT_TRUE(cpu->AppendLayer(seq, layer, k.data(), v.data(), pool).ok());
            ASSERT_TRUE(k_device.Upload(k.data(), values * 4, 0, *stream_).ok());
            ASSERT_TRUE(v_device.Upload(v.data(), values * 4, 0, *stream_).ok());
            s = (*device)->Append(layer, ids.as<int32_t>(), 1, n, k_device.data(), v_device.data(),
                                  DeviceIo::kF32, *stream_);
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
    }
  }
}

}  // namespace
}  // namespace tq
