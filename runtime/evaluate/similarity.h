// How near two texts are in meaning: the cosine of their sentence embeddings.
//
// Embeddings see the subject, not the detail: a wrong digit barely moves them. facts.h compares
// those.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/model/bert_encoder.h"
#include "runtime/tokenizer/wordpiece_tokenizer.h"
#include "turboquant/base/status.h"
#include "turboquant/base/thread_pool.h"

namespace tq {

class TextEmbedder {
 public:
  // A folder with config.json, tokenizer_config.json (may be missing), vocab.txt and
  // model.safetensors: all-MiniLM-L6-v2, or another uncased BERT of sentence-transformers. Errors
  // of BertEncoder and WordPieceTokenizer; kInvalidArgument when the two disagree; kUnsupported for
  // a cased vocabulary. `pool` must outlive the embedder.
  static Result<std::unique_ptr<TextEmbedder>> Load(const std::string& folder, ThreadPool& pool);

  int dim() const { return encoder_->dim(); }
  // The vector of a text, of length 1. More than kPieceTokens tokens are cut into pieces of nearly
  // one size, between words: the vector is then the direction of the pieces' mean, weighted by
  // their tokens. What looks like a special token is text.
  Result<std::vector<float>> Embed(std::string_view text) const;
  // -1 to 1; equal texts give exactly 1, a text without a word and one with words 0.
  Result<double> Similarity(std::string_view a, std::string_view b) const;

  static constexpr int kPieceTokens = 256;  // with [CLS] and [SEP]: what the model was trained for

 private:
  TextEmbedder() = default;
  std::unique_ptr<WordPieceTokenizer> tokenizer_;
  std::unique_ptr<BertEncoder> encoder_;
};

// Where to cut tokens into pieces: the ends of pieces of at most `room` tokens and of nearly one
// size, before tokens that begin a word (goes_on[i]: token i does not). A word longer than a piece
// is cut. No tokens: one empty piece.
std::vector<size_t> EndsOfPieces(const std::vector<bool>& goes_on, size_t room);

// The scalar product of two vectors of length 1, within -1 and 1; identical vectors give 1.
double CosineOfUnitVectors(std::span<const float> a, std::span<const float> b);

}  // namespace tq
