// Prefill attention over a DeviceCache, on its device: the queries of a part of a prompt.
//
// The arithmetic of attention.h: 8-bit digits of queries and weights where they meet codes, 16 bits
// where they meet 8-bit rows, exact integer sums, one softmax step in float32 for each step of
// blocks. A query's result is the same bits however a prompt is cut into parts, and in any batch.
//
// A part of a prompt: DeviceCache::Reserve and Advance; then for each layer
// DeviceCache::AppendPrompt and Run. All its tokens have open rows from Reserve to the next
// Reserve, so a part needs open blocks for itself and the window in front of it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "turboquant/attention/prefill_params.h"
#include "turboquant/base/device.h"
#include "turboquant/base/status.h"
#include "turboquant/cache/device_cache.h"

namespace tq {

struct DevicePrefillConfig {
  int num_q_heads = 0;  // a multiple of num_kv_heads; head h reads KV head h / (ratio)
  int max_tokens = 0;   // of all items of a call
  int max_items = 1;
  DeviceIo io = DeviceIo::kF16;  // of queries and outputs
  float scale = 0;               // of the scores; 0 = 1 / sqrt(head_dim)
  float softcap = 0;             // scores become softcap * tanh(score / softcap); 0: none
  int sliding_window = 0;        // tokens that a query sees, its own included; 0: all
  bool plain_kernel = false;     // the one that runs everywhere, also where there is a faster one
};

// Queries at the last num_tokens positions of a sequence.
struct DevicePrefillItem {
  int sequence = 0;
  int num_tokens = 0;
};

class DevicePrefill {
 public:
  // kUnsupported names what is not and what is; kInvalidArgument for numbers that do not fit. The
  // cache stays alive as long as this.
  static Result<std::unique_ptr<DevicePrefill>> Create(const DeviceCache& cache,
                                                       const DevicePrefillConfig& config,
                                                       const DeviceStream& stream);

  // What the next calls of Run attend to, by the lengths that the cache has now; waits. Once for
  // all layers. kFailedPrecondition: open rows that a query reads are gone.
  Status Plan(std::span<const DevicePrefillItem> items, const DeviceStream& stream);
  // q, out: device memory, [tokens][num_q_heads][head_dim], q after RoPE and at a multiple of 16
  // bytes; the items' tokens one after another. One launch, no waiting.
  Status Run(int layer, const void* q, void* out, const DeviceStream& stream) const;

  const PrefillKernelInfo& kernel() const { return kernel_; }

 private:
  const DeviceCache* cache_ = nullptr;
  DevicePrefillConfig config_;
  PrefillKernelInfo kernel_;
  PrefillParams params_;  // what all layers share
  // PrefillHead [num_layers][num_kv_heads], the log8 table, PrefillCenter of heads that have one.
  DeviceBuffer heads_;
  DeviceBuffer tiles_;
  size_t max_tiles_ = 0;
};

// OK when the prefill kernels read this format at this head_dim; else kUnsupported, naming both.
Status CheckDevicePrefill(const HeadFormat& format, int head_dim, RecentType recent);

}  // namespace tq
