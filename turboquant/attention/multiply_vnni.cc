#include "turboquant/attention/multiply_vnni.h"

#include "turboquant/base/status.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include <cstddef>
#include <cstring>

// Intrinsics, as Highway 1.0 has no such product. The instruction set is that of these functions
// alone: nothing else in the program may be compiled for it.
#define TQ_VNNI __attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni")))

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
void MultiplyPairsVnni(const int8_t*, int, int, const int16_t*, int, int, int32_t*, int) {
  TQ_CHECK(false);
}

}  // namespace tq

#endif
