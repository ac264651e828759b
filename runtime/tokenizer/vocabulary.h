// What all kinds of tokenizers share: the tokens of the file, special tokens in a text, BOS, what
// ends a generation.
#pragma once

#include <array>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "runtime/formats/token_kind.h"
#include "runtime/tokenizer/text_normalizer.h"
#include "runtime/tokenizer/tokenizer.h"

namespace tq {

// Finds special tokens in text: a trie over their bytes.
class SpecialTokens {
 public:
  void Add(std::string_view text, TokenId id, bool control);
  struct Match {
    size_t begin = 0, size = 0;
    TokenId id = -1;  // -1: none
  };
  // The first at or behind `from`; of several that begin there, the longest. Control tokens only
  // if `with_control`.
  Match Find(std::string_view text, size_t from, bool with_control) const;

 private:
  struct Node {
    std::map<char, size_t> next;
    TokenId id = -1;
    bool control = false;
  };
  std::vector<Node> nodes_ = std::vector<Node>(1);
  std::array<bool, 256> begins_{};
};

// A tokenizer over a vocabulary of a file. A kind of tokenizer says how the text between special
// tokens is encoded.
class VocabularyTokenizer : public Tokenizer {
 public:
  std::vector<TokenId> Encode(std::string_view text, const EncodeOptions& options) const override;
  std::string TokenBytes(TokenId id) const override;
  bool IsSpecial(TokenId id) const override;

 protected:
  // A stretch of text, or a special token.
  struct Segment {
    std::string_view text;
    TokenId special = -1;
    bool first = false;  // nothing stands before it
  };
  virtual void EncodeSegments(const std::vector<Segment>& segments,
                              std::vector<TokenId>& ids) const = 0;

  // How the text of a token in the file stands for bytes.
  enum class Spelling { kByteAlphabet, kMetaBlanks };
  Status LoadTokens(const GgufFile& file, Spelling spelling);
  // Needs the tokens. `add_bos`: when the file does not say.
  Status LoadSpecials(const GgufFile& file, bool add_bos);
  // The end of the word that begins at `begin`: blanks, then what follows up to the next blank.
  // Where words_are_apart_, merging word by word is merging the whole text.
  static size_t WordEnd(std::string_view text, size_t begin);
  // The bytes that the text of a normal token stands for.
  static std::string Decoded(const std::string& text, Spelling spelling);

  TextNormalizer normalizer_;
  std::vector<std::string> bytes_;  // by token
  std::vector<TokenKind> kinds_;    // by token
  std::array<TokenId, 256> byte_tokens_{};
  // Into bytes_; no special tokens, and none that stand for a byte by their kind.
  std::unordered_map<std::string_view, TokenId> by_bytes_;
  bool words_are_apart_ = false;  // no token has a blank behind another character

 private:
  SpecialTokens specials_;
  std::vector<uint8_t> strip_;  // by token, or empty: 1 whitespace on its left goes, 2 on its right
  bool add_bos_ = false;
};

}  // namespace tq
