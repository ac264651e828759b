// Products of packed weights for every instruction set: the same bits as matmul_ref.cc.
//
// Lanes are output rows. A register of codes (pairs of consecutive inputs of each row, 16 bits a
// code) is unpacked once for up to kMaxRows activation rows; pair products add up in 32 bits over a
// block, at most 128 * 32767 * 32 < 2^27.
#include "turboquant/linear/matmul_kernels.h"

#include <algorithm>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "turboquant/linear/matmul_simd.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "turboquant/base/hwy_compat-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tq {
namespace HWY_NAMESPACE {

using DF = hn::CappedTag<float, kPanelRows>;
using DI32 = hn::RebindToSigned<DF>;
using DI16 = hn::Repartition<int16_t, DF>;
using DU16 = hn::Repartition<uint16_t, DF>;
using VF = hn::Vec<DF>;
using VI32 = hn::Vec<DI32>;
using VI16 = hn::Vec<DI16>;

constexpr int kLanes = static_cast<int>(hn::MaxLanes(DF()));
constexpr int kPanelVecs = kPanelRows / kLanes;
constexpr int kVecs = kPanelVecs < 2 ? kPanelVecs : 2;  // of a panel that are summed together
constexpr int kMaxRows = 4;

// Pair j (0..3) of the 4-bit codes of a chunk.
template <int kPair>
HWY_INLINE VI16 UnpackPair(hn::Vec<DU16> chunk) {
  const auto shifted = hn::ShiftRight<4 * kPair>(chunk);
  return hn::BitCast(DI16(), kPair == 3 ? shifted : hn::And(shifted, hn::Set(DU16(), 15)));
}

// Two activation codes in every 32-bit lane.
HWY_INLINE VI16 BroadcastPair(const int16_t* a) {
  int32_t pair;
  std::memcpy(&pair, a, sizeof pair);
  return hn::BitCast(DI16(), hn::Set(DI32(), pair));
}

HWY_INLINE VF LoadF16(const uint8_t* p) {
  const hn::Rebind<hwy::float16_t, DF> dh;
  return hn::PromoteTo(DF(), hn::LoadU(dh, reinterpret_cast<const hwy::float16_t*>(p)));
}

// sums += products of one pair of inputs.
template <int kRows>
HWY_INLINE void AddPair(const VI16 (&w)[kVecs], const int16_t* HWY_RESTRICT a, int64_t a_stride,
                        VI32 (&sums)[kRows][kVecs]) {
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    const VI16 pair = BroadcastPair(a + r * a_stride);
#pragma GCC unroll 2
    for (int v = 0; v < kVecs; ++v) sums[r][v] = MulAddPairs(DI32(), w[v], pair, sums[r][v]);
  }
}

template <int kPair, int kRows>
HWY_INLINE void AddNibblePair(const hn::Vec<DU16> (&chunk)[kVecs], const int16_t* HWY_RESTRICT a,
                              int64_t a_stride, VI32 (&sums)[kRows][kVecs]) {
  VI16 w[kVecs];
#pragma GCC unroll 2
  for (int v = 0; v < kVecs; ++v) w[v] = UnpackPair<kPair>(chunk[v]);
  AddPair<kRows>(w, a + 2 * kPair, a_stride, sums);
}

// Sums of one block: `kVecs` vectors of weight rows from `codes` on, times `kRows` activation rows.
template <WeightType kType, int kRows>
HWY_INLINE void BlockSums(const uint8_t* HWY_RESTRICT codes, const int16_t* HWY_RESTRICT a,
                          int64_t a_stride, const int32_t* HWY_RESTRICT a_sums,
                          int64_t a_sums_stride, VI32 (&sums)[kRows][kVecs]) {
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    // Q4_0 codes are 8 too large.
    const VI32 start = kType == WeightType::kQ4_0
                           ? hn::Set(DI32(), -8 * a_sums[r * a_sums_stride])
                           : hn::Zero(DI32());
#pragma GCC unroll 2
    for (int v = 0; v < kVecs; ++v) sums[r][v] = start;
  }
  if constexpr (kType == WeightType::kQ8_0) {
    const hn::Rebind<int8_t, DI16> d8;
#pragma GCC unroll 4
    for (int c = 0; c < kBlockLen / 2; ++c) {
      VI16 w[kVecs];
#pragma GCC unroll 2
      for (int v = 0; v < kVecs; ++v) {
        const uint8_t* p = codes + (c * kPanelRows + v * kLanes) * 2;
        w[v] = hn::PromoteTo(DI16(), hn::LoadU(d8, reinterpret_cast<const int8_t*>(p)));
      }
      AddPair<kRows>(w, a + 2 * c, a_stride, sums);
    }
  } else {
#pragma GCC unroll 4
    for (int c = 0; c < kBlockLen / 8; ++c) {
      hn::Vec<DU16> chunk[kVecs];
#pragma GCC unroll 2
      for (int v = 0; v < kVecs; ++v) {
        const uint8_t* p = codes + (c * kPanelRows + v * kLanes) * 4;
        chunk[v] = hn::LoadU(DU16(), reinterpret_cast<const uint16_t*>(p));
      }
      AddNibblePair<0, kRows>(chunk, a + 8 * c, a_stride, sums);
      AddNibblePair<1, kRows>(chunk, a + 8 * c, a_stride, sums);
      AddNibblePair<2, kRows>(chunk, a + 8 * c, a_stride, sums);
      AddNibblePair<3, kRows>(chunk, a + 8 * c, a_stride, sums);
    }
  }
}

