#include "turboquant/linear/encode_feedback.h"

#include <algorithm>
#include <cmath>

#include "turboquant/base/numeric.h"
#include "turboquant/linear/encode_block.h"
#include "turboquant/linear/file_block.h"

namespace tq {
namespace {

// to[k] -= factor * from[k]: what the loops below spend their time on; compilers make vectors of
// it.
template <typename T>
void Subtract(T factor, const T* from, int64_t n, T* to) {
  for (int64_t k = 0; k < n; ++k) to[k] -= factor * from[k];
}

// Codes of a block one after the other; each error moves what follows in the block and is kept.
void EncodeInTurn(const WeightLayout& f, bool symmetric_q8, float* x, const float* factor,
                  int64_t stride, FileBlock& block, float* errors) {
  const float d = F32FromF16(block.d), m = F32FromF16(block.m);
  const int codes = 1 << (f.low_bits + f.high_bits);
  const float low = symmetric_q8 ? -127.f : static_cast<float>(-f.offset);
  const auto high = static_cast<float>(codes - 1 - f.offset);
  for (int k = 0; k < f.block_len; ++k) {
    const int g = k / f.group_len;
    const bool has_groups = f.scale_bytes > 0;
    const float scale = has_groups ? d * static_cast<float>(block.scales[g]) : d;
    float minimum = has_groups ? -(m * static_cast<float>(block.mins[g])) : m;
    if (!f.has_min) minimum = 0;
    const float inverse = std::abs(scale) < 1e-20f ? 0.f : 1 / scale;
    const float c = std::clamp(std::nearbyint((x[k] - minimum) * inverse), low, high);
    block.codes[k] = static_cast<uint8_t>(static_cast<int>(c) + f.offset);
    const float* row = factor + k * stride + k;  // U_kk and what follows
    errors[k] = (x[k] - (scale * c + minimum)) / row[0];
    Subtract(errors[k], row + 1, f.block_len - k - 1, x + k + 1);
  }
}

}  // namespace

Status InverseFactor(std::span<double> moments, int64_t n, double damping) {
  if (n <= 0 || moments.size() != static_cast<size_t>(n * n)) {
    return InvalidArgument("moments of ", moments.size(), " values are no square of ", n);
  }
  double* const a = moments.data();
  double mean = 0;
  for (int64_t i = 0; i < n; ++i) mean += a[i * n + i] / static_cast<double>(n);
  if (!(mean > 0) || !std::isfinite(mean)) {
    return InvalidArgument("moments whose diagonal has a mean of ", mean);
  }
  for (int64_t i = 0; i < n; ++i) a[i * n + i] += damping * mean;
  // H = R R^T with R upper triangular, from the last row up. R stands transposed (L, lower: row j
  // of L is column j of R), so that inner loops run along rows.
  for (int64_t j = n - 1; j >= 0; --j) {
    double* row = a + j * n;  // H_j,0..j, less what the rows below have taken
    if (!(row[j] > 0)) {
      return InvalidArgument("moments that are not positive definite at ", j, " of ", n);
    }
    const double root = std::sqrt(row[j]);
    for (int64_t i = 0; i < j; ++i) row[i] /= root;
    row[j] = root;
    for (int64_t i = 0; i < j; ++i) Subtract(row[i], row, i + 1, a + i * n);
  }
  // U = R^-1: U_jj = 1 / R_jj, and column by column of R, row j of L, the triangle is solved. With
  // T = L^-1 = U^T in place of L: T is lower triangular, T_j = (e_j - sum_i<j L_ji T_i) / L_jj.
  std::vector<double> solved(static_cast<size_t>(n));
  for (int64_t j = 0; j < n; ++j) {
    double* row = a + j * n;
    std::fill(solved.begin(), solved.end(), 0);
    solved[static_cast<size_t>(j)] = 1;
    for (int64_t i = 0; i < j; ++i) Subtract(row[i], a + i * n, i + 1, solved.data());
    const double inverse = 1 / row[j];
    for (int64_t i = 0; i <= j; ++i) row[i] = solved[static_cast<size_t>(i)] * inverse;
  }
  // Transpose: U above the diagonal.
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < i; ++j) {
      a[j * n + i] = a[i * n + j];
      a[i * n + j] = 0;
    }
  }
  return OkStatus();
}

Status EncodeFileRowsWithFeedback(WeightType type, std::span<float> rows, int64_t n,
                                  std::span<const float> importance, std::span<const float> factor,
                                  std::span<std::byte> out) {
  const WeightLayout& f = LayoutOf(type);
  if (!IsBlockType(type) || n <= 0 || n % f.block_len != 0) {
    return InvalidArgument("rows of ", n, " values are no whole blocks of ", f.name);
  }
  if (rows.size() % static_cast<size_t>(n) != 0 || factor.size() != static_cast<size_t>(n * n)) {
    return InvalidArgument(rows.size(), " values and a factor of ", factor.size(), " for rows of ",
                           n);
  }
  const int64_t count = static_cast<int64_t>(rows.size()) / n;
  const int64_t blocks = n / f.block_len;
  if (out.size() != static_cast<size_t>(count * blocks * f.block_bytes)) {
    return InvalidArgument(count, " rows of ", n, " values of ", f.name, " take ",
                           count * blocks * f.block_bytes, " bytes; ", out.size(), " were given");
  }
  std::vector<float> errors(static_cast<size_t>(count) * f.block_len);
  FileBlock block;
  for (int64_t b = 0; b < blocks; ++b) {
    const int64_t first = b * f.block_len, end = first + f.block_len;
    for (int64_t r = 0; r < count; ++r) {
      float* x = rows.data() + r * n + first;
      std::byte* bytes = out.data() + (r * blocks + b) * f.block_bytes;
      const auto own = importance.empty() ? importance
                                          : importance.subspan(static_cast<size_t>(first),
                                                               static_cast<size_t>(f.block_len));
      const size_t size = static_cast<size_t>(f.block_bytes);
      TQ_RETURN_IF_ERROR(
          EncodeFileRow(type, {x, static_cast<size_t>(f.block_len)}, own, {bytes, size}));
      ReadFileBlock(type, bytes, block);
      EncodeInTurn(f, type == WeightType::kQ8_0, x, factor.data() + first * n + first, n, block,
                   errors.data() + r * f.block_len);
      WriteFileBlock(type, block, bytes);
    }
    // What the errors of this block mean for the columns behind it.
    for (int k = 0; k < f.block_len; ++k) {
      const float* row = factor.data() + (first + k) * n + end;
      for (int64_t r = 0; r < count; ++r) {
        Subtract(errors[static_cast<size_t>(r * f.block_len + k)], row, n - end,
                 rows.data() + r * n + end);
      }
    }
  }
  return OkStatus();
}

}  // namespace tq
