// What matmul.cc hands to the kernels: a range of panels of one matrix and a range of rows.
#pragma once

#include <cstdint>

#include "turboquant/linear/activations.h"
#include "turboquant/linear/weight.h"
#include "turboquant/linear/weight_tile.h"

namespace tq {

struct PanelRange {
  const PackedMatrix* weight = nullptr;
  int64_t first_panel = 0, end_panel = 0;
  int first_row = 0, end_row = 0;
  const float* x = nullptr;                  // [rows][in_dim], for the float types
  const QuantizedRows* quantized = nullptr;  // for the block types
  float* y = nullptr;                        // of row 0
  int64_t y_stride = 0;
  WeightTile* tile = nullptr;  // of this thread
};

void MultiplyPanelsRef(const PanelRange& range);
void MultiplyPanelsSimd(const PanelRange& range);
void MultiplyPanelsVnni(const PanelRange& range);  // where UseVnni()

}  // namespace tq
