// A BERT encoder that turns a text into one vector: all-MiniLM-L6-v2 and its kin (sentence
// embeddings: the mean of the last layer's rows, of length 1).
//
// Float32 throughout, post-norm, learned positions, exact GELU; read bert_encoder.cc from Encode.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "turboquant/base/safetensors.h"
#include "turboquant/base/status.h"
#include "turboquant/base/thread_pool.h"
#include "turboquant/linear/matmul.h"

namespace tq {

class BertEncoder {
 public:
  // A folder with config.json and model.safetensors (of sentence-transformers or transformers).
  // kNotFound, kUnavailable: no such file; kDataLoss, kInvalidArgument: sizes that are damaged or
  // do not agree (both are named); kUnsupported: another kind of model, by what differs. `pool`
  // must outlive the encoder.
  static Result<std::unique_ptr<BertEncoder>> Load(const std::string& folder, ThreadPool& pool);
  // The same from the contents of the two files. Tensors of `weights` are read while encoding.
  static Result<std::unique_ptr<BertEncoder>> Build(const std::string& config,
                                                    SafetensorsFile weights, ThreadPool& pool);

  int dim() const { return static_cast<int>(hidden_); }
  int vocab_size() const { return static_cast<int>(vocab_); }
  int max_tokens() const { return static_cast<int>(positions_); }

  // `ids` are all tokens, [CLS] and [SEP] too. Returns [dim], of length 1. kInvalidArgument: no
  // tokens, more than max_tokens(), or an id that is none; kDataLoss: the weights give no number.
  // The same ids give the same bits, whatever the number of threads.
  Result<std::vector<float>> Encode(std::span<const int32_t> ids);

 private:
  struct Norm {
    std::vector<float> weight, bias;  // [hidden]
  };
  struct Linear {
    PackedMatrix matrix;
    std::vector<float> bias;  // [out_dim]
  };
  struct Layer {
    Linear query, key, value, attention_out, up, down;
    Norm attention_norm, output_norm;
  };

  explicit BertEncoder(SafetensorsFile weights, ThreadPool& pool)
      : weights_(std::move(weights)), pool_(pool) {}
  Status ReadConfig(const std::string& config);
  Status LoadWeights();
  Result<Norm> LoadNorm(const std::string& name) const;
  Result<Linear> LoadLinear(const std::string& name, int64_t out_dim, int64_t in_dim) const;

  Status Embed(std::span<const int32_t> ids);
  void Run(std::initializer_list<std::pair<const Linear*, float*>> parts, const float* x, int rows);
  void Attend(int rows);
  void AddAndNormalize(const float* y, const Norm& norm, int rows);  // x_ = norm(x_ + y)
  void Normalize(float* row, const Norm& norm) const;

  SafetensorsFile weights_;
  ThreadPool& pool_;
  int64_t hidden_ = 0, ffn_ = 0, vocab_ = 0, positions_ = 0;
  int num_layers_ = 0, num_heads_ = 0;
  float norm_eps_ = 1e-12f;
  const SafetensorsTensor* words_ = nullptr;     // [vocab][hidden], rows are read when needed
  std::vector<float> position_rows_, type_row_;  // [positions][hidden], [hidden]
  Norm embedding_norm_;
  std::vector<Layer> layers_;
  // Of Encode: rows of the tokens.
  std::vector<float> x_, q_, k_, v_, mixed_, wide_;
  MatmulScratch scratch_;
};

}  // namespace tq
