// The part of the CUDA runtime that launchers call.
#pragma once

#include "tests/cuda_emulator/emulator.h"

using cudaStream_t = void*;
using cudaError_t = int;
struct cudaFuncAttributes {
  size_t sharedSizeBytes = 0;
  int ptxVersion = 0;
};
enum {
  cudaFuncAttributeMaxDynamicSharedMemorySize,
  cudaFuncAttributePreferredSharedMemoryCarveout
};
enum { cudaSharedmemCarveoutMaxShared = 100 };

template <typename F>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes*, F*) {
  return 0;
}
template <typename F>
cudaError_t cudaFuncSetAttribute(F*, int, int) {
  return 0;
}
template <typename F>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, F*, int, size_t bytes) {
  *blocks =
      static_cast<int>(std::min<size_t>(2, emulator::kSharedBytes / std::max<size_t>(bytes, 1)));
  return 0;
}
inline cudaError_t cudaGetLastError() {
  return 0;
}
