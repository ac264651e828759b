// WordPiece, as BERT's encoders use it: words and punctuation marks, each cut into the longest
// pieces that the vocabulary has. Lower case, without accents ("uncased").
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "runtime/tokenizer/text_normalizer.h"
#include "runtime/tokenizer/tokenizer.h"
#include "runtime/tokenizer/vocabulary.h"

namespace tq {

class WordPieceTokenizer final : public Tokenizer {
 public:
  // `vocabulary` is a vocab.txt: a token a line, its id is the number of the line, "##" marks
  // pieces that go on a word. kDataLoss: an empty or repeated line, no [UNK], [CLS] or [SEP].
  static Result<std::unique_ptr<WordPieceTokenizer>> FromVocabulary(const std::string& vocabulary,
                                                                    const std::string& name);

  // add_bos: between [CLS] and [SEP]. Bytes that are not valid UTF-8 vanish, as U+FFFD does.
  std::vector<TokenId> Encode(std::string_view text, const EncodeOptions& options) const override;
  // A piece that begins a word has a blank in front.
  std::string TokenBytes(TokenId id) const override;
  bool IsSpecial(TokenId id) const override;
  // Whether the token goes on the word of the token before it.
  bool ContinuesWord(TokenId id) const;

  static constexpr int kMaxWordChars = 100;  // longer words are unknown

 private:
  WordPieceTokenizer();
  void EncodeText(std::string_view text, std::vector<TokenId>& ids) const;
  void EncodeWord(const std::u32string& word, std::vector<TokenId>& ids) const;

  TextNormalizer decompose_;
  std::vector<std::string> tokens_;
  std::unordered_map<std::string_view, TokenId> ids_;  // into tokens_
  SpecialTokens specials_;
  std::vector<TokenId> special_ids_;
  TokenId unknown_ = -1;
};

}  // namespace tq
