// Cuts the panels of all products into tasks and picks the kernel.
#include "turboquant/linear/matmul.h"

#include <algorithm>

#include "turboquant/base/isa.h"
#include "turboquant/base/status.h"
#include "turboquant/linear/matmul_kernels.h"

namespace tq {
namespace {
// Enough tasks a thread that one slowed by a neighbour does not hold up the rest.
constexpr int64_t kTasksPerThread = 4;
// Weight bytes (times rows) that are worth waking a thread for.
constexpr size_t kMinTaskBytes = 1 << 13;
}  // namespace

void Multiply(std::span<const Product> products, const float* x, int rows, MatmulScratch& scratch,
              ThreadPool& pool) {
  if (products.empty() || rows == 0) return;
  const int64_t in_dim = products[0].weight->in_dim();
  int64_t panels = 0;
  size_t bytes = 0;
  bool quantize = false;
  for (const Product& p : products) {
    TQ_CHECK(p.weight->in_dim() == in_dim && p.y_stride >= p.weight->out_dim());
    panels += p.weight->num_panels();
    bytes += p.weight->bytes();
    quantize |= IsBlockType(p.weight->type());
  }
  if (quantize) QuantizeRows(x, rows, in_dim, pool, scratch.quantized);

  const auto multiply = UseReferenceKernels() ? MultiplyPanelsRef : MultiplyPanelsSimd;
  const int64_t worth = static_cast<int64_t>(bytes * static_cast<size_t>(rows) / kMinTaskBytes);
  const int64_t tasks =
      std::clamp<int64_t>(std::min(pool.num_threads() * kTasksPerThread, worth), 1, panels);
  pool.ParallelFor(static_cast<size_t>(tasks), [&](size_t task, int) {
    // This task's panels, counted over all products, clipped to each of them.
    const int64_t first = panels * static_cast<int64_t>(task) / tasks;
    const int64_t end = panels * static_cast<int64_t>(task + 1) / tasks;
    int64_t base = 0;
    for (const Product& p : products) {
      const int64_t count = p.weight->num_panels();
      const int64_t from = std::max<int64_t>(first - base, 0);
      const int64_t to = std::min(end - base, count);
      if (from < to) {
        multiply({.weight = p.weight,
                  .first_panel = from,
                  .end_panel = to,
                  .rows = rows,
                  .x = x,
                  .quantized = &scratch.quantized,
                  .y = p.y,
                  .y_stride = p.y_stride});
      }
      base += count;
    }
  });
}

}  // namespace tq
