// BPE with a list of merges. Byte-level (GPT-2 and most others): a text is cut into pieces, and the
// bytes of a piece are merged. By characters (tokenizer.json of the SentencePiece kind): the whole
// text is merged, and characters without a token become byte tokens.
//
// Tokens and merges are kept as raw bytes: the spelling of the vocabulary file is undone when it is
// loaded.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/tokenizer/merge.h"
#include "runtime/tokenizer/pre_tokenizer.h"
#include "runtime/tokenizer/vocabulary.h"

namespace tq {

class BpeTokenizer final : public VocabularyTokenizer {
 public:
  // tokenizer.ggml.model = gpt2, or another one with tokenizer.ggml.merges.
  static Result<std::unique_ptr<Tokenizer>> FromGguf(const GgufFile& file);

 protected:
  void EncodeSegments(const std::vector<Segment>& segments,
                      std::vector<TokenId>& ids) const override;

 private:
  struct Work;
  BpeTokenizer() = default;
  Status LoadMerges(const std::vector<std::string>& merges, Spelling spelling);
  void EncodeText(std::string_view text, Work& work) const;
  void EncodePiece(std::string_view piece, Work& work) const;
  void MergePiece(std::string_view piece, Work& work) const;
  void MergeCharacters(std::string_view piece, Work& work) const;

  std::unique_ptr<PreTokenizer> pre_tokenizer_;  // null: by characters
  MergeTable merges_;
  TokenId unknown_ = -1;
  bool ignore_merges_ = false;
};

}  // namespace tq
