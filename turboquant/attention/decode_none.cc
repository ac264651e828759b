// Builds without CUDA. Nothing gets here: there is no device cache to attend to.
#include "turboquant/attention/decode_params.h"

namespace tq {

Status PrepareDecodeKernel(int, int, DecodeVariant, uint32_t, int, bool, bool, int64_t,
                           DecodeKernelInfo*) {
  return Unavailable("cuda: this build has no CUDA kernels");
}
Status LaunchDecodeKernel(int, int, DecodeVariant, const DecodeParams&, const DecodeKernelInfo&,
                          void*) {
  return Unavailable("cuda: this build has no CUDA kernels");
}

}  // namespace tq
