// TrellisLevels and UnpackTrellis for the current target, for inlining into kernels.
#if defined(TURBOQUANT_CODEC_TRELLIS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TURBOQUANT_CODEC_TRELLIS_INL_H_
#undef TURBOQUANT_CODEC_TRELLIS_INL_H_
#else
#define TURBOQUANT_CODEC_TRELLIS_INL_H_
#endif

#include <hwy/highway.h>

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

// The successor of the last quad is the first quad, one depth further: the next byte of each word.
template <class D>
HWY_INLINE hn::Vec<D> NextDepth(D d, hn::Vec<D> v) {
  const hn::Repartition<uint32_t, D> d32;
  return hn::BitCast(d, hn::RotateRight<8>(hn::BitCast(d32, v)));
}

// A state is seen only through its low nibble L, its high nibble H and the low nibble of the
// successor; each bit width has its shortest way to them (u = symbols, i = quad). Levels + add of
// one column of a group.
template <int kBits, class D>
HWY_INLINE void TrellisColumn(D d, hn::Vec<D> next, hn::Vec<D> mix, uint8_t* HWY_RESTRICT cells,
                              int num_quads) {
  using V = hn::Vec<D>;
  constexpr int kAhead = kBits == 2 ? 3 : kBits == 3 ? 2 : 1;  // quads that a state looks ahead
  const V mask = hn::Set(d, uint8_t{15});
  const V u0 = hn::LoadU(d, cells), u1 = hn::LoadU(d, cells + 64), u2 = hn::LoadU(d, cells + 128);
  // What the next quad needs of this one, given u(i + kAhead).
  V a = u0, b = u1, c = u2;
  if constexpr (kBits == 2) {
    // L(i) = u(i) | u(i + 1) << 2 and H(i) = L(i + 2); kept: L(i), L(i + 1), u(i + 2).
    a = hn::Or(u0, RaiseSymbols<2>(d, u1));
    b = hn::Or(u1, RaiseSymbols<2>(d, u2));
  } else if constexpr (kBits == 3) {
    // Kept: pair(i) = u(i) | u(i + 1) << 3, which begins with L(i), and u(i + 1).
    // H(i) begins pair(i + 1) >> 1.
    a = hn::Or(u0, RaiseSymbols<3>(d, u1));
  }
  const auto step = [&](uint8_t* HWY_RESTRICT cell, V after) HWY_ATTR {
    V next_idx, mix_idx;
    if constexpr (kBits == 2) {
      const V l2 = hn::Or(c, RaiseSymbols<2>(d, after));
      next_idx = b;
      mix_idx = hn::Xor(a, l2);
      a = b;
      b = l2;
      c = after;
    } else if constexpr (kBits == 3) {
      const V next_pair = hn::Or(b, RaiseSymbols<3>(d, after));
      next_idx = hn::And(next_pair, mask);
      mix_idx = hn::And(hn::Xor(a, ShiftBytes<1>(d, next_pair)), mask);
      a = next_pair;
      b = after;
    } else {
      static_assert(kBits == 4);  // L(i) = u(i), H(i) = u(i + 1)
      next_idx = after;
      mix_idx = hn::Xor(a, after);
      a = after;
    }
    hn::StoreU(hn::Add(hn::TableLookupBytes(next, next_idx), hn::TableLookupBytes(mix, mix_idx)), d,
               cell);
  };
  const uint8_t* end = cells + static_cast<size_t>(num_quads - kAhead) * 64;
#pragma GCC unroll 3
  for (; cells < end; cells += 64) step(cells, hn::LoadU(d, cells + kAhead * 64));
  step(cells, NextDepth(d, u0));
  if constexpr (kAhead > 1) step(cells + 64, NextDepth(d, u1));
  if constexpr (kAhead > 2) step(cells + 128, NextDepth(d, u2));
}

// The same straight from a bit plane of 2 or 4 bits, whose bytes are most of the nibbles already.
template <int kBits, class D>
HWY_INLINE void UnpackTrellisColumn(D d, hn::Vec<D> next, hn::Vec<D> mix,
                                    const uint8_t* HWY_RESTRICT lines, int num_lines,
                                    uint8_t* HWY_RESTRICT cells) {
  using V = hn::Vec<D>;
  const V mask = hn::Set(d, uint8_t{15});
  const auto store = [&](int cell, V next_idx, V mix_idx) HWY_ATTR {
    hn::StoreU(hn::Add(hn::TableLookupBytes(next, next_idx), hn::TableLookupBytes(mix, mix_idx)), d,
               cells + cell * 64);
  };
  const V first = hn::LoadU(d, lines);
  V line = first, low = hn::And(line, mask), second = hn::And(ShiftBytes<2>(d, line), mask);
  const auto step = [&](V after) HWY_ATTR {
    const V low_after = hn::And(after, mask);
    if constexpr (kBits == 2) {  // low, second, third, fourth: L of the 4 cells of a line
      const V third = hn::And(ShiftBytes<4>(d, line), mask);
      const V fourth = hn::Or(hn::And(ShiftBytes<6>(d, line), hn::Set(d, uint8_t{3})),
                              hn::And(RaiseSymbols<2>(d, after), hn::Set(d, uint8_t{12})));
      const V second_after = hn::And(ShiftBytes<2>(d, after), mask);
      store(0, second, hn::Xor(low, third));
      store(1, third, hn::Xor(second, fourth));
      store(2, fourth, hn::Xor(third, low_after));
      store(3, low_after, hn::Xor(fourth, second_after));
      second = second_after;
    } else {
      static_assert(kBits == 4);
      const V high = hn::And(ShiftBytes<4>(d, line), mask);
      store(0, high, hn::Xor(low, high));
      store(1, low_after, hn::Xor(high, low_after));
    }
    line = after;
    low = low_after;
    cells += 64 * (8 / kBits);
  };
  for (int i = 1; i < num_lines; ++i) step(hn::LoadU(d, lines + static_cast<size_t>(i) * 64));
  step(NextDepth(d, first));
}

