// Builds without CUDA. Nothing gets here: there is no device memory to multiply.
#include "turboquant/linear/product_params.h"

namespace tq {

Status LaunchQuantize(const QuantizeParams&, void*) {
  return Unavailable("cuda: this build has no CUDA kernels");
}
Status LaunchProduct(WeightType, const ProductParams&, void*) {
  return Unavailable("cuda: this build has no CUDA kernels");
}

}  // namespace tq
