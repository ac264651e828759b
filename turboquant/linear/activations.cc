// Sizes the buffers and hands rows to the kernel in use.
#include "turboquant/linear/activations.h"

#include <algorithm>

#include "turboquant/base/isa.h"
#include "turboquant/base/numeric.h"
#include "turboquant/base/status.h"
#include "turboquant/linear/weight.h"

namespace tq {
namespace {
// Fewer values than this take less time than waking a thread.
constexpr int64_t kMinParallelValues = 1 << 14;
constexpr int kRowsPerTask = 8;
}  // namespace

void QuantizeRows(const float* x, int rows, int64_t in_dim, ThreadPool& pool, QuantizedRows& out) {
  TQ_CHECK(in_dim % kBlockLen == 0);
  const int64_t blocks = in_dim / kBlockLen;
  out.rows = rows;
  out.num_blocks = blocks;
  const size_t n = static_cast<size_t>(rows) * static_cast<size_t>(blocks);
  out.codes.Reserve(n * kBlockLen);
  out.scales.Reserve(n);
  out.sums.Reserve(2 * n);
  out.scaled_sums.Reserve(n);
  const auto quantize = UseReferenceKernels() ? QuantizeRowRef : QuantizeRowSimd;
  const auto one_row = [&](int r) {
    const int64_t first = r * blocks;
    quantize(x + r * in_dim, blocks, out.codes.data() + first * kBlockLen,
             out.scales.data() + first, out.sums.data() + 2 * first,
             out.scaled_sums.data() + first);
  };
  if (rows * in_dim < kMinParallelValues) {
    for (int r = 0; r < rows; ++r) one_row(r);
    return;
  }
  pool.ParallelFor(static_cast<size_t>(DivCeil(rows, kRowsPerTask)), [&](size_t task, int) {
    const int first = static_cast<int>(task) * kRowsPerTask;
    for (int r = first; r < std::min(rows, first + kRowsPerTask); ++r) one_row(r);
  });
}

}  // namespace tq
