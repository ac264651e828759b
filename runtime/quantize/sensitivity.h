// Which tensors deserve more bits: the KL divergence that each one causes when it alone is
// quantized, and the types that cost least in sum under a budget of bytes.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/model/model.h"
#include "runtime/quantize/input_statistics.h"
#include "runtime/quantize/weight_plan.h"
#include "turboquant/base/sinks.h"
#include "turboquant/base/status.h"
#include "turboquant/base/thread_pool.h"

namespace tq {

// Tensors that get one type together: one tensor, or one kind over neighbouring layers.
struct WeightSite {
  std::string name;                      // "blk.3.attn_q.weight", "ffn_up.weight of layers 0-7"
  std::vector<size_t> tensors;           // of the plan
  WeightType probe = WeightType::kQ4_0;  // the type that was measured
  double kld = 0;                        // mean, with this site alone in `probe`
  struct Choice {
    WeightType type;
    size_t bytes;
    double kld;  // predicted: measured, times the ratio of weighted squared errors
  };
  std::vector<Choice> choices;
};

struct SensitivityOptions {
  std::vector<WeightType> choices;
  bool outer_is_fixed = false;  // embeddings and head keep the type that the plan gives them
  // Windows of so many tokens each, from the begin of calibration windows spread evenly.
  int windows = 2;
  int window_len = 128;
  // Weights x sites that may be measured: above, layers share a site. The result does not depend
  // on the machine's speed.
  double max_work = 1.6e11;
  ProgressSink progress;  // sites
};

// `model` holds the plan's weights; it is as before afterwards. Errors of encoding and Forward;
// kCancelled.
Result<std::vector<WeightSite>> MeasureSites(Model& model, const WeightPlan& plan,
                                             const InputStatistics& statistics,
                                             std::span<const std::vector<int32_t>> windows,
                                             const SensitivityOptions& options, ThreadPool& pool);

// Gives every tensor the type of the allocation with the least sum of predicted KL whose tensors
// take at most `max_bytes`; returns that sum. kInvalidArgument: the budget is too small (both
// numbers).
Result<double> AllocateTypes(const std::vector<WeightSite>& sites, size_t max_bytes,
                             WeightPlan* plan);

}  // namespace tq
