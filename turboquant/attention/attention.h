// Attention computed straight from the packed codes of a KvCache.
//
// Per (query, block): exact integer QK on codes, one softmax step, exact integer PV, float32 sums
// over blocks in block order within fixed ranges of kRangeBlocks blocks, ranges merged in order.
// So the result of a query is the same bits for any chunking, batch and number of threads.
// attention_ref.cc is the specification in plain loops.
#pragma once

#include <span>
#include <string>

#include "turboquant/attention/v_skip.h"
#include "turboquant/base/status.h"
#include "turboquant/base/thread_pool.h"
#include "turboquant/cache/cache.h"

namespace tq {

// Queries of consecutive positions of one sequence, in one layer.
struct AttentionItem {
  SeqId seq = 0;
  int64_t first_pos = 0;  // position of the first query; its own key is visible to it
  int num_tokens = 0;
  const float* q = nullptr;  // [num_tokens][num_q_heads][head_dim], after RoPE
  float* out = nullptr;      // the same shape
  // With v_skip only, may be null: what was skipped, [num_tokens][num_q_heads].
  SkippedV* skipped = nullptr;
};

struct AttentionParams {
  int num_q_heads = 0;  // a multiple of num_kv_heads; head h reads KV head h / (ratio)
  float scale = 0;      // of the scores; 0 = 1 / sqrt(head_dim)
  float softcap = 0;    // scores become softcap * tanh(score / softcap); 0 = as they are
  // [num_q_heads] or nullptr: e^sink is added to the sum of the weights, so that a head may look
  // at nothing.
  const float* sinks = nullptr;
  // A sealed block whose softmax mass is at most this share of the mass of the open rows that the
  // same query sees (sinks and window), for every query head of the KV head, is treated as masked:
  // its V codes are not read. Every query decides for itself, so which blocks are skipped does not
  // depend on chunks or batches. 0: none is. Layers with a sliding window have no sealed blocks.
  float v_skip = 0;
};

// Causal attention of every item over its sequence's cache; a query of a layer with a sliding
// window sees its last `window` tokens (CacheConfig::windows), its own included. Errors: unknown
// sequence, positions that were not appended, a number of heads that does not divide, a v_skip
// outside [0, 1); kUnsupported: v_skip where values are rotated by a matrix, which keeps no bound
// of |v|.
Status Attend(const KvCache& cache, int layer, const AttentionParams& params,
              std::span<const AttentionItem> items, ThreadPool& pool);

// One line that names the kernels in use for a format, e.g.
// "K int3 x q int8, V int2 x p uint8, avx2".
std::string DescribeKernel(const HeadFormat& format);

}  // namespace tq
