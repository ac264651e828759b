// A whole block of new tokens: rows to 8 bits and, where the block is sealed at once, to codes.
// Eight lanes have a row and a warp four of them, so that most of a row's work is within a lane.
// Included by append_cuda.cu.
#pragma once

#include "turboquant/cache/append_rows.cuh"

namespace tq {
namespace {

constexpr int kRowLanes = 8, kRowsAtOnce = 32 / kRowLanes;

// 8-bit rows of a block, token by token.
template <int kDim>
struct BlockRows {
  alignas(8) int8_t levels[2][kPageLen][kDim + 4];  // K, V; longer by a word, for the sake of banks
  float scales[2][kPageLen];
};

// As LoadRow, of the lane's row and part; `part`: which of the row's lanes it is.
template <int kDim>
__device__ __forceinline__ void LoadRowPart(const AppendParams& p, const AppendSide& side,
                                            const AppendCenter* center, const void* from,
                                            int64_t at, int position, int lane, int part,
                                            float (&x)[kDim / kRowLanes]) {
  constexpr int kPer = kDim / kRowLanes;
  const int first = part * kPer;
#pragma unroll
  for (int i = 0; i < kPer; i += 8) {
    LoadIoRow(from, at + first + i, p.io, reinterpret_cast<float(&)[8]>(x[i]));
  }
  float top = 0;
#pragma unroll
  for (int i = 0; i < kPer; ++i) top = ptx::MaxOrNaN(top, fabsf(x[i]));
  // Numbers of 16 bits with 5 of exponent have none so small.
  if (p.io != DeviceIo::kF16) {
#pragma unroll
    for (int i = 0; i < kPer; ++i) x[i] = fabsf(x[i]) < FLT_MIN ? 0.f : x[i];
  }
  if (!(top <= kMaxRowValue)) {
    int nonfinite = 0, clamped = 0;
#pragma unroll
    for (int i = 0; i < kPer; ++i) Sanitize(&x[i], &nonfinite, &clamped);
    Count(p, nonfinite, clamped);
  }
  if (center != nullptr) {
#pragma unroll
    for (int i = 0; i < kPer; ++i) x[i] = Centred(p, center[first + i], position, x[i]);
  }
  if (side.rotated == 0) return;
  const uint32_t signs = side.signs[first / 32] >> (first % 32);
#pragma unroll
  for (int i = 0; i < kPer; ++i) {
    x[i] = __uint_as_float(__float_as_uint(x[i]) ^ (signs << (31 - i) & 0x80000000u));
  }
  // The steps of Hadamard (device_row.cuh) in the same order: the first half of a row and the
  // second one, then quarters, ...
#pragma unroll
  for (int s = kRowLanes / 2; s > 0; s /= 2) {
    const float sign = lane & s ? -1.f : 1.f;
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
      x[i] = fmaf(x[i], sign, __shfl_xor_sync(kAllLanes, x[i], s));
    }
  }
#pragma unroll
  for (int h = kPer / 2; h > 0; h /= 2) {
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
      if (i & h) continue;
      const float a = x[i], b = x[i + h];
      x[i] = a + b, x[i + h] = a - b;
    }
  }
#pragma unroll
  for (int i = 0; i < kPer; ++i) x[i] *= kNorm<kDim>;
}

// Levels of a book, four to a word, of four codes of a byte each.
__device__ __forceinline__ uint32_t LevelsOf(const uint32_t (&table)[4], bool has_upper,
                                             uint32_t codes) {
  const uint32_t n = NibblesOf(has_upper ? codes & 0x07070707u : codes);
  const uint32_t low = ptx::Permute(table[0], table[1], n);
  if (!has_upper) return low;
  const uint32_t is_upper = (codes >> 3 & 0x01010101u) * 255u;
  return (low & ~is_upper) | (ptx::Permute(table[2], table[3], n) & is_upper);
}

