// The regular expressions that cut a text before byte-level BPE, by the names that GGUF files use.
#pragma once

#include <span>
#include <string_view>

namespace tq {

struct PrePattern {
  // tokenizer.ggml.pre; several families cut alike. Ends with the first nullptr.
  const char* names[8];
  // As tokenizer.json has them (\s is Unicode's White_Space), each cutting the pieces of the one
  // before.
  const char* regex[6];
  bool ignore_merges = false;  // a piece that is a token is taken whole
  bool add_bos = false;        // when the file does not say
  bool nfc = false;            // the family's tokenizer.json asks for it, GGUF files do not say so
};

std::span<const PrePattern> PrePatterns();
std::span<const char* const> RegexOf(const PrePattern& pattern);
std::span<const char* const> NamesOf(const PrePattern& pattern);

// The expression with which tokenizer.json's ByteLevel cuts.
extern const char* const kByteLevelRegex;

}  // namespace tq
