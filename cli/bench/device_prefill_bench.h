// tq bench attention --device cuda --prefill: the attention of a whole prompt in one layer on a
// CUDA device, and what its quantization takes.
#pragma once

#include <cstdint>
#include <vector>

#include "cli/common.h"
#include "turboquant/attention/device_prefill.h"
#include "turboquant/base/device.h"
#include "turboquant/base/status.h"
#include "turboquant/codec/codec.h"

namespace tq::cli {

struct DevicePrefillCase {
  HeadFormat format;
  int head_dim = 128, num_kv_heads = 8, group = 4;
  int recent_len = 256, sink_len = 4;
  int tokens = 32768;  // of the prompt, in one part
  int runs = 5;
  bool plain_kernel = false;  // DevicePrefillConfig::plain_kernel
};

struct DevicePrefillTime {
  double attention_us = 0, lowest_us = 0, highest_us = 0;
  double append_us = 0;    // of all tokens: open rows written, blocks sealed
  double operations = 0;   // of both products, masked pairs not counted; a multiply-add is two
  bool is_hopper = false;  // the kernel of compute capability 9.0
};

// A prompt of random keys, values and queries, repeated every few thousand tokens; medians.
Result<DevicePrefillTime> MeasureDevicePrefill(const DevicePrefillCase& c,
                                               const DeviceStream& stream);

struct DevicePrefillPlan {
  std::vector<HeadFormat> formats;
  std::vector<int64_t> head_dims, groups, tokens;
  int num_kv_heads = 8, runs = 5;
};

// Measures all of it and prints JSON or a table. kUnavailable without a device; a format that has
// no kernel is an error that names what has.
Result<int> RunDevicePrefillBench(const DevicePrefillPlan& plan, const OutputFlags& output);

}  // namespace tq::cli
