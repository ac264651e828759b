// Models of the Llama family (architecture.h): handles of their weights. load.cc fills them,
// forward.cc uses them.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/model/backend.h"
#include "runtime/model/model.h"

namespace tq {

class LlamaModel : public Model {
 public:
  // Everything but the map of the file, which the caller has opened.
  static Result<std::unique_ptr<LlamaModel>> Create(std::unique_ptr<GgufFile> file,
                                                    std::unique_ptr<Backend> backend,
                                                    const ProgressSink& progress,
                                                    int64_t context = 0);

  WeightInfo weights() const override;
  std::vector<std::vector<float>> KBias() const override { return k_bias_; }
  Status Forward(KvCache& cache, std::span<const ForwardItem> items,
                 std::vector<float>* logits) override;
  Status ForwardFrom(int first_layer, std::span<const float> hidden, KvCache& cache,
                     const ForwardItem& item, std::vector<float>* logits) override;

  Result<int> ReplaceMatrix(const std::string& tensor, WeightType type,
                            std::span<const std::byte> rows) override;

  // Most tokens of one call: bounds the scratch memory.
  static constexpr int kMaxForwardTokens = 8192;

 private:
  struct Layer {
    VectorId attention_norm, ffn_norm;
    VectorId q_norm = VectorId::kNone, k_norm = VectorId::kNone;  // of every head
    VectorId post_attention_norm = VectorId::kNone, post_ffn_norm = VectorId::kNone;
    MatrixId q, k, v, o;
    VectorId q_bias = VectorId::kNone, k_bias = VectorId::kNone, v_bias = VectorId::kNone,
             o_bias = VectorId::kNone;
    std::vector<float> sinks;  // [num_q_heads], or empty
    MatrixId gate = MatrixId::kNone, up = MatrixId::kNone, down = MatrixId::kNone;
    ExpertLayer experts;  // in place of these three, if it has any
  };
  // The rows of a tensor that are one matrix of the backend.
  struct TensorPart {
    MatrixId id = MatrixId::kNone;
    int64_t first = 0, out_dim = 0;
    std::vector<int32_t> row_order;
  };
  // Rows of a call: all items' tokens, one item after the other.
  struct Batch {
    std::vector<int32_t> tokens;
    std::vector<int64_t> positions;
    std::vector<int64_t> first_positions;  // of each item
    std::vector<int> logit_rows;
  };
  friend class LlamaLoader;

  LlamaModel() = default;
  Result<Batch> CheckItems(const KvCache& cache, std::span<const ForwardItem> items) const;
  // Where a pass begins: at the embeddings, or in front of a layer with what enters it.
  struct Start {
    int layer = 0;
    const float* hidden = nullptr;  // [rows][hidden_dim]; nullptr: the embeddings
  };
  Status Run(KvCache& cache, std::span<const ForwardItem> items, const Batch& batch,
             const Start& start, std::vector<float>* logits);
  Status RunLayers(KvCache& cache, std::span<const ForwardItem> items, const Batch& batch,
                   const Start& start, std::vector<float>* logits);

  std::unique_ptr<Backend> backend_;
  std::vector<Layer> layers_;
  MatrixId embedding_ = MatrixId::kNone, head_ = MatrixId::kNone;  // equal when tied
  VectorId output_norm_ = VectorId::kNone;
  std::vector<std::vector<float>> k_bias_;  // [num_layers * num_kv_heads][head_dim], or empty
  std::map<std::string, int> type_counts_;
  std::map<std::string, std::vector<TensorPart>> parts_;  // by tensor
};

}  // namespace tq
