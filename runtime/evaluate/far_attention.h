// How much of a model's attention goes to tokens far back: what a window alone would lose.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "runtime/model/model.h"
#include "runtime/tokenizer/tokenizer.h"
#include "turboquant/base/sinks.h"
#include "turboquant/base/status.h"

namespace tq {

struct FarAttention {
  // Mean over sampled queries of all layers and heads that have tokens that far back.
  struct Mass {
    int64_t distance = 0;        // tokens before the query
    std::optional<double> mean;  // empty: no query has
    int64_t queries = 0;         // summed
  };
  std::vector<Mass> masses;  // beyond 1,024, 4,096 and 16,384 tokens
  int64_t tokens = 0;
};

// Reads `tokens` with a plain 16-bit cache and sums the attention of queries spread over them.
// kInvalidArgument without tokens; kCancelled when asked to stop.
Result<FarAttention> MeasureFarAttention(Model& model, std::span<const TokenId> tokens,
                                         const ProgressSink& progress = {},
                                         const std::atomic<bool>* cancel = nullptr);

}  // namespace tq
