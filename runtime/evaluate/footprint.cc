#include "runtime/evaluate/footprint.h"

#include <algorithm>

#include "turboquant/codec/record_layout.h"
#include "turboquant/plan/footprint.h"

namespace tq {
namespace {

// A block of the layers that keep every token, or of those with a sliding window.
BlockBytes BytesOfBlocks(const CacheConfig& config, bool windows = false) {
  BlockBytes b;
  for (size_t i = 0; i < config.formats.size(); ++i) {
    const int layer = static_cast<int>(i) / config.num_kv_heads;
    if ((config.window(layer) > 0) != windows) continue;
    b.Add(config.formats[i], config.recent, config.head_dim);
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
  const BlockCounts blocks =
      CountBlocks({config.recent_len, config.sink_len, config.rollback_len, config.recent}, tokens);
  bytes.payload = static_cast<size_t>(blocks.sealed) * (block.sealed - block.sealed_scales);
  bytes.scales = static_cast<size_t>(blocks.sealed) * block.sealed_scales;
  bytes.window = static_cast<size_t>(blocks.open()) * block.open +
                 static_cast<size_t>(blocks.ahead) * block.ahead();
  if (!config.windows.empty()) {
    // All windows have one length.
    const int window = *std::max_element(config.windows.begin(), config.windows.end());
    const int64_t held = CountWindowBlocks(window, config.rollback_len, tokens);
    if (window > 0) bytes.sliding = static_cast<size_t>(held) * BytesOfBlocks(config, true).open;
  }
  if (UsesCenter(config)) bytes.tables = CenterTableBytes(config.rope.inv_freq.size(), tokens);
  return bytes;
}

size_t F16Footprint(const CacheConfig& config, int64_t tokens) {
  size_t layer_tokens = 0;
  for (int layer = 0; layer < config.num_layers; ++layer) {
    const int64_t window = config.window(layer);
    const int64_t kept = window > 0 ? std::min(tokens, window) : tokens;
    layer_tokens += static_cast<size_t>(std::max<int64_t>(kept, 0));
  }
  return layer_tokens * config.num_kv_heads * config.head_dim * 2 * sizeof(f16_t);
}

double SealedBitsPerValue(const CacheConfig& config) {
  double sum = 0;
  int heads = 0;
  for (size_t i = 0; i < config.formats.size(); ++i) {
    if (config.window(static_cast<int>(i) / config.num_kv_heads) > 0) continue;
    sum += BitsPerValue(config.formats[i], config.head_dim);
    ++heads;
  }
  return heads == 0 ? 0 : sum / heads;
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