// CodeRow of the lane's part of a row: `values` are the levels of 8 bits as floats, `words` the
// same four to a word. Codes of kBits bits.
template <int kDim, int kBits>
__device__ __forceinline__ void CodeRowPart(const AppendSide& side, Side which,
                                            const float (&values)[kDim / kRowLanes],
                                            const uint32_t (&words)[kDim / kRowLanes / 4],
                                            float open_scale, int token, int part,
                                            SealShared<kDim>* sh) {
  constexpr int kPer = kDim / kRowLanes, kLimits = (1 << kBits) - 1;
  const auto add = [](int a, int b) { return a + b; };
  int rr = 0;
#pragma unroll
  for (int i = 0; i < kPer / 4; ++i) {
    rr = __dp4a(static_cast<int>(words[i]), static_cast<int>(words[i]), rr);
  }
  rr = OverLanes(rr, kRowLanes, add);
  const float reference = __fsqrt_rn(__fdiv_rn(static_cast<float>(rr), static_cast<float>(kDim)));
  __half2 codes[kPer / 2], pairs[kPer / 2];  // 1024 + code: the low byte of the half is the code
#pragma unroll
  for (int i = 0; i < kPer / 2; ++i) {
    pairs[i] = __floats2half2_rn(values[2 * i], values[2 * i + 1]);
    codes[i] = __floats2half2_rn(1024.f, 1024.f);
  }
#pragma unroll
  for (int t = 0; t < kLimits; ++t) {
    const float limit = t + 1 < side.num_levels
                            ? fminf(fmaxf(floorf(side.thresholds[t] * reference), -128.f), 127.f)
                            : 127.f;
    const __half2 limits = __floats2half2_rn(limit, limit);
#pragma unroll
    for (int i = 0; i < kPer / 2; ++i) codes[i] = __hadd2(codes[i], __hgt2(pairs[i], limits));
  }
  uint32_t table[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) table[i] = reinterpret_cast<const uint32_t*>(side.levels)[i];
  int rl = 0, ll = 0;
#pragma unroll
  for (int i = 0; i < kPer / 4; ++i) {
    const uint32_t four =
        __byte_perm(*reinterpret_cast<const uint32_t*>(&codes[2 * i]),
                    *reinterpret_cast<const uint32_t*>(&codes[2 * i + 1]), 0x6420);
    reinterpret_cast<uint32_t*>(&sh->codes[which == Side::kV][token][part * kPer])[i] = four;
    const auto levels = static_cast<int>(LevelsOf(table, kBits > 3, four));
    rl = __dp4a(levels, static_cast<int>(words[i]), rl);
    ll = __dp4a(levels, levels, ll);
  }
  rl = OverLanes(rl, kRowLanes, add), ll = OverLanes(ll, kRowLanes, add);
  if (part == 0) StoreGain(side, which, open_scale, {reference, rr, rl, ll}, token, sh);
}

// All rows of a block of new tokens to open rows of 8 bits in shared memory, and to codes where a
// side is a book's and `seals`. The thread block.
template <int kDim>
__device__ __forceinline__ void CodeBlock(const AppendParams& p, const AppendHead& head,
                                          int kv_head, int64_t from, int first_position, bool seals,
                                          BlockRows<kDim>* rows, SealShared<kDim>* sh, int warp,
                                          int lane) {
  constexpr int kPer = kDim / kRowLanes;
  constexpr float kMagic = 12582912.f;  // 1.5 x 2^23: the sum's low byte is the rounded level
  const int part = lane % kRowLanes;
  for (int task = warp * kRowsAtOnce; task < 2 * kPageLen; task += kWarps * kRowsAtOnce) {
    const int s = task / kPageLen, token = task % kPageLen + lane / kRowLanes;
    const AppendSide& side = head.sides[s];
    const Side which = s == 0 ? Side::kK : Side::kV;
    float x[kPer];
    LoadRowPart<kDim>(p, side,
                      s == 0 && head.center >= 0 ? p.centers + head.center * kDim : nullptr,
                      s == 0 ? p.k : p.v, ((from + token) * p.num_kv_heads + kv_head) * kDim,
                      first_position + token, lane, part, x);
    float largest = 0;
#pragma unroll
    for (int i = 0; i < kPer; ++i) largest = fmaxf(largest, fabsf(x[i]));
    largest = OverLanes(largest, kRowLanes, [](float a, float b) { return fmaxf(a, b); });
    float inverse;
    const float scale = Int8Scale(largest, &inverse);
    uint32_t words[kPer / 4];
#pragma unroll
    for (int i = 0; i < kPer; i += 4) {
      float sum[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        sum[k] = x[i + k] * inverse + kMagic;
        x[i + k] = sum[k] - kMagic;
      }
      words[i / 4] = LowBytes(sum);
      reinterpret_cast<uint32_t*>(&rows->levels[s][token][part * kPer])[i / 4] = words[i / 4];
    }
    if (part == 0) rows->scales[s][token] = scale;
    if (!seals || side.kind != AppendKind::kBook) continue;
    if (side.bits == 2) {
      CodeRowPart<kDim, 2>(side, which, x, words, scale, token, part, sh);
    } else if (side.bits == 3) {
      CodeRowPart<kDim, 3>(side, which, x, words, scale, token, part, sh);
    } else {
      CodeRowPart<kDim, 4>(side, which, x, words, scale, token, part, sh);
    }
  }
  __syncthreads();
}

// The open part of the head from these rows, in fragment order.
template <int kDim>
__device__ __forceinline__ void StoreOpenBlock(const AppendHead& head, const BlockRows<kDim>& rows,
                                               uint8_t* open, int lane) {
  for (int i = threadIdx.x; i < 2 * kPageLen; i += blockDim.x) {
    const int s = i / kPageLen;
    reinterpret_cast<float*>(open + head.sides[s].open_scales)[i % kPageLen] =
        rows.scales[s][i % kPageLen];
  }
  for (int i = threadIdx.x; i < 2 * kDim * 4; i += blockDim.x) {  // a lane's part of a fragment
    const int s = i / (kDim * 4), fragment = i % (kDim * 4) / 32;
    const Side which = s == 0 ? Side::kK : Side::kV;
    const auto word = [&](int k) {
      return RegisterOf<kDim>(rows.levels[s], which, lane, 4 * fragment + k);
    };
    reinterpret_cast<uint4*>(open + head.sides[s].open_values)[fragment * 32 + lane] = {
        word(0), word(1), word(2), word(3)};
  }
}

}  // namespace
}  // namespace tq
