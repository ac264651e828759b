// The softmax weights of single queries, recomputed from what a cache stores: for measurements that
// need to know where a model looks. Plain loops; attention itself never calls this.
#pragma once

#include <vector>

#include "turboquant/attention/attention.h"
#include "turboquant/cache/cache.h"

namespace tq {

class AttentionWeights {
 public:
  // Weights of query `token` of `item` over the positions 0 .. its own, for each query head that
  // reads KV head `head`: [group][position + 1]. Rows are read in the form that attention reads
  // (window, sinks, codes, anchors, centre); with sink logits the weights sum to less than 1. The
  // layer must not have a sliding window.
  const std::vector<std::vector<float>>& Of(const KvCache& cache, int layer, int head,
                                            const AttentionParams& params,
                                            const AttentionItem& item, int token);

 private:
  std::vector<std::vector<float>> weights_;
  std::vector<float> keys_, rotated_;  // [64][head_dim]; [group][head_dim]
};

}  // namespace tq
