// Memory of packed matrices, in large pages where the system has them.
//
// A decode step reads all weights once: with pages of 4 KiB, misses of the translation buffer and
// the restarts of the prefetcher at every page cost a fifth of its time.
#pragma once

#include <cstddef>
#include <memory>

#include "turboquant/base/status.h"

namespace tq {

class WeightMemory {
 public:
  // `chunk_bytes`: what is asked of the system at a time; small matrices share a chunk. Only what
  // is written takes memory.
  explicit WeightMemory(size_t chunk_bytes = size_t{32} << 20) : chunk_bytes_(chunk_bytes) {}

  // `bytes` zero bytes, aligned to a cache line. They outlive this object, as long as a copy of the
  // pointer exists. kResourceExhausted without memory.
  Result<std::shared_ptr<std::byte>> Allocate(size_t bytes);

 private:
  size_t chunk_bytes_;
  std::shared_ptr<std::byte> chunk_;
  size_t used_ = 0, size_ = 0;  // of chunk_
};

}  // namespace tq
