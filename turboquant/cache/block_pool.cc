#include "turboquant/cache/block_pool.h"

#include <new>

namespace tq {

SlotId BlockPool::Allocate() {
  try {
    SlotId id;
    if (!free_.empty()) {
      id = free_.back();
      slots_[id].memory.Resize(slot_bytes_);
      free_.pop_back();
    } else {
      Slot slot;
      slot.memory.Resize(slot_bytes_);
      slots_.push_back(std::move(slot));
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
  slots_[id].memory.Resize(0);
  free_.push_back(id);
  --used_;
}

}  // namespace tq
