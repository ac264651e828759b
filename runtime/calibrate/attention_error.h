// What formats do to the attention of each head, nothing propagated: the same keys, values and
// queries through the shipped kernels, with window, sinks, centre and anchors.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/formats/gguf.h"
#include "runtime/model/model.h"
#include "runtime/tokenizer/tokenizer.h"
#include "turboquant/base/sinks.h"
#include "turboquant/base/status.h"
#include "turboquant/base/thread_pool.h"

namespace tq {

// How an error of a head's attention output counts in the residual stream: |W_o,h e|^2 = e' M e
// with M = W_o,h' W_o,h of each query head.
class OutputMetric {
 public:
  // Reads blk.N.attn_output.weight. kNotFound and the errors of weight types.
  static Result<OutputMetric> FromModel(const Model& model);
  double Norm2(int layer, int q_head, const float* e) const;  // e: [head_dim]

 private:
  int num_q_heads_ = 0;
  size_t dim_ = 0;
  std::vector<float> metrics_;  // [layers][query heads][dim][dim]
};

// Of one layer and KV head, over its query heads and the sampled queries.
struct AttentionError {
  double error = 0, energy = 0;  // sums of the metric: of the difference, of the plain output
  double cosine = 0;             // mean, of output vectors
  double score_agreement = 0;    // mean of 1 - total variation of the weights; 0 if not asked for
};

struct AttentionErrorOptions {
  int64_t queries_of_chunk = 32;       // the last so many of each chunk of a window
  bool scores = false;                 // score_agreement of the last query of each chunk
  size_t max_bytes = size_t{2} << 30;  // of caches side by side
  ThreadPool* pool = nullptr;
  ProgressSink progress;
  const std::atomic<bool>* cancel = nullptr;
};

// For each configuration [num_layers * num_kv_heads]. Queries that read nothing sealed are left
// out. kInvalidArgument when no window is long enough to have any.
Result<std::vector<std::vector<AttentionError>>> MeasureAttentionErrors(
    Model& model, const OutputMetric& metric, std::span<const CacheConfig> configs,
    std::span<const std::vector<TokenId>> windows, const AttentionErrorOptions& options);

}  // namespace tq
