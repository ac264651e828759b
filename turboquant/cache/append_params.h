// What the append kernel of a CUDA device reads: plain data, filled by append_tables.cc.
#pragma once

#include <cstdint>

#include "turboquant/base/device.h"
#include "turboquant/base/status.h"

namespace tq {

// How a side is sealed.
enum class AppendKind : uint32_t {
  kBook,   // codes of 2 to 4 bits, one log8 scale a token
  kInt8,   // 8 bits, one log8 scale a token
  kGroup,  // scales, and offsets, of groups of channels
  kFloat   // rows as they are
};
enum class AppendRowType : uint32_t { kInt8, kF16, kBF16, kFP8 };
enum class AppendGain : uint32_t { kNone, kNorm, kUnbiased };

// One side of one KV head: how a row is rotated and what its codes are.
struct AppendSide {
  AppendKind kind = AppendKind::kBook;
  AppendRowType row_type = AppendRowType::kInt8;  // of the open rows
  uint32_t rotated = 1;
  // Of kGroup (codec/group_scales.h).
  int32_t group_len = 0, num_groups = 0;
  uint32_t log8 = 0, affine = 0;
  float level_step = 1, top_level = 127;
  uint32_t open_values = 0, open_scales = 0;    // in the head's open part
  uint32_t codes = 0, scales = 0, anchors = 0;  // in the head's record
  uint32_t signs[8] = {};                       // bit c % 32 of word c / 32: channel c is negated
  int32_t bits = 0, num_levels = 0;
  uint32_t in_place = 0;  // order of 2-bit codes
  AppendGain gain = AppendGain::kNorm;
  float unit = 0;  // of the book
  float thresholds[15] = {};
  int8_t levels[16] = {};
};

// Centre of one channel: cos_part * cos + sin_part * sin of its angle is taken off.
struct AppendCenter {
  float cos_part = 0, sin_part = 0;
  int32_t slot = -1;  // of the centre table; -1: nothing is
};

struct AppendHead {
  uint32_t open_offset = 0, record_offset = 0, side_offset = 0;  // in the layer's part of a slot
  int32_t center = -1;  // in AppendParams::centers; -1: none
  // Anchors (codec/anchor.h).
  int32_t anchors = 0, anchor_bits = 0;
  int32_t num_probes = 0, first_probe = 0;  // floats of [num_probes][head_dim], then offsets
  float error_weight = 0;                   // of the squared error of K
  AppendSide sides[2];                      // K, V
};

// CenterTable (codec/center.h) in device memory.
struct DeviceCenterTable {
  const float* offsets = nullptr;  // [num_slots][cos, sin][64]
  const float* starts = nullptr;   // [block][num_slots][cos, sin]
  int32_t num_slots = 0;
  int32_t half = 0;  // pairs that RoPE turns
  float plain = 1;   // takes the attention scale off again
};

struct AppendParams {
  uint8_t* sealed = nullptr;  // as in DeviceCache::LayerView
  uint8_t* side_infos = nullptr;
  uint8_t* open = nullptr;
  uint32_t sealed_stride = 0, side_stride = 0, open_stride = 0;
  const int32_t* sealed_table = nullptr;
  const int32_t* open_table = nullptr;
  int64_t table_stride = 0;
  int32_t num_sequences = 0;         // rows of the tables
  const int32_t* lengths = nullptr;  // the new tokens included
  const int32_t* sequences = nullptr;
  int32_t batch = 0, num_tokens = 0, num_kv_heads = 0;
  int32_t sink_blocks = 0, recent_blocks = 0;
  // Of LaunchAppendPrompt, in place of lengths, sequences and batch.
  int32_t prompt_sequence = 0, prompt_length = 0;
  const AppendHead* heads = nullptr;
  const AppendCenter* centers = nullptr;  // [heads with a centre][head_dim]
  const float* probes = nullptr;
  DeviceCenterTable center_table;
  const void* k = nullptr;  // [batch][num_tokens][num_kv_heads][head_dim], after RoPE
  const void* v = nullptr;
  DeviceIo io = DeviceIo::kF32;
  const float* log8 = nullptr;             // [256] Log8Table
  unsigned long long* counters = nullptr;  // nonfinite_values, clamped_values
  // PrepareAppend: shared memory of a thread block besides the kernel's own.
  int32_t num_multiprocessors = 0;
  uint32_t idle_shared_bytes = 0;
  uint32_t alone = 0;  // LaunchAppend: each thread block has a multiprocessor for itself
};

// What LaunchAppend of this head_dim needs to know of the device and the kernel.
Status PrepareAppend(int head_dim, AppendParams* params);
// head_dim 64, 128 or 256. `stream`: a cudaStream_t.
Status LaunchAppend(int head_dim, const AppendParams& params, void* stream);
// Any number of tokens of one sequence, of less than 2^22.
Status LaunchAppendPrompt(int head_dim, const AppendParams& params, void* stream);
// lengths[sequences[i]] += n for i below batch.
Status LaunchAdvance(int32_t* lengths, const int32_t* sequences, int batch, int n, void* stream);

}  // namespace tq
