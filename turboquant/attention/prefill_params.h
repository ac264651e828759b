// What the prefill kernels of a CUDA device read: plain data, filled by device_prefill.cc.
#pragma once

#include <cstdint>

#include "turboquant/attention/decode_params.h"

namespace tq {

// One KV head of the layer; offsets in bytes. Levels are bytes: those of a 4-bit table are the low
// 7 bits of a level, which a shift to the left makes twice the level.
struct PrefillHead {
  uint32_t record_offset = 0, side_offset = 0, open_offset = 0;  // in the layer's part of a slot
  uint32_t record_bytes = 0, open_bytes = 0;
  uint32_t k_scales = 0, v_scales = 0, v_codes = 0;                  // in the record
  uint32_t open_k_scales = 0, open_v_values = 0, open_v_scales = 0;  // in the open part
  DecodeCodes k_kind = DecodeCodes::kTable4, v_kind = DecodeCodes::kTable4;
  DecodeTable k_table, v_table;
  float k_unit = 1, v_unit = 1;  // of a level: 1, or 1/2
  uint32_t k_signs[kMaxDecodeDim / 32] = {};
  uint32_t v_signs[kMaxDecodeDim / 32] = {};
};

// Consecutive units of one sequence. A unit: the queries of one block of positions and one query
// head of a KV head; units are numbered block by block, from the block of first_pos.
struct PrefillTile {
  int32_t sequence = 0;
  int32_t first_pos = 0, num_tokens = 0;  // of the sequence's queries
  int32_t first_row = 0;                  // of them, in q and out
  int32_t first_unit = 0;
};

struct PrefillParams {
  // Cache, one layer.
  const uint8_t* sealed = nullptr;  // [slot][sealed_stride]
  const uint8_t* sides = nullptr;
  const uint8_t* open = nullptr;
  uint32_t sealed_stride = 0, side_stride = 0, open_stride = 0;
  const int32_t* sealed_table = nullptr;  // [sequence][table_stride]
  const int32_t* open_table = nullptr;
  int32_t table_stride = 0;
  int32_t sink_blocks = 0, recent_blocks = 0;
  const PrefillHead* heads = nullptr;  // [num_kv_heads]
  int32_t num_kv_heads = 0, group = 0;
  const float* log8 = nullptr;         // [256] Log8Table
  const PrefillTile* tiles = nullptr;  // [num_tiles], those with most work first
  int32_t num_tiles = 0;
  DeviceIo io = DeviceIo::kF16;
  const void* q = nullptr;  // [row][num_q_heads][head_dim]
  void* out = nullptr;
  float scale = 0;             // of the scores, times log2(e)
  float softcap = 0;           // times log2(e); 0: none
  int32_t sliding_window = 0;  // tokens that a query sees, itself included; 0: all
};

// Which kernel: the one that runs everywhere, or the one for compute capability 9.0.
enum class PrefillKernelKind { kPlain, kHopper };
struct PrefillKernelInfo {
  PrefillKernelKind kind = PrefillKernelKind::kPlain;
  int units = 1;  // of a tile
};
// head_dim 64, 128 or 256; plain: not the faster one where there are two. Errors are those of the
// device. `stream`: a cudaStream_t.
Result<PrefillKernelInfo> PreparePrefillKernel(int head_dim, bool plain);
Status LaunchPrefillKernel(int head_dim, PrefillKernelKind kind, const PrefillParams& params,
                           void* stream);

}  // namespace tq
