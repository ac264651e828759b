// What a model's keys, values, queries and attention look like on a text.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/model/model.h"
#include "runtime/tokenizer/tokenizer.h"
#include "turboquant/base/sinks.h"
#include "turboquant/base/status.h"
#include "turboquant/calibrate/statistics.h"

namespace tq {

struct HeadStatistics {
  std::vector<float> k_mean;  // before RoPE, after bias and k-norm, Hugging Face order
  QueryStatistics queries;
  double k_rms = 0, v_rms = 0;
  VectorStatistics::Outlier k_outlier, v_outlier;  // before RoPE
};

// Where the queries of a layer look, as shares of 1: mean over heads and sampled queries that have
// tokens so far back.
struct LayerAttention {
  static constexpr std::array<int64_t, 5> kDistances = {1, 64, 256, 1024, 4096};
  double sinks = 0;                                // block 0, from queries behind it
  std::array<double, kDistances.size()> beyond{};  // tokens at least so far back
};

struct ModelStatistics {
  int64_t tokens = 0;
  std::vector<HeadStatistics> heads;      // [num_layers * num_kv_heads]; empty parts in layers
                                          // with a sliding window
  std::vector<LayerAttention> attention;  // [num_layers]
};

// Reads the windows with the plain cache. kCancelled when asked to stop.
Result<ModelStatistics> MeasureStatistics(Model& model,
                                          std::span<const std::vector<TokenId>> windows,
                                          const ProgressSink& progress,
                                          const std::atomic<bool>* cancel);

}  // namespace tq
