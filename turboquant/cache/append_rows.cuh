// One row of an append: written to its open block, re-coded when the block is sealed; a warp.
// Included by append_cuda.cu.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cfloat>

#include "turboquant/cache/append_params.h"
#include "turboquant/codec/anchor.h"
#include "turboquant/codec/device_row.cuh"
#include "turboquant/codec/encode.h"
#include "turboquant/codec/fp8.h"
#include "turboquant/codec/fragment_layout.h"

namespace tq {
namespace {

constexpr int kWarps = 8;
using ptx::kAllLanes;
// 1 / sqrt(kDim), rounded as the CPU rounds it, which rsqrtf is not.
template <int kDim>
constexpr float kNorm = kDim == 64    ? 0.125f
                        : kDim == 128 ? 0.08838834764831845f
                                      : 0.0625f;

template <typename T>
__device__ __forceinline__ T WarpSum(T x) {
#pragma unroll
  for (int s = 16; s > 0; s /= 2) x += __shfl_xor_sync(kAllLanes, x, s);
  return x;
}
__device__ __forceinline__ float WarpMax(float x) {
#pragma unroll
  for (int s = 16; s > 0; s /= 2) x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, s));
  return x;
}

// The same of several rows, at once.
template <int kRows>
__device__ __forceinline__ void WarpSums(int (&x)[kRows]) {
#pragma unroll
  for (int s = 16; s > 0; s /= 2) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) x[i] += __shfl_xor_sync(kAllLanes, x[i], s);
  }
}

// The smallest bfloat16 that is not below f, for f >= 0 and finite.
__device__ __forceinline__ uint16_t BF16RoundUp(float f) {
  return static_cast<uint16_t>((__float_as_uint(f) + 0xffffu) >> 16);
}

// cos and sin of the angle of `slot` at a position, as CenterTable has them.
__device__ __forceinline__ float2 CenterAngle(const DeviceCenterTable& t, int slot, int position) {
  const float2 start = __ldg(reinterpret_cast<const float2*>(t.starts) +
                             static_cast<int64_t>(position / kPageLen) * t.num_slots + slot);
  const float* const offsets = t.offsets + 2 * slot * kPageLen + position % kPageLen;
  const float cj = __ldg(offsets), sj = __ldg(offsets + kPageLen);
  return make_float2(start.x * cj - start.y * sj, start.y * cj + start.x * sj);
}

// 8-bit levels of rows, and their scales.
template <int kDim, int kRows>
__device__ __forceinline__ void Int8Levels(const float (&x)[kRows][kDim / 32],
                                           int (&level)[kRows][kDim / 32], float (&scale)[kRows]) {
  constexpr int kEach = kDim / 32;
  float largest[kRows] = {};
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) largest[r] = fmaxf(largest[r], fabsf(x[r][i]));
  }
#pragma unroll
  for (int s = 16; s > 0; s /= 2) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      largest[r] = fmaxf(largest[r], __shfl_xor_sync(kAllLanes, largest[r], s));
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    scale[r] = __fdiv_rn(largest[r], 127.f);
    const bool is_zero = scale[r] < FLT_MIN;
    if (is_zero) scale[r] = 0;
    const float inverse = is_zero ? 0.f : __fdiv_rn(127.f, largest[r]);
#pragma unroll
    for (int i = 0; i < kEach; ++i) level[r][i] = is_zero ? 0 : __float2int_rn(x[r][i] * inverse);
  }
}

template <int kDim>
__device__ __forceinline__ void StoreInt8Row(Side which, int token, const float (&x)[1][kDim / 32],
                                             uint8_t* values, float* scales, int lane) {
  constexpr int kEach = kDim / 32;
  int level[1][kEach];
  float scale[1];
  Int8Levels<kDim>(x, level, scale);
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    values[FragmentByte(FragmentOf(which, kDim, token, lane * kEach + i))] =
        static_cast<uint8_t>(level[0][i]);
  }
  if (lane == 0) scales[token] = scale[0];
}

// FP8FromF32 of codec/fp8.h.
__device__ __forceinline__ uint8_t ToFP8(float f) {
  const uint32_t bits = __float_as_uint(f), sign = bits >> 24 & 0x80u;
  const float magnitude = fabsf(f);
  if (magnitude < 0x1p-6f) {
    return static_cast<uint8_t>(sign | static_cast<uint32_t>(__float2int_rn(magnitude * 0x1p9f)));
  }
  const uint32_t m = bits & 0x7fffffffu, rounded = m + 0x7ffffu + (m >> 20 & 1u);
  return static_cast<uint8_t>(sign | ((rounded >> 20) - (120u << 3)));
}

