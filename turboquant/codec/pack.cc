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

// The planes of a width: bits of the first, then of the second (0: none).
struct Planes {
  int low, high;
};
Planes PlanesOf(int bits) {
  switch (bits) {
    case 3: return {2, 1};
    case 5: return {4, 1};
    case 6: return {4, 2};
    default: return {bits, 0};
  }
}

}  // namespace

void PackCodes(int bits, const uint8_t* codes, int num_cells, uint8_t* packed) {
  const Planes planes = PlanesOf(bits);
  PackPlane(planes.low, 0, codes, num_cells, packed);
  if (planes.high > 0) {
    PackPlane(planes.high, planes.low, codes, num_cells, packed + num_cells * 8 * planes.low);
  }
}

void UnpackCodesRef(int bits, const uint8_t* packed, int num_cells, const uint8_t* table,
                    uint8_t* out) {
  const auto plane = [&](const uint8_t* base, int width, int cell, int i) {
    const int per_byte = 8 / width;
    return (base[cell / per_byte * 64 + i] >> (cell % per_byte * width)) & ((1 << width) - 1);
  };
  const Planes planes = PlanesOf(bits);
  const uint8_t* high = packed + num_cells * 8 * planes.low;
  for (int cell = 0; cell < num_cells; ++cell) {
    for (int i = 0; i < 64; ++i) {
      int code = plane(packed, planes.low, cell, i);
      if (planes.high > 0) code |= plane(high, planes.high, cell, i) << planes.low;
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
