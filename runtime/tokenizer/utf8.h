// UTF-8, one character at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tq {

inline constexpr uint32_t kReplacementChar = 0xFFFD;

struct Utf8Char {
  uint32_t code_point = 0;
  int size = 0;             // bytes; 0: the bytes are no character
  bool incomplete = false;  // no character yet, but more bytes could make it one
};

// The character at the beginning of `text`, which must not be empty. Overlong forms, surrogates
// and numbers above U+10FFFF are no characters.
Utf8Char DecodeUtf8(std::string_view text);
void AppendUtf8(uint32_t code_point, std::string& out);

// Length of the longest prefix of `text` that is valid UTF-8.
size_t ValidUtf8Prefix(std::string_view text);

}  // namespace tq
