// UnpackCodes for the current target, for inlining into kernels.
#if defined(TURBOQUANT_CODEC_UNPACK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TURBOQUANT_CODEC_UNPACK_INL_H_
#undef TURBOQUANT_CODEC_UNPACK_INL_H_
#else
#define TURBOQUANT_CODEC_UNPACK_INL_H_
#endif

#include <hwy/highway.h>

#include "turboquant/base/status.h"

HWY_BEFORE_NAMESPACE();
namespace tq {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Bytes have no shift of their own: 16-bit lanes shift and the mask drops what crossed over.
template <int kShift, class D>
HWY_INLINE hn::Vec<D> ShiftBytes(D d, hn::Vec<D> v) {
  const hn::Repartition<uint16_t, D> d16;
  if constexpr (kShift == 0) {
    return v;
  } else {
    return hn::BitCast(d, hn::ShiftRight<kShift>(hn::BitCast(d16, v)));
  }
}

// 4 / 2 / 1-bit plane of one 64-byte line to 2 / 4 / 8 cells.
template <int kBits, class D>
HWY_INLINE void UnpackLine(D d, const uint8_t* HWY_RESTRICT low, const uint8_t* HWY_RESTRICT high,
                           hn::Vec<D> table, uint8_t* HWY_RESTRICT out) {
  const size_t lanes = hn::Lanes(d);
  for (size_t i = 0; i < 64; i += lanes) {
    if constexpr (kBits == 4) {
      const auto mask = hn::Set(d, uint8_t{15});
      const auto v = hn::LoadU(d, low + i);
      hn::StoreU(hn::TableLookupBytes(table, hn::And(v, mask)), d, out + i);
      hn::StoreU(hn::TableLookupBytes(table, hn::And(ShiftBytes<4>(d, v), mask)), d, out + 64 + i);
    } else if constexpr (kBits == 2) {
      const auto mask = hn::Set(d, uint8_t{3});
      const auto v = hn::LoadU(d, low + i);
      hn::StoreU(hn::TableLookupBytes(table, hn::And(v, mask)), d, out + i);
      hn::StoreU(hn::TableLookupBytes(table, hn::And(ShiftBytes<2>(d, v), mask)), d, out + 64 + i);
      hn::StoreU(hn::TableLookupBytes(table, hn::And(ShiftBytes<4>(d, v), mask)), d, out + 128 + i);
      hn::StoreU(hn::TableLookupBytes(table, hn::And(ShiftBytes<6>(d, v), mask)), d, out + 192 + i);
    } else {
      static_assert(kBits == 3);
      // Two lines of low bits and one of high bits make 8 cells.
      const auto mask = hn::Set(d, uint8_t{3});
      const auto four = hn::Set(d, uint8_t{4});
      const auto a = hn::LoadU(d, low + i), b = hn::LoadU(d, low + 64 + i);
      const auto h = hn::LoadU(d, high + i);
      const hn::Repartition<uint16_t, D> d16;
      const auto h2 = hn::BitCast(d, hn::ShiftLeft<2>(hn::BitCast(d16, h)));
      const auto h1 = hn::BitCast(d, hn::ShiftLeft<1>(hn::BitCast(d16, h)));
      const auto put = [&](int cell, hn::Vec<D> lo, hn::Vec<D> hi) HWY_ATTR {
        const auto code = hn::Or(hn::And(lo, mask), hn::And(hi, four));
        hn::StoreU(hn::TableLookupBytes(table, code), d, out + cell * 64 + i);
      };
      put(0, a, h2);
      put(1, ShiftBytes<2>(d, a), h1);
      put(2, ShiftBytes<4>(d, a), h);
      put(3, ShiftBytes<6>(d, a), ShiftBytes<1>(d, h));
      put(4, b, ShiftBytes<2>(d, h));
      put(5, ShiftBytes<2>(d, b), ShiftBytes<3>(d, h));
      put(6, ShiftBytes<4>(d, b), ShiftBytes<4>(d, h));
      put(7, ShiftBytes<6>(d, b), ShiftBytes<5>(d, h));
    }
  }
}

// A 4-bit plane with a plane of kHigh more bits: 8 / kHigh cells, byte = first + 2 code.
template <int kHigh, class D>
HWY_INLINE void UnpackLinear(D d, const uint8_t* HWY_RESTRICT low, const uint8_t* HWY_RESTRICT high,
                             uint8_t first, uint8_t* HWY_RESTRICT out) {
  const size_t lanes = hn::Lanes(d);
  const auto mask = hn::Set(d, uint8_t{15});
  const auto high_mask = hn::Set(d, static_cast<uint8_t>((1 << kHigh) - 1));
  const auto add = hn::Set(d, first);
  const auto put = [&](size_t i, int cell, hn::Vec<D> lo, hn::Vec<D> hi) HWY_ATTR {
    const hn::Repartition<uint16_t, D> d16;
    // At most 2 bits remain: the shift stays in its byte.
    const auto top = hn::BitCast(d, hn::ShiftLeft<4>(hn::BitCast(d16, hn::And(hi, high_mask))));
    const auto code = hn::Or(hn::And(lo, mask), top);
    hn::StoreU(hn::Add(hn::Add(code, code), add), d, out + cell * 64 + i);
  };
  for (size_t i = 0; i < 64; i += lanes) {
    const auto h = hn::LoadU(d, high + i);
    const auto pair = [&](int cell, hn::Vec<D> h0, hn::Vec<D> h1) HWY_ATTR {
      const auto v = hn::LoadU(d, low + cell / 2 * 64 + i);
      put(i, cell, v, h0);
      put(i, cell + 1, ShiftBytes<4>(d, v), h1);
    };
    pair(0, h, ShiftBytes<kHigh>(d, h));
    pair(2, ShiftBytes<2 * kHigh>(d, h), ShiftBytes<3 * kHigh>(d, h));
    if constexpr (kHigh == 1) {
      pair(4, ShiftBytes<4>(d, h), ShiftBytes<5>(d, h));
      pair(6, ShiftBytes<6>(d, h), ShiftBytes<7>(d, h));
    }
  }
}

// See pack.h.
HWY_INLINE void UnpackCodes(int bits, const uint8_t* HWY_RESTRICT packed, int num_cells,
                            const uint8_t* HWY_RESTRICT table16, uint8_t* HWY_RESTRICT out) {
  const hn::CappedTag<uint8_t, 64> d;
  const auto table = hn::LoadDup128(d, table16);
  switch (bits) {
    case 2:
      for (int c = 0; c < num_cells; c += 4) {
        UnpackLine<2>(d, packed + c * 16, nullptr, table, out + c * 64);
      }
      break;
    case 3: {
      const uint8_t* high = packed + num_cells * 16;
      for (int c = 0; c < num_cells; c += 8) {
        UnpackLine<3>(d, packed + c * 16, high + c * 8, table, out + c * 64);
      }
      break;
    }
    case 4:
      for (int c = 0; c < num_cells; c += 2) {
        UnpackLine<4>(d, packed + c * 32, nullptr, table, out + c * 64);
      }
      break;
    case 5:
      for (int c = 0; c < num_cells; c += 8) {
        UnpackLinear<1>(d, packed + c * 32, packed + num_cells * 32 + c * 8, table16[0],
                        out + c * 64);
      }
      break;
    default:
      TQ_DCHECK(bits == 6);
      for (int c = 0; c < num_cells; c += 4) {
        UnpackLinear<2>(d, packed + c * 32, packed + num_cells * 32 + c * 16, table16[0],
                        out + c * 64);
      }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tq
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
