// One block of one KV head for a set of query rows: what attention.cc drives and what the
// reference and the SIMD kernels implement. Raw pointers, all checks done before.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "turboquant/attention/v_skip.h"
#include "turboquant/base/aligned.h"
#include "turboquant/codec/center.h"
#include "turboquant/codec/codebook.h"
#include "turboquant/codec/codec.h"
#include "turboquant/codec/record_layout.h"

namespace tq {

inline constexpr int kMaxQDigit16 = 32767;  // 32767 * 127 * kMaxHeadDim < 2^31
inline constexpr int kMaxPDigit16 = 32767;

// Query rows of one KV head: row = query * (num_q_heads / num_kv_heads) + head in the group.
// Everything is scaled by softmax scale * log2(e), so that weights are powers of two.
struct QueryRows {
  int num_rows = 0;
  int head_dim = 0, padded_dim = 0;
  const float* q = nullptr;         // [rows][padded_dim], rotated; for float K and anchors
  const int8_t* q8 = nullptr;       // [rows][padded_dim]: q = q8 * q8_scale; for codes
  const float* q8_scale = nullptr;  // [rows]
  const int32_t* q8_sum = nullptr;  // [rows] sum of q8
  const int16_t* q16 = nullptr;     // [rows][padded_dim]; for 8-bit K
  const float* q16_scale = nullptr;
  // Centre term: score += sum over pairs of a cos(t theta) + b sin(t theta); see center.h.
  const HeadCenter* center = nullptr;  // nullptr: none
  const float* center_ab = nullptr;    // [rows][num_pairs][a, b]
};

// One side (K or V) of a block, open or sealed.
struct BlockSide {
  ValueType type = ValueType::kInt;
  int bits = 8;
  const uint8_t* values = nullptr;
  const uint8_t* log8 = nullptr;  // [64] sealed scales, or nullptr
  float base = 0;
  const float* scales = nullptr;        // [64] open scales, or nullptr (float values)
  const CodebookTable* book = nullptr;  // of codes, trellises excepted
  bool trellis = false;
  const Codec* grouped = nullptr;  // scales in groups, at group_scales; nullptr: one a token
  const uint8_t* group_scales = nullptr;

  // What is multiplied: small levels with 8-bit digits, int8 with 16-bit digits, else floats.
  bool is_codes() const { return type == ValueType::kInt && bits <= 6 && grouped == nullptr; }
  bool is_int8() const { return type == ValueType::kInt && bits == 8 && grouped == nullptr; }
  bool is_float() const { return !is_codes() && !is_int8(); }
};

// Skipping of V (v_skip.h) in a sealed block; masses count in units of 2^reference.
struct BlockSkip {
  const float* reference = nullptr;  // [rows]
  const float* limit = nullptr;      // [rows] the largest mass that is skipped; nullptr: none is
  int rows_of_query = 1;             // rows in a row that agree, and divide their number
  float v_bound = 0;                 // of the block
};

struct BlockArgs {
  const QueryRows* rows = nullptr;
  BlockSide k, v;
  const CenterTable* center_table = nullptr;
  int64_t block = 0;
  // Residual rows (anchor.h): [num_anchors] each.
  int num_anchors = 0, anchor_bits = 0;
  const AnchorInfo* anchors = nullptr;
  const uint8_t* k_anchors = nullptr;
  const uint8_t* v_anchors = nullptr;
  // What the next block will read, to be fetched while this one is multiplied; nullptr: nothing.
  const std::byte* ahead = nullptr;
  size_t ahead_bytes = 0;
  const std::byte* ahead_info = nullptr;
  bool use_vnni = false;  // the machine runs multiply_vnni.h
  // Row r sees the tokens [first_visible[r], num_visible[r]) of the block; nullptr: from 0, to 64.
  // A row that sees none keeps its state as it was.
  const int* first_visible = nullptr;
  const int* num_visible = nullptr;
  float softcap = 0;  // of the scores, times log2(e) as they are; 0 = none
  BlockSkip skip;     // SoftmaxState::skipped is there when this has a limit
};

// Softmax state of the rows: running maximum (log2), sum of weights, weighted sum of V.
struct SoftmaxState {
  float* m = nullptr;  // [rows]
  float* l = nullptr;  // [rows]
  float* o = nullptr;  // [rows][padded_dim]
  // [rows] sums over skipped blocks, in units of 2^BlockSkip::reference; nullptr: none are kept.
  SkippedV* skipped = nullptr;
};

// Scratch of a worker; buffers grow and are reused.
struct BlockScratch {
  AlignedBuffer<uint8_t> k_tile, v_tile;      // levels as bytes
  AlignedBuffer<float> k_floats, v_floats;    // [depth][lanes]
  AlignedBuffer<float> k_anchors, v_anchors;  // [num_anchors][padded_dim]
  std::vector<int> first_visible;             // of the rows, where a window begins
  AlignedBuffer<float> scores;                // [rows][64], where V may be skipped
  std::vector<uint8_t> skips;                 // [rows] whether it is
};

void AttendBlockRef(const BlockArgs& args, SoftmaxState state, BlockScratch* scratch);
void AttendBlockSimd(const BlockArgs& args, SoftmaxState state, BlockScratch* scratch);

// Digits of one query row: nearest(q * limit / max|q|), returns max|q| / limit (0 for a zero row).
// sum8 may be null.
struct QueryDigits {
  float scale8 = 0, scale16 = 0;
  int32_t sum8 = 0;
};
QueryDigits MakeDigitsRef(const float* q, int padded_dim, int8_t* q8, int16_t* q16);
QueryDigits MakeDigitsSimd(const float* q, int padded_dim, int8_t* q8, int16_t* q16);

}  // namespace tq
