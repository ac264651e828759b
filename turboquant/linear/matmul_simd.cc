// Products of packed weights for every instruction set of Highway.
#include <algorithm>
#include <cstring>
#include <utility>

#include "turboquant/base/numeric.h"
#include "turboquant/linear/matmul_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "turboquant/linear/matmul_simd.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#define TQ_MATMUL_VNNI 0
#include "turboquant/linear/matmul-inl.h"
#undef TQ_MATMUL_VNNI

HWY_BEFORE_NAMESPACE();
namespace tq {
namespace HWY_NAMESPACE {
void MultiplyPanelsOfTarget(const PanelRange& range) {
  MultiplyPanels(range);
}
}  // namespace HWY_NAMESPACE
}  // namespace tq
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tq {

HWY_EXPORT(MultiplyPanelsOfTarget);

void MultiplyPanelsSimd(const PanelRange& range) {
  HWY_DYNAMIC_DISPATCH(MultiplyPanelsOfTarget)(range);
}

}  // namespace tq
#endif
