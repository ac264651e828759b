// A weight matrix as the kernels want it: rows interleaved in panels of 16.
//
// A register holds a pair of inputs (or one, for the float types) of several output rows, so a
// product needs no sum across lanes and every instruction set reads the same bytes. The file's
// blocks are moved, never requantized.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "turboquant/base/status.h"
#include "turboquant/base/thread_pool.h"
#include "turboquant/linear/weight_memory.h"

namespace tq {

// Row formats, as GGUF files hold them; file_block.cc knows their bytes.
enum class WeightType : uint8_t {
  kF32,
  kF16,
  kBF16,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0,
  kQ2_K,
  kQ3_K,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kMXFP4,
};

// What a block of a type is made of. A weight is
//   scale * (code - offset) + minimum,
// where scale is d, or d times the integer scale of a group of inputs (K types), and minimum is m,
// or -m times the integer minimum of the group (K types); d and m are one f16 each a block.
// Where numbers are 4-bit floats (MXFP4, OCP Microscaling Formats 1.0: E2M1 with a shared E8M0),
// d is a power of two and the code is a rank, from the least of the 16 numbers to the largest:
//   d * kFloat4Levels[code].
struct WeightLayout {
  const char* name;
  int block_len;    // inputs of a block; 1 for the float types
  int block_bytes;  // in a file
  int low_bits;     // a code is a number of low_bits ...
  int high_bits;    // ... below one of high_bits; 0: all bits are low ones
  int offset;
  int group_len;  // inputs that share a scale
  bool has_min;
  int scale_bytes;  // of the integers of a group when packed; 1 with has_min: two of 4 bits
  bool is_float4 = false;
};

inline constexpr WeightLayout kWeightLayouts[] = {
    {"F32", 1, 4, 0, 0, 0, 1, false, 0},        {"F16", 1, 2, 0, 0, 0, 1, false, 0},
    {"BF16", 1, 2, 0, 0, 0, 1, false, 0},       {"Q4_0", 32, 18, 4, 0, 8, 32, false, 0},
    {"Q4_1", 32, 20, 4, 0, 0, 32, true, 0},     {"Q5_0", 32, 22, 4, 1, 16, 32, false, 0},
    {"Q5_1", 32, 24, 4, 1, 0, 32, true, 0},     {"Q8_0", 32, 34, 8, 0, 128, 32, false, 0},
    {"Q2_K", 256, 84, 2, 0, 0, 16, true, 1},    {"Q3_K", 256, 110, 2, 1, 4, 16, false, 1},
    {"Q4_K", 256, 144, 4, 0, 0, 32, true, 2},   {"Q5_K", 256, 176, 4, 1, 0, 32, true, 2},
    {"Q6_K", 256, 210, 4, 2, 32, 16, false, 1}, {"MXFP4", 32, 17, 4, 0, 12, 32, false, 0, true},
};
constexpr const WeightLayout& LayoutOf(WeightType type) {
  return kWeightLayouts[static_cast<int>(type)];
}

// The numbers of E2M1, doubled: integers, of which the 8-bit d stands for a half (see Float4Scale).
// Rank 7 is -0. The offset of MXFP4 makes them unsigned, as kernels look them up.
inline constexpr int8_t kFloat4Levels[16] = {-12, -8, -6, -4, -3, -2, -1, 0,
                                             0,   1,  2,  3,  4,  6,  8,  12};
// 2^(e - 128): the shared power of two 2^(e - 127), halved for doubled levels.
inline constexpr uint8_t kFloat4MaxExponent = 252;  // 6 x 2^(e - 127) is a float; 255: no number
float Float4Scale(uint8_t e);

inline const char* WeightTypeName(WeightType type) {  // "F32", "Q4_1"
  return LayoutOf(type).name;
}
// All of them: "F32, F16, ...".
std::string WeightTypeNames();
// kUnsupported lists the names there are.
Result<WeightType> WeightTypeOf(const std::string& name);

inline constexpr int kPanelRows = 16;
inline constexpr int kBlockLen = 32;  // inputs that share a scale in activations
inline constexpr int kMaxBlockLen = 256;

constexpr int WeightBlockLen(WeightType type) {
  return LayoutOf(type).block_len;
}
constexpr int WeightBlockBytes(WeightType type) {
  return LayoutOf(type).block_bytes;
}
constexpr bool IsBlockType(WeightType type) {
  return WeightBlockLen(type) > 1;
}
// Whether encode_block.h writes it; MXFP4 is read only.
constexpr bool IsWritable(WeightType type) {
  return !LayoutOf(type).is_float4;
}

// Panel p holds output rows 16 p .. 16 p + 15 (rows past the end are zero), inputs ascending:
//   float types: [in_dim][16 rows]
//   block types: blocks of [16 d, of MXFP4 a byte each][16 m, if there is a minimum], then for
//   every 32 inputs
//     [groups][16 scales] and [groups][16 minima], one byte each, K types only
//       (Q2_K: one byte for both, the minimum in the high half)
//     [low bits of the codes][high bits of the codes].
// Codes of b bits: chunks of [16 rows][2 inputs], 16 bits each; field j of the 16 bits of chunk c
// and input i is the code of input c * 32 / b + 2 j + i, so that a shift and a mask give pairs of
// consecutive inputs as 16-bit numbers, row by row. A code is stored without its offset taken off;
// those of Q8_0 have 128 added.
// Bytes are those of the file but for the 6-bit integers of Q3_K, Q4_K and Q5_K: 4 in a block more.
class PackedMatrix {
 public:
  PackedMatrix() = default;

