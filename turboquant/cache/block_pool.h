// Fixed-size slots with reference counts: the memory of the cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "turboquant/base/aligned.h"
#include "turboquant/base/status.h"

namespace tq {

using SlotId = int32_t;
inline constexpr SlotId kNoSlot = -1;

// Slots are allocated when first needed and given back to the system when the last reference goes,
// so what is used is what is allocated. Not thread-safe.
class BlockPool {
 public:
  BlockPool() = default;
  explicit BlockPool(size_t slot_bytes) : slot_bytes_(slot_bytes) {}

  // A zeroed slot with one reference; kNoSlot when the system has no memory left.
  SlotId Allocate();
  void AddRef(SlotId id);
  // Frees the slot with its last reference.
  void Release(SlotId id);

  std::byte* data(SlotId id) { return slots_[id].memory.data(); }
  const std::byte* data(SlotId id) const { return slots_[id].memory.data(); }
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
    AlignedBuffer<std::byte> memory;
    int refs = 0;
    uint64_t generation = 0;
    Twin twin;
  };
  size_t slot_bytes_ = 0;
  std::vector<Slot> slots_;
  std::vector<SlotId> free_;
  int64_t used_ = 0;
  uint64_t next_generation_ = 1;
};

}  // namespace tq
