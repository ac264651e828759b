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

// Over `lanes` lanes, which follow one another: a power of two of them.
template <typename T, typename Fn>
__device__ __forceinline__ T OverLanes(T x, int lanes, const Fn& fn) {
  for (int s = 1; s < lanes; s *= 2) x = fn(x, __shfl_xor_sync(kAllLanes, x, s));
  return x;
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

// The scale of an 8-bit row for its largest |value|; `inverse`: what values are multiplied with.
__device__ __forceinline__ float Int8Scale(float largest, float* inverse) {
  const float scale = __fdiv_rn(largest, 127.f);
  const bool is_zero = scale < FLT_MIN;
  *inverse = is_zero ? 0.f : __fdiv_rn(127.f, largest);
  return is_zero ? 0.f : scale;
}

template <int kDim>
__device__ __forceinline__ void StoreInt8Row(Side which, int token, const float (&x)[kDim / 32],
                                             uint8_t* values, float* scales, int lane) {
  constexpr int kEach = kDim / 32;
  float largest = 0, inverse;
#pragma unroll
  for (int i = 0; i < kEach; ++i) largest = fmaxf(largest, fabsf(x[i]));
  const float scale = Int8Scale(WarpMax(largest), &inverse);
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    values[FragmentByte(FragmentOf(which, kDim, token, lane * kEach + i))] =
        static_cast<uint8_t>(__float2int_rn(x[i] * inverse));
  }
  if (lane == 0) scales[token] = scale;
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

// A number as it is written: finite, not beyond kMaxRowValue, and 0 below the smallest normal one.
__device__ __forceinline__ void Sanitize(float* v, int* nonfinite, int* clamped) {
  if (!isfinite(*v)) {
    *v = 0, ++*nonfinite;
  } else if (fabsf(*v) > kMaxRowValue) {
    *v = copysignf(kMaxRowValue, *v), ++*clamped;
  } else if (fabsf(*v) < FLT_MIN) {
    *v = 0;
  }
}
__device__ __forceinline__ void Count(const AppendParams& p, int nonfinite, int clamped) {
  if (nonfinite > 0) atomicAdd(&p.counters[0], static_cast<unsigned long long>(nonfinite));
  if (clamped > 0) atomicAdd(&p.counters[1], static_cast<unsigned long long>(clamped));
}
// Without the centre of its channel.
__device__ __forceinline__ float Centred(const AppendParams& p, const AppendCenter& c, int position,
                                         float x) {
  if (c.slot < 0) return x;
  const float2 angle = CenterAngle(p.center_table, c.slot, position);
  return x - (c.cos_part * angle.x + c.sin_part * angle.y);
}

// A row of a head as it is written: sanitized, without its centre, rotated. `at`: in p.k or p.v.
// Counts what was not finite or out of range.
template <int kDim>
__device__ __forceinline__ void LoadRow(const AppendParams& p, const AppendSide& side,
                                        const AppendCenter* center, const void* from, int64_t at,
                                        int position, int lane, float (&x)[kDim / 32]) {
  constexpr int kEach = kDim / 32;
  int nonfinite = 0, clamped = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    x[i] = LoadIo(from, at + lane * kEach + i, p.io);
    Sanitize(&x[i], &nonfinite, &clamped);
    if (center != nullptr) x[i] = Centred(p, center[lane * kEach + i], position, x[i]);
  }
  if (side.rotated != 0) {
    FlipSigns<kDim>(side.signs, x, lane);
    Hadamard<kDim>(x, lane, kNorm<kDim>);
  }
  Count(p, nonfinite, clamped);
}

template <int kDim>
__device__ void AppendRow(const AppendParams& p, const AppendSide& side, const AppendCenter* center,
                          Side which, const void* from, int64_t at, int position, uint8_t* open,
                          int lane) {
  const int token = position % kPageLen;
  float x[kDim / 32];
  LoadRow<kDim>(p, side, center, from, at, position, lane, x);
  uint8_t* const values = open + side.open_values;
  if (side.row_type == AppendRowType::kInt8) {
    StoreInt8Row<kDim>(which, token, x, values, reinterpret_cast<float*>(open + side.open_scales),
                       lane);
    return;
  }
  const int clamped = StoreFloatRow<kDim>(side.row_type, which, token, x, values, lane);
  if (clamped > 0) atomicAdd(&p.counters[1], static_cast<unsigned long long>(clamped));
}

