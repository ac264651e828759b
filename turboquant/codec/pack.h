// Bit planes: codes of one byte each to the packed order of record_layout.h and back.
#pragma once

#include <cstdint>

namespace tq {

// `codes`: num_cells x 64 bytes in cell order; num_cells is a multiple of 16. `packed`: num_cells x
// 64 x bits / 8 bytes. bits: 2, 3, 4.
void PackCodes(int bits, const uint8_t* codes, int num_cells, uint8_t* packed);

// The inverse, through a table: out = table[code]. The table has 16 entries.
void UnpackCodes(int bits, const uint8_t* packed, int num_cells, const uint8_t* table,
                 uint8_t* out);
void UnpackCodesRef(int bits, const uint8_t* packed, int num_cells, const uint8_t* table,
                    uint8_t* out);
void UnpackCodesSimd(int bits, const uint8_t* packed, int num_cells, const uint8_t* table,
                     uint8_t* out);

}  // namespace tq
