#include "turboquant/codec/encode.h"

#include <algorithm>
#include <array>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <vector>

#include "turboquant/base/isa.h"
#include "turboquant/codec/codebook.h"
#include "turboquant/codec/decode.h"
#include "turboquant/codec/encode_kernels.h"
#include "turboquant/codec/fp8.h"
#include "turboquant/codec/group_scales.h"
#include "turboquant/codec/log8.h"
#include "turboquant/codec/pack.h"
#include "turboquant/codec/trellis.h"

namespace tq {
namespace {

// The numeric policy: non-finite values become 0 and are counted, magnitudes are clamped to
// `limit` and counted, denormals are flushed.
void Sanitize(float* x, int n, float limit, WriteCounters* counters) {
  for (int i = 0; i < n; ++i) {
    if (!std::isfinite(x[i])) {
      x[i] = 0;
      ++counters->nonfinite_values;
    } else if (std::fabs(x[i]) > limit) {
      x[i] = std::copysign(limit, x[i]);
      ++counters->clamped_values;
    } else if (std::fabs(x[i]) < FLT_MIN) {
      x[i] = 0;
    }
  }
}

float QuantizeRow(const float* x, int head_dim, int padded_dim, int8_t* q) {
  return UseReferenceKernels() ? QuantizeRowRef(x, head_dim, padded_dim, q)
                               : QuantizeRowSimd(x, head_dim, padded_dim, q);
}

RowSums CodeRow(const CodebookTable& book, const int8_t* row, int n, int padded_n, uint8_t* codes) {
  return UseReferenceKernels() ? CodeRowRef(book, row, n, padded_n, codes)
                               : CodeRowSimd(book, row, n, padded_n, codes);
}

// Element (token, channel) of a side is lane token, depth channel for K, and the reverse for V.
template <typename T>
T* Int8At(T* values, Side side, int padded_dim, int token, int channel) {
  return values + (side == Side::kK ? Int8Index(token, channel, kPageLen)
                                    : Int8Index(channel, token, padded_dim));
}
template <typename T>
T* F16At(T* values, Side side, int padded_dim, int token, int channel) {
  return values + (side == Side::kK ? F16Index(token, channel, kPageLen)
                                    : F16Index(channel, token, padded_dim));
}

// Codes of a block side, in the order of record_layout.h.
class CodeWriter {
 public:
  CodeWriter(const Codec& codec, Side side, int head_dim)
      : codec_(codec),
        side_(side),
        padded_(PaddedDim(head_dim)),
        num_depth_(NumDepth(side, head_dim)) {
    cells_.Reserve(static_cast<size_t>(padded_) * kPageLen);
  }
  // The codes of one token, of all padded channels.
  void Put(int token, const uint8_t* codes) {
    if (side_ == Side::kK) {
      for (int c = 0; c < padded_; c += 4) {
        std::memcpy(&cells_[CodeIndex(token, c, num_depth_)], codes + c, 4);
      }
    } else {
      for (int c = 0; c < padded_; ++c) cells_[CodeIndex(c, token, num_depth_)] = codes[c];
    }
  }
  void Pack(uint8_t* out) const { PackCodes(codec_.bits, cells_.data(), padded_, out); }

