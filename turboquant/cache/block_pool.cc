#include "turboquant/cache/block_pool.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "turboquant/base/aligned.h"
#include "turboquant/base/large_pages.h"
#include "turboquant/base/numeric.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

namespace tq {
namespace {

constexpr size_t kChunkBytes = 16 * kLargePage;

// With the address sanitizer slots have poisoned gaps between them, and no slot is readable before
// it is allocated or after it is released.
#ifdef __SANITIZE_ADDRESS__
constexpr size_t kGap = kCacheLine;
void Hide(const std::byte* p, size_t n) {
  ASAN_POISON_MEMORY_REGION(p, n);
}
void Show(const std::byte* p, size_t n) {
  ASAN_UNPOISON_MEMORY_REGION(p, n);
}
#else
constexpr size_t kGap = 0;
void Hide(const std::byte*, size_t) {}
void Show(const std::byte*, size_t) {}
#endif

}  // namespace

BlockPool::BlockPool(size_t slot_bytes)
    : slot_bytes_(slot_bytes),
      stride_(RoundUp(std::max<size_t>(slot_bytes, 1), kCacheLine) + kGap),
      chunk_bytes_(RoundUp(std::max(kChunkBytes, stride_), kLargePage)) {}

std::byte* BlockPool::NextInChunk() {
  if (chunks_.empty() || chunk_bytes_ - chunk_used_ < stride_) {
    Result<std::shared_ptr<std::byte>> chunk = MapMemory(chunk_bytes_);
    if (!chunk.ok()) return nullptr;
    std::byte* first = chunk->get();
    Hide(first, chunk_bytes_);
    const size_t bytes = chunk_bytes_;
    chunks_.push_back(std::shared_ptr<std::byte>(
        first, [owner = *chunk, bytes](std::byte* p) { Show(p, bytes); }));
    chunk_used_ = gathered_ = 0;
  }
  std::byte* chunk = chunks_.back().get();
  // Slots are written soon after they are handed out: what lies before this one is full.
  const size_t full = chunk_used_ / kLargePage * kLargePage;
  std::byte* slot = chunk + chunk_used_;
  chunk_used_ += stride_;
  if (full > gathered_) {
    GatherInLargePages(chunk + gathered_, full - gathered_);
    gathered_ = full;
  }
  return slot;
}

SlotId BlockPool::Allocate() {
  try {
    SlotId id;
    if (!free_.empty()) {
      id = free_.back();
      free_.pop_back();
      Show(slots_[id].data, slot_bytes_);
      std::memset(slots_[id].data, 0, slot_bytes_);
    } else {
      std::byte* data = NextInChunk();
      if (data == nullptr) return kNoSlot;
      Show(data, slot_bytes_);
      slots_.emplace_back().data = data;
      id = static_cast<SlotId>(slots_.size() - 1);
    }
    slots_[id].refs = 1;
    slots_[id].generation = next_generation_++;
    slots_[id].twin = {};
    ++used_;
    return id;
  } catch (const std::bad_alloc&) {
    return kNoSlot;
  }
}

void BlockPool::AddRef(SlotId id) {
  TQ_CHECK(alive(id));
  ++slots_[id].refs;
}

void BlockPool::Release(SlotId id) {
  TQ_CHECK(alive(id));
  if (--slots_[id].refs > 0) return;
  GiveBackPages(slots_[id].data, slot_bytes_);
  Hide(slots_[id].data, slot_bytes_);
  free_.push_back(id);
  --used_;
}

}  // namespace tq
