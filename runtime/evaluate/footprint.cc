#include "runtime/evaluate/footprint.h"

#include <algorithm>

#include "turboquant/codec/record_layout.h"
#include "turboquant/plan/footprint.h"

namespace tq {
namespace {

BlockBytes BytesOfBlocks(const CacheConfig& config) {
  BlockBytes b;
  for (const HeadFormat& f : config.formats) b.Add(f, config.recent, config.head_dim);
  return b;
}

bool UsesCenter(const CacheConfig& config) {
  for (size_t i = 0; i < config.formats.size(); ++i) {
    if (config.formats[i].k.center != Center::kRopeMean) continue;
    if (i < config.centers.size() && !config.centers[i].empty()) return true;
  }
  return false;
}

}  // namespace

CacheBytes CacheFootprint(const CacheConfig& config, int64_t tokens) {
  CacheBytes bytes;
  if (tokens <= 0) return bytes;
  const BlockBytes block = BytesOfBlocks(config);
  const BlockCounts blocks =
      CountBlocks({config.recent_len, config.sink_len, config.rollback_len, config.recent}, tokens);
  bytes.payload = static_cast<size_t>(blocks.sealed) * (block.sealed - block.sealed_scales);
  bytes.scales = static_cast<size_t>(blocks.sealed) * block.sealed_scales;
  bytes.window = static_cast<size_t>(blocks.open()) * block.open +
                 static_cast<size_t>(blocks.ahead) * block.ahead();
  if (UsesCenter(config)) bytes.tables = CenterTableBytes(config.rope.inv_freq.size(), tokens);
  return bytes;
}

size_t F16Footprint(const CacheConfig& config, int64_t tokens) {
  return static_cast<size_t>(std::max<int64_t>(tokens, 0)) * config.num_layers *
         config.num_kv_heads * config.head_dim * 2 * sizeof(f16_t);
}

double SealedBitsPerValue(const CacheConfig& config) {
  double sum = 0;
  for (const HeadFormat& f : config.formats) sum += BitsPerValue(f, config.head_dim);
  return config.formats.empty() ? 0 : sum / static_cast<double>(config.formats.size());
}

double ScalesShare(const CacheConfig& config) {
  const BlockBytes block = BytesOfBlocks(config);
  return block.sealed == 0
             ? 0
             : static_cast<double>(block.sealed_scales) / static_cast<double>(block.sealed);
}

double FootprintRatio(const CacheConfig& config, int64_t tokens) {
  const size_t bytes = CacheFootprint(config, tokens).total();
  return bytes == 0
             ? 0
             : static_cast<double>(F16Footprint(config, tokens)) / static_cast<double>(bytes);
}

}  // namespace tq
