// A file as a stream of bytes, unpacked on the way where it is gzip or zstd. What is packed is
// known by its first bytes, not by its name.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "turboquant/base/status.h"

namespace tq {

class InputFile {
 public:
  // kNotFound, kUnavailable (no rights, a folder).
  static Result<InputFile> Open(const std::string& path);
  InputFile(InputFile&&) noexcept;
  ~InputFile();

  // The next bytes, at most 64 KiB, valid until the next call; empty at the end. kDataLoss: the
  // archive is damaged or ends early. What was read before stays good.
  Result<std::string_view> Read();
  int64_t bytes_read() const;  // of the file as it lies on disk

 private:
  struct State;
  explicit InputFile(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// All of it, unpacked. kResourceExhausted: more than `max_bytes`.
Result<std::string> ReadInputFile(const std::string& path, size_t max_bytes = size_t{4} << 30);

}  // namespace tq
