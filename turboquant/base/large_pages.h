// Memory whose translations are few: anonymous, aligned to pages of 2 MiB.
#pragma once

#include <cstddef>
#include <memory>

#include "turboquant/base/status.h"

namespace tq {

inline constexpr size_t kLargePage = size_t{2} << 20;

// `bytes` zero bytes from the system, aligned to kLargePage; what is never touched takes no memory.
// kResourceExhausted with the number of bytes.
Result<std::shared_ptr<std::byte>> MapMemory(size_t bytes);

// Asks for large pages where [first, first + bytes) is touched from now on. A wish: without it all
// is as right, but slower.
void WishForLargePages(std::byte* first, size_t bytes);

// Moves [first, first + bytes) of MapMemory, multiples of kLargePage, into large pages now. Memory
// that was touched is the same before and after; systems that cannot (before Linux 6.1) leave it.
void GatherInLargePages(std::byte* first, size_t bytes);

// Gives back the pages that lie wholly in [first, first + bytes): they are zero when next read.
void GiveBackPages(std::byte* first, size_t bytes);

}  // namespace tq