template <int kDim>
struct SealShared {
  // K, V; a row is longer by a word than it needs, for the sake of banks.
  alignas(4) uint8_t codes[2][kPageLen][kDim + 4];
  // Of each side's rows: scales with gain and the energies of their levels, or lengths.
  float scale[2][kPageLen];
  int energy[2][kPageLen];
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
// Of 8-bit levels x and the levels of their codes, which are relative to `reference`: rr = |x|^2,
// rl = <x, levels>, ll = |levels|^2.
struct CodeSums {
  float reference;
  int rr, rl, ll;
};
__device__ __forceinline__ float GainOf(const AppendSide& side, const CodeSums& sums) {
  const auto [reference, rr, rl, ll] = sums;
  if (rr == 0) return 0;
  if (side.gain == AppendGain::kNone) return side.unit * reference;
  if (side.gain == AppendGain::kUnbiased) {
    return rl > 0 ? __fdiv_rn(static_cast<float>(rr), static_cast<float>(rl)) : 0.f;
  }
  return ll > 0 ? __fsqrt_rn(__fdiv_rn(static_cast<float>(rr), static_cast<float>(ll))) : 0.f;
}

// Scale with gain and energy of a row.
template <int kDim>
__device__ __forceinline__ void StoreGain(const AppendSide& side, Side which, float open_scale,
                                          const CodeSums& sums, int token, SealShared<kDim>* sh) {
  sh->scale[which == Side::kV][token] = open_scale * GainOf(side, sums);
  sh->energy[which == Side::kV][token] = sums.rr == 0 ? 0 : sums.ll;
}

// Codes of a lane's channels, relative to all channels of its `lanes` lanes.
template <int kDim>
__device__ __forceinline__ CodeSums CodeChannels(const AppendSide& side, Side which,
                                                 const int (&row)[kDim / 32], int lanes, int token,
                                                 SealShared<kDim>* sh, int lane) {
  constexpr int kEach = kDim / 32;
  const auto add = [](int x, int y) { return x + y; };
  int code[kEach], rr = 0, rl = 0, ll = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) rr += row[i] * row[i];
  rr = OverLanes(rr, lanes, add);
  const float reference =
      __fsqrt_rn(__fdiv_rn(static_cast<float>(rr), static_cast<float>(lanes * kEach)));
  CodesOf<kEach>(side, row, reference, code);
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int level = side.levels[code[i]];
    ll += level * level;
    rl += level * row[i];
    sh->codes[which == Side::kV][token][lane * kEach + i] = static_cast<uint8_t>(code[i]);
  }
  return {reference, rr, OverLanes(rl, lanes, add), OverLanes(ll, lanes, add)};
}

// A row of an open block to codes, its scale with gain, and the energy of its levels.
template <int kDim>
__device__ void CodeRow(const AppendSide& side, Side which, const uint8_t* open, int token,
                        SealShared<kDim>* sh, int lane) {
  constexpr int kEach = kDim / 32;
  int row[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    row[i] = OpenLevel<kDim>(side, which, open, token, lane * kEach + i);
  }
  const CodeSums sums = CodeChannels<kDim>(side, which, row, 32, token, sh, lane);
  if (lane == 0) StoreGain(side, which, OpenScale(side, open, token), sums, token, sh);
}

// Four codes of a byte each as nibbles.
__device__ __forceinline__ uint32_t NibblesOf(uint32_t codes) {
  codes = (codes | codes >> 4) & 0x00ff00ffu;
  return (codes | codes >> 8) & 0xffffu;
}

// Bytes [i] of rows of a block as a register of a lane's stream has them: the inverse of
// FragmentOf.
template <int kDim, typename Rows>
__device__ __forceinline__ uint32_t RegisterOf(const Rows& rows, Side which, int lane, int reg) {
  const int fragment = reg / 4, i = reg % 4, r = lane / 4, c = lane % 4;
  if (which == Side::kK) {  // four channels of a token
    constexpr int kSteps = kDim / 32;
    return *reinterpret_cast<const uint32_t*>(
        &rows[fragment / kSteps * 16 + r + 8 * (i & 1)]
             [fragment % kSteps * 32 + 4 * c + 16 * (i >> 1)]);
  }
  const int m = fragment / 8 * 4 + fragment % 4, s = fragment / 4 % 2;
  const int token = 32 * s + 16 * (i >> 1) + 2 * c, channel = 16 * m + r + 8 * (i & 1);
  const auto byte = [&](int t) {
    return static_cast<uint32_t>(static_cast<uint8_t>(rows[token + t][channel]));
  };
  return byte(0) | byte(1) << 8 | byte(8) << 16 | byte(9) << 24;
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
