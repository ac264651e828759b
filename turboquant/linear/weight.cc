// Names and sizes of the row formats, and the move from rows to panels.
#include "turboquant/linear/weight.h"

#include <atomic>
#include <cmath>
#include <cstring>
#include <new>

#include "turboquant/base/numeric.h"

namespace tq {
namespace {

struct TypeRow {
  const char* name;
  int block_len;
  int block_bytes;
};
constexpr TypeRow kTypes[] = {
    {"F32", 1, 4},    {"F16", 1, 2},    {"BF16", 1, 2},
    {"Q4_0", 32, 18}, {"Q4_1", 32, 20}, {"Q8_0", 32, 34},
};
const TypeRow& Row(WeightType type) {
  return kTypes[static_cast<int>(type)];
}

constexpr uint32_t kAllExponentBits16 = 0x7C00u, kAllExponentBitsBf16 = 0x7F80u;
bool FiniteF16(const std::byte* p) {
  f16_t h;
  std::memcpy(&h, p, sizeof h);
  return (h & kAllExponentBits16) != kAllExponentBits16;
}

// The value of a float type at p.
float ReadFloat(WeightType type, const std::byte* p) {
  if (type == WeightType::kF32) {
    float f;
    std::memcpy(&f, p, sizeof f);
    return f;
  }
  uint16_t h;
  std::memcpy(&h, p, sizeof h);
  return type == WeightType::kF16 ? F32FromF16(h) : F32FromBF16(h);
}

bool FiniteFloat(WeightType type, const std::byte* p) {
  if (type == WeightType::kF16) return FiniteF16(p);
  if (type == WeightType::kF32) return std::isfinite(ReadFloat(type, p));
  bf16_t h;
  std::memcpy(&h, p, sizeof h);
  return (h & kAllExponentBitsBf16) != kAllExponentBitsBf16;
}

// Each of the three puts row `lane` of a panel in its place; false when a value is not finite.
bool PackFloatRow(WeightType type, const std::byte* row, int64_t in_dim, int lane,
                  std::byte* panel) {
  const size_t size = static_cast<size_t>(WeightBlockBytes(type));
  bool finite = true;
  for (int64_t k = 0; k < in_dim; ++k) {
    const std::byte* from = row + static_cast<size_t>(k) * size;
    finite &= FiniteFloat(type, from);
    std::memcpy(panel + (static_cast<size_t>(k) * kPanelRows + lane) * size, from, size);
  }
  return finite;
}

bool PackQ4Row(WeightType type, const std::byte* row, int64_t in_dim, int lane, std::byte* panel) {
  const int num_scales = type == WeightType::kQ4_1 ? 2 : 1;
  bool finite = true;
  for (int64_t b = 0; b < in_dim / kBlockLen; ++b) {
    const std::byte* from = row + b * WeightBlockBytes(type);
    std::byte* to = panel + b * PackedBlockBytes(type);
    for (int s = 0; s < num_scales; ++s) {
      finite &= FiniteF16(from + 2 * s);
      std::memcpy(to + 2 * (s * kPanelRows + lane), from + 2 * s, 2);
    }
    from += 2 * num_scales;
    to += 2 * num_scales * kPanelRows;
    for (int k = 0; k < kBlockLen; ++k) {
      const std::byte code = k < 16 ? from[k] & std::byte{15} : from[k - 16] >> 4;
      to[Q4ByteIndex(k, lane)] |= code << (4 * (k / 2 % 2));
    }
  }
  return finite;
}

bool PackQ8Row(const std::byte* row, int64_t in_dim, int lane, std::byte* panel) {
  bool finite = true;
  for (int64_t b = 0; b < in_dim / kBlockLen; ++b) {
    const std::byte* from = row + b * WeightBlockBytes(WeightType::kQ8_0);
    std::byte* to = panel + b * PackedBlockBytes(WeightType::kQ8_0);
    finite &= FiniteF16(from);
    std::memcpy(to + 2 * lane, from, 2);
    to += 2 * kPanelRows;
    for (int k = 0; k < kBlockLen; ++k) to[Q8ByteIndex(k, lane)] = from[2 + k];
  }
  return finite;
}

}  // namespace

const char* WeightTypeName(WeightType type) {
  return Row(type).name;
}
int WeightBlockLen(WeightType type) {
  return Row(type).block_len;
}
int WeightBlockBytes(WeightType type) {
  return Row(type).block_bytes;
}
int PackedBlockBytes(WeightType type) {
  return kPanelRows * Row(type).block_bytes;
}

Result<PackedMatrix> PackedMatrix::Pack(WeightType type, int64_t out_dim, int64_t in_dim,
                                        std::span<const std::byte> rows,
                                        std::span<const int32_t> row_order, ThreadPool& pool) {
  if (out_dim <= 0 || in_dim <= 0) {
    return InvalidArgument("matrix of ", out_dim, " x ", in_dim, ": both must be positive");
  }
  if (in_dim % WeightBlockLen(type) != 0) {
    return InvalidArgument(WeightTypeName(type), " rows of ", in_dim,
                           " inputs: not a multiple of the block of ", WeightBlockLen(type));
  }
  const int64_t blocks = in_dim / WeightBlockLen(type);
  const size_t row_bytes = static_cast<size_t>(blocks) * WeightBlockBytes(type);
  if (rows.size() / row_bytes != static_cast<size_t>(out_dim) || rows.size() % row_bytes != 0) {
    return InvalidArgument(out_dim, " rows of ", in_dim, " ", WeightTypeName(type), " inputs have ",
                           row_bytes, " bytes each; found ", rows.size(), " bytes in all");
  }
  if (!row_order.empty() && row_order.size() != static_cast<size_t>(out_dim)) {
    return InvalidArgument("row order of ", row_order.size(), " entries for ", out_dim, " rows");
  }
  for (const int32_t row : row_order) {
    if (row < 0 || row >= out_dim) {
      return InvalidArgument("row order names row ", row, " of ", out_dim);
    }
  }

  PackedMatrix m;
  m.type_ = type;
  m.out_dim_ = out_dim;
  m.in_dim_ = in_dim;
  m.panel_bytes_ = static_cast<size_t>(blocks) * PackedBlockBytes(type);
  const size_t bytes = m.panel_bytes_ * static_cast<size_t>(m.num_panels());
  try {
    m.data_.Resize(bytes);
  } catch (const std::bad_alloc&) {
    return ResourceExhausted("no memory for a packed ", WeightTypeName(type), " matrix of ",
                             out_dim, " x ", in_dim, ": ", bytes, " bytes");
  }
  std::atomic<int64_t> bad_row{-1};
  pool.ParallelFor(static_cast<size_t>(m.num_panels()), [&](size_t p, int) {
    std::byte* panel = m.data_.data() + p * m.panel_bytes_;
    for (int lane = 0; lane < kPanelRows; ++lane) {
      const int64_t row = static_cast<int64_t>(p) * kPanelRows + lane;
      if (row >= out_dim) break;
      const int64_t source = row_order.empty() ? row : row_order[static_cast<size_t>(row)];
      const std::byte* from = rows.data() + static_cast<size_t>(source) * row_bytes;
      bool finite = true;
      switch (type) {
        case WeightType::kF32:
        case WeightType::kF16:
        case WeightType::kBF16: finite = PackFloatRow(type, from, in_dim, lane, panel); break;
        case WeightType::kQ4_0:
        case WeightType::kQ4_1: finite = PackQ4Row(type, from, in_dim, lane, panel); break;
        case WeightType::kQ8_0: finite = PackQ8Row(from, in_dim, lane, panel); break;
      }
      if (!finite) bad_row = source;
    }
  });
  if (bad_row >= 0) {
    return DataLoss("row ", bad_row.load(), " of ", out_dim,
                    IsBlockType(type) ? " has a scale" : " has a value", " that is not finite");
  }
  return m;
}

void PackedMatrix::DecodeRow(int64_t row, float* out) const {
  TQ_CHECK(row >= 0 && row < out_dim_);
  const std::byte* p = panel(row / kPanelRows);
  const int lane = static_cast<int>(row % kPanelRows);
  if (!IsBlockType(type_)) {
    const size_t size = static_cast<size_t>(WeightBlockBytes(type_));
    for (int64_t k = 0; k < in_dim_; ++k) {
      out[k] = ReadFloat(type_, p + (static_cast<size_t>(k) * kPanelRows + lane) * size);
    }
    return;
  }
  for (int64_t b = 0; b < in_dim_ / kBlockLen; ++b, p += PackedBlockBytes(type_)) {
    const float d = ReadFloat(WeightType::kF16, p + 2 * lane);
    const float m =
        type_ == WeightType::kQ4_1 ? ReadFloat(WeightType::kF16, p + 2 * (kPanelRows + lane)) : 0;
    const std::byte* codes = p + (type_ == WeightType::kQ4_1 ? 4 : 2) * kPanelRows;
    for (int k = 0; k < kBlockLen; ++k) {
      const auto code = static_cast<float>(BlockCode(type_, codes, k, lane));
      out[b * kBlockLen + k] = type_ == WeightType::kQ4_1 ? d * code + m : d * code;
    }
  }
}

}  // namespace tq
