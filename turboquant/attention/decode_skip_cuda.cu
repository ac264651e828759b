// The decode kernels that skip V codes of pages with little softmax mass; see decode_skip.cuh.
#include <cuda_runtime_api.h>

#include "turboquant/attention/decode_kernel.cuh"

namespace tq {

DecodeEntry SkippingDecodeEntry(int head_dim, int rows) {
  return DecodeEntryOf<DecodeVariant::kSkip>(head_dim, rows);
}

}  // namespace tq
