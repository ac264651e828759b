#include "runtime/calibrate/plain.h"

#include <algorithm>

#include "runtime/evaluate/footprint.h"
#include "turboquant/codec/decode.h"

namespace tq {

CacheConfig PlainConfig(const Model& model, int64_t context) {
  CacheConfig config = model.MakeCacheConfig();
  config.recent_len = static_cast<int>(std::min<int64_t>(context + kPageLen, 1 << 24));
  config.recent = RecentType::kF16;
  return config;
}

void ReadPlainRows(const KvCache& cache, SeqId seq, int layer, Side side, int64_t first_pos,
                   int count, std::vector<float>* rows) {
  const int heads = cache.config().num_kv_heads, dim = cache.config().head_dim;
  rows->resize(static_cast<size_t>(count) * heads * dim);
  std::vector<float> block(static_cast<size_t>(kPageLen) * dim);
  for (int head = 0; head < heads; ++head) {
    const KvCache::HeadLayout& l = cache.layout(layer, head);
    for (int64_t p = first_pos; p < first_pos + count;) {
      const std::byte* slot = cache.OpenSlot(seq, p / kPageLen) + l.open_offset;
      DecodeOpenSide({side, dim, side == Side::kK ? l.open.k_type : l.open.v_type,
                      slot + (side == Side::kK ? l.open.k_values : l.open.v_values), nullptr},
                     block.data());
      const int64_t end = std::min<int64_t>((p / kPageLen + 1) * kPageLen, first_pos + count);
      for (; p < end; ++p) {
        std::copy_n(&block[static_cast<size_t>(p % kPageLen) * dim], dim,
                    &(*rows)[(static_cast<size_t>(p - first_pos) * heads + head) * dim]);
      }
    }
  }
}

int CachesAtOnce(const CacheConfig& config, int64_t context, size_t max_bytes, int most) {
  const size_t each = std::max<size_t>(1, F16Footprint(config, context));
  return static_cast<int>(std::clamp<size_t>(max_bytes / each, 1, static_cast<size_t>(most)));
}

}  // namespace tq
