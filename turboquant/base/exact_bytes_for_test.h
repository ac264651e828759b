// The exact bytes of a string on the heap, so that the address sanitizer sees a read beyond them.
#pragma once

#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <string>

namespace tq {

struct ExactBytes {
  explicit ExactBytes(const std::string& s) : size(s.size()), data(new std::byte[s.size()]) {
    std::memcpy(data.get(), s.data(), s.size());
  }
  std::span<const std::byte> span() const { return {data.get(), size}; }
  size_t size;
  std::unique_ptr<std::byte[]> data;
};

}  // namespace tq
