// The kinds of tokens that tokenizer.ggml.token_type tells apart.
#pragma once

#include <cstdint>

namespace tq {

enum class TokenKind : uint8_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6
};

}  // namespace tq
