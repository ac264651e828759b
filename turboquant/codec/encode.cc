#include "turboquant/codec/encode.h"

#include <array>
#include <cfloat>
#include <cmath>
#include <cstring>

#include "turboquant/base/isa.h"
#include "turboquant/codec/codebook.h"
#include "turboquant/codec/encode_kernels.h"
#include "turboquant/codec/log8.h"
#include "turboquant/codec/pack.h"

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

RowSums CodeRow(const CodebookTable& book, const int8_t* row, int head_dim, int padded_dim,
                uint8_t* codes) {
  return UseReferenceKernels() ? CodeRowRef(book, row, head_dim, padded_dim, codes)
                               : CodeRowSimd(book, row, head_dim, padded_dim, codes);
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

// The int8 row that codes are made from: the open row itself, or the f16 row coded like one.
float ReadInt8Row(Side side, int head_dim, int open_bits, const std::byte* values,
                  const float* scales, int token, int8_t* row) {
  const int padded = PaddedDim(head_dim);
  if (open_bits == 8) {
    const auto* v = reinterpret_cast<const int8_t*>(values);
    for (int c = 0; c < padded; ++c) row[c] = *Int8At(v, side, padded, token, c);
    return scales[token];
  }
  const auto* v = reinterpret_cast<const f16_t*>(values);
  float x[kMaxHeadDim];
  for (int c = 0; c < head_dim; ++c) x[c] = F32FromF16(*F16At(v, side, padded, token, c));
  return QuantizeRow(x, head_dim, padded, row);
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
    if (w.open_bits == 8) {
      scales[token] = QuantizeRow(row, w.head_dim, padded, q);
      auto* out = reinterpret_cast<int8_t*>(values);
      for (int c = 0; c < padded; ++c) *Int8At(out, w.side, padded, token, c) = q[c];
    } else {
      Sanitize(row, w.head_dim, kMaxF16Value, counters);
      auto* out = reinterpret_cast<f16_t*>(values);
      for (int c = 0; c < padded; ++c) {
        *F16At(out, w.side, padded, token, c) = c < w.head_dim ? F16FromF32(row[c]) : f16_t{0};
      }
    }
  }
}

void SealSide(const Codec& codec, Side side, int head_dim, int open_bits,
              const std::byte* open_values, const float* open_scales, uint8_t* codes,
              uint8_t* scales, bf16_t* base, bf16_t* bound) {
  const int padded = PaddedDim(head_dim);
  if (codec.is_f16()) {
    // Same values, same order: 16-bit rows are final.
    std::memcpy(codes, open_values, ValueBytes(16, head_dim));
    *base = 0;
    if (bound != nullptr) {
      float largest = 0;
      const auto* v = reinterpret_cast<const f16_t*>(open_values);
      for (int t = 0; t < kPageLen; ++t) {
        float sum = 0;
        for (int c = 0; c < head_dim; ++c) {
          const float f = F32FromF16(*F16At(v, side, padded, t, c));
          sum += f * f;
        }
        largest = std::fmax(largest, std::sqrt(sum));
      }
      *bound = BF16FromF32RoundUp(largest * 1.0001f);
    }
    return;
  }

  alignas(kCacheLine) int8_t rows[kPageLen][kMaxHeadDim];
  float row_scale[kPageLen], scale[kPageLen];
  uint64_t norm2[kPageLen];  // of the decoded row, in units of the scale
  for (int t = 0; t < kPageLen; ++t) {
    row_scale[t] = ReadInt8Row(side, head_dim, open_bits, open_values, open_scales, t, rows[t]);
  }
  if (codec.bits == 8) {
    float largest = 0;
    for (int t = 0; t < kPageLen; ++t) largest = std::fmax(largest, row_scale[t]);
    *base = Log8Base(largest);
    const float base_value = F32FromBF16(*base);
    auto* out = reinterpret_cast<int8_t*>(codes);
    for (int t = 0; t < kPageLen; ++t) {
      scales[t] = Log8EncodeUp(row_scale[t], base_value);
      scale[t] = base_value * Log8Table()[scales[t]];
      const float ratio = scale[t] > 0 ? row_scale[t] / scale[t] : 0;
      norm2[t] = 0;
      for (int c = 0; c < padded; ++c) {
        const int code = static_cast<int>(std::nearbyint(static_cast<float>(rows[t][c]) * ratio));
        const int clamped = code > 127 ? 127 : code < -127 ? -127 : code;
        *Int8At(out, side, padded, t, c) = static_cast<int8_t>(clamped);
        norm2[t] += static_cast<uint64_t>(clamped * clamped);
      }
    }
  } else {
    const CodebookTable& book = GetCodebook(codec.codebook, codec.bits);
    alignas(kCacheLine) uint8_t row_codes[kMaxHeadDim];
    static thread_local AlignedBuffer<uint8_t> cells(static_cast<size_t>(kMaxHeadDim) * kPageLen);
    const int num_depth = NumDepth(side, head_dim);
    float largest = 0;
    for (int t = 0; t < kPageLen; ++t) {
      const RowSums sums = CodeRow(book, rows[t], head_dim, padded, row_codes);
      const float rr = static_cast<float>(sums.rr), ll = static_cast<float>(sums.ll);
      float gain = 0;
      if (sums.rr != 0) {
        switch (codec.gain) {
          case Gain::kNone: gain = book.unit * std::sqrt(rr / static_cast<float>(head_dim)); break;
          case Gain::kNorm: gain = std::sqrt(rr / ll); break;
          case Gain::kUnbiased: gain = rr / static_cast<float>(sums.rl); break;
        }
      }
      scale[t] = row_scale[t] * gain;
      norm2[t] = static_cast<uint64_t>(sums.ll);
      largest = std::fmax(largest, scale[t]);
      if (side == Side::kK) {
        for (int c = 0; c < padded; c += 4) {
          std::memcpy(&cells[CodeIndex(t, c, num_depth)], row_codes + c, 4);
        }
      } else {
        for (int c = 0; c < padded; ++c) cells[CodeIndex(c, t, num_depth)] = row_codes[c];
      }
    }
    PackCodes(codec.bits, cells.data(), padded, codes);
    *base = Log8Base(largest);
    const float base_value = F32FromBF16(*base);
    for (int t = 0; t < kPageLen; ++t) {
      scales[t] = Log8Encode(scale[t], base_value);
      scale[t] = base_value * Log8Table()[scales[t]];
    }
  }
  if (bound != nullptr) {
    float largest = 0;
    for (int t = 0; t < kPageLen; ++t) {
      largest = std::fmax(largest, scale[t] * std::sqrt(static_cast<float>(norm2[t])));
    }
    *bound = BF16FromF32RoundUp(largest * 1.0001f);
  }
}

const float* Log8Table() {
  static const auto table = [] {
    std::array<float, 256> t{};
    for (int c = 1; c < 256; ++c) {
      // The same product that a kernel makes: a sixteenth-octave constant times a power of two.
      const int octave = (c + 1) / 16 - 16;
      const int part = (c + 1) % 16;
      t[static_cast<size_t>(c)] = std::ldexp(static_cast<float>(std::exp2(part / 16.0)), octave);
    }
    return t;
  }();
  return table.data();
}

}  // namespace tq