// The same from the planes of 3 bits; `half` says which half of the first line of the 1-bit plane
// the group begins with.
template <class D>
HWY_INLINE void UnpackTrellisColumn3(D d, hn::Vec<D> next, hn::Vec<D> mix,
                                     const uint8_t* HWY_RESTRICT low,
                                     const uint8_t* HWY_RESTRICT high, int half, int num_quads,
                                     uint8_t* HWY_RESTRICT cells) {
  using V = hn::Vec<D>;
  const V mask = hn::Set(d, uint8_t{15}), three = hn::Set(d, uint8_t{3});
  const V four = hn::Set(d, uint8_t{4});
  V pair, u;  // of cells[0] and of the cell behind it
  const auto step = [&](V after) HWY_ATTR {
    const V next_pair = hn::Or(u, RaiseSymbols<3>(d, after));
    const V mix_idx = hn::And(hn::Xor(pair, ShiftBytes<1>(d, next_pair)), mask);
    const V next_idx = hn::And(next_pair, mask);
    hn::StoreU(hn::Add(hn::TableLookupBytes(next, next_idx), hn::TableLookupBytes(mix, mix_idx)), d,
               cells);
    cells += 64;
    pair = next_pair;
    u = after;
  };
  const auto symbol = [&](V line, V bit)
                          HWY_ATTR { return hn::Or(hn::And(line, three), hn::And(bit, four)); };
  V first0 = hn::Zero(d), first1 = first0;
  pair = u = first0;
  for (int i = 0; i < num_quads / 4; ++i) {
    const V line = hn::LoadU(d, low + static_cast<size_t>(i) * 64);
    V bits = hn::LoadU(d, high + static_cast<size_t>((i + half) / 2) * 64);
    if ((i + half) % 2 != 0) bits = ShiftBytes<4>(d, bits);
    const V u0 = symbol(line, RaiseSymbols<2>(d, bits));
    const V u1 = symbol(ShiftBytes<2>(d, line), RaiseSymbols<1>(d, bits));
    const V u2 = symbol(ShiftBytes<4>(d, line), bits);
    const V u3 = symbol(ShiftBytes<6>(d, line), ShiftBytes<1>(d, bits));
    if (i == 0) {
      first0 = u0;
      first1 = u1;
      pair = hn::Or(u0, RaiseSymbols<3>(d, u1));
      u = u1;
    } else {
      step(u0);
      step(u1);
    }
    step(u2);
    step(u3);
  }
  step(NextDepth(d, first0));
  step(NextDepth(d, first1));
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
        default: TrellisColumn<4>(d, next, mix, group + i, num_quads);
      }
    }
  }
}

// See trellis.h.
HWY_INLINE void UnpackTrellis(int bits, const uint8_t* HWY_RESTRICT packed, int num_groups,
                              int num_quads, int add, uint8_t* HWY_RESTRICT tile) {
  const hn::CappedTag<uint8_t, 64> d;
  const int lanes = static_cast<int>(hn::Lanes(d));
  const TrellisTable& table = GetTrellis(bits);
  const auto next = hn::LoadDup128(d, reinterpret_cast<const uint8_t*>(table.next));
  const auto mix = hn::Add(hn::LoadDup128(d, reinterpret_cast<const uint8_t*>(table.mix)),
                           hn::Set(d, static_cast<uint8_t>(add)));
  const uint8_t* HWY_RESTRICT high = packed + static_cast<size_t>(num_groups) * num_quads * 16;
  for (int g = 0; g < num_groups; ++g) {
    const int num_lines = num_quads * (bits == 4 ? 4 : 2) / 8;  // of the plane of low bits
    const uint8_t* HWY_RESTRICT lines = packed + static_cast<size_t>(g) * num_lines * 64;
    uint8_t* HWY_RESTRICT group = tile + static_cast<size_t>(g) * num_quads * 64;
    for (int i = 0; i < 64; i += lanes) {
      if (bits == 2) {
        UnpackTrellisColumn<2>(d, next, mix, lines + i, num_lines, group + i);
      } else if (bits == 3) {
        const int first = g * num_lines;  // in halves of a line of the 1-bit plane
        UnpackTrellisColumn3(d, next, mix, lines + i,
                             high + static_cast<size_t>(first / 2) * 64 + i, first % 2, num_quads,
                             group + i);
      } else {
        UnpackTrellisColumn<4>(d, next, mix, lines + i, num_lines, group + i);
      }
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tq
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
