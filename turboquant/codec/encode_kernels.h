// The inner loops behind encode.h, as reference and as SIMD: equal results bit for bit.
#pragma once

#include <cstdint>

#include "turboquant/codec/codebook.h"

namespace tq {

// q[i] = nearest(x[i] * 127 / max|x|), q padded with zeros to padded_dim; returns max|x| / 127
// (0, and all q 0, when max|x| / 127 would not be a normal number).
float QuantizeRowRef(const float* x, int head_dim, int padded_dim, int8_t* q);
float QuantizeRowSimd(const float* x, int head_dim, int padded_dim, int8_t* q);

// Integer sums of one row after coding: what gain correction needs.
struct RowSums {
  int32_t rr = 0;   // sum row^2
  int32_t rl = 0;   // sum row * level
  int32_t ll = 0;   // sum level^2
  int32_t top = 0;  // largest |row|
};

// codes[i] = number of thresholds below row[i] / reference, over n values; the padding to padded_n
// (a multiple of 16) gets the code of 0, whose level is not counted. A row of zeros gives sums of
// zero. reference = rms(row), or max|row| if book.absmax.
RowSums CodeRowRef(const CodebookTable& book, const int8_t* row, int n, int padded_n,
                   uint8_t* codes);
RowSums CodeRowSimd(const CodebookTable& book, const int8_t* row, int n, int padded_n,
                    uint8_t* codes);

// The reference of a row in units of the row's integers.
float BookReference(const CodebookTable& book, const RowSums& sums, int n);
// Integer thresholds of a row: row > t[i] <=> row / reference > thresholds[i].
void IntegerThresholds(const CodebookTable& book, float reference, int8_t* t);

}  // namespace tq
