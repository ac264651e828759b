// Builds without CUDA. Nothing gets here: there is no device cache to attend to.
#include "turboquant/attention/prefill_params.h"

namespace tq {

Result<PrefillKernelInfo> PreparePrefillKernel(int, bool, bool) {
  return Unavailable("cuda: this build has no CUDA kernels");
}
Status LaunchPrefillKernel(int, PrefillKernelKind, const PrefillParams&, void*) {
  return Unavailable("cuda: this build has no CUDA kernels");
}

}  // namespace tq
