// Bit planes: codes of one byte each to the packed order of record_layout.h and back.
#pragma once

#include <cstdint>

#include "turboquant/codec/codebook.h"

namespace tq {

// `codes`: num_cells x 64 bytes in cell order; num_cells is a multiple of 16. `packed`: num_cells x
// 64 x bits / 8 bytes. bits: 2 to 6.
void PackCodes(int bits, const uint8_t* codes, int num_cells, uint8_t* packed);

// The inverse, through a table of 2^bits entries (at least 16): out = table[code]. Tables of 5 and
// 6 bits are linear, table[code] = table[0] + 2 code; vector kernels read only the first entry.
void UnpackCodes(int bits, const uint8_t* packed, int num_cells, const uint8_t* table,
                 uint8_t* out);
void UnpackCodesRef(int bits, const uint8_t* packed, int num_cells, const uint8_t* table,
                    uint8_t* out);
void UnpackCodesSimd(int bits, const uint8_t* packed, int num_cells, const uint8_t* table,
                     uint8_t* out);

// table[code] = level + offset as a byte, of kMaxLevels entries; the rest is filled with the last.
inline void LevelTable(const CodebookTable& book, int offset, uint8_t* table) {
  for (int i = 0; i < kMaxLevels; ++i) table[i] = static_cast<uint8_t>(book.levels[i] + offset);
}

}  // namespace tq
