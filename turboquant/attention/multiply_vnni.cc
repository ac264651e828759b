#include "turboquant/attention/multiply_vnni.h"

#include "turboquant/base/status.h"

#if defined(__x86_64__)

#if defined(__GNUC__) && !defined(__clang__)
// GCC 12 takes the undefined operand inside its own _mm512_permutexvar_epi8 for a bug of ours.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>

#include <array>
#include <cstddef>
#include <cstring>

// Intrinsics, as Highway 1.0 has no such product. The instruction set is that of these functions
// alone: nothing else in the program may be compiled for it.
#define TQ_VNNI __attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi")))

namespace tq {
namespace {

constexpr int kRowsAtOnce = 4;
constexpr int kGroupsAtOnce = 4;  // 16 sums of 32 registers: enough to hide the latency

template <class T>
TQ_VNNI inline __m512i Broadcast(const T* four_bytes) {
  int32_t value;
  std::memcpy(&value, four_bytes, 4);
  return _mm512_set1_epi32(value);
}

template <int kRows, int kGroups, bool kTileUnsigned>
TQ_VNNI void MultiplyGroups(const uint8_t* tile, int num_quads, const uint8_t* digits,
                            int digit_stride, int32_t* out, int out_stride) {
  __m512i sums[kRows][kGroups];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int g = 0; g < kGroups; ++g) sums[r][g] = _mm512_setzero_si512();
  }
  for (int quad = 0; quad < num_quads; ++quad) {
    __m512i cells[kGroups];
#pragma GCC unroll 4
    for (int g = 0; g < kGroups; ++g) {
      cells[g] = _mm512_loadu_si512(tile + (static_cast<size_t>(g) * num_quads + quad) * 64);
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const __m512i digit = Broadcast(digits + static_cast<size_t>(r) * digit_stride + quad * 4);
#pragma GCC unroll 4
      for (int g = 0; g < kGroups; ++g) {
        sums[r][g] = kTileUnsigned ? _mm512_dpbusd_epi32(sums[r][g], cells[g], digit)
                                   : _mm512_dpbusd_epi32(sums[r][g], digit, cells[g]);
      }
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int g = 0; g < kGroups; ++g) {
      _mm512_storeu_si512(out + static_cast<size_t>(r) * out_stride + g * 16, sums[r][g]);
    }
  }
}

template <int kRows, bool kTileUnsigned>
void MultiplyRows(const uint8_t* tile, int num_groups, int num_quads, const uint8_t* digits,
                  int digit_stride, int32_t* out, int out_stride) {
  const size_t group_bytes = static_cast<size_t>(num_quads) * 64;
  int g = 0;
  for (; g + kGroupsAtOnce <= num_groups; g += kGroupsAtOnce) {
    MultiplyGroups<kRows, kGroupsAtOnce, kTileUnsigned>(tile + g * group_bytes, num_quads, digits,
                                                        digit_stride, out + g * 16, out_stride);
  }
  for (; g < num_groups; ++g) {
    MultiplyGroups<kRows, 1, kTileUnsigned>(tile + g * group_bytes, num_quads, digits, digit_stride,
                                            out + g * 16, out_stride);
  }
}

// Packed lines of a unit of cells: 2 cells of 4 bits, 4 of 2 bits, 8 of 3 bits.
template <int kBits>
struct Unit {
  static constexpr int kCells = kBits == 4 ? 2 : kBits == 2 ? 4 : 8;
  __m512i low[2], high;
};

template <int kBits>
TQ_VNNI inline Unit<kBits> LoadUnit(const uint8_t* low, const uint8_t* high) {
  Unit<kBits> unit;
  unit.low[0] = _mm512_loadu_si512(low);
  if constexpr (kBits == 3) {
    unit.low[1] = _mm512_loadu_si512(low + 64);
    unit.high = _mm512_loadu_si512(high);
  }
  return unit;
}

// Cell kCell of a unit as levels. The table repeats through 64 entries, so bits above the code and
// below bit 6 may be anything.
template <int kBits, int kCell>
TQ_VNNI inline __m512i UnitCell(const Unit<kBits>& unit, __m512i table) {
  if constexpr (kBits != 3) {
    return _mm512_permutexvar_epi8(_mm512_srli_epi16(unit.low[0], kCell * kBits), table);
  } else {
    const __m512i low = _mm512_srli_epi16(unit.low[kCell / 4], kCell % 4 * 2);
    const __m512i high = kCell < 2 ? _mm512_slli_epi16(unit.high, 2 - kCell)
                                   : _mm512_srli_epi16(unit.high, kCell - 2);
    // Bits 0 and 1 of low, the others of high.
    const __m512i code = _mm512_ternarylogic_epi32(_mm512_set1_epi8(3), low, high, 0xCA);
    return _mm512_permutexvar_epi8(code, table);
  }
}

