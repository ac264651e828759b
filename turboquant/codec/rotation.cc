#include "turboquant/codec/rotation.h"

#include <algorithm>
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

Result<Rotation> Rotation::FromMatrix(std::span<const float> matrix, int head_dim) {
  const size_t n = static_cast<size_t>(head_dim);
  TQ_CHECK(matrix.size() == n * n);
  std::vector<double> a(matrix.begin(), matrix.end()), inverse(n * n, 0.0);
  double norm = 0, inverse_norm = 0;  // Frobenius
  for (size_t i = 0; i < n * n; ++i) {
    if (!std::isfinite(a[i])) {
      return InvalidArgument("rotation matrix: entry (", i / n, ", ", i % n, ") is not finite");
    }
    norm += a[i] * a[i];
  }
  for (size_t i = 0; i < n; ++i) inverse[i * n + i] = 1;
  // Gauss-Jordan elimination with row pivots.
  for (size_t column = 0; column < n; ++column) {
    size_t pivot = column;
    for (size_t row = column + 1; row < n; ++row) {
      if (std::fabs(a[row * n + column]) > std::fabs(a[pivot * n + column])) pivot = row;
    }
    if (a[pivot * n + column] == 0) return InvalidArgument("rotation matrix: it is singular");
    for (size_t k = 0; k < n; ++k) {
      std::swap(a[column * n + k], a[pivot * n + k]);
      std::swap(inverse[column * n + k], inverse[pivot * n + k]);
    }
    const double scale = 1 / a[column * n + column];
    for (size_t k = 0; k < n; ++k) a[column * n + k] *= scale, inverse[column * n + k] *= scale;
    for (size_t row = 0; row < n; ++row) {
      const double factor = a[row * n + column];
      if (row == column || factor == 0) continue;
      for (size_t k = 0; k < n; ++k) {
        a[row * n + k] -= factor * a[column * n + k];
        inverse[row * n + k] -= factor * inverse[column * n + k];
      }
    }
  }
  for (const double v : inverse) inverse_norm += v * v;
  const double condition = std::sqrt(norm * inverse_norm) / head_dim;
  constexpr double kMaxCondition = 1e4;
  if (!(condition < kMaxCondition)) {
    return InvalidArgument("rotation matrix: its condition number is ", condition, "; at most ",
                           kMaxCondition, " is accepted");
  }
  auto plan = std::make_shared<Plan>();
  for (size_t column = 0; column < n; ++column) {
    for (size_t row = 0; row < n; ++row) {
      plan->matrix.push_back(matrix[row * n + column]);
      plan->inverse.push_back(static_cast<float>(inverse[row * n + column]));
      plan->query.push_back(static_cast<float>(inverse[column * n + row]));
    }
  }
  Rotation r;
  r.kind_ = Rotate::kMatrix;
  r.head_dim_ = head_dim;
  r.plan_ = std::move(plan);
  return r;
}

namespace {

// x = M x, M by columns; sums in the order of the columns.
void Multiply(const std::vector<float>& columns, int n, float* x) {
  std::vector<float> y(static_cast<size_t>(n), 0.f);
  for (int c = 0; c < n; ++c) {
    const float* column = &columns[static_cast<size_t>(c) * n];
    for (int i = 0; i < n; ++i) y[static_cast<size_t>(i)] += column[i] * x[c];
  }
  std::copy(y.begin(), y.end(), x);
}

}  // namespace

void Rotation::Forward(float* x) const {
  if (kind_ == Rotate::kNone) return;
  if (kind_ == Rotate::kMatrix) return Multiply(plan_->matrix, head_dim_, x);
  UseReferenceKernels() ? RotateRef(*plan_, false, x) : RotateSimd(*plan_, false, x);
}

void Rotation::Inverse(float* x) const {
  if (kind_ == Rotate::kNone) return;
  if (kind_ == Rotate::kMatrix) return Multiply(plan_->inverse, head_dim_, x);
  UseReferenceKernels() ? RotateRef(*plan_, true, x) : RotateSimd(*plan_, true, x);
}

void Rotation::ForwardQuery(float* q) const {
  kind_ == Rotate::kMatrix ? Multiply(plan_->query, head_dim_, q) : Forward(q);
}

}  // namespace tq