  // `rows` is [out_dim] rows of in_dim values in `type`. Row i of the matrix is row row_order[i] of
  // `rows`; an empty row_order keeps the order. kInvalidArgument for sizes that do not agree,
  // kDataLoss for scales or values that are not finite, kResourceExhausted without memory.
  // `memory`: shared by the matrices of a model; nullptr: memory of its own.
  static Result<PackedMatrix> Pack(WeightType type, int64_t out_dim, int64_t in_dim,
                                   std::span<const std::byte> rows,
                                   std::span<const int32_t> row_order, ThreadPool& pool,
                                   WeightMemory* memory = nullptr);

  WeightType type() const { return type_; }
  int64_t out_dim() const { return out_dim_; }
  int64_t in_dim() const { return in_dim_; }
  int64_t num_panels() const { return (out_dim_ + kPanelRows - 1) / kPanelRows; }
  size_t panel_bytes() const { return panel_bytes_; }
  const std::byte* panel(int64_t p) const {
    return data_.get() + static_cast<size_t>(p) * panel_bytes_;
  }
  size_t bytes() const { return panel_bytes_ * static_cast<size_t>(num_panels()); }

  // Row `row` as in_dim floats: embedding lookup.
  void DecodeRow(int64_t row, float* out) const;

 private:
  WeightType type_ = WeightType::kF32;
  int64_t out_dim_ = 0, in_dim_ = 0;
  size_t panel_bytes_ = 0;
  std::shared_ptr<const std::byte> data_;
};

// Bytes of parts of a packed block of 16 rows.
constexpr int PackedHeaderBytes(const WeightLayout& f) {
  return kPanelRows * (f.is_float4 ? 1 : f.has_min ? 4 : 2);
}
constexpr int PackedScaleBytes(const WeightLayout& f) {  // of 32 inputs
  return kPanelRows * (kBlockLen / f.group_len) * f.scale_bytes;
}
constexpr int PackedCodeBytes(int bits) {  // of 32 inputs
  return kPanelRows * kBlockLen * bits / 8;
}
constexpr int PackedPartBytes(const WeightLayout& f) {  // all of 32 inputs
  return PackedScaleBytes(f) + PackedCodeBytes(f.low_bits) + PackedCodeBytes(f.high_bits);
}
constexpr int PackedBlockBytes(WeightType type) {
  const WeightLayout& f = LayoutOf(type);
  if (f.block_len == 1) return kPanelRows * f.block_bytes;
  return PackedHeaderBytes(f) + f.block_len / kBlockLen * PackedPartBytes(f);
}

// What PackedMatrix::bytes() of a matrix will be.
constexpr size_t PackedMatrixBytes(WeightType type, int64_t out_dim, int64_t in_dim) {
  const auto panels = static_cast<size_t>((out_dim + kPanelRows - 1) / kPanelRows);
  const auto blocks = static_cast<size_t>(in_dim / WeightBlockLen(type));
  return panels * blocks * static_cast<size_t>(PackedBlockBytes(type));
}

// A row of 32 inputs in a packed block, number by number: what the references read.
struct PackedPart {
  const WeightLayout& layout;
  const std::byte* block;  // 16 rows
  int part;                // 32 inputs: 0 .. block_len / 32 - 1
  int lane;                // row

  float scale(int group) const;  // of inputs group * group_len ...
  float minimum(int group) const;
  int code(int k) const;  // of input k (0..31), offset taken off; of MXFP4: the level
};

}  // namespace tq
