// What the decode kernel of a CUDA device reads: plain data, filled by device_attention.cc.
#pragma once

#include <cstdint>

#include "turboquant/base/device.h"
#include "turboquant/base/status.h"
#include "turboquant/codec/record_layout.h"

namespace tq {

inline constexpr int kMaxDecodeDim = 256;
// As kDeviceRecordAlign: a bulk copy between places that lie differently within 128 bytes takes 5
// to 17 % longer (docs/decisions/aligned-copies.md).
inline constexpr uint32_t kDecodeStageAlign = 128;
inline constexpr int kFewDecodeWarps = 4;  // of a thread block, if several share a multiprocessor
// A level table of up to 16 bytes as a byte permute wants it; see decode_cuda.cu.
struct DecodeTable {
  uint32_t words[4] = {};
};

// How codes become levels; from kInt8 on, and codes with DecodeGroups: by wide kernels only
// (decode_wide.cuh).
enum class DecodeCodes : uint32_t {
  kInPlace2,
  kTable2,
  kTable3,
  kTable4,
  kInt8,
  kF16,
  kBF16,
  kFP8
};
inline constexpr bool IsFloat(DecodeCodes codes) {
  return codes >= DecodeCodes::kF16;
}

// Scales of groups of channels; one group of all channels, log8 scales, for plain 8-bit codes.
struct DecodeGroups {
  int32_t len = 0;  // channels of a group; 0: the scales are those of a plain kernel, or none
  int32_t log_len = 0, log_count = 0;
  uint32_t log8 = 0, affine = 0;  // log8: scales of one byte, else halves
  float eighth = 0;               // of a step between levels: what offsets beside log8 scales count
  float bias = 0;                 // stored level less level, of 4 bits; else 0
};

// The centre of one KV head (codec/center.h): the score of token j of a block gets, for each pair,
//   (a c0 + b s0) cos_j + (b c0 - a s0) sin_j,
// with a and b of the query and c0, s0 of the block's first position. Over all pairs that is a
// product of cos_j, sin_j of 64 tokens, which are constants of the head, with 32 numbers of the
// query, on the tensor cores: both as 16-bit digits, high and low byte.
inline constexpr int kDecodePairs = 16;
struct DecodeCenter {
  int32_t i[kDecodePairs] = {}, j[kDecodePairs] = {};  // channels
  float mu_i[kDecodePairs] = {}, mu_j[kDecodePairs] = {};
  // How far a block turns a pair, in 2^-32 of a whole turn, which wrap around: so what a block's
  // first position turns it takes a product, and no table that is as long as the context. 0: not at
  // all.
  uint32_t turns[kDecodePairs] = {};
  // Fragments of 16 tokens x 32 depth, depth 2 pair: cos, 2 pair + 1: sin, in the order of K
  // (codec/fragment_layout.h): [tokens / 16][high, low digit][lane][register][byte].
  int8_t digits[kPageLen / 16][2][32][4][4] = {};
};
inline constexpr uint32_t kSideBytes = 32;  // room for RecordSideInfo and kMaxAnchors AnchorInfo
inline constexpr int kMaxCenterPages = 4;
inline constexpr float kCenterDigit = 32512.f;  // 127 * 256: the high byte stays signed

// One KV head of the layer. Offsets in bytes; the record's are within the head's record.
struct DecodeHead {
  uint32_t k_scales = 0, v_scales = 0, v_codes = 0;
  uint32_t open_offset = 0, open_k_scales = 0, open_v_values = 0, open_v_scales = 0;
  DecodeCodes k_kind = DecodeCodes::kInPlace2, v_kind = DecodeCodes::kInPlace2;
  DecodeTable k_table, v_table;
  // What a sum has too much because codes are multiplied as level + offset, a digit.
  float k_offset = 0, v_offset = 0;
  float k_top = 0;    // largest |level| as multiplied: how large a query digit may be
  float p_limit = 0;  // largest digit of a weight times a V scale, such that no sum reaches 2^22
  float p_unit =
      0;  // what a V base is multiplied with: 1 / p_limit, less what levels are scaled by
  int32_t center = -1;  // in DecodeParams::centers; -1: none
  // Residual rows (codec/anchor.h), in the record.
  uint32_t k_anchors = 0, v_anchors = 0;
  int32_t num_anchors = 0, anchor_bits = 0;
  // Of wide kernels. Open rows: kInt8 or a float type.
  DecodeCodes k_open = DecodeCodes::kInt8, v_open = DecodeCodes::kInt8;
  DecodeGroups k_groups, v_groups;
  uint32_t k_rotated = 1, v_rotated = 1;
  uint32_t k_signs[kMaxDecodeDim / 32] = {};  // bit c % 32 of word c / 32: channel c is negated
  uint32_t v_signs[kMaxDecodeDim / 32] = {};
};

// What the search for a block's work needs of every head.
struct DecodeHeadIndex {
  // Work of a sealed block and of half an open one, in units of 64 bytes; and the sums over the
  // heads in front of this one.
  uint32_t sealed_cost = 0, open_cost = 0;
  uint32_t sealed_before = 0, open_before = 0;
  // What a warp needs to ask for pages: the record, how much of it comes before the V codes, its
  // side info.
  uint32_t record_offset = 0, record_bytes = 0, v_codes = 0;
  uint32_t side_offset = 0, side_bytes = 0;
  int32_t center = -1;  // DecodeHead::center: its table is asked for before the head comes
};

struct DecodeParams {
  // Cache, one layer.
  const uint8_t* sealed = nullptr;  // [slot][sealed_stride]
  const uint8_t* sides = nullptr;   // [slot][side_stride]
  const uint8_t* open = nullptr;    // [slot][open_stride]
  uint32_t sealed_stride = 0, side_stride = 0, open_stride = 0;
  const int32_t* sealed_table = nullptr;  // [sequence][table_stride]
  const int32_t* open_table = nullptr;
  int32_t table_stride = 0, num_sequences = 0;
  const int32_t* lengths = nullptr;  // [sequence]
  const DecodeHead* heads = nullptr;
  const DecodeHeadIndex* head_index = nullptr;
  const DecodeCenter* centers = nullptr;
  int32_t num_kv_heads = 0;
  uint32_t sealed_cost = 0, open_cost = 0;  // sums over the heads
  uint32_t even_heads = 0;                  // whether they are the same for all heads
  float most_longer = 0;  // that a range may become so that units begin with ranges
  int32_t sink_blocks = 0, recent_blocks = 0;
  // Queries: the last num_tokens positions of each sequence of the batch.
  const int32_t* sequences = nullptr;  // [batch]
  int32_t batch = 0;
  int32_t num_tokens = 0;
  int32_t group = 0;           // query heads of a KV head
  int32_t num_row_groups = 0;  // parts of num_tokens x group rows
  DeviceIo io = DeviceIo::kF32;
  const void* q = nullptr;      // [batch][num_tokens][num_q_heads][head_dim]
  void* out = nullptr;          // the same
  const float* log8 = nullptr;  // [256] Log8Table
  float scale = 0;              // of the scores, times log2(e)
  float softcap = 0;            // times log2(e); 0: none
  int32_t sliding_window = 0;   // tokens that a query sees, itself included; 0: all
  // Skipping of V (decode_skip.cuh): a page's mass relative to that of the open rows; 0: none.
  float v_skip = 0;
  float* skipped = nullptr;  // [batch][num_tokens][num_q_heads][share, bound]; nullptr: not wanted
  // Parts of units (sequence, tile, head, row group) that more than one thread block works on.
  float* partial_out = nullptr;    // [num_blocks + num_units][rows][head_dim]
  float* partial_state = nullptr;  // the same parts, [rows][m, l] and, if V is skipped, of what
  uint32_t* arrivals = nullptr;    // [num_units], all 0 between launches
  // Of one of the two stages of a warp's ring, a multiple of kDecodeStageAlign: a record, and at
  // side_at its side info.
  uint32_t stage_bytes = 0, side_at = 0;
  // Pages whose centres are made at once, more than 1 only with one query of one query head for
  // each KV head: their scores stay behind the ring.
  int32_t center_pages = 1;
  uint32_t center_bytes = 0;  // of shared memory for the table of a centre; 0: it stays in memory
  // Of the least that a range costs, which is no less than an item; and of the size of the grid.
  float inverse_min_range_cost = 0;
  double inverse_num_blocks = 0;
};

// Rows that a thread block works on at once: query tokens x query heads of one KV head.
inline constexpr int kDecodeRows[] = {4, 8, 16};
inline constexpr int kMaxSkipRows = 8;
inline constexpr int kMaxWideRows = 8;

// Which kernel: what skips V, and what reads formats besides plain 2- to 4-bit ones, are apart.
enum class DecodeVariant { kPlain, kSkip, kWide };

// How often a kernel fits; errors are those of the device.
struct DecodeKernelInfo {
  int warps_per_block = 0;
  int blocks_per_multiprocessor = 0;
  int num_blocks = 0;  // of a full grid
  // Of DecodeParams.
  uint32_t center_bytes = 0, stage_bytes = 0;
  int32_t center_pages = 1;
};
// head_dim 64, 128 or 256 and one of kDecodeRows. `stream`: a cudaStream_t.
// side_at: DecodeParams::side_at. one_row: of a KV head, there is no more than one row of queries.
// num_units: that a launch has at most (sequences x tiles of queries x heads x row groups).
Status PrepareDecodeKernel(int head_dim, int rows, DecodeVariant variant, uint32_t side_at,
                           int num_kv_heads, bool has_center, bool one_row, int64_t num_units,
                           DecodeKernelInfo* info);
Status LaunchDecodeKernel(int head_dim, int rows, DecodeVariant variant, const DecodeParams& params,
                          const DecodeKernelInfo& info, void* stream);

}  // namespace tq
