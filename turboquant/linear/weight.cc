// Names of the row formats, and the move from rows to panels.
#include "turboquant/linear/weight.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <utility>

#include "turboquant/base/numeric.h"
#include "turboquant/linear/file_block.h"

namespace tq {
namespace {

bool FiniteF16(f16_t h) {
  return (h & 0x7C00u) != 0x7C00u;
}

// Row `lane` of the floats of a panel; false when a value is not finite: it has all of these bits.
template <typename T>
bool PackFloats(const std::byte* row, int64_t in_dim, int lane, T exponent_bits, std::byte* panel) {
  bool finite = true;
  for (int64_t k = 0; k < in_dim; ++k) {
    T value;
    std::memcpy(&value, row + k * int64_t{sizeof value}, sizeof value);
    finite &= (value & exponent_bits) != exponent_bits;
    std::memcpy(panel + (k * kPanelRows + lane) * int64_t{sizeof value}, &value, sizeof value);
  }
  return finite;
}

bool PackFloatRow(WeightType type, const std::byte* row, int64_t in_dim, int lane,
                  std::byte* panel) {
  switch (type) {
    case WeightType::kF32: return PackFloats<uint32_t>(row, in_dim, lane, 0x7F800000u, panel);
    case WeightType::kF16: return PackFloats<uint16_t>(row, in_dim, lane, 0x7C00u, panel);
    default: return PackFloats<uint16_t>(row, in_dim, lane, 0x7F80u, panel);
  }
}

// Fields of kBits bits, four of them from every second of eight codes, at bit `shift` of each.
template <int kBits>
uint32_t FourFields(uint64_t codes, int shift) {
  constexpr uint64_t kEverySecond = 0x00FF00FF00FF00FFull;
  constexpr uint64_t kMask = ((uint64_t{1} << kBits) - 1) * 0x0101010101010101ull & kEverySecond;
  const uint64_t spread = codes >> shift & kMask;
  const uint64_t joined =
      spread | spread >> (16 - kBits) | spread >> 2 * (16 - kBits) | spread >> 3 * (16 - kBits);
  return static_cast<uint32_t>(joined & ((1u << 4 * kBits) - 1));
}

// kBits bits of 32 codes, from bit `shift` on, into their chunks.
template <int kBits>
void PackCodes(const uint8_t* codes, int shift, int lane, std::byte* to) {
  for (int chunk = 0; chunk < kBits; ++chunk, to += 4 * kPanelRows) {
    uint32_t word = 0;
    if constexpr (kBits == 8) {
      word = codes[0] | codes[2] << 8 | codes[1] << 16 | uint32_t{codes[3]} << 24;
      codes += 4;
    } else {
      for (int first = 0; first < 4 / kBits; ++first, codes += 8) {
        uint64_t eight;
        std::memcpy(&eight, codes, sizeof eight);
        const uint32_t pair = FourFields<kBits>(eight, shift) | FourFields<kBits>(eight >> 8, shift)
                                                                    << 16;
        word |= pair << (first * 4 * kBits);
      }
    }
    std::memcpy(to + 4 * lane, &word, sizeof word);
  }
}

void PackPlane(int bits, const uint8_t* codes, int shift, int lane, std::byte* to) {
  switch (bits) {
    case 1: return PackCodes<1>(codes, shift, lane, to);
    case 2: return PackCodes<2>(codes, shift, lane, to);
    case 4: return PackCodes<4>(codes, shift, lane, to);
    case 8: return PackCodes<8>(codes, shift, lane, to);
    default: TQ_CHECK(bits == 0);
  }
}

void PackScales(const WeightLayout& f, const FileBlock& block, int part, int lane, std::byte* to) {
  const int groups = kBlockLen / f.group_len;
  for (int g = 0; g < groups; ++g) {
    const auto scale = static_cast<std::byte>(block.scales[part * groups + g]);
    const auto minimum = static_cast<std::byte>(block.mins[part * groups + g]);
    const bool both = f.has_min && f.scale_bytes == 1;
    to[g * kPanelRows + lane] = both ? scale | minimum << 4 : scale;
    if (f.scale_bytes == 2) to[(groups + g) * kPanelRows + lane] = minimum;
  }
}

// The numbers of a whole block; false when one is not finite.
bool PackHeader(const WeightLayout& f, const FileBlock& block, int lane, std::byte* to) {
  if (f.is_float4) {
    to[lane] = static_cast<std::byte>(block.exponent);
    return block.exponent <= kFloat4MaxExponent;
  }
  std::memcpy(to + 2 * lane, &block.d, 2);
  if (!f.has_min) return FiniteF16(block.d);
  std::memcpy(to + 2 * (kPanelRows + lane), &block.m, 2);
  return FiniteF16(block.d) && FiniteF16(block.m);
}

bool PackBlockRow(WeightType type, const std::byte* row, int64_t in_dim, int lane,
                  std::byte* panel) {
  const WeightLayout& f = LayoutOf(type);
  bool finite = true;
  FileBlock block;
  for (int64_t b = 0; b < in_dim / f.block_len; ++b, row += f.block_bytes) {
    ReadFileBlock(type, row, block);
    std::byte* to = panel + b * PackedBlockBytes(type);
    finite &= PackHeader(f, block, lane, to);
    to += PackedHeaderBytes(f);
    for (int part = 0; part < f.block_len / kBlockLen; ++part, to += PackedPartBytes(f)) {
      const uint8_t* codes = block.codes + part * kBlockLen;
      std::byte* low = to + PackedScaleBytes(f);
      if (f.scale_bytes > 0) PackScales(f, block, part, lane, to);
      PackPlane(f.low_bits, codes, 0, lane, low);
      PackPlane(f.high_bits, codes, f.low_bits, lane, low + PackedCodeBytes(f.low_bits));
    }
  }
  return finite;
}

// Bits of the code of input k (0..31) and row `lane` in a plane of `bits` a code.
int PlaneCode(int bits, const std::byte* plane, int k, int lane) {
  const int inputs = kBlockLen / bits;  // of a chunk
  uint16_t fields;
  std::memcpy(&fields, plane + ((k / inputs * kPanelRows + lane) * 2 + k % 2) * 2, sizeof fields);
  return fields >> (k % inputs / 2 * bits) & ((1 << bits) - 1);
}

float HalfAt(const std::byte* p, int i) {
  return ReadFloat(WeightType::kF16, p + 2 * i);
}

}  // namespace

std::string WeightTypeNames() {
  std::string names;
  for (const WeightLayout& f : kWeightLayouts) {
    names += (names.empty() ? "" : ", ") + std::string(f.name);
  }
  return names;
}

Result<WeightType> WeightTypeOf(const std::string& name) {
  for (size_t i = 0; i < std::size(kWeightLayouts); ++i) {
    if (name == kWeightLayouts[i].name) return static_cast<WeightType>(i);
  }
  return Unsupported("weights of type ", name,
                     " are not supported; supported: ", WeightTypeNames());
}

float Float4Scale(uint8_t e) {
  // The bits of 2^(e - 127); e = 0 is below the normal numbers. Halving is exact.
  return std::bit_cast<float>(std::max(uint32_t{e} << 23, 0x00400000u)) * 0.5f;
}

float PackedPart::scale(int group) const {
  if (layout.is_float4) return Float4Scale(std::to_integer<uint8_t>(block[lane]));
  const float d = HalfAt(block, lane);
  if (layout.scale_bytes == 0) return d;
  const std::byte* at = block + PackedHeaderBytes(layout) + part * PackedPartBytes(layout) +
                        group * kPanelRows + lane;
  const bool both = layout.has_min && layout.scale_bytes == 1;
  const int n = both ? std::to_integer<int>(*at & std::byte{15}) : static_cast<int8_t>(*at);
  return d * static_cast<float>(n);
}

float PackedPart::minimum(int group) const {
  const float m = HalfAt(block, kPanelRows + lane);
  if (layout.scale_bytes == 0) return m;
  const int groups = kBlockLen / layout.group_len;
  const std::byte* at = block + PackedHeaderBytes(layout) + part * PackedPartBytes(layout) + lane;
  const int n = layout.scale_bytes == 1 ? std::to_integer<int>(at[group * kPanelRows] >> 4)
                                        : std::to_integer<int>(at[(groups + group) * kPanelRows]);
  return -(m * static_cast<float>(n));
}

int PackedPart::code(int k) const {
  const std::byte* low =
      block + PackedHeaderBytes(layout) + part * PackedPartBytes(layout) + PackedScaleBytes(layout);
  int code = PlaneCode(layout.low_bits, low, k, lane);
  if (layout.high_bits > 0) {
    code |= PlaneCode(layout.high_bits, low + PackedCodeBytes(layout.low_bits), k, lane)
            << layout.low_bits;
  }
  return layout.is_float4 ? kFloat4Levels[code] : code - layout.offset;
}

Result<PackedMatrix> PackedMatrix::Pack(WeightType type, int64_t out_dim, int64_t in_dim,
                                        std::span<const std::byte> rows,
                                        std::span<const int32_t> row_order, ThreadPool& pool,
                                        WeightMemory* memory) {
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

  WeightMemory own(0);
  PackedMatrix m;
  m.type_ = type;
  m.out_dim_ = out_dim;
  m.in_dim_ = in_dim;
  m.panel_bytes_ = static_cast<size_t>(blocks) * PackedBlockBytes(type);
  auto allocated = (memory == nullptr ? own : *memory).Allocate(m.bytes());
  TQ_RETURN_IF_ERROR(allocated.status().WithContext(
      StrCat("a packed ", WeightTypeName(type), " matrix of ", out_dim, " x ", in_dim)));
  std::byte* const data = allocated->get();
  m.data_ = std::move(*allocated);
  std::atomic<int64_t> bad_row{-1};
  pool.ParallelFor(static_cast<size_t>(m.num_panels()), [&](size_t p, int) {
    std::byte* panel = data + p * m.panel_bytes_;
    for (int lane = 0; lane < kPanelRows; ++lane) {
      const int64_t row = static_cast<int64_t>(p) * kPanelRows + lane;
      if (row >= out_dim) break;
      const int64_t source = row_order.empty() ? row : row_order[static_cast<size_t>(row)];
      const std::byte* from = rows.data() + static_cast<size_t>(source) * row_bytes;
      const auto pack = IsBlockType(type) ? PackBlockRow : PackFloatRow;
      const bool finite = pack(type, from, in_dim, lane, panel);
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
  const WeightLayout& f = LayoutOf(type_);
  for (int64_t b = 0; b < in_dim_ / kBlockLen; ++b, out += kBlockLen) {
    const int parts = f.block_len / kBlockLen;
    const PackedPart part = {f, p + b / parts * PackedBlockBytes(type_),
                             static_cast<int>(b % parts), lane};
    for (int k = 0; k < kBlockLen; ++k) {
      const int group = k / f.group_len;
      const float value = part.scale(group) * static_cast<float>(part.code(k));
      out[k] = f.has_min ? value + part.minimum(group) : value;
    }
  }
}

}  // namespace tq
