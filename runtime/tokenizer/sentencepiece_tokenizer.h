// SentencePiece vocabularies with scores: BPE (the neighbours whose union has the highest score are
// merged) and unigram (the cut with the highest sum of scores).
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/tokenizer/merge.h"
#include "runtime/tokenizer/vocabulary.h"

namespace tq {

class SentencePieceTokenizer final : public VocabularyTokenizer {
 public:
  // tokenizer.ggml.model = llama (BPE) or t5 (unigram).
  static Result<std::unique_ptr<Tokenizer>> FromGguf(const GgufFile& file);

 protected:
  void EncodeSegments(const std::vector<Segment>& segments,
                      std::vector<TokenId>& ids) const override;

 private:
  SentencePieceTokenizer() = default;
  Status LoadScores(const GgufFile& file);
  void MergeByScore(std::string_view text, MergeLoop& loop, std::vector<TokenId>& ids) const;
  // Sums of scores in float as SentencePiece has them, or in double as tokenizers does: they decide
  // between cuts of the same tokens in another order.
  template <typename Real>
  void BestCut(std::string_view text, std::vector<TokenId>& ids) const;
  // Byte tokens where there are some, else the unknown token; `fuse`: not twice in a row.
  void AddUnknown(std::string_view characters, bool fuse, std::vector<TokenId>& ids) const;

  bool unigram_ = false;
  bool double_sums_ = false;
  std::vector<double> scores_;   // by token
  std::vector<int32_t> ranks_;   // by token: equal scores have equal ranks, the highest has 0
  std::vector<TokenId> sorted_;  // tokens of by_bytes_ in the order of their bytes (unigram)
  double unknown_score_ = 0;
  TokenId unknown_ = -1;
};

}  // namespace tq
