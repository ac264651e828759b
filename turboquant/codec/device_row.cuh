// A row of K, V, queries or outputs over a warp: lane has channels [lane * kDim / 32, ...).
// Included by .cu files only.
#pragma once

#include "turboquant/base/device_io.cuh"
#include "turboquant/base/ptx.cuh"

namespace tq {
namespace {

// The low bytes of four floats, which are the digits where a power of two of 2^23 or more was
// added.
__device__ __forceinline__ uint32_t LowBytes(const float (&x)[4]) {
  const uint32_t a = __byte_perm(__float_as_uint(x[0]), __float_as_uint(x[1]), 0x0040);
  const uint32_t b = __byte_perm(__float_as_uint(x[2]), __float_as_uint(x[3]), 0x0040);
  return __byte_perm(a, b, 0x5410);
}

// Signs packed by PackSigns (fragment_layout.h).
template <int kDim>
__device__ __forceinline__ void FlipSigns(const uint32_t* signs, float (&x)[kDim / 32], int lane) {
  constexpr int kEach = kDim / 32;
  const uint32_t bits = signs[lane * kEach / 32] >> (lane * kEach % 32);
#pragma unroll
  for (int i = 0; i < kEach; ++i) x[i] = bits >> i & 1 ? -x[i] : x[i];
}

// The Hadamard transform of rows times `norm`, which makes it a rotation at 1 / sqrt(kDim). Several
// rows take little longer than one: their shuffles overlap.
template <int kDim, int kRows>
__device__ __forceinline__ void Hadamard(float (&x)[kRows][kDim / 32], int lane, float norm) {
  constexpr int kEach = kDim / 32;
#pragma unroll
  for (int s = 16; s > 0; s /= 2) {
#pragma unroll
    for (int i = 0; i < kRows * kEach; ++i) {
      float& mine = x[i / kEach][i % kEach];
      const float other = __shfl_xor_sync(ptx::kAllLanes, mine, s);
      mine = lane & s ? other - mine : mine + other;
    }
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int h = kEach / 2; h >= 1; h /= 2) {
#pragma unroll
      for (int e = 0; e < kEach; ++e) {
        if (e & h) continue;
        const float a = x[i][e], b = x[i][e + h];
        x[i][e] = a + b, x[i][e + h] = a - b;
      }
    }
#pragma unroll
    for (int e = 0; e < kEach; ++e) x[i][e] *= norm;
  }
}
template <int kDim>
__device__ __forceinline__ void Hadamard(float (&x)[kDim / 32], int lane, float norm) {
  Hadamard<kDim>(reinterpret_cast<float(&)[1][kDim / 32]>(x), lane, norm);
}

}  // namespace
}  // namespace tq
