// TrellisLevels for the current target, for inlining into kernels.
#if defined(TURBOQUANT_CODEC_TRELLIS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TURBOQUANT_CODEC_TRELLIS_INL_H_
#undef TURBOQUANT_CODEC_TRELLIS_INL_H_
#else
#define TURBOQUANT_CODEC_TRELLIS_INL_H_
#endif

#include <hwy/highway.h>

#include "turboquant/base/status.h"
#include "turboquant/codec/trellis.h"
#include "turboquant/codec/unpack-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tq {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// One vector of symbols per cell, bytes shifted left within their byte.
template <int kShift, class D>
HWY_INLINE hn::Vec<D> RaiseSymbols(D d, hn::Vec<D> v) {
  const hn::Repartition<uint16_t, D> d16;
  return hn::BitCast(d, hn::ShiftLeft<kShift>(hn::BitCast(d16, v)));
}

// A state is seen only through its low nibble L, its high nibble H and the low nibble of the
// successor; each bit width has its shortest way to them. Levels + add of one column of a group.
template <int kBits, class D>
HWY_INLINE void TrellisColumn(D d, hn::Vec<D> next, hn::Vec<D> mix, uint8_t* HWY_RESTRICT cells,
                              int num_quads) {
  using V = hn::Vec<D>;
  const hn::Repartition<uint32_t, D> d32;
  const V mask = hn::Set(d, uint8_t{15});
  const auto store = [&](int quad, V next_idx, V mix_idx) HWY_ATTR {
    const V level =
        hn::Add(hn::TableLookupBytes(next, next_idx), hn::TableLookupBytes(mix, mix_idx));
    hn::StoreU(level, d, cells + static_cast<size_t>(quad) * 64);
  };
  // The successor of the last quad is the first quad, one depth further: the next byte.
  V first[3];
  for (int i = 0; i < 3; ++i) {
    const auto word = hn::BitCast(d32, hn::LoadU(d, cells + i * 64));
    first[i] = hn::BitCast(d, hn::RotateRight<8>(word));
  }
  const auto load = [&](int quad) HWY_ATTR {
    return quad < num_quads ? hn::LoadU(d, cells + static_cast<size_t>(quad) * 64)
                            : first[quad - num_quads];
  };
  const V u0 = load(0), u1 = load(1), u2 = load(2);
  if constexpr (kBits == 4) {
    // L = u(i), H = u(i + 1) = the next L.
    V low = u0;
    for (int quad = 0; quad < num_quads; ++quad) {
      const V high = load(quad + 1);
      store(quad, high, hn::Xor(low, high));
      low = high;
    }
  } else if constexpr (kBits == 2) {
    // L(i) = u(i) | u(i + 1) << 2; H(i) = L(i + 2).
    V l0 = hn::Or(u0, RaiseSymbols<2>(d, u1)), l1 = hn::Or(u1, RaiseSymbols<2>(d, u2)), u = u2;
    for (int quad = 0; quad < num_quads; ++quad) {
      const V after = load(quad + 3);
      const V l2 = hn::Or(u, RaiseSymbols<2>(d, after));
      store(quad, l1, hn::Xor(l0, l2));
      l0 = l1;
      l1 = l2;
      u = after;
    }
  } else {
    static_assert(kBits == 3);
    // pair(i) = u(i) | u(i + 1) << 3; L = pair & 15, H = (pair >> 4 | u(i + 2) << 2) & 15.
    V pair = hn::Or(u0, RaiseSymbols<3>(d, u1)), u = u1;
    for (int quad = 0; quad < num_quads; ++quad) {
      const V after = load(quad + 2);
      const V next_pair = hn::Or(u, RaiseSymbols<3>(d, after));
      const V high = hn::Or(ShiftBytes<4>(d, pair), RaiseSymbols<2>(d, after));
      store(quad, hn::And(next_pair, mask), hn::And(hn::Xor(pair, high), mask));
      pair = next_pair;
      u = after;
    }
  }
}

// See trellis.h.
HWY_INLINE void TrellisLevels(int bits, uint8_t* HWY_RESTRICT tile, int num_groups, int num_quads,
                              int add) {
  const hn::CappedTag<uint8_t, 64> d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  const TrellisTable& table = GetTrellis(bits);
  const auto next = hn::LoadDup128(d, reinterpret_cast<const uint8_t*>(table.next));
  const auto mix = hn::Add(hn::LoadDup128(d, reinterpret_cast<const uint8_t*>(table.mix)),
                           hn::Set(d, static_cast<uint8_t>(add)));
  for (int g = 0; g < num_groups; ++g) {
    uint8_t* HWY_RESTRICT group = tile + static_cast<size_t>(g) * num_quads * 64;
    for (int i = 0; i < 64; i += lanes) {
      switch (bits) {
        case 2: TrellisColumn<2>(d, next, mix, group + i, num_quads); break;
        case 3: TrellisColumn<3>(d, next, mix, group + i, num_quads); break;
        default: TQ_DCHECK(bits == 4); TrellisColumn<4>(d, next, mix, group + i, num_quads);
      }
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tq
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
