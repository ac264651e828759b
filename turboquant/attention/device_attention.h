// Decode attention over a DeviceCache, on its device.
//
// The arithmetic is that of attention.h with finer digits: exact integer QK on codes, one softmax
// step a page, exact integer PV, float32 sums. Sums over pages depend on how the work of a batch is
// cut into ranges: equal calls give equal bits, other batches may differ in rounding.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "turboquant/attention/decode_params.h"
#include "turboquant/base/device.h"
#include "turboquant/base/status.h"
#include "turboquant/cache/device_cache.h"

namespace tq {

struct DeviceAttentionConfig {
  int num_q_heads = 0;  // a multiple of num_kv_heads; head h reads KV head h / (ratio)
  int num_tokens = 1;   // queries of each sequence: its last positions, 1 to 8
  int max_batch = 1;
  DeviceIo io = DeviceIo::kF16;  // of queries and outputs
  float scale = 0;               // of the scores; 0 = 1 / sqrt(head_dim)
  float softcap = 0;             // scores become softcap * tanh(score / softcap); 0: none
  int sliding_window = 0;        // tokens that a query sees, its own included; 0: all
  // A sealed block whose softmax mass is at most this share of the mass of the open rows (sinks and
  // window), for every query head of the KV head and every query of the sequence, is treated as
  // masked: its V codes are not read. 0: none is. At most 8 queries x heads of a KV head.
  float v_skip = 0;
};

class DeviceAttention {
 public:
  // kUnsupported names what is not and what is; kInvalidArgument for numbers that do not fit. The
  // cache stays alive as long as this.
  static Result<std::unique_ptr<DeviceAttention>> Create(const DeviceCache& cache,
                                                         const DeviceAttentionConfig& config,
                                                         const DeviceStream& stream);

  // q, out: device memory, [batch][num_tokens][num_q_heads][head_dim], q after RoPE. `sequences`:
  // device memory, [batch] sequences of the cache. One launch, no waiting; can be captured in a
  // graph: lengths and page tables are read when it runs. A sequence shorter than num_tokens has
  // queries in front of it that get zeros. Calls share a workspace: one after another, in the order
  // of one stream.
  // skipped (with v_skip only): device memory, [batch][num_tokens][num_q_heads][2]: s, the share of
  // the whole softmax mass that was skipped, and b, its sum weighted with each block's bound of
  // |v|. |output - output without skipping| <= s |output| + b.
  Status Run(int layer, const int32_t* sequences, int batch, const void* q, void* out,
             const DeviceStream& stream, float* skipped = nullptr) const;

  int rows() const { return rows_; }
  const DecodeKernelInfo& kernel() const { return kernel_; }

 private:
  const DeviceCache* cache_ = nullptr;
  DeviceAttentionConfig config_;
  int rows_ = 0;
  DecodeVariant variant_ = DecodeVariant::kPlain;
  DecodeKernelInfo kernel_;
  DecodeParams params_;  // what all layers share
  struct Layer {
    uint32_t sealed_cost = 0, open_cost = 0;
    bool even_heads = true;
    int64_t min_range_cost = 0;
  };
  std::vector<Layer> layers_;
  // DecodeHead, then DecodeHeadIndex, [num_layers][num_kv_heads], then DecodeCenter of those that
  // have one.
  DeviceBuffer heads_;
  DeviceBuffer workspace_;   // arrivals, log8 table, parts
  size_t index_offset_ = 0;  // of the DecodeHeadIndex in heads_
};

// OK when the decode kernel reads this format at this head_dim; else kUnsupported, naming both.
Status CheckDeviceFormat(const HeadFormat& format, int head_dim, RecentType recent);

}  // namespace tq