// Returns how many values were beyond the type's range.
template <int kDim>
__device__ __forceinline__ int StoreFloatRow(AppendRowType type, Side which, int token,
                                             const float (&x)[kDim / 32], uint8_t* values,
                                             int lane) {
  constexpr int kEach = kDim / 32;
  const float limit = type == AppendRowType::kFP8 ? kMaxFP8 : kMaxF16Value;
  int clamped = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int c = lane * kEach + i;
    float v = x[i];
    uint16_t half;
    if (type == AppendRowType::kBF16) {
      half = __bfloat16_as_ushort(__float2bfloat16_rn(v));
    } else {
      if (fabsf(v) > limit) {
        v = copysignf(limit, v), ++clamped;
      } else if (fabsf(v) < FLT_MIN) {
        v = 0;
      }
      if (type == AppendRowType::kFP8) {
        values[FragmentByte(FragmentOf(which, kDim, token, c))] = ToFP8(v);
        continue;
      }
      half = __half_as_ushort(__float2half_rn(v));
    }
    *reinterpret_cast<uint16_t*>(values + FragmentHalfByte(which, kDim, token, c)) = half;
  }
  return clamped;
}

// Consecutive tokens of a head as they are written: sanitized, without their centre, rotated. `at`:
// of the first, in p.k or p.v. Counts what was not finite or out of range.
template <int kDim, int kRows>
__device__ __forceinline__ void LoadRows(const AppendParams& p, const AppendSide& side,
                                         const AppendCenter* center, const void* from, int64_t at,
                                         int position, int lane, float (&x)[kRows][kDim / 32]) {
  constexpr int kEach = kDim / 32;
  int nonfinite = 0, clamped = 0;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const int64_t row = at + static_cast<int64_t>(r) * p.num_kv_heads * kDim + lane * kEach;
    if constexpr (kRows > 1) {  // whole blocks, which are aligned
      LoadIoRow(from, row, p.io, x[r]);
    } else {
#pragma unroll
      for (int i = 0; i < kEach; ++i) x[r][i] = LoadIo(from, row + i, p.io);
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      float& v = x[r][i];
      if (!isfinite(v)) {
        v = 0, ++nonfinite;
      } else if (fabsf(v) > kMaxRowValue) {
        v = copysignf(kMaxRowValue, v), ++clamped;
      } else if (fabsf(v) < FLT_MIN) {
        v = 0;
      }
    }
    if (center != nullptr) {
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const AppendCenter c = center[lane * kEach + i];
        if (c.slot < 0) continue;
        const float2 angle = CenterAngle(p.center_table, c.slot, position + r);
        x[r][i] -= c.cos_part * angle.x + c.sin_part * angle.y;
      }
    }
  }
  if (side.rotated != 0) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) FlipSigns<kDim>(side.signs, x[r], lane);
    Hadamard<kDim>(x, lane, kNorm<kDim>);
  }
  if (nonfinite > 0) atomicAdd(&p.counters[0], static_cast<unsigned long long>(nonfinite));
  if (clamped > 0) atomicAdd(&p.counters[1], static_cast<unsigned long long>(clamped));
}

template <int kDim>
__device__ void AppendRow(const AppendParams& p, const AppendSide& side, const AppendCenter* center,
                          Side which, const void* from, int64_t at, int position, uint8_t* open,
                          int lane) {
  const int token = position % kPageLen;
  float x[1][kDim / 32];
  LoadRows<kDim>(p, side, center, from, at, position, lane, x);
  uint8_t* const values = open + side.open_values;
  if (side.row_type == AppendRowType::kInt8) {
    StoreInt8Row<kDim>(which, token, x, values, reinterpret_cast<float*>(open + side.open_scales),
                       lane);
    return;
  }
  const int clamped = StoreFloatRow<kDim>(side.row_type, which, token, x[0], values, lane);
  if (clamped > 0) atomicAdd(&p.counters[1], static_cast<unsigned long long>(clamped));
}

template <int kDim>
struct SealShared {
  // K, V; a row is longer by a word than it needs, for the sake of banks.
  alignas(4) uint8_t codes[2][kPageLen][kDim + 4];
  float scale[kPageLen];
  int energy[kPageLen];
  // Anchors.
  float stored[2][kPageLen];  // scales as they will be read
  float score[kPageLen];
  union {
    float row[kWarps][kDim];
    // Of groups, scales and offsets; when anchors are chosen nobody needs them.
    float group[2][kDim / 16][kPageLen];
  };
  float probe_scores[kWarps][AnchorScorer::kMaxScored];
  int chosen[kMaxAnchors];
  uint16_t bases[2], bound;  // of the side info
};

// Level of the 8-bit row of a token.
template <int kDim>
__device__ __forceinline__ int OpenLevel(const AppendSide& side, Side which, const uint8_t* open,
                                         int token, int channel) {
  return static_cast<int8_t>(
      open[side.open_values + FragmentByte(FragmentOf(which, kDim, token, channel))]);
}
__device__ __forceinline__ float OpenScale(const AppendSide& side, const uint8_t* open, int token) {
  return reinterpret_cast<const float*>(open + side.open_scales)[token];
}

