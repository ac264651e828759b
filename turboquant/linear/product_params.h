// What the product kernels of a CUDA device read, and its order in memory.
//
// A tile is 16 output rows x all inputs, in chunks of 128 inputs (the last one filled up with
// zeros). A lane of a warp is 4 r + c; register i of a 16 x 32 fragment has in byte b the code of
// row r + 8 (i & 1), input 4 c + b + 16 (i >> 1).
//   codes:  chunk of 4 blocks of 32 inputs. 4 bits: words a0 | a2 << 4, a1 | a3 << 4 of each block;
//           8 bits: a0, a1, a2, a3, signed. Lanes have 16 bytes in turn.
//   scales: of a chunk, for each r, row r and then row r + 8:
//           Q4_0, Q8_0: d of the 4 blocks. Q4_1: (d, m) of the 4 blocks.
//           Q4_K: (scale, minimum) of the 4 blocks, a byte each.
//   supers: Q4_K only, of two chunks, for each r: (d, m) of row r and of row r + 8.
// Numbers without a type above are f16.
#pragma once

#include <cstdint>

#include "turboquant/base/device.h"
#include "turboquant/base/status.h"
#include "turboquant/linear/weight.h"

namespace tq {

inline constexpr int kMaxProductRows = 16;
inline constexpr int kProductChunk = 128;
inline constexpr int kProductTileRows = 16;

struct ProductLayout {
  int64_t chunks = 0;                                       // of a tile, even
  size_t code_bytes = 0, scale_bytes = 0, super_bytes = 0;  // of a chunk; of two chunks
  size_t codes(int64_t chunk) const { return static_cast<size_t>(chunk) * code_bytes; }
  size_t scales(int64_t chunk) const {
    return codes(chunks) + static_cast<size_t>(chunk) * scale_bytes;
  }
  size_t supers(int64_t chunk) const {
    return scales(chunks) + static_cast<size_t>(chunk / 2) * super_bytes;
  }
  size_t tile_bytes() const { return supers(chunks); }

  static ProductLayout For(WeightType type, int64_t in_dim) {
    ProductLayout l;
    l.chunks = (in_dim + 2 * kProductChunk - 1) / (2 * kProductChunk) * 2;
    l.code_bytes = kProductTileRows * kProductChunk * (type == WeightType::kQ8_0 ? 1 : 0) +
                   kProductTileRows * kProductChunk / 2 * (type == WeightType::kQ8_0 ? 0 : 1);
    l.scale_bytes = type == WeightType::kQ4_1 ? 256 : 128;
    l.super_bytes = type == WeightType::kQ4_K ? 64 : 0;
    return l;
  }
};

// One tile of a packed matrix; `tile`: tile_bytes zeros.
void PackProductTile(const PackedMatrix& matrix, const ProductLayout& layout, int64_t first_row,
                     uint8_t* tile);

// Activations: for each block of 32 inputs, digits of 16 rows in fragments of 4 rows,
//   [rows / 4][lane][2 registers]: lane 4 r + c, register i, byte b: input 4 c + b + 16 i of row
//   r / 2, its high byte where r is even, the low one where it is odd;
// and [16 rows] of (scale, scale * sum of the digits' numbers).
inline constexpr int kActivationTiles = kMaxProductRows / 4;
struct ActivationScale {
  float scale, scaled_sum;
};
inline constexpr size_t kActivationBlockBytes =
    kActivationTiles * 32 * 8 + kMaxProductRows * sizeof(ActivationScale);

struct QuantizeParams {
  const void* x = nullptr;  // [rows][in_dim]
  DeviceIo io = DeviceIo::kF32;
  int64_t in_dim = 0, num_blocks = 0;  // of 32 inputs; those behind in_dim are zeros
  int32_t rows = 0;
  uint8_t* digits = nullptr;          // [block][rows / 4][lane][8]
  ActivationScale* scales = nullptr;  // [block][16]
};
struct ProductParams {
  const uint8_t* weights = nullptr;  // [tile][tile_bytes]
  uint64_t tile_bytes = 0;
  uint32_t scales_at = 0, supers_at = 0;  // in a tile
  int32_t chunks = 0;
  int64_t out_dim = 0;
  int32_t rows = 0;
  const uint8_t* digits = nullptr;
  const ActivationScale* scales = nullptr;
  void* y = nullptr;  // [rows][out_dim]
  DeviceIo io = DeviceIo::kF32;
};
// `stream`: a cudaStream_t.
Status LaunchQuantize(const QuantizeParams& params, void* stream);
Status LaunchProduct(WeightType type, const ProductParams& params, void* stream);

}  // namespace tq
