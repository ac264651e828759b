#include "runtime/model/v_skip_totals.h"

#include <algorithm>

namespace tq {

void VSkipTotals::Add(const KvCache& cache, int layer, const AttentionParams& params,
                      std::span<const AttentionItem> items) {
  if (cache.config().window(layer) > 0) return;
  const int kv_heads = cache.config().num_kv_heads, q_heads = params.num_q_heads;
  const PrecisionRule& rule = cache.rule();
  for (const AttentionItem& item : items) {
    if (item.skipped == nullptr) continue;
    for (int t = 0; t < item.num_tokens; ++t) {
      const int64_t block = (item.first_pos + t) / kPageLen;
      const int64_t sealed = block - rule.recent_blocks - rule.sink_blocks;
      if (sealed <= 0) continue;
      const SkippedV* of_token = item.skipped + static_cast<int64_t>(t) * q_heads;
      blocks += sealed * kv_heads;
      rows += q_heads;
      for (int h = 0; h < q_heads; ++h) share += of_token[h].share, bound += of_token[h].bound;
      // Query heads of one KV head agree.
      for (int h = 0; h < q_heads; h += q_heads / kv_heads) skipped += of_token[h].blocks;
    }
  }
}

}  // namespace tq
