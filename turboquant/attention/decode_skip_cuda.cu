// The decode kernels that skip V codes of pages with little softmax mass; see decode_skip.cuh.
#include <cuda_runtime_api.h>

#include "turboquant/attention/decode_kernel.cuh"

namespace tq {

DecodeEntry SkippingDecodeEntry(int head_dim, int rows) {
  constexpr auto kSkip = DecodeVariant::kSkip;
  switch (head_dim * 100 + rows) {
    case 6404: return MakeDecodeEntry<64, 1, 4, kSkip>();
    case 6408: return MakeDecodeEntry<64, 2, 3, kSkip>();
    case 12804: return MakeDecodeEntry<128, 1, 3, kSkip>();
    case 12808: return MakeDecodeEntry<128, 2, 2, kSkip>();
    case 25604: return MakeDecodeEntry<256, 1, 2, kSkip>();
    default: return MakeDecodeEntry<256, 2, 2, kSkip>();
  }
}

}  // namespace tq
