// The two implementations behind rotation.h.
#pragma once

#include "turboquant/codec/record_layout.h"  // kMaxHeadDim
#include "turboquant/codec/rotation.h"

namespace tq {

void RotateRef(const Rotation::Plan& plan, bool inverse, float* x);
void RotateSimd(const Rotation::Plan& plan, bool inverse, float* x);

}  // namespace tq
