// Numbers as people read them.
#pragma once

#include <cstdint>
#include <string>

namespace tq {

// "131,072", "-1,000".
inline std::string FormatCount(int64_t n) {
  const std::string digits = std::to_string(n);
  const size_t first = n < 0 ? 1 : 0;
  std::string out;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > first && (digits.size() - i) % 3 == 0) out += ',';
    out += digits[i];
  }
  return out;
}

}  // namespace tq
