// Products of packed weights in plain loops: the specification. Float operations are never fused
// and stand in the order written here; the SIMD kernels give the same bits.
#include <algorithm>

#include "turboquant/linear/file_block.h"
#include "turboquant/linear/matmul_kernels.h"

namespace tq {
namespace {

float FloatDot(const PackedMatrix& w, const std::byte* panel, int lane, const float* x) {
  const size_t size = static_cast<size_t>(WeightBlockBytes(w.type()));
  float y = 0;
  for (int64_t k = 0; k < w.in_dim(); ++k) {
    y += ReadFloat(w.type(), panel + (static_cast<size_t>(k) * kPanelRows + lane) * size) * x[k];
  }
  return y;
}

float BlockDot(const PackedMatrix& w, const std::byte* panel, int lane, const QuantizedRows& q,
               int row) {
  const WeightLayout& f = LayoutOf(w.type());
  const int parts = f.block_len / kBlockLen, groups = kBlockLen / f.group_len;
  float y = 0;
  for (int64_t b = 0; b < q.num_blocks; ++b) {
    const PackedPart part = {f, panel + b / parts * PackedBlockBytes(w.type()),
                             static_cast<int>(b % parts), lane};
    const int64_t at = row * q.num_blocks + b;
    const int16_t* a = q.codes.data() + at * kBlockLen;
    for (int g = 0; g < groups; ++g) {
      int32_t sum = 0;
      for (int k = g * f.group_len; k < (g + 1) * f.group_len; ++k) sum += part.code(k) * a[k];
      y += (part.scale(g) * q.scales[at]) * static_cast<float>(sum);
      if (!f.has_min) continue;
      y += part.minimum(g) * (groups == 1 ? q.scaled_sums[at]
                                          : q.scales[at] * static_cast<float>(q.sums[2 * at + g]));
    }
  }
  return y;
}

}  // namespace

void MultiplyPanelsRef(const PanelRange& range) {
  const PackedMatrix& w = *range.weight;
  for (int64_t p = range.first_panel; p < range.end_panel; ++p) {
    const int lanes = static_cast<int>(std::min<int64_t>(kPanelRows, w.out_dim() - p * kPanelRows));
    for (int row = range.first_row; row < range.end_row; ++row) {
      float* y = range.y + row * range.y_stride + p * kPanelRows;
      for (int lane = 0; lane < lanes; ++lane) {
        y[lane] = IsBlockType(w.type()) ? BlockDot(w, w.panel(p), lane, *range.quantized, row)
                                        : FloatDot(w, w.panel(p), lane, range.x + row * w.in_dim());
      }
    }
  }
}

}  // namespace tq
