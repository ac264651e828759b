// Products of packed weights in plain loops: the specification. Float operations are never fused
// and stand in the order written here; the SIMD kernels give the same bits.
#include <algorithm>
#include <cstring>

#include "turboquant/base/numeric.h"
#include "turboquant/linear/matmul_kernels.h"

namespace tq {
namespace {

float F16At(const std::byte* p, int i) {
  f16_t h;
  std::memcpy(&h, p + 2 * i, sizeof h);
  return F32FromF16(h);
}

float FloatAt(WeightType type, const std::byte* p, size_t i) {
  if (type == WeightType::kF32) {
    float f;
    std::memcpy(&f, p + 4 * i, sizeof f);
    return f;
  }
  uint16_t h;
  std::memcpy(&h, p + 2 * i, sizeof h);
  return type == WeightType::kF16 ? F32FromF16(h) : F32FromBF16(h);
}

float FloatDot(const PackedMatrix& w, const std::byte* panel, int lane, const float* x) {
  float y = 0;
  for (int64_t k = 0; k < w.in_dim(); ++k) {
    y += FloatAt(w.type(), panel, static_cast<size_t>(k) * kPanelRows + lane) * x[k];
  }
  return y;
}

// Sum of weight code times activation code over one block.
int32_t BlockSum(WeightType type, const std::byte* codes, int lane, const int16_t* a) {
  int32_t sum = 0;
  for (int k = 0; k < kBlockLen; ++k) sum += BlockCode(type, codes, k, lane) * a[k];
  return sum;
}

float BlockDot(const PackedMatrix& w, const std::byte* panel, int lane, const QuantizedRows& q,
               int row) {
  const bool has_min = w.type() == WeightType::kQ4_1;
  const int64_t first = row * q.num_blocks;
  float y = 0;
  for (int64_t b = 0; b < q.num_blocks; ++b, panel += PackedBlockBytes(w.type())) {
    const std::byte* codes = panel + (has_min ? 4 : 2) * kPanelRows;
    const int32_t sum = BlockSum(w.type(), codes, lane, q.codes.data() + (first + b) * kBlockLen);
    y += (F16At(panel, lane) * q.scales[first + b]) * static_cast<float>(sum);
    if (has_min) y += F16At(panel, kPanelRows + lane) * q.scaled_sums[first + b];
  }
  return y;
}

}  // namespace

void MultiplyPanelsRef(const PanelRange& range) {
  const PackedMatrix& w = *range.weight;
  for (int64_t p = range.first_panel; p < range.end_panel; ++p) {
    const int lanes = static_cast<int>(std::min<int64_t>(kPanelRows, w.out_dim() - p * kPanelRows));
    for (int row = 0; row < range.rows; ++row) {
      float* y = range.y + row * range.y_stride + p * kPanelRows;
      for (int lane = 0; lane < lanes; ++lane) {
        y[lane] = IsBlockType(w.type()) ? BlockDot(w, w.panel(p), lane, *range.quantized, row)
                                        : FloatDot(w, w.panel(p), lane, range.x + row * w.in_dim());
      }
    }
  }
}

}  // namespace tq
