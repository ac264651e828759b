// The kernels that prefill_cuda.cu launches, from the files that compile them.
#pragma once

#include <cstddef>

#include "turboquant/attention/prefill_params.h"

namespace tq {

struct PrefillEntry {
  void (*kernel)(PrefillParams) = nullptr;
  int units = 0;  // of a tile
  int threads = 0;
  size_t shared_bytes = 0;
};
// head_dim 128, compute capability 9.0; empty where it was compiled for another.
PrefillEntry HopperPrefillEntry();

}  // namespace tq
