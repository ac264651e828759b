#include "turboquant/cache/device_cache.h"

#include <gtest/gtest.h>

#include "turboquant/cache/cache_test_util.h"

namespace tq {
namespace {

using testing_util::Driver;
using testing_util::SmallConfig;

TEST(DeviceCache, WithoutADeviceItIsUnavailable) {
  if (GetDeviceInfo().ok()) GTEST_SKIP() << "this machine has a device";
  const auto stream = DeviceStream::Create();
  ASSERT_FALSE(stream.ok());
  EXPECT_EQ(stream.status().code(), StatusCode::kUnavailable);
}

class OnDevice : public testing::Test {
 protected:
  void SetUp() override {
    if (!GetDeviceInfo().ok()) GTEST_SKIP() << GetDeviceInfo().status().ToString();
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
          EXPECT_EQ(0, std::memcmp(sealed.data(), driver.cache->SealedSlot(seq, b),
                                   sealed.size()));
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
  auto device = DeviceCache::Create(
      config, {.max_tokens = 704, .open_slots = 6, .sealed_slots = 6}, *stream_);
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

}  // namespace
}  // namespace tq