// Stores the lanes of a panel that exist.
template <int kRows>
HWY_INLINE void StorePanel(const VF (&acc)[kRows][kVecs], int first_lane, int lanes,
                           float* HWY_RESTRICT y, int64_t y_stride) {
  for (int r = 0; r < kRows; ++r) {
    float* row = y + r * y_stride;
    for (int v = 0; v < kVecs; ++v) {
      const int lane = first_lane + v * kLanes;
      if (lane + kLanes <= lanes) {
        hn::StoreU(acc[r][v], DF(), row + lane);
      } else if (lane < lanes) {
        HWY_ALIGN float tail[kLanes];
        hn::Store(acc[r][v], DF(), tail);
        std::copy(tail, tail + (lanes - lane), row + lane);
      }
    }
  }
}

template <WeightType kType, int kRows>
void BlockPanel(const uint8_t* HWY_RESTRICT panel, int64_t num_blocks, const QuantizedRows& q,
                int first_row, int lanes, float* HWY_RESTRICT y, int64_t y_stride) {
  constexpr bool kHasMin = kType == WeightType::kQ4_1;
  constexpr int kScaleBytes = (kHasMin ? 4 : 2) * kPanelRows;
  constexpr int kBytes = kScaleBytes + (kType == WeightType::kQ8_0 ? 32 : 16) * kPanelRows;
  constexpr int kLaneBytes = kType == WeightType::kQ8_0 ? 2 : 4;  // of a row in a chunk
  const int64_t stride = num_blocks * kBlockLen;
  for (int first_lane = 0; first_lane < kPanelRows; first_lane += kVecs * kLanes) {
    const uint8_t* block = panel;
    const int16_t* a = q.codes.data() + first_row * stride;
    const float* scales = q.scales.data() + first_row * num_blocks;
    const int32_t* sums = q.sums.data() + first_row * num_blocks;
    const float* scaled_sums = q.scaled_sums.data() + first_row * num_blocks;
    VF acc[kRows][kVecs];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
      for (int v = 0; v < kVecs; ++v) acc[r][v] = hn::Zero(DF());
    }
    for (int64_t b = 0; b < num_blocks; ++b, block += kBytes, a += kBlockLen) {
      VI32 isum[kRows][kVecs];
      BlockSums<kType, kRows>(block + kScaleBytes + kLaneBytes * first_lane, a, stride, sums + b,
                              num_blocks, isum);
#pragma GCC unroll 2
      for (int v = 0; v < kVecs; ++v) {
        const int lane = first_lane + v * kLanes;
        const VF d = LoadF16(block + 2 * lane);
        [[maybe_unused]] VF m = d;
        if constexpr (kHasMin) m = LoadF16(block + 2 * (kPanelRows + lane));
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
          const VF scale = hn::Mul(d, hn::Set(DF(), scales[r * num_blocks + b]));
          acc[r][v] = hn::Add(acc[r][v], hn::Mul(scale, hn::ConvertTo(DF(), isum[r][v])));
          if constexpr (kHasMin) {
            const VF sum = hn::Set(DF(), scaled_sums[r * num_blocks + b]);
            acc[r][v] = hn::Add(acc[r][v], hn::Mul(m, sum));
          }
        }
      }
    }
    StorePanel<kRows>(acc, first_lane, lanes, y, y_stride);
  }
}