template <int kBits, int kRows, bool kTileUnsigned, int kCell>
TQ_VNNI inline void AddCells(const Unit<kBits> (&units)[2], __m512i table, const uint8_t* digits,
                             int digit_stride, __m512i (&sums)[kRows][2]) {
  if constexpr (kCell < Unit<kBits>::kCells) {
    const __m512i a = UnitCell<kBits, kCell>(units[0], table);
    const __m512i b = UnitCell<kBits, kCell>(units[1], table);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const __m512i digit = Broadcast(digits + static_cast<size_t>(r) * digit_stride + kCell * 4);
      if constexpr (kTileUnsigned) {
        sums[r][0] = _mm512_dpbusd_epi32(sums[r][0], a, digit);
        sums[r][1] = _mm512_dpbusd_epi32(sums[r][1], b, digit);
      } else {
        sums[r][0] = _mm512_dpbusd_epi32(sums[r][0], digit, a);
        sums[r][1] = _mm512_dpbusd_epi32(sums[r][1], digit, b);
      }
    }
    AddCells<kBits, kRows, kTileUnsigned, kCell + 1>(units, table, digits, digit_stride, sums);
  }
}

// The first 2^kBits of 16 bytes, over and over.
template <int kBits>
TQ_VNNI inline __m512i RepeatTable(const uint8_t* table16) {
  alignas(64) static constexpr auto kIndex = [] {
    std::array<uint8_t, 64> index{};
    for (size_t i = 0; i < index.size(); ++i) index[i] = i & ((1 << kBits) - 1);
    return index;
  }();
  const __m128i table = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table16));
  return _mm512_permutexvar_epi8(_mm512_load_si512(kIndex.data()), _mm512_broadcast_i32x4(table));
}

template <int kBits, int kRows, bool kTileUnsigned>
TQ_VNNI void MultiplyPackedRows(const uint8_t* packed, const uint8_t* table16, int num_groups,
                                int num_quads, const uint8_t* digits, int digit_stride,
                                int32_t* out, int out_stride) {
  const __m512i table = RepeatTable<kBits>(table16);
  constexpr int kCells = Unit<kBits>::kCells;
  constexpr int kLowBits = kBits == 3 ? 2 : kBits;
  const size_t low_bytes = static_cast<size_t>(num_quads) * 8 * kLowBits;  // of a group
  const size_t high_bytes = static_cast<size_t>(num_quads) * 8;
  const uint8_t* high = packed + num_groups * low_bytes;
  for (int g = 0; g < num_groups; g += 2) {
    __m512i sums[kRows][2];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) sums[r][0] = sums[r][1] = _mm512_setzero_si512();
    for (int quad = 0; quad < num_quads; quad += kCells) {
      const uint8_t* l = packed + g * low_bytes + static_cast<size_t>(quad) * 8 * kLowBits;
      const uint8_t* h = high + g * high_bytes + static_cast<size_t>(quad) * 8;
      const Unit<kBits> units[2] = {LoadUnit<kBits>(l, h),
                                    LoadUnit<kBits>(l + low_bytes, h + high_bytes)};
      AddCells<kBits, kRows, kTileUnsigned, 0>(units, table, digits + quad * 4, digit_stride, sums);
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      int32_t* o = out + static_cast<size_t>(r) * out_stride + g * 16;
      _mm512_storeu_si512(o, sums[r][0]);
      _mm512_storeu_si512(o + 16, sums[r][1]);
    }
  }
}

template <int kRows, int kVecs>
TQ_VNNI void MultiplyPairLanes(const int8_t* values, int num_lanes, int num_pairs,
                               const int16_t* digits, int digit_stride, int32_t* out,
                               int out_stride) {
  __m512i sums[kRows][kVecs];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) sums[r][v] = _mm512_setzero_si512();
  }
  for (int pair = 0; pair < num_pairs; ++pair) {
    __m512i value[kVecs];
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) {
      value[v] = _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(
          values + (static_cast<size_t>(pair) * num_lanes + v * 16) * 2)));
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const __m512i digit = Broadcast(digits + static_cast<size_t>(r) * digit_stride + pair * 2);
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) {
        sums[r][v] = _mm512_dpwssd_epi32(sums[r][v], value[v], digit);
      }
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) {
      _mm512_storeu_si512(out + static_cast<size_t>(r) * out_stride + v * 16, sums[r][v]);
    }
  }
}