 private:
  const Codec& codec_;
  Side side_;
  int padded_, num_depth_;
  static thread_local AlignedBuffer<uint8_t> cells_;
};
thread_local AlignedBuffer<uint8_t> CodeWriter::cells_;

float GainOf(const Codec& codec, const CodebookTable& book, const RowSums& sums, int n) {
  if (sums.rr == 0) return 0;
  const float rr = static_cast<float>(sums.rr);
  switch (codec.gain) {
    case Gain::kNone: return book.unit * BookReference(book, sums, n);
    case Gain::kNorm: return sums.ll > 0 ? std::sqrt(rr / static_cast<float>(sums.ll)) : 0.f;
    case Gain::kUnbiased: return sums.rl > 0 ? rr / static_cast<float>(sums.rl) : 0.f;
  }
  return 0;
}

using Int8Rows = int8_t[kPageLen][kMaxHeadDim];

// Lengths of rows [64][head_dim].
void RowNorms(const std::vector<float>& rows, int head_dim, float* norm) {
  for (int t = 0; t < kPageLen; ++t) {
    double sum = 0;
    for (int c = 0; c < head_dim; ++c) {
      const double v = rows[static_cast<size_t>(t) * head_dim + c];
      sum += v * v;
    }
    norm[t] = static_cast<float>(std::sqrt(sum));
  }
}

// One log8 scale a token, 8 bits: the open row with its scale rounded up.
void SealInt8(const OpenSide& open, const Int8Rows& rows, const float* row_scale, uint8_t* codes,
              uint8_t* scales, bf16_t* base, float* norm) {
  const int padded = PaddedDim(open.head_dim);
  float largest = 0;
  for (int t = 0; t < kPageLen; ++t) largest = std::fmax(largest, row_scale[t]);
  *base = Log8Base(largest);
  const float base_value = F32FromBF16(*base);
  auto* out = reinterpret_cast<int8_t*>(codes);
  for (int t = 0; t < kPageLen; ++t) {
    scales[t] = Log8EncodeUp(row_scale[t], base_value);
    const float scale = base_value * Log8Table()[scales[t]];
    const float ratio = scale > 0 ? row_scale[t] / scale : 0;
    int64_t sum = 0;
    for (int c = 0; c < padded; ++c) {
      const int code = static_cast<int>(std::nearbyint(static_cast<float>(rows[t][c]) * ratio));
      const int clamped = code > 127 ? 127 : code < -127 ? -127 : code;
      *Int8At(out, open.side, padded, t, c) = static_cast<int8_t>(clamped);
      sum += clamped * clamped;
    }
    norm[t] = scale * std::sqrt(static_cast<float>(sum));
  }
}

// Scales of tokens whose codes are made: base, bytes, and the norms of what will be decoded.
void StoreLog8Scales(const float* scale, const int32_t* level_energy, uint8_t* scales, bf16_t* base,
                     float* norm) {
  float largest = 0;
  for (int t = 0; t < kPageLen; ++t) largest = std::fmax(largest, scale[t]);
  *base = Log8Base(largest);
  const float base_value = F32FromBF16(*base);
  for (int t = 0; t < kPageLen; ++t) {
    scales[t] = Log8Encode(scale[t], base_value);
    norm[t] = base_value * Log8Table()[scales[t]] * std::sqrt(static_cast<float>(level_energy[t]));
  }
}

// One log8 scale a token and a book of levels.
void SealBook(const Codec& codec, const CodebookTable& book, const OpenSide& open,
              const Int8Rows& rows, const float* row_scale, uint8_t* codes, uint8_t* scales,
              bf16_t* base, float* norm) {
  const int padded = PaddedDim(open.head_dim);
  alignas(kCacheLine) uint8_t row_codes[kMaxHeadDim];
  CodeWriter writer(codec, open.side, open.head_dim);
  float scale[kPageLen];
  int32_t energy[kPageLen];
  for (int t = 0; t < kPageLen; ++t) {
    const RowSums sums = CodeRow(book, rows[t], open.head_dim, padded, row_codes);
    scale[t] = row_scale[t] * GainOf(codec, book, sums, open.head_dim);
    energy[t] = sums.ll;
    writer.Put(t, row_codes);
  }
  writer.Pack(codes);
  StoreLog8Scales(scale, energy, scales, base, norm);
}

// A trellis along the depth: the channels of a token for K, the tokens of a channel for V. Rows are
// brought to unit variance first; gain and scale of a token follow from the levels it got.
void SealTrellis(const Codec& codec, const OpenSide& open, const Int8Rows& rows,
                 const float* row_scale, uint8_t* codes, uint8_t* scales, bf16_t* base,
                 float* norm) {
  const int head_dim = open.head_dim, padded = PaddedDim(head_dim);
  const TrellisTable& trellis = GetTrellis(codec.bits);
  CodebookTable book;  // what GainOf needs of it
  book.unit = trellis.unit;
  RowSums sums[kPageLen];
  float inverse_rms[kPageLen];
  for (int t = 0; t < kPageLen; ++t) {
    for (int c = 0; c < head_dim; ++c) sums[t].rr += rows[t][c] * rows[t][c];
    const float rms = BookReference(book, sums[t], head_dim);
    inverse_rms[t] = rms > 0 ? 1.f / rms : 0.f;
  }
  const int n = NumDepth(open.side, head_dim), lanes = NumLanes(open.side, head_dim);
  static thread_local AlignedBuffer<uint8_t> cells;
  cells.Reserve(static_cast<size_t>(padded) * kPageLen);
  float x[kMaxHeadDim];
  uint8_t symbols[kMaxHeadDim];
  int8_t levels[kMaxHeadDim];
  for (int lane = 0; lane < lanes; ++lane) {
    const bool is_k = open.side == Side::kK;
    for (int d = 0; d < n; ++d) {
      const int t = is_k ? lane : d, c = is_k ? d : lane;
      x[d] = inverse_rms[t] * static_cast<float>(rows[t][c]);
    }
    TrellisEncode(codec.bits, x, is_k ? head_dim : n, n, symbols, levels);
    for (int d = 0; d < n; ++d) {
      cells[CodeIndex(lane, d, n)] = symbols[d];
      const int t = is_k ? lane : d, c = is_k ? d : lane;
      if (c >= head_dim) continue;
      sums[t].rl += rows[t][c] * levels[d];
      sums[t].ll += levels[d] * levels[d];
    }
  }
  PackCodes(codec.bits, cells.data(), padded, codes);
  float scale[kPageLen];
  int32_t energy[kPageLen];
  for (int t = 0; t < kPageLen; ++t) {
    scale[t] = row_scale[t] * GainOf(codec, book, sums[t], head_dim);
    energy[t] = sums[t].ll;
  }
  StoreLog8Scales(scale, energy, scales, base, norm);
}

// Scales (and offsets) in groups of channels. Codes of affine groups and of 8 bits are made for the
// scale and offset as they are stored; those of books before, as their gain follows from them.
void SealGroups(const Codec& codec, const CodebookTable* book, const OpenSide& open,
                const Int8Rows& rows, const float* row_scale, uint8_t* codes, uint8_t* scales,
                bf16_t* base, float* norm) {
  const int head_dim = open.head_dim, padded = PaddedDim(head_dim);
  const int len = GroupLen(codec, head_dim), num_groups = NumGroups(codec, head_dim);
  const float top_level = static_cast<float>(LargestLevel(codec));
  const bool affine = codec.zero == Zero::kAffine, ranged = affine || codec.bits == 8;
  alignas(kCacheLine) uint8_t row_codes[kMaxHeadDim];
  std::vector<float> scale(static_cast<size_t>(num_groups) * kPageLen), offset(scale.size());
  CodeWriter writer(codec, open.side, head_dim);
  for (int t = 0; t < kPageLen; ++t) {
    for (int g = 0; g < num_groups; ++g) {
      const int first = g * len, n = std::max(0, std::min(len, head_dim - first));
      const int padded_n = std::min(len, padded - first);
      const size_t i = static_cast<size_t>(g) * kPageLen + t;
      if (ranged) {
        int low = affine && n > 0 ? 127 : 0, high = affine && n > 0 ? -127 : 0;
        for (int c = first; c < first + n; ++c) {
          const int v = affine ? rows[t][c] : std::abs(rows[t][c]);
          low = std::min(low, affine ? v : 0), high = std::max(high, v);
        }
        const float half =
            affine ? 0.5f * static_cast<float>(high - low) : static_cast<float>(high);
        scale[i] = row_scale[t] * half / top_level;
        offset[i] = affine ? row_scale[t] * 0.5f * static_cast<float>(high + low) : 0.f;
      } else {
        const RowSums sums = CodeRow(*book, rows[t] + first, n, padded_n, row_codes + first);
        scale[i] = row_scale[t] * GainOf(codec, *book, sums, std::max(n, 1));
      }
    }
    if (!ranged) writer.Put(t, row_codes);
  }
  const float base_value = GroupBase(codec, num_groups, scale.data(), offset.data(), base);
  for (int g = 0; g < num_groups; ++g) {
    for (int t = 0; t < kPageLen; ++t) {
      const size_t i = static_cast<size_t>(g) * kPageLen + t;
      StoreGroupScale(codec, num_groups, g, t, base_value, &scale[i], &offset[i], scales);
    }
  }
  const float step = static_cast<float>(LevelStep(codec));
  for (int t = 0; ranged && t < kPageLen; ++t) {
    for (int c = 0; c < padded; ++c) {
      const size_t i = static_cast<size_t>(c / len) * kPageLen + t;
      const float x = row_scale[t] * static_cast<float>(rows[t][c]) - offset[i];
      const float at = scale[i] > 0 ? x / scale[i] : 0;  // in levels
      if (codec.bits == 8) {
        const int code = static_cast<int>(std::nearbyint(std::clamp(at, -127.f, 127.f)));
        *Int8At(reinterpret_cast<int8_t*>(codes), open.side, padded, t, c) =
            static_cast<int8_t>(code);
      } else {
        const float code = std::nearbyint((at + top_level) / step);
        row_codes[c] = static_cast<uint8_t>(std::clamp(code, 0.f, top_level));
      }
    }
    if (codec.bits < 8) writer.Put(t, row_codes);
  }
  if (codec.bits < 8) writer.Pack(codes);
  std::vector<float> decoded(static_cast<size_t>(kPageLen) * head_dim);
  DecodeSealedSide(codec, codec.codebook == Codebook::kCalibrated ? book : nullptr, open.side,
                   head_dim, codes, scales, *base, decoded.data());
  RowNorms(decoded, head_dim, norm);
}

}  // namespace

void WriteOpenRows(const RowWriter& w, const float* x, size_t stride, int64_t first_pos,
                   int first_row, int num_rows, std::byte* values, float* scales,
                   WriteCounters* counters) {
  const int padded = PaddedDim(w.head_dim);
  alignas(kCacheLine) float row[kMaxHeadDim];
  alignas(kCacheLine) int8_t q[kMaxHeadDim];
  for (int r = 0; r < num_rows; ++r) {
    const int token = first_row + r;
    std::memcpy(row, x + static_cast<size_t>(r) * stride,
                static_cast<size_t>(w.head_dim) * sizeof(float));
    Sanitize(row, w.head_dim, kMaxRowValue, counters);
    if (w.center != nullptr && !w.center->empty()) {
      w.center_table->Subtract(*w.center, first_pos + r, row);
    }
    w.rotation->Forward(row);
    if (w.type == ValueType::kInt) {
      scales[token] = QuantizeRow(row, w.head_dim, padded, q);
      auto* out = reinterpret_cast<int8_t*>(values);
      for (int c = 0; c < padded; ++c) *Int8At(out, w.side, padded, token, c) = q[c];
      continue;
    }
    std::fill(row + w.head_dim, row + padded, 0.f);
    switch (w.type) {
      case ValueType::kFP8: {
        Sanitize(row, w.head_dim, kMaxFP8, counters);
        auto* out = reinterpret_cast<uint8_t*>(values);
        for (int c = 0; c < padded; ++c)
          *Int8At(out, w.side, padded, token, c) = FP8FromF32(row[c]);
        break;
      }
      case ValueType::kBF16: {
        auto* out = reinterpret_cast<bf16_t*>(values);
        for (int c = 0; c < padded; ++c)
          *F16At(out, w.side, padded, token, c) = BF16FromF32(row[c]);
        break;
      }
      default: {
        Sanitize(row, w.head_dim, kMaxF16Value, counters);
        auto* out = reinterpret_cast<f16_t*>(values);
        for (int c = 0; c < padded; ++c) *F16At(out, w.side, padded, token, c) = F16FromF32(row[c]);
      }
    }
  }
}

void ReadInt8Rows(const OpenSide& open, int8_t (*rows)[kMaxHeadDim], float* scale) {
  const int head_dim = open.head_dim, padded = PaddedDim(head_dim);
  if (open.type == ValueType::kInt) {
    const auto* v = reinterpret_cast<const int8_t*>(open.values);
    for (int t = 0; t < kPageLen; ++t) {
      for (int c = 0; c < padded; ++c) rows[t][c] = *Int8At(v, open.side, padded, t, c);
      scale[t] = open.scales[t];
    }
    return;
  }
  std::vector<float> x(static_cast<size_t>(kPageLen) * head_dim);
  DecodeOpenSide(open, x.data());
  for (int t = 0; t < kPageLen; ++t) {
    scale[t] = QuantizeRow(&x[static_cast<size_t>(t) * head_dim], head_dim, padded, rows[t]);
  }
}

void SealSide(const Codec& codec, const CodebookTable* calibrated, const OpenSide& open,
              uint8_t* codes, uint8_t* scales, bf16_t* base, bf16_t* bound) {
  float norm[kPageLen] = {};  // of the decoded rows
  if (codec.is_float()) {
    // Same values, same order: float rows are final.
    std::memcpy(codes, open.values, ValueBytes(codec.bits, open.head_dim));
    *base = 0;
    if (bound != nullptr) {
      std::vector<float> rows(static_cast<size_t>(kPageLen) * open.head_dim);
      DecodeOpenSide(open, rows.data());
      RowNorms(rows, open.head_dim, norm);
    }
  } else {
    alignas(kCacheLine) Int8Rows rows;
    float row_scale[kPageLen];
    ReadInt8Rows(open, rows, row_scale);
    const bool trellis = codec.codebook == Codebook::kTrellis;
    const CodebookTable* book = codec.bits <= 6 && !trellis ? &BookOf(codec, calibrated) : nullptr;
    if (trellis) {
      SealTrellis(codec, open, rows, row_scale, codes, scales, base, norm);
    } else if (codec.is_grouped()) {
      SealGroups(codec, book, open, rows, row_scale, codes, scales, base, norm);
    } else if (codec.bits == 8) {
      SealInt8(open, rows, row_scale, codes, scales, base, norm);
    } else {
      SealBook(codec, *book, open, rows, row_scale, codes, scales, base, norm);
    }
  }
  if (bound != nullptr) {
    *bound = BF16FromF32RoundUp(*std::max_element(norm, norm + kPageLen) * 1.0001f);
  }
}

const float* Log8Parts() {
  static const auto parts = [] {
    std::array<float, 16> t{};
    for (size_t i = 0; i < t.size(); ++i) {
      t[i] = static_cast<float>(std::exp2(static_cast<double>(i) / 16));
    }
    return t;
  }();
  return parts.data();
}

const float* Log8Table() {
  static const auto table = [] {
    std::array<float, 256> t{};
    for (int c = 1; c < 256; ++c) {
      t[static_cast<size_t>(c)] = std::ldexp(Log8Parts()[(c + 1) % 16], (c + 1) / 16 - 16);
    }
    return t;
  }();
  return table.data();
}

}  // namespace tq
