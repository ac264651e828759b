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
