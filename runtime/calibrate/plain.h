// The plain run that everything is compared with, and the rows of K and V in it.
#pragma once

#include <vector>

#include "runtime/model/model.h"
#include "turboquant/cache/cache.h"

namespace tq {

// 16-bit rows of every token of a window, never sealed.
CacheConfig PlainConfig(const Model& model, int64_t context);

// Rows of K (after RoPE) or V of consecutive tokens of a PlainConfig cache: [count][heads][dim].
// The layer must not have a sliding window.
void ReadPlainRows(const KvCache& cache, SeqId seq, int layer, Side side, int64_t first_pos,
                   int count, std::vector<float>* rows);

// How many caches of a window fit side by side into `max_bytes`, at least one and at most `most`.
int CachesAtOnce(const CacheConfig& config, int64_t context, size_t max_bytes, int most);

}  // namespace tq
