#include "turboquant/linear/device_product.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "turboquant/base/numeric.h"

namespace tq {
namespace {

// Reads a packed matrix number by number.
class Reader {
 public:
  explicit Reader(const PackedMatrix& m) : m_(m), layout_(LayoutOf(m.type())) {}
  // Block `block` of 32 inputs of row `row`.
  PackedPart Part(int64_t row, int64_t block) const {
    const int parts = layout_.block_len / kBlockLen;
    return {layout_, m_.panel(row / kPanelRows) + block / parts * PackedBlockBytes(m_.type()),
            static_cast<int>(block % parts), static_cast<int>(row % kPanelRows)};
  }
  f16_t half(const PackedPart& part, int which) const {  // 0: d, 1: m
    f16_t h;
    std::memcpy(&h, part.block + 2 * (which * kPanelRows + part.lane), sizeof h);
    return h;
  }
  uint8_t group_byte(const PackedPart& part, int which) const {  // Q4_K: 0: scale, 1: minimum
    return std::to_integer<uint8_t>(
        part.block[PackedHeaderBytes(layout_) + part.part * PackedPartBytes(layout_) +
                   which * kPanelRows + part.lane]);
  }

 private:
  const PackedMatrix& m_;
  const WeightLayout& layout_;
};

// Rows [first, first + kProductTileRows) of a float type, [row][in_dim].
void PackFloatRows(const PackedMatrix& m, int64_t first, uint8_t* to) {
  const auto bytes = static_cast<size_t>(WeightBlockBytes(m.type()));
  const int64_t end = std::min(first + kProductTileRows, m.out_dim());
  for (int64_t row = first; row < end; ++row) {
    const std::byte* const from = m.panel(row / kPanelRows) + row % kPanelRows * bytes;
    for (int64_t i = 0; i < m.in_dim(); ++i, to += bytes) {
      std::memcpy(to, from + i * kPanelRows * bytes, bytes);
    }
  }
}

size_t DigitBytes(int64_t num_blocks) {
  return static_cast<size_t>(num_blocks) * kActivationTiles * 32 * 8;
}

}  // namespace

void PackProductTile(const PackedMatrix& m, const ProductLayout& layout, int64_t first_row,
                     uint8_t* tile) {
  const Reader reader(m);
  const WeightLayout& f = LayoutOf(m.type());
  const bool bytes = f.low_bits == 8;
  const auto put_half = [](uint8_t* to, f16_t h) { std::memcpy(to, &h, sizeof h); };
  for (int row = 0; row < kProductTileRows && first_row + row < m.out_dim(); ++row) {
    const int r = row % 8, second = row / 8;
    for (int64_t block = 0; block < m.in_dim() / kBlockLen; ++block) {
      const PackedPart part = reader.Part(first_row + row, block);
      const int64_t chunk = block / 4;
      const int b = static_cast<int>(block % 4);
      for (int k = 0; k < kBlockLen; ++k) {
        const int lane = 4 * r + k % 16 / 4, reg = second + 2 * (k / 16), byte = k % 4;
        const int code = part.code(k) + (bytes ? 0 : f.offset);
        uint8_t* const codes = tile + layout.codes(chunk);
        if (bytes) {
          codes[b * 512 + lane * 16 + reg * 4 + byte] =
              static_cast<uint8_t>(static_cast<int8_t>(code));
        } else {
          codes[b / 2 * 512 + lane * 16 + b % 2 * 8 + reg % 2 * 4 + byte] |=
              static_cast<uint8_t>(code << (reg / 2 * 4));
        }
      }
      uint8_t* const scales = tile + layout.scales(chunk);
      if (m.type() == WeightType::kQ4_K) {
        uint8_t* const at = scales + r * 16 + second * 8 + b * 2;
        at[0] = reader.group_byte(part, 0), at[1] = reader.group_byte(part, 1);
        uint8_t* const super = tile + layout.supers(chunk) + r * 8 + second * 4;
        put_half(super, reader.half(part, 0));
        put_half(super + 2, reader.half(part, 1));
      } else if (f.has_min) {
        uint8_t* const at = scales + r * 32 + second * 16 + b * 4;
        put_half(at, reader.half(part, 0));
        put_half(at + 2, reader.half(part, 1));
      } else {
        put_half(scales + r * 16 + second * 8 + b * 2, reader.half(part, 0));
      }
    }
  }
}

Status DeviceMatrix::Check(WeightType type) {
  switch (type) {
    case WeightType::kQ4_0:
    case WeightType::kQ4_1:
    case WeightType::kQ4_K:
    case WeightType::kQ8_0:
    case WeightType::kF32:
    case WeightType::kF16:
    case WeightType::kBF16: return OkStatus();
    default:
      return Unsupported("cuda products: weights of type ", WeightTypeName(type),
                         "; supported: Q4_0, Q4_1, Q4_K, Q8_0, F32, F16, BF16");
  }
}

Result<DeviceMatrix> DeviceMatrix::Upload(const PackedMatrix& matrix, const DeviceStream& stream,
                                          ThreadPool* pool) {
  TQ_RETURN_IF_ERROR(Check(matrix.type()));
  DeviceMatrix m;
  m.type_ = matrix.type();
  m.out_dim_ = matrix.out_dim();
  m.in_dim_ = matrix.in_dim();
  const bool floats = !IsBlockType(m.type_);
  const ProductLayout layout = ProductLayout::For(m.type_, m.in_dim_);
  const auto row_bytes = static_cast<size_t>(m.in_dim_ * WeightBlockBytes(m.type_));
  const auto tiles = static_cast<size_t>((m.out_dim_ + kProductTileRows - 1) / kProductTileRows);
  const size_t tile_bytes = floats ? kProductTileRows * row_bytes : layout.tile_bytes();
  std::vector<uint8_t> data(floats ? static_cast<size_t>(m.out_dim_) * row_bytes
                                   : tiles * tile_bytes);
  const auto pack = [&](size_t tile, int) {
    const auto first = static_cast<int64_t>(tile) * kProductTileRows;
    uint8_t* const to = data.data() + tile * tile_bytes;
    floats ? PackFloatRows(matrix, first, to) : PackProductTile(matrix, layout, first, to);
  };
  if (pool != nullptr) {
    pool->ParallelFor(tiles, pack);
  } else {
    for (size_t tile = 0; tile < tiles; ++tile) pack(tile, 0);
  }
  TQ_ASSIGN_OR_RETURN(m.data_, DeviceBuffer::Allocate(data.size()));
  TQ_RETURN_IF_ERROR(m.data_.Upload(data.data(), data.size(), 0, stream));
  TQ_RETURN_IF_ERROR(stream.Synchronize());
  return m;
}

Result<DeviceMatrix> DeviceMatrix::Copy(const DeviceStream& stream) const {
  DeviceMatrix m;
  m.type_ = type_;
  m.out_dim_ = out_dim_;
  m.in_dim_ = in_dim_;
  TQ_ASSIGN_OR_RETURN(m.data_, DeviceBuffer::Allocate(data_.size()));
  TQ_RETURN_IF_ERROR(m.data_.Copy(data_, data_.size(), 0, 0, stream));
  return m;
}

Result<DeviceActivations> DeviceActivations::Create(int64_t in_dim, const DeviceStream& stream) {
  if (in_dim < 1) return InvalidArgument("cuda products: ", in_dim, " inputs; at least 1");
  DeviceActivations a;
  a.in_dim_ = in_dim;
  const int64_t blocks = ProductLayout::For(WeightType::kQ4_0, in_dim).chunks * 4;
  TQ_ASSIGN_OR_RETURN(a.buffer_,
                      DeviceBuffer::Allocate(static_cast<size_t>(blocks) * kActivationBlockBytes));
  TQ_RETURN_IF_ERROR(a.buffer_.Fill(0, stream));
  return a;
}

Status DeviceActivations::Quantize(const void* x, int rows, DeviceIo io,
                                   const DeviceStream& stream) {
  if (rows < 1 || rows > kMaxProductRows) {
    return InvalidArgument("cuda products: ", rows, " rows of activations; 1 to ", kMaxProductRows);
  }
  rows_ = rows;
  QuantizeParams p;
  p.x = x;
  p.io = io;
  p.in_dim = in_dim_;
  p.num_blocks = ProductLayout::For(WeightType::kQ4_0, in_dim_).chunks * 4;
  p.rows = rows;
  p.digits = reinterpret_cast<uint8_t*>(buffer_.data());
  p.scales = reinterpret_cast<ActivationScale*>(buffer_.data() + DigitBytes(p.num_blocks));
  return LaunchQuantize(p, stream.handle());
}

Status DeviceActivations::Multiply(const DeviceMatrix& matrix, void* y, DeviceIo io,
                                   const DeviceStream& stream) const {
  if (!IsBlockType(matrix.type())) {
    return Unsupported("cuda products: weights of type ", WeightTypeName(matrix.type()),
                       " are floats; DeviceFloatProducts multiplies them");
  }
  if (matrix.in_dim() != in_dim_ || rows_ == 0) {
    return InvalidArgument("cuda products: a matrix of ", matrix.in_dim(), " inputs and ", rows_,
                           " rows of ", in_dim_, " activations");
  }
  const ProductLayout layout = ProductLayout::For(matrix.type(), in_dim_);
  ProductParams p;
  p.weights = reinterpret_cast<const uint8_t*>(matrix.data());
  p.tile_bytes = layout.tile_bytes();
  p.scales_at = static_cast<uint32_t>(layout.scales(0));
  p.supers_at = static_cast<uint32_t>(layout.supers(0));
  p.chunks = static_cast<int32_t>(layout.chunks);
  p.out_dim = matrix.out_dim();
  p.rows = rows_;
  p.digits = reinterpret_cast<const uint8_t*>(buffer_.data());
  p.scales =
      reinterpret_cast<const ActivationScale*>(buffer_.data() + DigitBytes(layout.chunks * 4));
  p.y = y;
  p.io = io;
  return LaunchProduct(matrix.type(), p, stream.handle());
}

}  // namespace tq
