// A model: its architecture, its weights, and one forward pass over a KvCache.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/formats/gguf.h"
#include "runtime/model/architecture.h"
#include "turboquant/attention/attention.h"
#include "turboquant/base/sinks.h"
#include "turboquant/base/status.h"
#include "turboquant/base/thread_pool.h"
#include "turboquant/cache/cache.h"
#include "turboquant/linear/weight.h"

namespace tq {

struct ForwardItem {
  SeqId seq = 0;
  std::span<const int32_t> tokens;  // appended to the sequence
  bool all_logits = false;          // logits for every token, else for the last only
};

struct WeightInfo {
  size_t bytes = 0;   // resident after load (mapped pages that were repacked count once)
  std::string types;  // "Q4_1 (210), Q8_0 (1), F32 (61)"
};

class Model {
 public:
  // Maps the file, checks every tensor's shape and type, repacks what the kernels want
  // row-interleaved (the repacked copy replaces the mapped pages). `pool` must outlive the model.
  // `context` as for Architecture::FromGguf.
  static Result<std::unique_ptr<Model>> Load(const std::string& path, ThreadPool& pool,
                                             const ProgressSink& progress = {},
                                             int64_t context = 0);
  virtual ~Model() = default;

  const Architecture& arch() const { return arch_; }
  const GgufFile& file() const { return *file_; }
  virtual WeightInfo weights() const = 0;
  // Mean of K before RoPE that is known without calibration: the k bias, [head_dim] per (layer, KV
  // head) in Hugging Face order; empty when the model has none.
  virtual std::vector<std::vector<float>> KBias() const = 0;
  // Shapes, RoPE, sliding windows, and centres from the k bias; formats all f16: the caller sets
  // its own for the layers without a window.
  CacheConfig MakeCacheConfig() const;

  // Appends the items' tokens to their sequences in `cache` (made from MakeCacheConfig) and
  // computes logits: [sum of rows][vocab_size], rows of the items in order (all tokens, or the last
  // one). Token ids are checked. On error no sequence has changed. Results of an item do not depend
  // on the other items or on how its tokens were cut into calls.
  virtual Status Forward(KvCache& cache, std::span<const ForwardItem> items,
                         std::vector<float>* logits) = 0;

  // Sees the queries of every layer before their attention, with their keys in the cache: for
  // measurements on the host. An empty function takes it away.
  using AttentionProbe =
      std::function<void(int layer, const KvCache& cache, const AttentionParams& params,
                         std::span<const AttentionItem> items)>;
  void set_attention_probe(AttentionProbe probe) { attention_probe_ = std::move(probe); }
  // The same after the attention: `out` of the items holds its result, and where the cache has
  // v_skip, `skipped` what was skipped.
  void set_output_probe(AttentionProbe probe) { output_probe_ = std::move(probe); }
  // Sees keys (after RoPE) and values of every layer before the cache rounds them, [rows of the
  // call][num_kv_heads][head_dim].
  using RowProbe = std::function<void(int layer, const float* k, const float* v)>;
  void set_row_probe(RowProbe probe) { row_probe_ = std::move(probe); }
  // Sees the residual stream that enters each layer, [rows of the call][hidden_dim].
  using LayerProbe = std::function<void(int layer, std::span<const float> hidden)>;
  void set_layer_probe(LayerProbe probe) { layer_probe_ = std::move(probe); }
  // Which matrices of a layer multiply an input.
  enum class ProductInput { kAttention, kAttentionOutput, kFfn, kFfnDown, kHead };
  // Sees the inputs of products with weights, [rows][n]: of q, k and v; of the attention's output;
  // of gate and up (of all experts and their router too); of down (`expert`: of which; 0 without
  // experts); of the logits (layer -1).
  using InputProbe = std::function<void(ProductInput input, int layer, int expert, const float* x,
                                        int rows, int64_t n)>;
  void set_input_probe(InputProbe probe) { input_probe_ = std::move(probe); }
  // Other weights in place of a matrix of the file: `rows` holds the whole tensor in `type`, in the
  // file's order. For measurements; the tensors of file() stay as they are. Returns the layer up to
  // which nothing changes: a pass may begin there (ForwardFrom).
  // Embeddings enter layer 0: they need a whole pass, and the result is -1. kNotFound: no such
  // matrix; kUnsupported: this model cannot; errors of PackedMatrix::Pack.
  virtual Result<int> ReplaceMatrix(const std::string& tensor, WeightType type,
                                    std::span<const std::byte> rows);

  // Forward of one item from layer `first_layer` on, which its tokens enter with `hidden`, as a
  // layer probe saw them: for measurements on the host that change nothing in front of that layer,
  // where `cache` gets keys and values of 0. What follows equals Forward bit for bit.
  // kInvalidArgument: a layer or a size that does not fit; kUnsupported: this model cannot.
  virtual Status ForwardFrom(int first_layer, std::span<const float> hidden, KvCache& cache,
                             const ForwardItem& item, std::vector<float>* logits);

  // xxh3 over architecture, shapes, RoPE, vocabulary: what a profile must match
  // (docs/formats/profile.md). The same for every context: it covers both factor sets of LongRoPE.
  uint64_t StructureHash() const;
  // The same over the angles and windows that the context has led to: what a saved cache must match
  // (docs/formats/cache_file.md). Differs from StructureHash() where the context decides anything.
  uint64_t CacheHash() const;
  // Whether `hash` is the CacheHash() that this model has with another context.
  bool IsCacheHashOfAnotherContext(uint64_t hash) const;

 protected:
  Architecture arch_;
  std::unique_ptr<GgufFile> file_;
  AttentionProbe attention_probe_, output_probe_;
  RowProbe row_probe_;
  LayerProbe layer_probe_;
  InputProbe input_probe_;
};

// Model::StructureHash() of a file that is not loaded as a model; 0: it is none that is built here.
uint64_t StructureHashOf(const GgufFile& file);

}  // namespace tq
