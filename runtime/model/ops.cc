// Picks the kernels in use.
#include "runtime/model/ops.h"

#include "turboquant/base/isa.h"

namespace tq {
namespace {
const ModelOps& Ops() {
  return UseReferenceKernels() ? ModelOpsRef() : ModelOpsSimd();
}
}  // namespace

void RmsNorm(const float* x, const float* weight, int rows, int64_t n, float eps, float* out) {
  Ops().rms_norm(x, weight, rows, n, eps, out);
}
void GatedMul(Activation activation, float* gate, const float* up, int64_t n) {
  Ops().gated_mul(activation, gate, up, n);
}
void Softcap(float cap, float* x, int64_t n) {
  Ops().softcap(cap, x, n);
}
void Add(float* x, const float* y, int64_t n) {
  Ops().add(x, y, n);
}
void ApplyRope(float* x, const float* cos, const float* sin, int rows, int heads, int head_dim,
               int rope_dim) {
  Ops().apply_rope(x, cos, sin, rows, heads, head_dim, rope_dim);
}

}  // namespace tq
