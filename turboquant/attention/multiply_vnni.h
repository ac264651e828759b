// The integer products of attention_simd.cc on AVX-512 VNNI: call only where UseVnni() (isa.h).
#pragma once

#include <cstdint>

namespace tq {

// out[r * out_stride + lane] = sum over depth of tile x digits, exact. The tile is
// [num_groups][num_quads][16 lanes][4 depths]; one side is u8 and the other s8, the tile being the
// u8 side where tile_unsigned. digits: [num_rows][digit_stride] of 4 num_quads bytes.
void MultiplyCodesVnni(const uint8_t* tile, bool tile_unsigned, int num_groups, int num_quads,
                       const uint8_t* digits, int digit_stride, int num_rows, int32_t* out,
                       int out_stride);

// The same from packed codes (pack.h) of 2, 3 or 4 bits through a table of at least 16 bytes: no
// tile is written. Worth it while few rows share the levels.
inline bool CanMultiplyPacked(int bits, int padded_dim) {
  return bits <= 4 && padded_dim % 32 == 0;
}
void MultiplyPackedVnni(int bits, const uint8_t* packed, const uint8_t* table, bool tile_unsigned,
                        int num_groups, int num_quads, const uint8_t* digits, int digit_stride,
                        int num_rows, int32_t* out, int out_stride);

// The same for values [num_pairs][num_lanes][2] and 16-bit digits; num_lanes is a multiple of 16.
void MultiplyPairsVnni(const int8_t* values, int num_lanes, int num_pairs, const int16_t* digits,
                       int digit_stride, int num_rows, int32_t* out, int out_stride);

}  // namespace tq
