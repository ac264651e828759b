// A read-only memory map of a whole file.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "turboquant/base/status.h"

namespace tq {

class MappedFile {
 public:
  static Result<MappedFile> Open(const std::string& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::string& path() const { return path_; }
  // Tells the kernel that the pages of `range` (a part of bytes()) are not needed any more: they
  // leave the resident set and are read again if touched.
  void Release(std::span<const std::byte> range) const;

 private:
  MappedFile() = default;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
  std::string path_;
};

}  // namespace tq
