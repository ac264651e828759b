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
// Unpacking a panel takes the time of a few rows.
constexpr int kMinRowsPerTask = 64;
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

  scratch.tiles.Reserve(static_cast<size_t>(pool.num_threads()));

  const auto multiply = UseReferenceKernels() ? MultiplyPanelsRef
                        : UseVnni()           ? MultiplyPanelsVnni
                                              : MultiplyPanelsSimd;
  const int64_t worth = static_cast<int64_t>(bytes * static_cast<size_t>(rows) / kMinTaskBytes);
  const int64_t wanted = std::min<int64_t>(pool.num_threads() * kTasksPerThread, worth);
  const int64_t panel_parts = std::clamp<int64_t>(wanted, 1, panels);
  // Many threads on few panels: rows are cut too.
  const int64_t row_parts =
      std::clamp<int64_t>(wanted / panel_parts, 1, std::max(1, rows / kMinRowsPerTask));
  pool.ParallelFor(static_cast<size_t>(panel_parts * row_parts), [&](size_t task, int worker) {
    const auto panel_part = static_cast<int64_t>(task) / row_parts;
    const auto row_part = static_cast<int64_t>(task) % row_parts;
    // This task's panels, counted over all products, clipped to each of them.
    const int64_t first = panels * panel_part / panel_parts;
    const int64_t end = panels * (panel_part + 1) / panel_parts;
    int64_t base = 0;
    for (const Product& p : products) {
      const int64_t count = p.weight->num_panels();
      const int64_t from = std::max<int64_t>(first - base, 0);
      const int64_t to = std::min(end - base, count);
      if (from < to) {
        multiply({.weight = p.weight,
                  .first_panel = from,
                  .end_panel = to,
                  .first_row = static_cast<int>(rows * row_part / row_parts),
                  .end_row = static_cast<int>(rows * (row_part + 1) / row_parts),
                  .x = x,
                  .quantized = &scratch.quantized,
                  .y = p.y,
                  .y_stride = p.y_stride,
                  .tile = &scratch.tiles[static_cast<size_t>(worker)]});
      }
      base += count;
    }
  });
}

}  // namespace tq