// Codes by the book, for values relative to `reference`.
template <int kEach>
__device__ __forceinline__ void CodesOf(const AppendSide& side, const int (&row)[kEach],
                                        float reference, int (&code)[kEach]) {
#pragma unroll
  for (int i = 0; i < kEach; ++i) code[i] = 0;
  for (int t = 0; t + 1 < side.num_levels; ++t) {
    const float threshold = floorf(side.thresholds[t] * reference);
    const int limit = static_cast<int>(fminf(fmaxf(threshold, -128.f), 127.f));
#pragma unroll
    for (int i = 0; i < kEach; ++i) code[i] += row[i] > limit;
  }
}
// Of sums rr = |x|^2, rl = <x, levels>, ll = |levels|^2.
__device__ __forceinline__ float GainOf(const AppendSide& side, float reference, int rr, int rl,
                                        int ll) {
  if (rr == 0) return 0;
  if (side.gain == AppendGain::kNone) return side.unit * reference;
  if (side.gain == AppendGain::kUnbiased) {
    return rl > 0 ? __fdiv_rn(static_cast<float>(rr), static_cast<float>(rl)) : 0.f;
  }
  return ll > 0 ? __fsqrt_rn(__fdiv_rn(static_cast<float>(rr), static_cast<float>(ll))) : 0.f;
}

// Rows of 8-bit levels, of consecutive tokens, to codes, their scales with gain, and the energies
// of their levels.
template <int kDim, int kRows>
__device__ __forceinline__ void CodeLevels(const AppendSide& side, Side which,
                                           const int (&row)[kRows][kDim / 32],
                                           const float (&open_scale)[kRows], int first_token,
                                           SealShared<kDim>* sh, int lane) {
  constexpr int kEach = kDim / 32;
  int rr[kRows] = {}, limit[kRows], code[kRows][kEach] = {}, ll[kRows] = {}, rl[kRows] = {};
  float reference[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) rr[r] += row[r][i] * row[r][i];
  }
  WarpSums(rr);
  // As CodesOf, but a lane has one of the thresholds.
  const bool has_limit = lane + 1 < side.num_levels;
  const float threshold = has_limit ? side.thresholds[lane] : 0.f;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    reference[r] = __fsqrt_rn(__fdiv_rn(static_cast<float>(rr[r]), static_cast<float>(kDim)));
    const float exact = fminf(fmaxf(floorf(threshold * reference[r]), -128.f), 127.f);
    limit[r] = has_limit ? static_cast<int>(exact) : 127;
  }
#pragma unroll 3
  for (int t = 0; t + 1 < side.num_levels; ++t) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int at = __shfl_sync(kAllLanes, limit[r], t);
#pragma unroll
      for (int i = 0; i < kEach; ++i) code[r][i] += row[r][i] > at;
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    uint32_t packed[DivCeil(kEach, 4)] = {};
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int level = side.levels[code[r][i]];
      ll[r] += level * level;
      rl[r] += level * row[r][i];
      packed[i / 4] |= static_cast<uint32_t>(code[r][i]) << (i % 4 * 8);
    }
    uint8_t* const to = &sh->codes[which == Side::kV][first_token + r][lane * kEach];
    if constexpr (kEach % 4 == 0) {
#pragma unroll
      for (int i = 0; i < kEach / 4; ++i) reinterpret_cast<uint32_t*>(to)[i] = packed[i];
    } else {
      *reinterpret_cast<uint16_t*>(to) = static_cast<uint16_t>(packed[0]);
    }
  }
  WarpSums(ll);
  WarpSums(rl);
  if (lane != 0) return;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (rr[r] == 0) ll[r] = rl[r] = 0;
    sh->scale[first_token + r] = open_scale[r] * GainOf(side, reference[r], rr[r], rl[r], ll[r]);
    sh->energy[first_token + r] = ll[r];
  }
}

// The same of a row of an open block.
template <int kDim>
__device__ void CodeRow(const AppendSide& side, Side which, const uint8_t* open, int token,
                        SealShared<kDim>* sh, int lane) {
  constexpr int kEach = kDim / 32;
  int row[1][kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    row[0][i] = OpenLevel<kDim>(side, which, open, token, lane * kEach + i);
  }
  const float scale[1] = {OpenScale(side, open, token)};
  CodeLevels<kDim>(side, which, row, scale, token, sh, lane);
}

// Log8Encode of codec/log8.h.
__device__ uint8_t EncodeScale(float scale, float base) {
  if (!(scale > 0)) return 0;
  const float log = static_cast<float>(log2(static_cast<double>(__fdiv_rn(scale, base))));
  const float exact = 255.f + 16.f * log;
  if (exact < -15.f) return 0;
  return static_cast<uint8_t>(fminf(fmaxf(rintf(exact), 1.f), 255.f));
}

}  // namespace
}  // namespace tq
