#include "turboquant/codec/pack.h"

#include "turboquant/base/isa.h"

namespace tq {
namespace {

// One plane of `width` bits taken from bit `shift` of the codes.
void PackPlane(int width, int shift, const uint8_t* codes, int num_cells, uint8_t* plane) {
  const int per_byte = 8 / width;
  const uint8_t mask = static_cast<uint8_t>((1 << width) - 1);
  for (int cell = 0; cell < num_cells; cell += per_byte) {
    uint8_t* out = plane + cell / per_byte * 64;
    for (int i = 0; i < 64; ++i) {
      unsigned byte = 0;
      for (int c = 0; c < per_byte; ++c) {
        byte |= static_cast<unsigned>((codes[(cell + c) * 64 + i] >> shift) & mask) << (c * width);
      }
      out[i] = static_cast<uint8_t>(byte);
    }
  }
}

}  // namespace

void PackCodes(int bits, const uint8_t* codes, int num_cells, uint8_t* packed) {
  if (bits != 3) return PackPlane(bits, 0, codes, num_cells, packed);
  PackPlane(2, 0, codes, num_cells, packed);
  PackPlane(1, 2, codes, num_cells, packed + num_cells * 16);
}

void UnpackCodesRef(int bits, const uint8_t* packed, int num_cells, const uint8_t* table,
                    uint8_t* out) {
  const auto plane = [&](const uint8_t* base, int width, int cell, int i) {
    const int per_byte = 8 / width;
    return (base[cell / per_byte * 64 + i] >> (cell % per_byte * width)) & ((1 << width) - 1);
  };
  for (int cell = 0; cell < num_cells; ++cell) {
    for (int i = 0; i < 64; ++i) {
      const int code =
          bits == 3 ? plane(packed, 2, cell, i) | plane(packed + num_cells * 16, 1, cell, i) << 2
                    : plane(packed, bits, cell, i);
      out[cell * 64 + i] = table[code];
    }
  }
}

void UnpackCodes(int bits, const uint8_t* packed, int num_cells, const uint8_t* table,
                 uint8_t* out) {
  UseReferenceKernels() ? UnpackCodesRef(bits, packed, num_cells, table, out)
                        : UnpackCodesSimd(bits, packed, num_cells, table, out);
}

}  // namespace tq
