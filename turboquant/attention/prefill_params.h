// What the prefill kernels of a CUDA device read: plain data, filled by device_prefill.cc.
#pragma once

#include <cstdint>

#include "turboquant/attention/decode_params.h"
#include "turboquant/cache/append_params.h"

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
  float k_unit = 1, v_unit = 1;           // of a level: 1, or 1/2
  int32_t center = -1;                    // in PrefillParams::centers; -1: none
  uint32_t k_anchors = 0, v_anchors = 0;  // residual rows (codec/anchor.h), in the record
  int32_t num_anchors = 0, anchor_bits = 0;
  uint32_t k_signs[kMaxDecodeDim / 32] = {};
  uint32_t v_signs[kMaxDecodeDim / 32] = {};
};

// The centre of one KV head (codec/center.h): the score of token j of a block gets, for each pair,
// (a cos + b sin) cos_j + (b cos - a sin) sin_j, with cos and sin of its angle at the block's first
// token, a = q_i mu_i + q_j mu_j and b = q_j mu_i - q_i mu_j.
struct PrefillCenter {
  int32_t i[kDecodePairs] = {}, j[kDecodePairs] = {};
  float mu_i[kDecodePairs] = {}, mu_j[kDecodePairs] = {};  // 0 behind the last pair
  int32_t slot[kDecodePairs] = {};                         // of the centre table
  // cos_j and sin_j as operand B of halves: [8 tokens][pairs 0 to 7, 8 to 15][halves, what they
  // leave][lane][register].
  uint32_t table[kPageLen / 8][2][2][32][2] = {};
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
  const float* log8 = nullptr;  // [256] Log8Table
  const PrefillCenter* centers = nullptr;
  DeviceCenterTable center_table;
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
// kExtras: the plain one for caches with a centre or anchors.
enum class PrefillKernelKind { kPlain, kExtras, kHopper };
struct PrefillKernelInfo {
  PrefillKernelKind kind = PrefillKernelKind::kPlain;
  int units = 1;  // of a tile
};
// head_dim 64, 128 or 256; plain: not the faster one where there are two; extras: some head has a
// centre or anchors. Errors are those of the device. `stream`: a cudaStream_t.
Result<PrefillKernelInfo> PreparePrefillKernel(int head_dim, bool plain, bool extras);
Status LaunchPrefillKernel(int head_dim, PrefillKernelKind kind, const PrefillParams& params,
                           void* stream);

}  // namespace tq