template <WeightType kType>
HWY_INLINE VF LoadWeights(const uint8_t* panel, int64_t k, int lane) {
  const int64_t i = k * kPanelRows + lane;
  if constexpr (kType == WeightType::kF32) {
    return hn::LoadU(DF(), reinterpret_cast<const float*>(panel) + i);
  } else if constexpr (kType == WeightType::kF16) {
    return LoadF16(panel + 2 * i);
  } else {
    const hn::Rebind<hwy::bfloat16_t, DF> dh;
    return hn::PromoteTo(DF(),
                         hn::LoadU(dh, reinterpret_cast<const hwy::bfloat16_t*>(panel) + i));
  }
}

template <WeightType kType, int kRows>
void FloatPanel(const uint8_t* HWY_RESTRICT panel, int64_t in_dim, const float* HWY_RESTRICT x,
                int lanes, float* HWY_RESTRICT y, int64_t y_stride) {
  for (int first_lane = 0; first_lane < kPanelRows; first_lane += kVecs * kLanes) {
    VF acc[kRows][kVecs];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
      for (int v = 0; v < kVecs; ++v) acc[r][v] = hn::Zero(DF());
    }
    for (int64_t k = 0; k < in_dim; ++k) {
#pragma GCC unroll 2
      for (int v = 0; v < kVecs; ++v) {
        const VF w = LoadWeights<kType>(panel, k, first_lane + v * kLanes);
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
          acc[r][v] = hn::Add(acc[r][v], hn::Mul(w, hn::Set(DF(), x[r * in_dim + k])));
        }
      }
    }
    StorePanel<kRows>(acc, first_lane, lanes, y, y_stride);
  }
}

template <WeightType kType, int kRows>
HWY_INLINE void PanelRows(const PanelRange& range, int64_t p, int row) {
  const PackedMatrix& w = *range.weight;
  const auto* panel = reinterpret_cast<const uint8_t*>(w.panel(p));
  const int lanes = static_cast<int>(std::min<int64_t>(kPanelRows, w.out_dim() - p * kPanelRows));
  float* y = range.y + row * range.y_stride + p * kPanelRows;
  if constexpr (kType == WeightType::kF32 || kType == WeightType::kF16 ||
                kType == WeightType::kBF16) {
    FloatPanel<kType, kRows>(panel, w.in_dim(), range.x + row * w.in_dim(), lanes, y,
                             range.y_stride);
  } else {
    BlockPanel<kType, kRows>(panel, w.in_dim() / kBlockLen, *range.quantized, row, lanes, y,
                             range.y_stride);
  }
}

// Rows in tiles that stay in the second-level cache while the panels pass by.
template <WeightType kType>
void MultiplyType(const PanelRange& range) {
  constexpr int64_t kTileBytes = 128 << 10;
  const int64_t row_bytes = range.weight->in_dim() * (WeightBlockLen(kType) > 1 ? 2 : 4);
  const int tile = static_cast<int>(
      std::clamp<int64_t>(kTileBytes / row_bytes / kMaxRows * kMaxRows, kMaxRows, 1 << 20));
  for (int first = 0; first < range.rows; first += tile) {
    const int end = std::min(range.rows, first + tile);
    for (int64_t p = range.first_panel; p < range.end_panel; ++p) {
      int row = first;
      for (; row + kMaxRows <= end; row += kMaxRows) PanelRows<kType, kMaxRows>(range, p, row);
      for (; row + 2 <= end; row += 2) PanelRows<kType, 2>(range, p, row);
      for (; row < end; ++row) PanelRows<kType, 1>(range, p, row);
    }
  }
}

void MultiplyPanels(const PanelRange& range) {
  switch (range.weight->type()) {
    case WeightType::kF32: return MultiplyType<WeightType::kF32>(range);
    case WeightType::kF16: return MultiplyType<WeightType::kF16>(range);
    case WeightType::kBF16: return MultiplyType<WeightType::kBF16>(range);
    case WeightType::kQ4_0: return MultiplyType<WeightType::kQ4_0>(range);
    case WeightType::kQ4_1: return MultiplyType<WeightType::kQ4_1>(range);
    case WeightType::kQ8_0: return MultiplyType<WeightType::kQ8_0>(range);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tq
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tq {

HWY_EXPORT(MultiplyPanels);

void MultiplyPanelsSimd(const PanelRange& range) { HWY_DYNAMIC_DISPATCH(MultiplyPanels)(range); }

}  // namespace tq
#endif
