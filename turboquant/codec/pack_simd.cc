#include <cstddef>

#include "turboquant/codec/pack.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "turboquant/codec/pack_simd.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "turboquant/codec/unpack-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tq {
namespace HWY_NAMESPACE {
void UnpackAll(int bits, const uint8_t* packed, int num_cells, const uint8_t* table, uint8_t* out) {
  UnpackCodes(bits, packed, num_cells, table, out);
}
}  // namespace HWY_NAMESPACE
}  // namespace tq
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tq {
HWY_EXPORT(UnpackAll);
void UnpackCodesSimd(int bits, const uint8_t* packed, int num_cells, const uint8_t* table,
                     uint8_t* out) {
  HWY_DYNAMIC_DISPATCH(UnpackAll)(bits, packed, num_cells, table, out);
}
}  // namespace tq
#endif
