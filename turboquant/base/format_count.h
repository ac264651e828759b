// Numbers as people read them.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

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

// "1 request", "2,000 requests"; `many` where an s does not make it.
inline std::string FormatCount(int64_t n, std::string one, std::string many = "") {
  if (many.empty()) many = one + "s";
  return FormatCount(n) + " " + (n == 1 ? std::move(one) : std::move(many));
}

}  // namespace tq
