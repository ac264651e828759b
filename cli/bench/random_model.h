// A llama of any shape with random Q4_0 weights, as a file: speeds of models that are not at hand.
#pragma once

#include <cstddef>
#include <string>

#include "turboquant/base/status.h"

namespace tq::cli {

struct RandomModelShape {
  int layers = 0, hidden = 0, ffn = 0, q_heads = 0, kv_heads = 0, head_dim = 0, vocab = 0;
  // "LAYERS,HIDDEN,FFN,Q_HEADS,KV_HEADS,HEAD_DIM,VOCAB"; widths of matrices are multiples of 32.
  static Result<RandomModelShape> Parse(const std::string& text);
};

// A file that goes with its owner.
class TemporaryFile {
 public:
  // Made in the system's folder for such files; kUnavailable says what prevents it.
  static Result<TemporaryFile> Create(const std::string& suffix);
  TemporaryFile(TemporaryFile&& other) noexcept : path_(std::move(other.path_)) {
    other.path_.clear();
  }
  TemporaryFile& operator=(TemporaryFile&&) = delete;
  ~TemporaryFile();
  const std::string& path() const { return path_; }

 private:
  explicit TemporaryFile(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

// Writes the model without ever holding it. It has no tokenizer and makes no sense of anything.
Status WriteRandomModel(const RandomModelShape& shape, const std::string& path);

}  // namespace tq::cli
