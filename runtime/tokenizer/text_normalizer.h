// What happens to a text before it is cut into tokens: Unicode normalization, whitespace, the blank
// in front. Blanks stay blanks here; vocabularies write them as U+2581.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/formats/gguf.h"
#include "turboquant/base/status.h"

namespace tq {

// Unicode's White_Space.
bool IsWhiteSpace(uint32_t code_point);
// By Unicode's general category.
bool IsLetter(uint32_t code_point);
bool IsUpperCase(uint32_t code_point);
// U+2581 in `text` becomes a blank.
std::string BlanksFromMeta(std::string_view text);

class TextNormalizer {
 public:
  // Composes as NFC does, or takes apart as NFD does; nothing else.
  static TextNormalizer Nfc();
  static TextNormalizer Nfd();
  // The words of tokenizer.tq.normalizer (runtime/formats/hf_tokenizer.h), or what the ggml keys
  // say. kUnsupported: a word that is not known; kDataLoss: a damaged map of characters.
  static Result<TextNormalizer> FromGguf(const GgufFile& file);

  // Whether the text is taken as it is.
  bool is_identity() const;
  // `first`: nothing stands before the text. `text` must be valid UTF-8.
  std::string Normalize(std::string_view text, bool first) const;

  bool split_words() const { return split_words_; }
  // Whether a text gets a blank in front, which decoding takes away again.
  bool adds_prefix() const { return prefix_ != Prefix::kNever; }

 private:
  enum class Form { kNone, kNfc, kNfd, kNfkc, kNfkd };
  enum class Prefix { kNever, kAlways, kMissing, kFirst };
  Status LoadCharsMap(const std::vector<int64_t>& bytes);
  std::string MapCharacters(std::string_view text) const;

  Form form_ = Form::kNone;
  Prefix prefix_ = Prefix::kNever;
  bool white_ = false, collapse_ = false, lstrip_ = false, rstrip_ = false, split_words_ = false;
  // U+2581 in a text is a blank too: before whitespace is looked at (SentencePiece), or after
  // (tokenizer.json).
  bool meta_blanks_ = false, meta_first_ = false;
  // SentencePiece's map: a double-array trie over byte strings, and the texts that replace them,
  // each ended by a 0.
  std::vector<uint32_t> trie_;
  std::string replacements_;
};

}  // namespace tq
