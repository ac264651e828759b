// Whole small files, and files that are either complete or not there.
#pragma once

#include <string>
#include <string_view>

#include "turboquant/base/status.h"

namespace tq {

// The bytes of a file. kNotFound, kUnavailable (no rights, a folder) or kDataLoss (read error).
Result<std::string> ReadFile(const std::string& path);

// Writes to a temporary name in the same folder, flushes, renames. On any error (no rights, disk
// full) nothing remains and an existing file at `path` keeps its contents. A link stays and its
// target is replaced; a device or a pipe is written to directly.
Status WriteFileAtomic(const std::string& path, std::string_view contents);

// Makes one folder; one that exists already is fine.
Status MakeDirectory(const std::string& path);

bool FileExists(const std::string& path);
bool IsDirectory(const std::string& path);

}  // namespace tq
