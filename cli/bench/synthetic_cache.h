// Deep caches without a prefill: valid blocks of random keys and values, repeated.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "turboquant/base/status.h"
#include "turboquant/base/thread_pool.h"
#include "turboquant/cache/cache.h"

namespace tq::cli {

// Fills new sequences of `length` tokens. Keys and values are standard normal and went through the
// cache's own encoder, for a few blocks; every block of a sequence is a copy of one of these, in
// memory of its own. The time of attention and of later appends is that of a real cache: it does
// not depend on what the codes are.
class SyntheticFiller {
 public:
  // Encodes the blocks to copy. `config` as of the caches to fill.
  static Result<SyntheticFiller> Create(const CacheConfig& config, uint64_t seed, ThreadPool& pool);
  // `cache` has the formats of Create's config; its window may differ.
  Result<SeqId> Fill(KvCache& cache, int64_t length) const;

 private:
  SyntheticFiller() = default;
  std::unique_ptr<KvCache> source_;
  SeqId seq_ = 0;
};

// Bytes that a query at the last position of `length` tokens reads of one layer.
size_t ReadBytes(const KvCache& cache, int layer, int64_t length);

}  // namespace tq::cli
