// Whole small files, and files that are either complete or not there.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "turboquant/base/status.h"

namespace tq {

// The bytes of a file. kNotFound, kUnavailable (no rights, a folder) or kDataLoss (read error).
Result<std::string> ReadFile(const std::string& path);

// Writes to a temporary name in the same folder, flushes, renames. On any error (no rights, disk
// full) nothing remains and an existing file at `path` keeps its contents. A link stays and its
// target is replaced; a device or a pipe is written to directly.
Status WriteFileAtomic(const std::string& path, std::string_view contents);

// The same piece by piece, for files too large to be held in memory. Without Commit, and after an
// error, nothing remains.
class AtomicFile {
 public:
  static Result<AtomicFile> Create(const std::string& path);
  AtomicFile(AtomicFile&& other) noexcept { *this = std::move(other); }
  AtomicFile& operator=(AtomicFile&& other) noexcept;
  ~AtomicFile();

  // Takes the room for so many bytes now, where the file system can: a disk that is too small shows
  // before the work. Bytes that are not written then are zeros.
  Status Reserve(uint64_t bytes);
  Status Write(std::string_view bytes);
  // Flushes and renames; the last call.
  Status Commit();

 private:
  AtomicFile() = default;
  int fd_ = -1;
  bool special_ = false;          // a device or a pipe: written in place
  std::string path_, temporary_;  // equal when special
};

// Makes one folder; one that exists already is fine.
Status MakeDirectory(const std::string& path);

bool FileExists(const std::string& path);
bool IsDirectory(const std::string& path);

}  // namespace tq
