// What the inputs of every matrix are like: their mean squares, which are the importance of its
// columns, and their second moments, which let columns make good each other's errors.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "runtime/model/model.h"
#include "runtime/quantize/weight_plan.h"
#include "turboquant/base/sinks.h"
#include "turboquant/base/status.h"
#include "turboquant/base/thread_pool.h"

namespace tq {

struct StatisticsOptions {
  // Inputs of up to so many columns get second moments, as long as all of them together fit into
  // max_moment_bytes, in the order of the layers: [n][n] floats each.
  int64_t max_moment_columns = 2048;
  size_t max_moment_bytes = size_t{2} << 30;
  ProgressSink progress;  // tokens, then factors
};

class InputStatistics {
 public:
  // Runs the windows through `model` with a plain cache and sums products. Its probe is taken away
  // afterwards. Errors of Forward; kCancelled.
  static Result<InputStatistics> Collect(Model& model,
                                         std::span<const std::vector<int32_t>> windows,
                                         const StatisticsOptions& options, ThreadPool& pool);

  // [row length], or [experts * row length] for stacked experts' down: mean squares of the inputs,
  // 1 on average, none below a hundredth. Experts that no token reached have the mean of the
  // others. Empty: inputs of this tensor were not seen (embeddings that are no head).
  std::vector<float> Importance(const TensorPlan& tensor) const;
  // U of encode_feedback.h, [n][n]; empty: this input has no second moments.
  std::span<const float> Factor(const TensorPlan& tensor) const;
  // Tensors of the plan that are rounded with feedback.
  int NumWithFeedback(const WeightPlan& plan) const;
  // Adds to the reason of every tensor that was to be rounded with feedback, and cannot be, why
  // not; how many there are. What options and experts leave out is as asked for, and not among
  // them.
  int NoteLostFeedback(WeightPlan* plan) const;
  int64_t tokens() const { return tokens_; }

 private:
  struct Sums {
    std::vector<double> squares;
    std::vector<float> moments;  // [n][n], then U; empty: none
    std::string lost;            // why `moments` are missing though they were wanted
    int64_t rows = 0;
  };
  using Key = std::tuple<Model::ProductInput, int, int>;  // layer, expert

  std::optional<Key> KeyOf(const TensorPlan& tensor) const;
  Status MakeFactors(const StatisticsOptions& options, ThreadPool& pool);

  std::map<Key, Sums> sums_;
  int num_experts_ = 0;
  bool tied_ = false;
  int64_t tokens_ = 0;
};

}  // namespace tq
