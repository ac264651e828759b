// Builds without CUDA. Nothing gets here: there is no device cache to append to.
#include "turboquant/cache/append_params.h"

namespace tq {

Status PrepareAppend(int, AppendParams*) {
  return Unavailable("cuda: this build has no CUDA kernels");
}
Status LaunchAppend(int, const AppendParams&, void*) {
  return Unavailable("cuda: this build has no CUDA kernels");
}
Status LaunchAppendPrompt(int, const AppendParams&, void*) {
  return Unavailable("cuda: this build has no CUDA kernels");
}
Status LaunchAdvance(int32_t*, const int32_t*, int, int, void*) {
  return Unavailable("cuda: this build has no CUDA kernels");
}

}  // namespace tq