template <int kRows>
void MultiplyPairRows(const int8_t* values, int num_lanes, int num_pairs, const int16_t* digits,
                      int digit_stride, int32_t* out, int out_stride) {
  int lane = 0;
  for (; lane + 64 <= num_lanes; lane += 64) {
    MultiplyPairLanes<kRows, 4>(values + lane * 2, num_lanes, num_pairs, digits, digit_stride,
                                out + lane, out_stride);
  }
  for (; lane < num_lanes; lane += 16) {
    MultiplyPairLanes<kRows, 1>(values + lane * 2, num_lanes, num_pairs, digits, digit_stride,
                                out + lane, out_stride);
  }
}

// fn.template operator()<kRows>(first row), for chunks of rows.
template <class Fn>
void ForRows(int num_rows, Fn&& fn) {
  int r = 0;
  for (; r + kRowsAtOnce <= num_rows; r += kRowsAtOnce) fn.template operator()<kRowsAtOnce>(r);
  switch (num_rows - r) {
    case 1: fn.template operator()<1>(r); break;
    case 2: fn.template operator()<2>(r); break;
    case 3: fn.template operator()<3>(r); break;
    default: break;
  }
}

}  // namespace

void MultiplyCodesVnni(const uint8_t* tile, bool tile_unsigned, int num_groups, int num_quads,
                       const uint8_t* digits, int digit_stride, int num_rows, int32_t* out,
                       int out_stride) {
  ForRows(num_rows, [&]<int kRows>(int r) {
    const uint8_t* d = digits + static_cast<size_t>(r) * digit_stride;
    int32_t* o = out + static_cast<size_t>(r) * out_stride;
    if (tile_unsigned) {
      MultiplyRows<kRows, true>(tile, num_groups, num_quads, d, digit_stride, o, out_stride);
    } else {
      MultiplyRows<kRows, false>(tile, num_groups, num_quads, d, digit_stride, o, out_stride);
    }
  });
}

void MultiplyPackedVnni(int bits, const uint8_t* packed, const uint8_t* table, bool tile_unsigned,
                        int num_groups, int num_quads, const uint8_t* digits, int digit_stride,
                        int num_rows, int32_t* out, int out_stride) {
  const auto run = [&]<int kBits, int kRows>(int r) {
    const uint8_t* d = digits + static_cast<size_t>(r) * digit_stride;
    int32_t* o = out + static_cast<size_t>(r) * out_stride;
    if (tile_unsigned) {
      MultiplyPackedRows<kBits, kRows, true>(packed, table, num_groups, num_quads, d, digit_stride,
                                             o, out_stride);
    } else {
      MultiplyPackedRows<kBits, kRows, false>(packed, table, num_groups, num_quads, d, digit_stride,
                                              o, out_stride);
    }
  };
  ForRows(num_rows, [&]<int kRows>(int r) {
    switch (bits) {
      case 2: run.template operator()<2, kRows>(r); break;
      case 3: run.template operator()<3, kRows>(r); break;
      default: TQ_DCHECK(bits == 4); run.template operator()<4, kRows>(r);
    }
  });
}

void MultiplyPairsVnni(const int8_t* values, int num_lanes, int num_pairs, const int16_t* digits,
                       int digit_stride, int num_rows, int32_t* out, int out_stride) {
  ForRows(num_rows, [&]<int kRows>(int r) {
    MultiplyPairRows<kRows>(values, num_lanes, num_pairs,
                            digits + static_cast<size_t>(r) * digit_stride, digit_stride,
                            out + static_cast<size_t>(r) * out_stride, out_stride);
  });
}

}  // namespace tq

#else

namespace tq {

void MultiplyCodesVnni(const uint8_t*, bool, int, int, const uint8_t*, int, int, int32_t*, int) {
  TQ_CHECK(false);  // UseVnni() is false on this processor
}
void MultiplyPackedVnni(int, const uint8_t*, const uint8_t*, bool, int, int, const uint8_t*, int,
                        int, int32_t*, int) {
  TQ_CHECK(false);
}
void MultiplyPairsVnni(const int8_t*, int, int, const int16_t*, int, int, int32_t*, int) {
  TQ_CHECK(false);
}

}  // namespace tq

#endif
