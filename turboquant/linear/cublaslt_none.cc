// Builds without the header of cuBLASLt.
#include "turboquant/linear/cublaslt.h"

namespace tq {

std::vector<std::string> CublasLt::Files() {
  return {};
}

Result<std::unique_ptr<CublasLt>> CublasLt::Create(std::span<const std::string>) {
  return Unsupported(
      "cuda: products of F32, F16 and BF16 weights need cuBLASLt, and this build was made without; "
      "install its header cublasLt.h (NVIDIA's package libcublas-dev of the CUDA toolkit) and "
      "configure again");
}

}  // namespace tq
