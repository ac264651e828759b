// Specification of the rotation. x is [odd][pow2]; signs first, then a Hadamard of each row from
// the widest butterflies to the narrowest, scaled by norm, then the DCT over the rows.
#include <vector>

#include "turboquant/codec/rotation_kernels.h"

namespace tq {
namespace {

void Hadamard(const Rotation::Plan& plan, float* x) {
  for (int h = plan.pow2 / 2; h >= 1; h /= 2) {
    for (int i = 0; i < plan.pow2; i += 2 * h) {
      for (int j = i; j < i + h; ++j) {
        const float a = x[j], b = x[j + h];
        x[j] = a + b;
        x[j + h] = a - b;
      }
    }
  }
  for (int i = 0; i < plan.pow2; ++i) x[i] *= plan.norm;
}

// Column by column; transpose = inverse, as the matrix is orthonormal.
void Dct(const Rotation::Plan& plan, bool transpose, float* x) {
  const int m = plan.odd;
  std::vector<float> column(static_cast<size_t>(m));
  for (int j = 0; j < plan.pow2; ++j) {
    for (int i = 0; i < m; ++i) {
      float sum = 0;
      for (int k = 0; k < m; ++k) {
        const size_t at = static_cast<size_t>(transpose ? k * m + i : i * m + k);
        sum += plan.dct[at] * x[k * plan.pow2 + j];
      }
      column[static_cast<size_t>(i)] = sum;
    }
    for (int i = 0; i < m; ++i) x[i * plan.pow2 + j] = column[static_cast<size_t>(i)];
  }
}

}  // namespace

void RotateRef(const Rotation::Plan& plan, bool inverse, float* x) {
  const int n = plan.odd * plan.pow2;
  if (!inverse) {
    for (int i = 0; i < n; ++i) x[i] *= plan.signs[static_cast<size_t>(i)];
  } else if (plan.odd > 1) {
    Dct(plan, true, x);
  }
  for (int i = 0; i < plan.odd; ++i) Hadamard(plan, x + i * plan.pow2);
  if (!inverse) {
    if (plan.odd > 1) Dct(plan, false, x);
  } else {
    for (int i = 0; i < n; ++i) x[i] *= plan.signs[static_cast<size_t>(i)];
  }
}

}  // namespace tq
