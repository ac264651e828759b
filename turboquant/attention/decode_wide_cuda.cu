// The decode kernels that read every format; see decode_wide.cuh.
#include <cuda_runtime_api.h>

#include "turboquant/attention/decode_kernel.cuh"

namespace tq {

DecodeEntry WideDecodeEntry(int head_dim, int rows) {
  constexpr auto kWide = DecodeVariant::kWide;
  switch (head_dim * 100 + rows) {
    case 6404: return MakeDecodeEntry<64, 1, 3, kWide>();
    case 6408: return MakeDecodeEntry<64, 2, 2, kWide>();
    case 12804: return MakeDecodeEntry<128, 1, 3, kWide>();
    case 12808: return MakeDecodeEntry<128, 2, 2, kWide>();
    case 25604: return MakeDecodeEntry<256, 1, 2, kWide>();
    default: return MakeDecodeEntry<256, 2, 2, kWide>();
  }
}

}  // namespace tq
