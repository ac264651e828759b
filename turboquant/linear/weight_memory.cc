#include "turboquant/linear/weight_memory.h"

#include <algorithm>

#include "turboquant/base/aligned.h"
#include "turboquant/base/large_pages.h"
#include "turboquant/base/numeric.h"

namespace tq {

Result<std::shared_ptr<std::byte>> WeightMemory::Allocate(size_t bytes) {
  bytes = RoundUp(std::max<size_t>(bytes, 1), kCacheLine);
  if (size_ - used_ < bytes) {
    const bool large = std::max(bytes, chunk_bytes_) >= kLargePage;
    const size_t size = RoundUp(std::max(bytes, chunk_bytes_), large ? kLargePage : size_t{4096});
    TQ_ASSIGN_OR_RETURN(chunk_, MapMemory(size));
    if (large) WishForLargePages(chunk_.get(), size);
    used_ = 0;
    size_ = size;
  }
  // Shares the ownership of the whole chunk.
  std::shared_ptr<std::byte> result(chunk_, chunk_.get() + used_);
  used_ += bytes;
  return result;
}

}  // namespace tq
