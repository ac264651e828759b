#include "turboquant/base/large_pages.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <limits>

#include "turboquant/base/numeric.h"

namespace tq {

Result<std::shared_ptr<std::byte>> MapMemory(size_t bytes) {
  // Room to align.
  const size_t mapped = bytes > std::numeric_limits<size_t>::max() - kLargePage
                            ? bytes
                            : std::max<size_t>(bytes, 1) + kLargePage;
  void* p = ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) {
    return ResourceExhausted("cannot map ", mapped, " bytes of memory: ", std::strerror(errno));
  }
  const auto at = reinterpret_cast<uintptr_t>(p);
  std::byte* first = static_cast<std::byte*>(p) + (RoundUp(at, uintptr_t{kLargePage}) - at);
  return std::shared_ptr<std::byte>(first, [p, mapped](std::byte*) { ::munmap(p, mapped); });
}

void WishForLargePages(std::byte* first, size_t bytes) {
  ::madvise(first, bytes, MADV_HUGEPAGE);
}

void GatherInLargePages(std::byte* first, size_t bytes) {
  constexpr int kCollapse = 25;  // MADV_COLLAPSE: not in the headers of glibc 2.36
  ::madvise(first, bytes, kCollapse);
}

void GiveBackPages(std::byte* first, size_t bytes) {
  const size_t page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const auto at = reinterpret_cast<uintptr_t>(first);
  const uintptr_t from = RoundUp(at, uintptr_t{page}), to = (at + bytes) / page * page;
  if (from < to) ::madvise(reinterpret_cast<void*>(from), to - from, MADV_DONTNEED);
}

}  // namespace tq
