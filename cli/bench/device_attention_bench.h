// The time of decode attention of one layer on a CUDA device.
#pragma once

#include <cstdint>
#include <vector>

#include "turboquant/attention/device_attention.h"
#include "turboquant/base/device.h"
#include "turboquant/base/status.h"
#include "turboquant/base/thread_pool.h"
#include "turboquant/codec/codec.h"

namespace tq::cli {

struct DeviceAttentionCase {
  std::vector<HeadFormat> formats;  // of the KV heads, repeated over num_kv_heads
  int head_dim = 128, num_kv_heads = 8, group = 4, batch = 1, num_tokens = 1;
  int recent_len = 256, sink_len = 4;
  int64_t depth = 131072;
  int runs = 7;
};

struct DeviceAttentionTime {
  double us_per_layer = 0, lowest_us = 0, highest_us = 0;
  size_t bytes_per_layer = 0;  // that a call reads: records, side infos and open rows
  int layers = 0;              // of the cache: calls of a run go through all of them
  int blocks_per_multiprocessor = 0, rows = 0;
};

// Caches of random keys and values that went through the CPU's encoder, repeated in memory of their
// own behind a shuffled page table; layers enough that a run reads several times the L2 cache. Calls
// are replayed from a graph; median of the runs.
Result<DeviceAttentionTime> MeasureDeviceAttention(const DeviceAttentionCase& c, ThreadPool& pool,
                                                   const DeviceStream& stream);

}  // namespace tq::cli
