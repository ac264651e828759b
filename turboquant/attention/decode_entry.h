// The kernels that decode_cuda.cu launches, from the files that compile them.
#pragma once

#include "turboquant/attention/decode_params.h"

namespace tq {

struct DecodeEntry {
  void (*function)(DecodeParams) = nullptr;
  // Of shared memory: where the warps' parts begin, and how large each is.
  size_t (*rings_offset)(int num_kv_heads, uint32_t center_bytes) = nullptr;
  size_t (*warp_bytes)(uint32_t stage_bytes, int center_pages) = nullptr;
  int max_warps = 0;  // of a thread block that has a multiprocessor for itself
};
// With skipping of V: 4 and 8 rows.
DecodeEntry SkippingDecodeEntry(int head_dim, int rows);
// For formats besides plain 2- to 4-bit ones: 4 and 8 rows.
DecodeEntry WideDecodeEntry(int head_dim, int rows);

}  // namespace tq
