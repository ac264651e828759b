// What attention skipped of a cache's V, summed over layers, heads and tokens.
#pragma once

#include <cstdint>
#include <span>

#include "turboquant/attention/attention.h"
#include "turboquant/cache/cache.h"

namespace tq {

struct VSkipTotals {
  int64_t blocks = 0, skipped = 0;  // sealed blocks that a query and KV head sees, and skips
  int64_t rows = 0;                 // queries x query heads that see any
  double share = 0, bound = 0;      // sums of SkippedV over them

  // What an output probe of a Model sees (items have `skipped` where the cache has v_skip).
  void Add(const KvCache& cache, int layer, const AttentionParams& params,
           std::span<const AttentionItem> items);
  double skipped_share() const {
    return blocks > 0 ? static_cast<double>(skipped) / static_cast<double>(blocks) : 0;
  }
  double mean_mass() const { return rows > 0 ? share / static_cast<double>(rows) : 0; }
  double mean_bound() const { return rows > 0 ? bound / static_cast<double>(rows) : 0; }
};

}  // namespace tq
