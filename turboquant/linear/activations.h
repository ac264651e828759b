// Rows of activations in int16, as the block types multiply them.
//
// Per row and block of 32 inputs: scale = max|x| / 32767, code = round(x / scale) to nearest even.
// A block whose largest value is below 1e-30 is all zero; a block with a value that is not finite
// gets scale NaN, so that the product says so.
//
// Why not int8: its rounding alone moves the logits of a small model by a KL of 0.006, and two runs
// that differ in one last bit by as much, more than a 4-bit cache does. 16 bits cost twice the
// multiplications, which a product of few rows hides behind the reading of the weights.
#pragma once

#include <cstdint>

#include "turboquant/base/aligned.h"
#include "turboquant/base/thread_pool.h"

namespace tq {

struct QuantizedRows {
  int rows = 0;
  int64_t num_blocks = 0;            // of a row
  AlignedBuffer<int16_t> codes;      // [rows][num_blocks * 32]
  AlignedBuffer<float> scales;       // [rows][num_blocks]
  AlignedBuffer<int32_t> sums;       // [rows][num_blocks][2], of the codes of half a block
  AlignedBuffer<float> scaled_sums;  // [rows][num_blocks], scale * sum: what a minimum multiplies
};

// x: [rows][in_dim], in_dim a multiple of 32. Buffers of `out` are reused.
void QuantizeRows(const float* x, int rows, int64_t in_dim, ThreadPool& pool, QuantizedRows& out);

// One row of num_blocks * 32 values; the kernels behind QuantizeRows.
void QuantizeRowRef(const float* x, int64_t num_blocks, int16_t* codes, float* scales,
                    int32_t* sums, float* scaled_sums);
void QuantizeRowSimd(const float* x, int64_t num_blocks, int16_t* codes, float* scales,
                     int32_t* sums, float* scaled_sums);

}  // namespace tq
