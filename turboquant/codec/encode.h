// From float vectors to open rows, and from open rows to sealed codes.
//
// A row is written once, at append: sanitized, centred (K), rotated, then int8 with one f32 scale
// (or a float type). Sealing reads nothing but those rows. encode_ref.cc is the specification; the
// SIMD path gives the same bytes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "turboquant/codec/center.h"
#include "turboquant/codec/codebook.h"
#include "turboquant/codec/codec.h"
#include "turboquant/codec/record_layout.h"
#include "turboquant/codec/rotation.h"

namespace tq {

// Values that the numeric policy changed at write (docs/formats/record.md).
struct WriteCounters {
  uint64_t nonfinite_values = 0;  // NaN or infinity, stored as 0
  uint64_t clamped_values = 0;    // beyond the range of the row format
  WriteCounters& operator+=(const WriteCounters& o) {
    nonfinite_values += o.nonfinite_values;
    clamped_values += o.clamped_values;
    return *this;
  }
};

// Largest magnitude that an int8 row keeps: its square times kMaxHeadDim still fits float32.
inline constexpr float kMaxRowValue = 1e17f;
inline constexpr float kMaxF16Value = 65504.f;  // kMaxFP8 for FP8 rows

// Everything about one side of one head that writing a row needs.
struct RowWriter {
  Side side = Side::kK;
  int head_dim = 0;
  ValueType type = ValueType::kInt;
  const Rotation* rotation = nullptr;
  const HeadCenter* center = nullptr;  // nullptr or empty: none
  const CenterTable* center_table = nullptr;
};

// Writes rows [first_row, first_row + num_rows) of one open block from x: num_rows vectors of
// head_dim floats, `stride` floats apart; the first has absolute position first_pos. `values` and
// `scales` (f32[64], kInt rows only) are the block's part in the order of record_layout.h.
void WriteOpenRows(const RowWriter& writer, const float* x, size_t stride, int64_t first_pos,
                   int first_row, int num_rows, std::byte* values, float* scales,
                   WriteCounters* counters);

// One side of a full open block.
struct OpenSide {
  Side side = Side::kK;
  int head_dim = 0;
  ValueType type = ValueType::kInt;
  const std::byte* values = nullptr;
  const float* scales = nullptr;  // [64], kInt only
};

// Seals it. `codes`, `scales` (ScaleBytes) and the base are parts of the record. `calibrated` is
// the head's book for Codebook::kCalibrated, else ignored. `bound` (may be null) becomes an upper
// bound of the largest vector norm.
void SealSide(const Codec& codec, const CodebookTable* calibrated, const OpenSide& open,
              uint8_t* codes, uint8_t* scales, bf16_t* base, bf16_t* bound);

// The rows that codes are made from: row[t] of padded head_dim, value = scale[t] * row[t].
// Rows that are f16 while open are brought to int8 first.
void ReadInt8Rows(const OpenSide& open, int8_t (*rows)[kMaxHeadDim], float* scale);

}  // namespace tq
