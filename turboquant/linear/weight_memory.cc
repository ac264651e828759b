#include "turboquant/linear/weight_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "turboquant/base/aligned.h"
#include "turboquant/base/numeric.h"

namespace tq {
namespace {

constexpr size_t kLargePage = size_t{2} << 20;

}  // namespace

Result<std::shared_ptr<std::byte>> WeightMemory::Allocate(size_t bytes) {
  bytes = RoundUp(std::max<size_t>(bytes, 1), kCacheLine);
  if (size_ - used_ < bytes) {
    const bool large = std::max(bytes, chunk_bytes_) >= kLargePage;
    const size_t size = RoundUp(std::max(bytes, chunk_bytes_), large ? kLargePage : size_t{4096});
    const size_t mapped = size + (large ? kLargePage : 0);  // room to align
    void* p = ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
      return ResourceExhausted("cannot map ", mapped, " bytes for weights: ", std::strerror(errno));
    }
    auto* first = static_cast<std::byte*>(p);
    if (large) {
      const auto at = reinterpret_cast<uintptr_t>(p);
      first += RoundUp(at, uintptr_t{kLargePage}) - at;
      ::madvise(first, size, MADV_HUGEPAGE);  // a wish: without it all is as right, but slower
    }
    chunk_ = std::shared_ptr<std::byte>(first, [p, mapped](std::byte*) { ::munmap(p, mapped); });
    used_ = 0;
    size_ = size;
  }
  // Shares the ownership of the whole chunk.
  std::shared_ptr<std::byte> result(chunk_, chunk_.get() + used_);
  used_ += bytes;
  return result;
}

}  // namespace tq
