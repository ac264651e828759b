#include "turboquant/base/large_pages.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>

namespace tq {
namespace {

TEST(LargePages, MemoryIsZeroAlignedAndKeepsWhatWasWrittenWhenGathered) {
  const auto memory = MapMemory(3 * kLargePage);
  ASSERT_TRUE(memory.ok()) << memory.status().message();
  std::byte* p = memory->get();
  EXPECT_EQ(reinterpret_cast<uintptr_t>(p) % kLargePage, 0u);
  EXPECT_EQ(p[3 * kLargePage - 1], std::byte{0});
  WishForLargePages(p + 2 * kLargePage, kLargePage);
  for (size_t i = 0; i < 2 * kLargePage; i += 4096) p[i] = static_cast<std::byte>(i / 4096 + 1);
  GatherInLargePages(p, 2 * kLargePage);
  for (size_t i = 0; i < 2 * kLargePage; i += 4096) {
    ASSERT_EQ(p[i], static_cast<std::byte>(i / 4096 + 1)) << i;
    ASSERT_EQ(p[i + 1], std::byte{0}) << i;
  }
}

TEST(LargePages, OnlyWholePagesAreGivenBack) {
  const auto memory = MapMemory(kLargePage);
  ASSERT_TRUE(memory.ok());
  std::byte* p = memory->get();
  std::memset(p, 7, kLargePage);
  GiveBackPages(p + 1, 65536 + 4096);  // wherever pages of up to 64 KiB begin
  EXPECT_EQ(p[0], std::byte{7});
  EXPECT_EQ(p[65536 + 4097], std::byte{7});
  EXPECT_EQ(p[65535], std::byte{0});
  GiveBackPages(p + 131073, 100);  // no whole page
  EXPECT_EQ(p[131073], std::byte{7});
}

TEST(LargePages, SaysHowMuchWasNotThere) {
  for (const size_t bytes : {size_t{1} << 60, ~size_t{0}}) {
    const auto memory = MapMemory(bytes);
    EXPECT_EQ(memory.status().code(), StatusCode::kResourceExhausted);
    EXPECT_EQ(memory.status().message().rfind("cannot map 1", 0), 0u) << memory.status().message();
  }
}

}  // namespace
}  // namespace tq
