// Numbers as people read them.
#pragma once

#include <cstdint>
#include <string>

namespace tq {

// "131,072", "-1,000".
inline std::string FormatCount(int64_t n) {
  std::string digits = std::to_string(n);
  const size_t first = n < 0 ? 1 : 0;
  for (size_t at = digits.size(); at > first + 3;) digits.insert(at -= 3, ",");
  return digits;
}

}  // namespace tq
