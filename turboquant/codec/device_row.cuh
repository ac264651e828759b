// A row of K, V, queries or outputs over a warp: lane has channels [lane * kDim / 32, ...).
// Included by .cu files only.
#pragma once

#include "turboquant/base/device_io.cuh"
#include "turboquant/base/ptx.cuh"

namespace tq {
namespace {

// Signs packed by PackSigns (fragment_layout.h).
template <int kDim>
__device__ __forceinline__ void FlipSigns(const uint32_t* signs, float (&x)[kDim / 32], int lane) {
  constexpr int kEach = kDim / 32;
  const uint32_t bits = signs[lane * kEach / 32] >> (lane * kEach % 32);
#pragma unroll
  for (int i = 0; i < kEach; ++i) x[i] = bits >> i & 1 ? -x[i] : x[i];
}

// The Hadamard transform times `norm`, which makes it a rotation at 1 / sqrt(kDim).
template <int kDim>
__device__ __forceinline__ void Hadamard(float (&x)[kDim / 32], int lane, float norm) {
  constexpr int kEach = kDim / 32;
#pragma unroll
  for (int h = kDim / 2; h >= 1; h /= 2) {
    if (h >= kEach) {
      const int s = h / kEach;
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const float other = __shfl_xor_sync(ptx::kAllLanes, x[i], s);
        x[i] = lane & s ? other - x[i] : x[i] + other;
      }
    } else {
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        if (i & h) continue;
        const float a = x[i], b = x[i + h];
        x[i] = a + b, x[i + h] = a - b;
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) x[i] *= norm;
}

}  // namespace
}  // namespace tq
