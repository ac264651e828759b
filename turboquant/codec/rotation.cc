#include "turboquant/codec/rotation.h"

#include <cmath>
#include <numbers>

#include "turboquant/base/isa.h"
#include "turboquant/codec/rotation_kernels.h"

namespace tq {

Rotation::Rotation(Rotate kind, int head_dim, uint64_t seed, int layer, int kv_head, Side side)
    : kind_(kind), head_dim_(head_dim) {
  if (kind == Rotate::kNone) return;
  auto plan = std::make_shared<Plan>();
  plan->odd = head_dim;
  while (plan->odd % 2 == 0) {
    plan->odd /= 2;
    plan->pow2 *= 2;
  }
  plan->norm = static_cast<float>(1.0 / std::sqrt(static_cast<double>(plan->pow2)));
  plan->signs.Resize(static_cast<size_t>(head_dim));
  // One stream of bits for each (seed, layer, head, side): chained through the generator.
  uint64_t state = seed;
  for (const uint64_t part : {static_cast<uint64_t>(layer), static_cast<uint64_t>(kv_head),
                              static_cast<uint64_t>(side)}) {
    state = SplitMix64(state) ^ part;
  }
  uint64_t bits = 0;
  for (int i = 0; i < head_dim; ++i) {
    if (i % 64 == 0) bits = SplitMix64(state);
    plan->signs[static_cast<size_t>(i)] = (bits >> (i % 64)) & 1 ? -1.f : 1.f;
  }
  if (plan->odd > 1) {
    const int m = plan->odd;
    plan->dct.Resize(static_cast<size_t>(m) * m);
    for (int i = 0; i < m; ++i) {
      for (int k = 0; k < m; ++k) {
        const double w = std::sqrt((i == 0 ? 1.0 : 2.0) / m);
        plan->dct[static_cast<size_t>(i) * m + k] =
            static_cast<float>(w * std::cos(std::numbers::pi * i * (2 * k + 1) / (2.0 * m)));
      }
    }
  }
  plan_ = std::move(plan);
}

void Rotation::Forward(float* x) const {
  if (kind_ == Rotate::kNone) return;
  UseReferenceKernels() ? RotateRef(*plan_, false, x) : RotateSimd(*plan_, false, x);
}

void Rotation::Inverse(float* x) const {
  if (kind_ == Rotate::kNone) return;
  UseReferenceKernels() ? RotateRef(*plan_, true, x) : RotateSimd(*plan_, true, x);
}

}  // namespace tq
