// Floats in the type that a caller's memory has. Included by .cu files only.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "turboquant/base/device.h"

namespace tq {
namespace {

__device__ __forceinline__ float LoadIo(const void* p, int64_t i, DeviceIo io) {
  if (io == DeviceIo::kF16) return __half2float(static_cast<const __half*>(p)[i]);
  if (io == DeviceIo::kBF16) return __bfloat162float(static_cast<const __nv_bfloat16*>(p)[i]);
  return static_cast<const float*>(p)[i];
}

// kCount consecutive numbers from number i on, which lie at a multiple of 16 bytes or of their
// size.
template <int kCount>
__device__ __forceinline__ void LoadIoRow(const void* p, int64_t i, DeviceIo io,
                                          float (&x)[kCount]) {
  static_assert(kCount == 2 || kCount == 4 || kCount == 8);
  if (io == DeviceIo::kF32) {
#pragma unroll
    for (int k = 0; k < kCount; k += 2) {
      const float2 v = *reinterpret_cast<const float2*>(static_cast<const float*>(p) + i + k);
      x[k] = v.x, x[k + 1] = v.y;
    }
    return;
  }
  const auto* const from = static_cast<const uint16_t*>(p) + i;
  uint32_t words[kCount / 2];
  if constexpr (kCount == 8) {
    const uint4 v = *reinterpret_cast<const uint4*>(from);
    words[0] = v.x, words[1] = v.y, words[2] = v.z, words[3] = v.w;
  } else if constexpr (kCount == 4) {
    const uint2 v = *reinterpret_cast<const uint2*>(from);
    words[0] = v.x, words[1] = v.y;
  } else {
    words[0] = *reinterpret_cast<const uint32_t*>(from);
  }
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    const uint32_t half = words[k / 2] >> (16 * (k % 2)) & 0xffffu;
    x[k] = io == DeviceIo::kF16 ? __half2float(__ushort_as_half(static_cast<unsigned short>(half)))
                                : __uint_as_float(half << 16);
  }
}

__device__ __forceinline__ void StoreIo(void* p, int64_t i, float x, DeviceIo io) {
  if (io == DeviceIo::kF16) {
    static_cast<__half*>(p)[i] = __float2half(x);
  } else if (io == DeviceIo::kBF16) {
    static_cast<__nv_bfloat16*>(p)[i] = __float2bfloat16(x);
  } else {
    static_cast<float*>(p)[i] = x;
  }
}

}  // namespace
}  // namespace tq
