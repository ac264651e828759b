// What a cache of a configuration will hold at a length: turboquant/plan/footprint.h for all its
// heads. Tested to equal KvCache::Bytes().
#pragma once

#include <cstddef>
#include <cstdint>

#include "turboquant/cache/cache.h"

namespace tq {

// Bytes that one sequence of `tokens` tokens holds in a cache of this configuration, as allocated.
// The configuration must be valid.
CacheBytes CacheFootprint(const CacheConfig& config, int64_t tokens);

// Bytes of a plain FP16 cache of that many tokens, without blocks; sliding windows hold no more
// than themselves.
size_t F16Footprint(const CacheConfig& config, int64_t tokens);

// Mean bits per value of sealed blocks over the layers that keep every token, everything counted; 0
// when there are none.
double SealedBitsPerValue(const CacheConfig& config);

// Share of a sealed block's bytes that is scales and side information.
double ScalesShare(const CacheConfig& config);

// FP16 bytes / bytes allocated at that length.
double FootprintRatio(const CacheConfig& config, int64_t tokens);

}  // namespace tq
