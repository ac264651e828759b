// A weight matrix as the kernels want it: rows interleaved in panels of 16.
//
// A register holds one input (or a pair of inputs in one 32-bit lane) of several output rows, so a
// product needs no sum across lanes and every instruction set reads the same bytes.
// The file's blocks are moved, never requantized: bits per weight stay what they were.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "turboquant/base/aligned.h"
#include "turboquant/base/status.h"
#include "turboquant/base/thread_pool.h"

namespace tq {

// Row formats, as GGUF files hold them. The last three are blocks of 32 inputs:
//   Q4_0 [f16 d][16 bytes]         w = d (code - 8)
//   Q4_1 [f16 d][f16 m][16 bytes]  w = d code + m
//   Q8_0 [f16 d][32 int8]          w = d code
// where byte i of a 4-bit block holds input i (low nibble) and input i + 16 (high nibble).
enum class WeightType : uint8_t { kF32, kF16, kBF16, kQ4_0, kQ4_1, kQ8_0 };

const char* WeightTypeName(WeightType type);  // "F32", "Q4_1"
// Inputs and bytes of one block; 1 input for the float types.
int WeightBlockLen(WeightType type);
int WeightBlockBytes(WeightType type);
inline bool IsBlockType(WeightType type) {
  return WeightBlockLen(type) > 1;
}

inline constexpr int kPanelRows = 16;
inline constexpr int kBlockLen = 32;  // inputs that share a scale, in weights and in activations

// Panel p holds output rows 16 p .. 16 p + 15 (rows past the end are zero), inputs ascending:
//   float types: [in_dim][16 rows]
//   Q4_0, Q4_1:  a block = [16 d][16 m, Q4_1 only][4 chunks][16 rows][2 inputs][4 nibbles];
//                nibble j of the 16 bits of (chunk c, input i) is the code of input 8 c + 2 j + i
//   Q8_0:        a block = [16 d][16 chunks][16 rows][2 inputs], one byte a code
// so that a shift and a mask give pairs of consecutive inputs as 16-bit numbers, row by row.
class PackedMatrix {
 public:
  PackedMatrix() = default;

  // `rows` is [out_dim] rows of in_dim values in `type`. Row i of the matrix is row row_order[i] of
  // `rows`; an empty row_order keeps the order. kInvalidArgument for sizes that do not agree,
  // kDataLoss for scales or values that are not finite, kResourceExhausted without memory.
  static Result<PackedMatrix> Pack(WeightType type, int64_t out_dim, int64_t in_dim,
                                   std::span<const std::byte> rows,
                                   std::span<const int32_t> row_order, ThreadPool& pool);

  WeightType type() const { return type_; }
  int64_t out_dim() const { return out_dim_; }
  int64_t in_dim() const { return in_dim_; }
  int64_t num_panels() const { return (out_dim_ + kPanelRows - 1) / kPanelRows; }
  size_t panel_bytes() const { return panel_bytes_; }
  const std::byte* panel(int64_t p) const {
    return data_.data() + static_cast<size_t>(p) * panel_bytes_;
  }
  size_t bytes() const { return data_.size(); }

  // Row `row` as in_dim floats: embedding lookup.
  void DecodeRow(int64_t row, float* out) const;

 private:
  WeightType type_ = WeightType::kF32;
  int64_t out_dim_ = 0, in_dim_ = 0;
  size_t panel_bytes_ = 0;
  AlignedBuffer<std::byte> data_;
};

// Bytes of one packed block of 16 rows x 32 inputs (x 1 input for the float types).
int PackedBlockBytes(WeightType type);

// Where the code of input k (0..31) of panel row `lane` lies behind the scales of a packed block. A
// 4-bit code is the high nibble of its byte for odd k / 2.
constexpr int Q4ByteIndex(int k, int lane) {
  return (k / 8 * kPanelRows + lane) * 4 + k % 2 * 2 + k % 8 / 4;
}
constexpr int Q8ByteIndex(int k, int lane) {
  return (k / 2 * kPanelRows + lane) * 2 + k % 2;
}
// That code as it multiplies d.
inline int BlockCode(WeightType type, const std::byte* codes, int k, int lane) {
  if (type == WeightType::kQ8_0) return static_cast<int8_t>(codes[Q8ByteIndex(k, lane)]);
  const int code = std::to_integer<int>(codes[Q4ByteIndex(k, lane)]) >> (4 * (k / 2 % 2)) & 15;
  return type == WeightType::kQ4_0 ? code - 8 : code;
}

}  // namespace tq
