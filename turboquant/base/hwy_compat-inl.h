// Operations that Highway 1.0.3 lacks, for the current target.
#if defined(TURBOQUANT_BASE_HWY_COMPAT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TURBOQUANT_BASE_HWY_COMPAT_INL_H_
#undef TURBOQUANT_BASE_HWY_COMPAT_INL_H_
#else
#define TURBOQUANT_BASE_HWY_COMPAT_INL_H_
#endif

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace tq {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Sums of adjacent u8 x s8 products in 16 bit: lane i = a[2i] b[2i] + a[2i+1] b[2i+1].
// The caller keeps every sum within int16 (the x86 instruction saturates). DI16 has half as many
// lanes as the byte vectors.
template <class DI16, class VU8, class VI8>
HWY_INLINE hn::Vec<DI16> MulPairs([[maybe_unused]] DI16 d16, VU8 a, VI8 b) {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  if constexpr (hn::MaxLanes(d16) == 32) {
    return hn::Vec<DI16>{_mm512_maddubs_epi16(a.raw, b.raw)};
  } else if constexpr (hn::MaxLanes(d16) == 16) {
    return hn::Vec<DI16>{_mm256_maddubs_epi16(a.raw, b.raw)};
  } else {
    return hn::Vec<DI16>{_mm_maddubs_epi16(a.raw, b.raw)};
  }
#elif HWY_TARGET == HWY_AVX2
  if constexpr (hn::MaxLanes(d16) == 16) {
    return hn::Vec<DI16>{_mm256_maddubs_epi16(a.raw, b.raw)};
  } else {
    return hn::Vec<DI16>{_mm_maddubs_epi16(a.raw, b.raw)};
  }
#elif HWY_TARGET == HWY_SSE4 || HWY_TARGET == HWY_SSSE3
  return hn::Vec<DI16>{_mm_maddubs_epi16(a.raw, b.raw)};
#else
  // Even and odd bytes widened in place: little-endian 16-bit lanes hold (odd << 8) | even.
  const hn::RebindToUnsigned<DI16> du16;
  const auto au = hn::BitCast(du16, a);
  const auto bi = hn::BitCast(d16, b);
  const auto a_even = hn::BitCast(d16, hn::And(au, hn::Set(du16, 0xFF)));
  const auto a_odd = hn::BitCast(d16, hn::ShiftRight<8>(au));
  const auto b_even = hn::ShiftRight<8>(hn::ShiftLeft<8>(bi));
  const auto b_odd = hn::ShiftRight<8>(bi);
  return hn::Add(hn::Mul(a_even, b_even), hn::Mul(a_odd, b_odd));
#endif
}

// acc + sums of adjacent 16-bit products: lane i of the result gains a[2i] b[2i] + a[2i+1] b[2i+1].
template <class DI32, class VI16>
HWY_INLINE hn::Vec<DI32> MulAddPairs([[maybe_unused]] DI32 d32, VI16 a, VI16 b, hn::Vec<DI32> acc) {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  if constexpr (hn::MaxLanes(d32) == 16) {
    return hn::Add(acc, hn::Vec<DI32>{_mm512_madd_epi16(a.raw, b.raw)});
  } else if constexpr (hn::MaxLanes(d32) == 8) {
    return hn::Add(acc, hn::Vec<DI32>{_mm256_madd_epi16(a.raw, b.raw)});
  } else {
    return hn::Add(acc, hn::Vec<DI32>{_mm_madd_epi16(a.raw, b.raw)});
  }
#elif HWY_TARGET == HWY_AVX2
  if constexpr (hn::MaxLanes(d32) == 8) {
    return hn::Add(acc, hn::Vec<DI32>{_mm256_madd_epi16(a.raw, b.raw)});
  } else {
    return hn::Add(acc, hn::Vec<DI32>{_mm_madd_epi16(a.raw, b.raw)});
  }
#elif HWY_TARGET == HWY_SSE4 || HWY_TARGET == HWY_SSSE3
  return hn::Add(acc, hn::Vec<DI32>{_mm_madd_epi16(a.raw, b.raw)});
#else
  const hn::Repartition<int16_t, DI32> d16;
  const auto ai = hn::BitCast(d32, a);
  const auto bi = hn::BitCast(d32, b);
  (void)d16;
  const auto even =
      hn::Mul(hn::ShiftRight<16>(hn::ShiftLeft<16>(ai)), hn::ShiftRight<16>(hn::ShiftLeft<16>(bi)));
  const auto odd = hn::Mul(hn::ShiftRight<16>(ai), hn::ShiftRight<16>(bi));
  return hn::Add(acc, hn::Add(even, odd));
#endif
}

// Nearest integers (ties to even) of values within int32; others give any integer. hn::NearestInt
// spends three more instructions on those.
template <class DF>
HWY_INLINE hn::Vec<hn::RebindToSigned<DF>> NearestInRange([[maybe_unused]] DF d, hn::Vec<DF> v) {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  using VI = hn::Vec<hn::RebindToSigned<DF>>;
  if constexpr (hn::MaxLanes(d) == 16) {
    return VI{_mm512_cvtps_epi32(v.raw)};
  } else if constexpr (hn::MaxLanes(d) == 8) {
    return VI{_mm256_cvtps_epi32(v.raw)};
  } else {
    return VI{_mm_cvtps_epi32(v.raw)};
  }
#elif HWY_TARGET == HWY_AVX2
  using VI = hn::Vec<hn::RebindToSigned<DF>>;
  if constexpr (hn::MaxLanes(d) == 8) {
    return VI{_mm256_cvtps_epi32(v.raw)};
  } else {
    return VI{_mm_cvtps_epi32(v.raw)};
  }
#elif HWY_TARGET == HWY_SSE4 || HWY_TARGET == HWY_SSSE3
  return hn::Vec<hn::RebindToSigned<DF>>{_mm_cvtps_epi32(v.raw)};
#else
  return hn::NearestInt(v);
#endif
}

// Stores integers of 0 to 255 as bytes.
template <class DI32>
HWY_INLINE void StoreAsBytes([[maybe_unused]] DI32 d, hn::Vec<DI32> v, uint8_t* HWY_RESTRICT out) {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  if constexpr (hn::MaxLanes(d) == 16) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm512_cvtepi32_epi8(v.raw));
    return;
  }
#endif
  const hn::Rebind<uint8_t, DI32> du8;
  hn::StoreU(hn::DemoteTo(du8, v), du8, out);
}

}  // namespace HWY_NAMESPACE
}  // namespace tq
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
