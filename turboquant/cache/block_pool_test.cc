#include "turboquant/cache/block_pool.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

namespace tq {
namespace {

bool AllBytes(const std::byte* p, size_t n, int value) {
  for (size_t i = 0; i < n; ++i) {
    if (p[i] != static_cast<std::byte>(value)) return false;
  }
  return true;
}

// Sizes below, at and above a page, a large page and a chunk.
TEST(BlockPool, SlotsAreZeroAlignedApartAndStayWhereTheyAre) {
  for (const size_t bytes : {size_t{1}, size_t{64}, size_t{100}, size_t{4096}, size_t{250000},
                             (size_t{2} << 20) + 64, (size_t{33} << 20)}) {
    BlockPool pool(bytes);
    const int count = bytes < 1 << 20 ? 200 : 3;
    std::vector<SlotId> ids;
    std::vector<const std::byte*> places;
    for (int i = 0; i < count; ++i) {
      ids.push_back(pool.Allocate());
      ASSERT_NE(ids.back(), kNoSlot);
      std::byte* p = pool.data(ids.back());
      places.push_back(p);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(p) % 64, 0u);
      ASSERT_TRUE(AllBytes(p, bytes, 0)) << bytes << " bytes, slot " << i;
      std::memset(p, i + 1, bytes);
    }
    for (int i = 0; i < count; ++i) {
      ASSERT_EQ(pool.data(ids[static_cast<size_t>(i)]), places[static_cast<size_t>(i)]);
      ASSERT_TRUE(AllBytes(places[static_cast<size_t>(i)], bytes, i + 1)) << bytes << ", " << i;
    }
    EXPECT_EQ(pool.allocated_bytes(), static_cast<size_t>(count) * bytes);
  }
}

TEST(BlockPool, AReleasedSlotComesBackZeroedAndItsNeighboursStay) {
  BlockPool pool(10000);
  const SlotId a = pool.Allocate(), b = pool.Allocate(), c = pool.Allocate();
  for (const SlotId id : {a, b, c}) std::memset(pool.data(id), 5, 10000);
  const uint64_t generation = pool.generation(b);
  pool.AddRef(b);
  pool.Release(b);
  EXPECT_TRUE(pool.alive(b));
  pool.Release(b);
  EXPECT_FALSE(pool.alive(b));
  EXPECT_EQ(pool.used(), 2);
  const SlotId again = pool.Allocate();
  EXPECT_EQ(again, b);
  EXPECT_NE(pool.generation(again), generation);
  EXPECT_TRUE(AllBytes(pool.data(again), 10000, 0));
  EXPECT_TRUE(AllBytes(pool.data(a), 10000, 5));
  EXPECT_TRUE(AllBytes(pool.data(c), 10000, 5));
}

TEST(BlockPool, AMovedPoolKeepsItsSlots) {
  BlockPool pool(100);
  const SlotId id = pool.Allocate();
  std::memset(pool.data(id), 9, 100);
  BlockPool other = std::move(pool);
  EXPECT_TRUE(AllBytes(other.data(id), 100, 9));
}

}  // namespace
}  // namespace tq
