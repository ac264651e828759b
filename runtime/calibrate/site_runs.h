// Sensitivity in place: the model runs with one site quantized and everything else plain, and its
// next-token distributions are compared with the plain run's.
//
// What lies in front of a site is what it is in the plain run, so a run begins at the site's layer
// with the residual stream of the plain run there (Model::ForwardFrom): half of the work falls
// away.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/model/model.h"
#include "runtime/tokenizer/tokenizer.h"
#include "turboquant/base/sinks.h"
#include "turboquant/base/status.h"
#include "turboquant/base/thread_pool.h"

namespace tq {

struct SiteRun {
  int layer = 0;       // the first whose format is not f16
  CacheConfig config;  // the shipped window, sinks and centre
};

// The first position of a window that is scored: it reads sealed tokens.
int64_t FirstScored(const CacheConfig& config);

struct SiteRunOptions {
  size_t max_bytes = size_t{2} << 30;  // of caches side by side
  ThreadPool* pool = nullptr;
  ProgressSink progress;
  const std::atomic<bool>* cancel = nullptr;
};

// Mean KL of each run over the positions of each window from FirstScored on, [sites][windows], in
// nats. kInvalidArgument: a window without such positions.
Result<std::vector<std::vector<double>>> MeasureSites(Model& model, std::span<const SiteRun> sites,
                                                      std::span<const std::vector<TokenId>> windows,
                                                      const SiteRunOptions& options);

}  // namespace tq
