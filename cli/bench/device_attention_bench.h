// tq bench attention --device cuda: the decode attention of one layer on a CUDA device.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <vector>

#include "cli/common.h"
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
  bool center = false;  // of K, 16 pairs a head
  float v_skip = 0;     // DeviceAttentionConfig::v_skip
  int64_t depth = 131072;
  int runs = 7;
};

struct DeviceAttentionTime {
  double us_per_layer = 0, lowest_us = 0, highest_us = 0;
  size_t bytes_per_layer = 0;  // that a call reads: records, side infos and open rows
  // Of appending one token of each sequence: within a block, and with the sealing of the block that
  // leaves the window, which happens at one token of 64. 0: not supported.
  double append_us = 0, append_and_seal_us = 0;
  // The same with attention behind it.
  double step_us = 0, step_and_seal_us = 0;
  int layers = 0;  // of the cache: calls of a run go through all of them
  int blocks_per_multiprocessor = 0, warps_per_block = 0, rows = 0;
};

// {"name": ..., "compute": ..., ...} of the device, for the document of a benchmark.
nlohmann::ordered_json DeviceDocument(const CudaDeviceInfo& info);

// Caches of random keys and values that went through the CPU's encoder, repeated in memory of their
// own behind a shuffled page table; layers enough that a run reads several times the L2 cache.
// Calls are replayed from a graph; median of the runs.
Result<DeviceAttentionTime> MeasureDeviceAttention(const DeviceAttentionCase& c, ThreadPool& pool,
                                                   const DeviceStream& stream);

struct DeviceAttentionPlan {
  std::vector<HeadFormat> formats;
  std::vector<int64_t> head_dims, groups, depths, batches;
  int num_kv_heads = 8, runs = 5;
  bool center = false;
  float v_skip = 0;
};

// Measures all of it and prints JSON or a table. kUnavailable without a device; a format that has
// no kernel is an error that names what has.
Result<int> RunDeviceAttentionBench(const DeviceAttentionPlan& plan, const OutputFlags& output);

}  // namespace tq::cli
