// The decode kernels that skip V codes of pages with little softmax mass; see decode_skip.cuh.
#include <cuda_runtime_api.h>

#include "turboquant/attention/decode_kernel.cuh"

namespace tq {

DecodeEntry SkippingDecodeEntry(int head_dim, int rows) {
  switch (head_dim * 100 + rows) {
    case 6404: return MakeDecodeEntry<64, 1, 4, true>();
    case 6408: return MakeDecodeEntry<64, 2, 3, true>();
    case 12804: return MakeDecodeEntry<128, 1, 3, true>();
    case 12808: return MakeDecodeEntry<128, 2, 2, true>();
    case 25604: return MakeDecodeEntry<256, 1, 2, true>();
    default: return MakeDecodeEntry<256, 2, 2, true>();
  }
}

}  // namespace tq
