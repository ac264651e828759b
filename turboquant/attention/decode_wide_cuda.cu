// The decode kernels that read every format; see decode_wide.cuh.
#include <cuda_runtime_api.h>

#include "turboquant/attention/decode_kernel.cuh"

namespace tq {

DecodeEntry WideDecodeEntry(int head_dim, int rows) {
  return DecodeEntryOf<DecodeVariant::kWide>(head_dim, rows);
}

}  // namespace tq
