// Fixed-size slots with reference counts: the memory of the cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "turboquant/base/status.h"

namespace tq {

using SlotId = int32_t;
inline constexpr SlotId kNoSlot = -1;

// Slots take memory when first needed and give it back to the system when the last reference goes,
// so what is used is what is allocated, but for the edges of pages. They lie side by side:
// attention reads all of them for every token, and from pages of 4 KiB each record would cost a
// miss of the translation buffer. Whole stretches of kLargePage are moved into large pages as they
// fill, so that none is ever part empty. Not thread-safe.
class BlockPool {
 public:
  BlockPool() = default;
  explicit BlockPool(size_t slot_bytes);

  // A zeroed slot with one reference; kNoSlot when the system has no memory left.
  SlotId Allocate();
  void AddRef(SlotId id);
  // Frees the slot with its last reference.
  void Release(SlotId id);

  // Aligned to a cache line.
  std::byte* data(SlotId id) { return slots_[id].data; }
  const std::byte* data(SlotId id) const { return slots_[id].data; }
  int refs(SlotId id) const { return slots_[id].refs; }
  // A number that no other life of this or any slot had: tells a reused id from the old one.
  uint64_t generation(SlotId id) const { return slots_[id].generation; }
  bool alive(SlotId id) const {
    return id >= 0 && static_cast<size_t>(id) < slots_.size() && slots_[id].refs > 0;
  }

  // A slot of another pool made from this one (the sealed form of an open slot), so that forks
  // that share the open slot share the sealed one too.
  struct Twin {
    SlotId id = kNoSlot;
    uint64_t generation = 0;
  };
  Twin& twin(SlotId id) { return slots_[id].twin; }

  size_t slot_bytes() const { return slot_bytes_; }
  int64_t used() const { return used_; }
  size_t allocated_bytes() const { return static_cast<size_t>(used_) * slot_bytes_; }

 private:
  struct Slot {
    std::byte* data = nullptr;  // in a chunk, for the life of the pool
    int refs = 0;
    uint64_t generation = 0;
    Twin twin;
  };
  // The memory of a new slot; nullptr when there is none.
  std::byte* NextInChunk();

  size_t slot_bytes_ = 0;
  size_t stride_ = 0;       // of slots in a chunk
  size_t chunk_bytes_ = 0;  // of address space, taken as it is touched
  size_t chunk_used_ = 0;   // of the last chunk
  size_t gathered_ = 0;     // of the last chunk, in large pages
  std::vector<std::shared_ptr<std::byte>> chunks_;
  std::vector<Slot> slots_;
  std::vector<SlotId> free_;
  int64_t used_ = 0;
  uint64_t next_generation_ = 1;
};

}  // namespace tq
