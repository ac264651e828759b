// The kernels that decode_cuda.cu launches, from the files that compile them.
#pragma once

#include "turboquant/attention/decode_params.h"

namespace tq {

struct DecodeEntry {
  void (*function)(DecodeParams) = nullptr;
  size_t (*center_offset)(int num_kv_heads) = nullptr;  // in shared memory
};
// With skipping of V: 4 and 8 rows.
DecodeEntry SkippingDecodeEntry(int head_dim, int rows);

}  // namespace tq
