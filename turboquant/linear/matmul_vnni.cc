// Products of packed weights with AVX-512's dot products of 16-bit numbers (VNNI): one instruction
// for two. Highway 1.0.3 has no target for them.
#include <algorithm>
#include <cstring>
#include <utility>

#include "turboquant/base/numeric.h"
#include "turboquant/base/status.h"
#include "turboquant/linear/matmul_kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "turboquant/linear/matmul_vnni.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "turboquant/base/hwy_compat-inl.h"

#if HWY_TARGET == HWY_AVX3
#define TQ_MATMUL_VNNI 1
#include "turboquant/linear/matmul-inl.h"
#undef TQ_MATMUL_VNNI

namespace tq {
void MultiplyPanelsVnni(const PanelRange& range) {
  HWY_NAMESPACE::MultiplyPanels(range);
}
}  // namespace tq
#endif

#if HWY_ONCE && !(HWY_TARGETS & HWY_AVX3)
namespace tq {
void MultiplyPanelsVnni(const PanelRange&) {
  TQ_CHECK(false);
}  // UseVnni() is false here
}  // namespace tq
#endif
