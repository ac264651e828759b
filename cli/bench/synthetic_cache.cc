#include "cli/bench/synthetic_cache.h"

#include <cmath>
#include <numbers>
#include <utility>
#include <vector>

#include "turboquant/base/numeric.h"

namespace tq::cli {
namespace {

// Blocks that are encoded, and so differ.
constexpr int kSealedBlocks = 4;
constexpr int kOpenBlocks = kSealedBlocks + 1;

std::vector<float> Gaussian(size_t n, uint64_t* state) {
  std::vector<float> x(n);
  const auto uniform = [&] {  // (0, 1]
    return (static_cast<double>(SplitMix64(*state) >> 11) + 1) * 0x1p-53;
  };
  for (float& v : x) {
    v = static_cast<float>(std::sqrt(-2 * std::log(uniform())) *
                           std::cos(2 * std::numbers::pi * uniform()));
  }
  return x;
}

}  // namespace

Result<SyntheticFiller> SyntheticFiller::Create(const CacheConfig& config, uint64_t seed,
                                                ThreadPool& pool) {
  // No window, so that all blocks but the last are sealed at once; all rows stay for rollback.
  CacheConfig source = config;
  source.recent_len = source.sink_len = 0;
  source.rollback_len = kOpenBlocks * kPageLen;
  source.max_bytes = 0;
  SyntheticFiller filler;
  TQ_ASSIGN_OR_RETURN(filler.source_, KvCache::Create(std::move(source)));
  filler.seq_ = filler.source_->NewSequence();
  const int tokens = kOpenBlocks * kPageLen;
  const size_t values = static_cast<size_t>(tokens) * config.num_kv_heads * config.head_dim;
  // Layers share the numbers: each head rotates them by signs of its own.
  const std::vector<float> k = Gaussian(values, &seed), v = Gaussian(values, &seed);
  TQ_RETURN_IF_ERROR(filler.source_->BeginAppend(filler.seq_, tokens));
  for (int layer = 0; layer < config.num_layers; ++layer) {
    TQ_RETURN_IF_ERROR(filler.source_->AppendLayer(filler.seq_, layer, k.data(), v.data(), pool));
  }
  TQ_RETURN_IF_ERROR(filler.source_->CommitAppend(filler.seq_));
  return filler;
}

Result<SeqId> SyntheticFiller::Fill(KvCache& cache, int64_t length) const {
  if (cache.config().formats != source_->config().formats ||
      cache.open_slot_bytes() != source_->open_slot_bytes()) {
    return InvalidArgument("synthetic blocks of another format than the cache's");
  }
  if (length <= 0) return cache.NewSequence();
  const int64_t num_blocks = DivCeil<int64_t>(length, kPageLen);
  std::vector<KvCache::BlockBytes> blocks(static_cast<size_t>(num_blocks));
  const std::vector<int>& windows = cache.config().windows;
  const int64_t window = windows.empty() ? 0 : *std::max_element(windows.begin(), windows.end());
  const int64_t first_window =
      window == 0 ? num_blocks : std::max<int64_t>(0, length + 1 - window) / kPageLen;
  for (int64_t b = 0; b < num_blocks; ++b) {
    KvCache::BlockBytes& block = blocks[static_cast<size_t>(b)];
    if (cache.rule().ReadsOpen(b, num_blocks - 1)) {
      block.open = source_->OpenSlot(seq_, b % kOpenBlocks);
    } else {
      block.sealed = source_->SealedSlot(seq_, b % kSealedBlocks);
    }
    // The source holds whole windows only up to kOpenBlocks; blocks repeat anyway.
    if (b >= first_window) block.window = source_->WindowSlot(seq_, b % kOpenBlocks);
  }
  return cache.Import(length, blocks, true);
}

size_t ReadBytes(const KvCache& cache, int layer, int64_t length) {
  const int64_t num_blocks = DivCeil<int64_t>(length, kPageLen);
  size_t open_blocks = 0;
  for (int64_t b = 0; b < num_blocks; ++b) {
    if (cache.rule().ReadsOpen(b, num_blocks - 1)) ++open_blocks;
  }
  const size_t sealed_blocks = static_cast<size_t>(num_blocks) - open_blocks;
  size_t bytes = 0;
  for (int head = 0; head < cache.config().num_kv_heads; ++head) {
    const KvCache::HeadLayout& l = cache.layout(layer, head);
    if (l.window > 0) {
      const int64_t first = std::max<int64_t>(0, length - l.window) / kPageLen;
      bytes += static_cast<size_t>(num_blocks - first) * l.open.bytes;
      continue;
    }
    bytes +=
        open_blocks * l.open.bytes + sealed_blocks * (l.record.bytes + SideInfoBytes(l.format));
  }
  return bytes;
}

}  // namespace tq::cli
