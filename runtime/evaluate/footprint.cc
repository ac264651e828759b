#include "runtime/evaluate/footprint.h"

#include <algorithm>

#include "turboquant/codec/record_layout.h"

namespace tq {
namespace {

struct BlockBytes {
  size_t open = 0;           // one open block over all layers and heads
  size_t sealed = 0;         // one sealed block
  size_t sealed_scales = 0;  // of which scales and side information
};

BlockBytes BytesOfBlocks(const CacheConfig& config) {
  BlockBytes b;
  for (const HeadFormat& f : config.formats) {
    b.open += OpenLayout::For(f, config.recent, config.head_dim).bytes;
    b.sealed += RecordLayout::For(f, config.head_dim).bytes + SideInfoBytes(f);
    b.sealed_scales += ScaleBytes(f.k, config.head_dim) + ScaleBytes(f.v, config.head_dim) +
                       SideInfoBytes(f);
  }
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
  const int64_t last = (tokens - 1) / kPageLen;  // block of the newest query
  const int64_t sinks = std::min<int64_t>(DivCeil(config.sink_len, kPageLen), last + 1);
  const int64_t recent = DivCeil(config.recent_len, kPageLen);
  // Blocks [sinks, first_recent) are read at low bits; those that a query within the rollback
  // distance would read as open rows keep them as well.
  const int64_t first_recent = std::max(sinks, last - recent);
  const int64_t rollback_query = std::max<int64_t>(0, tokens - config.rollback_len) / kPageLen;
  const int64_t first_open = std::clamp(rollback_query - recent, sinks, first_recent);
  const size_t num_sealed = static_cast<size_t>(first_recent - sinks);
  const size_t num_open = static_cast<size_t>(sinks + (last + 1 - first_open));
  bytes.payload = num_sealed * (block.sealed - block.sealed_scales);
  bytes.scales = num_sealed * block.sealed_scales;
  bytes.window = num_open * block.open;
  if (UsesCenter(config)) {
    CenterTable table(config.rope);
    table.EnsureBlocks(last + 1);
    bytes.tables = table.bytes();
  }
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
