#include "turboquant/linear/weight_memory.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>

namespace tq {
namespace {

TEST(WeightMemory, PartsAreZeroAlignedAndApart) {
  WeightMemory memory(8192);
  const auto a = memory.Allocate(100), b = memory.Allocate(1), c = memory.Allocate(100000);
  ASSERT_TRUE(a.ok() && b.ok() && c.ok());
  for (const auto* part : {&*a, &*b, &*c}) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(part->get()) % 64, 0u);
  }
  EXPECT_EQ(b->get() - a->get(), 128);  // one chunk
  for (int i = 0; i < 100; ++i) EXPECT_EQ(a->get()[i], std::byte{0});
  std::memset(a->get(), 1, 100);
  std::memset(c->get(), 2, 100000);
  EXPECT_EQ(*b->get(), std::byte{0});
  EXPECT_EQ(a->get()[99], std::byte{1});
}

TEST(WeightMemory, APartOutlivesTheObjectAndItsNeighbours) {
  std::shared_ptr<std::byte> kept;
  {
    WeightMemory memory;
    const auto gone = memory.Allocate(64);
    ASSERT_TRUE(gone.ok());
    kept = *memory.Allocate(64);
  }
  std::memset(kept.get(), 7, 64);
  EXPECT_EQ(kept.get()[63], std::byte{7});
}

TEST(WeightMemory, SaysHowMuchWasNotThere) {
  WeightMemory memory;
  const auto too_much = memory.Allocate(size_t{1} << 60);
  EXPECT_EQ(too_much.status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(too_much.status().message().rfind("cannot map 1152921504", 0), 0u)
      << too_much.status().message();
}

}  // namespace
}  // namespace tq
