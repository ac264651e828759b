// What the plain kernels do not read: 8-bit codes, scales in groups of channels, float rows.
// Kernels that do (kWide) run where a head of the cache has one of these; see decode_cuda.cu for
// the idea.
//
// Integer codes stay integers, with 16-bit digits of queries and weights as for open rows: a sum
// over 32 channels (16 for the shortest groups) times the scale of its group. Offsets are a product
// of their own, with the sum of the query's channels, and with the weights. For V, weights become
// digits once for each group.
// Floats are multiplied by 16-bit tensor cores. The operand B has the same 8 columns: queries and
// weights are sums of two 16-bit floats, high and low part in neighbouring columns.
#pragma once

#include "turboquant/attention/decode_fragments.cuh"
#include "turboquant/attention/decode_shared.cuh"
#include "turboquant/codec/fp8.h"
#include "turboquant/codec/fragment_layout.h"

namespace tq {
namespace {

// Of a thread block, behind Shared.
template <int kDim, int kTiles>
struct alignas(32) WideShared {
  static constexpr int kRows = 4 * kTiles;
  // Queries divided by `scale` as 16-bit floats, high and low part; FragmentQueryIndex within 16
  // channels. Padded so that lanes of 8 columns use different banks.
  uint16_t halves[kRows][2][kDim + 16];
  float scale[kRows];
  // Sums of the row's digits over 32 channels, or 16 where groups are no longer than that.
  float digit_sums[kRows][kDim / 16 + 1];
};

// The shared memory of a thread block: Shared, of wide kernels WideShared, the table of the head's
// centre (DecodeCenter::digits), where there is room, the index of the heads, the warps' rings.
template <int kDim, int kTiles>
constexpr uint32_t kWideOffset = RoundUp<uint32_t>(sizeof(Shared<kDim, kTiles>), 128);
template <int kDim, int kTiles, bool kWide>
constexpr uint32_t kCenterOffset = RoundUp<uint32_t>(
    kWideOffset<kDim, kTiles> + (kWide ? sizeof(WideShared<kDim, kTiles>) : 0), 128);
template <int kDim, int kTiles, bool kWide>
__host__ __device__ size_t RingsOffset(int num_kv_heads, uint32_t center_bytes) {
  return RoundUp<size_t>(kCenterOffset<kDim, kTiles, kWide> + size_t{center_bytes} +
                             num_kv_heads * sizeof(DecodeHeadIndex),
                         128);
}

// x and y as sums of two 16-bit floats.
template <bool kBF16>
__device__ __forceinline__ void SplitFloats(float x, float y, uint32_t* high, uint32_t* low) {
  if constexpr (kBF16) {
    const __nv_bfloat162 h = __floats2bfloat162_rn(x, y);
    const float2 back = __bfloat1622float2(h);
    const __nv_bfloat162 l = __floats2bfloat162_rn(x - back.x, y - back.y);
    *high = *reinterpret_cast<const uint32_t*>(&h), *low = *reinterpret_cast<const uint32_t*>(&l);
  } else {
    const __half2 h = __floats2half2_rn(x, y);
    const float2 back = __half22float2(h);
    const __half2 l = __floats2half2_rn(x - back.x, y - back.y);
    *high = *reinterpret_cast<const uint32_t*>(&h), *low = *reinterpret_cast<const uint32_t*>(&l);
  }
}

// One row of the queries, a warp: x is what the lane has of it, in the basis of K.
template <int kDim, int kTiles>
__device__ __forceinline__ void PrepareWideQuery(const DecodeHead& head,
                                                 const float (&x)[kDim / 32], float largest,
                                                 int row, const Shared<kDim, kTiles>& sh,
                                                 WideShared<kDim, kTiles>* wide, int lane) {
  constexpr int kEach = kDim / 32;
  if (head.k_open != DecodeCodes::kInt8) {
    const float inverse = 1.f / largest;
    const bool fp8 = head.k_open == DecodeCodes::kFP8, bf16 = head.k_open == DecodeCodes::kBF16;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int c = lane * kEach + i, to = c / 16 * 16 + FragmentQueryIndex(fp8, c % 16);
      uint32_t high, low;
      if (bf16) {
        SplitFloats<true>(x[i] * inverse, 0.f, &high, &low);
      } else {
        SplitFloats<false>(x[i] * inverse, 0.f, &high, &low);
      }
      wide->halves[row][0][to] = static_cast<uint16_t>(high);
      wide->halves[row][1][to] = static_cast<uint16_t>(low);
    }
    if (lane == 0) wide->scale[row] = fp8 ? largest * kFP8ToHalf : largest;
  }
  if (head.k_groups.len > 0) {
    __syncwarp();
    const int words = head.k_groups.len == 16 ? 4 : 8;  // of 4 channels
    if (lane < kDim / 4 / words) {
      const auto* const digits = reinterpret_cast<const int*>(sh.row_digits[row]) + lane * words;
      int high = 0, low = 0;
      for (int i = 0; i < words; ++i) {
        high = __dp4a(digits[i], 0x01010101, high);
        low = __dp4a(digits[kDim / 4 + i], 0x01010101, low);
      }
      wide->digit_sums[row][lane] = static_cast<float>(high * 256 + low);
    }
  }
}

// ---- Codes with 16-bit digits -------------------------------------------------------------------

// Codes of a group of fragments as Group has them; 8-bit ones are read when they are needed.
template <DecodeCodes kKind>
struct WideGroup : Group<kKind> {};
template <>
struct WideGroup<DecodeCodes::kInt8> {
  const uint8_t* codes;
  __device__ __forceinline__ void Load(const uint8_t* from, int group, int lane) {
    codes = from + (group * 8 * 32 + lane) * 16;
  }
  __device__ __forceinline__ void Fragment(int f, const DecodeTable&, uint32_t (&a)[4]) const {
    const uint4 v = *reinterpret_cast<const uint4*>(codes + f * 512);
    a[0] = v.x, a[1] = v.y, a[2] = v.z, a[3] = v.w;
  }
};

// Of tokens 16 t + r and 16 t + 8 + r, relative to the record's base: value = scale x level +
// offset.
struct GroupPair {
  float scale[2], offset[2];
};
// What the planes hold is asked for once a page, not for each pair: kHalves, with offsets, and
// kLog8, without, are what presets have.
enum class Planes { kHalves, kLog8, kAny };
template <Planes kPlanes>
__device__ __forceinline__ GroupPair GroupPairAt(const uint8_t* planes, const DecodeGroups& groups,
                                                 int group, int t, int lane, const float* log8) {
  const int i = group * kPageLen + lane / 4 * 8 + 2 * t;
  const int plane = kPageLen << groups.log_count;
  const bool bytes = kPlanes == Planes::kLog8 || (kPlanes == Planes::kAny && groups.log8 != 0);
  const bool affine = kPlanes == Planes::kHalves || (kPlanes == Planes::kAny && groups.affine != 0);
  GroupPair p;
  p.offset[0] = p.offset[1] = 0;
  if (bytes) {
    p.scale[0] = log8[planes[i]], p.scale[1] = log8[planes[i + 1]];
    if (affine) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const auto eighths = static_cast<int8_t>(planes[plane + i + h]);
        p.offset[h] = p.scale[h] * (static_cast<float>(eighths) * groups.eighth);
      }
    }
  } else {
    const auto* const halves = reinterpret_cast<const __half*>(planes);
    const float2 scale = __half22float2(*reinterpret_cast<const __half2*>(halves + i));
    p.scale[0] = scale.x, p.scale[1] = scale.y;
    if (affine) {
      const float2 offset = __half22float2(*reinterpret_cast<const __half2*>(halves + plane + i));
      p.offset[0] = offset.x, p.offset[1] = offset.y;
    }
  }
  return p;
}

// A sum of products with both digits.
__device__ __forceinline__ float JoinDigits(int high, int low) {
  return fmaf(__int_as_float(high) - kMagic, 256.f, __int_as_float(low) - kMagic);
}

// scores[n][2 t + h] of tokens 16 t + 8 h + r, in units of row digits x K base. kShort: groups of
// 16 channels. `q`: row digits.
template <DecodeCodes kKind, Planes kPlanes, bool kShort, int kDim, int kTiles>
__device__ __forceinline__ void GroupScores(const uint8_t* codes, const uint8_t* planes,
                                            const DecodeGroups& groups, const DecodeTable& table,
                                            const float* log8, const WideShared<kDim, kTiles>& wide,
                                            const Queries<kDim, kTiles>& q, int lane,
                                            float (&scores)[kTiles][8]) {
  constexpr int kSteps = kDim / 32;
  const int magic[4] = {kMagicBits, kMagicBits, kMagicBits, kMagicBits};
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 8; ++i) scores[n][i] = 0;
  }
#pragma unroll
  for (int g = 0; g < kDim / 64; ++g) {
    WideGroup<kKind> group;
    group.Load(codes, g, lane);
#pragma unroll
    for (int f = 0; f < 8; ++f) {
      const int t = (8 * g + f) / kSteps, j = (8 * g + f) % kSteps;
      uint32_t a[4];
      group.Fragment(f, table, a);
#pragma unroll
      for (int half = 0; half < (kShort ? 2 : 1); ++half) {
        const int step = kShort ? 2 * j + half : j;
        const GroupPair pair = GroupPairAt<kPlanes>(
            planes, groups, kShort ? step : 32 * j >> groups.log_len, t, lane, log8);
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
          int sums[4];
          if constexpr (kShort) {
            ptx::MmaS8S8Half(sums, a[2 * half], a[2 * half + 1], q.digits[n][j][half], magic);
          } else {
            ptx::MmaS8S8(sums, a, q.digits[n][j][0], q.digits[n][j][1], magic);
          }
          const float digits = wide.digit_sums[4 * n + lane % 4][step];
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            float& score = scores[n][2 * t + h];
            if constexpr (kPlanes != Planes::kLog8) score = fmaf(digits, pair.offset[h], score);
            float sum = JoinDigits(sums[2 * h], sums[2 * h + 1]);
            if constexpr (kKind == DecodeCodes::kTable4) sum = fmaf(digits, -groups.bias, sum);
            score = fmaf(sum, pair.scale[h], score);
          }
        }
      }
    }
  }
}

// o += V^T x weights, where a group's scale is part of the weights. w[n][2 t + h]: of tokens
// 16 t + 8 h + r; `unit`: of a weight x the base.
template <DecodeCodes kKind, Planes kPlanes, int kDim, int kTiles>
__device__ __forceinline__ void GroupValues(const uint8_t* codes, const uint8_t* planes,
                                            const DecodeGroups& groups, const DecodeTable& table,
                                            const float* log8, const float (&w)[kTiles][8],
                                            const float (&unit)[kTiles], int lane,
                                            State<kDim, kTiles>* state) {
  const int magic[4] = {kMagicBits, kMagicBits, kMagicBits, kMagicBits};
  const uint32_t selector = ColumnSelector(lane);
  uint32_t columns[kTiles][4];
  float digit = 0,
        offsets[kTiles];  // of the group at hand: what a digit is worth, relative to base
#pragma unroll
  for (int g = 0; g < kDim / 64; ++g) {
    WideGroup<kKind> group;
    group.Load(codes, g, lane);
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      const int channel = 64 * g + 16 * m;
      if ((channel & ((1 << groups.log_len) - 1)) == 0) {
        // Digits are relative to the largest scale: offsets may be much larger, and the base with
        // them.
        GroupPair pairs[4];
        float top = 0;
#pragma unroll
        for (int t = 0; t < 4; ++t) {
          pairs[t] = GroupPairAt<kPlanes>(planes, groups, channel >> groups.log_len, t, lane, log8);
          top = fmaxf(top, fmaxf(pairs[t].scale[0], pairs[t].scale[1]));
        }
        top = RowMax(top);
        const float to_digit = top > 0 ? kRowWeight / top : 0.f;
        digit = top * (1.f / kRowWeight);
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
          offsets[n] = 0;
#pragma unroll
          for (int t = 0; t < 4; ++t) {
            float digits[2];
#pragma unroll
            for (int h = 0; h < 2; ++h) {
              const float weight = w[n][2 * t + h], scale = pairs[t].scale[h];
              digits[h] = fmaf(weight, scale * to_digit, kTwo23);
              // The bias of stored levels comes off as their sums have it: of the rounded digits.
              if constexpr (kPlanes != Planes::kLog8) {
                offsets[n] = fmaf(weight, pairs[t].offset[h], offsets[n]);
              }
              if constexpr (kKind == DecodeCodes::kTable4) {
                offsets[n] = fmaf(digits[h] - kTwo23, -groups.bias * digit, offsets[n]);
              }
            }
            columns[n][t] = WeightsToColumns(digits[0], digits[1], selector);
          }
        }
#pragma unroll
        for (int n = 0; n < kTiles; ++n) offsets[n] = RowSum(offsets[n]);
      }
      uint32_t a[2][4];
      group.Fragment(m, table, a[0]);
      group.Fragment(4 + m, table, a[1]);
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        int sums[4];
        ptx::MmaS8U8(sums, a[0], columns[n][0], columns[n][1], magic);
        ptx::MmaS8U8(sums, a[1], columns[n][2], columns[n][3], sums);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const float value = fmaf(JoinDigits(sums[2 * h], sums[2 * h + 1]), digit, offsets[n]);
          float& o = state->o[n][4 * g + m][h];
          o = fmaf(value, unit[n], o);
        }
      }
    }
  }
}

// ---- Floats -------------------------------------------------------------------------------------

// 16 bytes of a lane: one product's A of 16-bit numbers, or those of two products of FP8 numbers.
template <DecodeCodes kType>
__device__ __forceinline__ void FloatFragment(const uint4& v, int product, uint32_t (&a)[4]) {
  if constexpr (kType == DecodeCodes::kFP8) {
    const uint32_t top = product == 0 ? v.x : v.z, bottom = product == 0 ? v.y : v.w;
    a[0] = HalvesOfEvenFP8(top), a[1] = HalvesOfEvenFP8(bottom);
    a[2] = HalvesOfOddFP8(top), a[3] = HalvesOfOddFP8(bottom);
  } else {
    a[0] = v.x, a[1] = v.y, a[2] = v.z, a[3] = v.w;
  }
}

// scores[n][2 t + h] of tokens 16 (first_tile + t) + 8 h + r, in units of WideShared::scale.
template <DecodeCodes kType, int kTokenTiles, int kDim, int kTiles>
__device__ __forceinline__ void FloatScores(const uint8_t* values, int first_tile,
                                            const WideShared<kDim, kTiles>& wide, int lane,
                                            float (&scores)[kTiles][2 * kTokenTiles]) {
  constexpr int kProducts = kType == DecodeCodes::kFP8 ? 2 : 1;
  constexpr int kSteps = kDim / (16 * kProducts);
  const int r = lane / 4, c = lane % 4;
#pragma unroll
  for (int t = 0; t < kTokenTiles; ++t) {
    float sums[kTiles][4];
#pragma unroll
    for (int n = 0; n < kTiles; ++n) sums[n][0] = sums[n][1] = sums[n][2] = sums[n][3] = 0;
#pragma unroll
    for (int j = 0; j < kSteps; ++j) {
      const uint4 v = *reinterpret_cast<const uint4*>(
          values + (((first_tile + t) * kSteps + j) * 32 + lane) * 16);
#pragma unroll
      for (int i = 0; i < kProducts; ++i) {
        uint32_t a[4];
        FloatFragment<kType>(v, i, a);
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
          const uint2 b = *reinterpret_cast<const uint2*>(
              &wide.halves[4 * n + r / 2][r % 2][16 * (kProducts * j + i) + 4 * c]);
          ptx::MmaFloat<kType == DecodeCodes::kBF16>(sums[n], a, b.x, b.y);
        }
      }
    }
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int h = 0; h < 2; ++h) scores[n][2 * t + h] = sums[n][2 * h] + sums[n][2 * h + 1];
    }
  }
}

// The weights of tokens r and r + 8 of 16 to the two registers of B: tokens {2 c, 2 c + 1} and
// {2 c + 8, 2 c + 9} of column r, as FP8 values want them {2 c, 2 c + 8} and {2 c + 1, 2 c + 9}.
template <DecodeCodes kType>
__device__ __forceinline__ void WeightsToHalves(float first, float second, int lane,
                                                uint32_t (&b)[2]) {
  uint32_t high, low;
  SplitFloats<kType == DecodeCodes::kBF16>(first, second, &high, &low);
  high = ptx::Transpose8x8(high), low = ptx::Transpose8x8(low);
  // Even columns have the first two tokens of both parts and want the high parts, odd ones the
  // other two and the low parts.
  const bool odd = lane & 4;
  const uint32_t other = __shfl_xor_sync(kAllLanes, odd ? high : low, 4);
  b[0] = odd ? other : high;
  b[1] = odd ? low : other;
  if constexpr (kType == DecodeCodes::kFP8) {
    const uint32_t swapped = __byte_perm(b[0], b[1], 0x5410);
    b[1] = __byte_perm(b[0], b[1], 0x7632);
    b[0] = swapped;
  }
}

// o += V^T x weights of tokens 16 (first_tile + t) + ...; w as in GroupValues. Rows from `end` of
// these on may hold anything, NaN too.
template <DecodeCodes kType, int kTokenTiles, int kDim, int kTiles>
__device__ __forceinline__ void FloatValues(const uint8_t* values, int first_tile, int end,
                                            const float (&w)[kTiles][2 * kTokenTiles],
                                            const float (&unit)[kTiles], int lane,
                                            State<kDim, kTiles>* state) {
  constexpr int kProducts = kType == DecodeCodes::kFP8 ? 2 : 1;
  constexpr bool kMayEnd = kTokenTiles < kPageLen / 16;  // sealed pages are full
  uint32_t b[kTiles][kTokenTiles][2];
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int t = 0; t < kTokenTiles; ++t) {
      WeightsToHalves<kType>(w[n][2 * t], w[n][2 * t + 1], lane, b[n][t]);
    }
  }
  // Of the two registers of A: halves whose rows exist.
  uint32_t exist[kTokenTiles][2];
#pragma unroll
  for (int t = 0; kMayEnd && t < kTokenTiles; ++t) {
    const int first = 16 * t + lane % 4 * 2, step = kType == DecodeCodes::kFP8 ? 8 : 1;
    const auto mask = [&](int token) {
      return (token < end ? 0x0000ffffu : 0u) | (token + step < end ? 0xffff0000u : 0u);
    };
    exist[t][0] = mask(first), exist[t][1] = mask(first + 9 - step);
  }
#pragma unroll
  for (int m = 0; m < kDim / 16; ++m) {
    float sums[kTiles][4];
#pragma unroll
    for (int n = 0; n < kTiles; ++n) sums[n][0] = sums[n][1] = sums[n][2] = sums[n][3] = 0;
#pragma unroll
    for (int t = 0; t < kTokenTiles; t += kProducts) {
      // Fragments of 8-bit order: m / 4, then the half of the tokens, then m % 4.
      const int fragment = kType == DecodeCodes::kFP8
                               ? (m / 4 * 2 + (first_tile + t) / 2) * 4 + m % 4
                               : m * 4 + first_tile + t;
      const uint4 v = *reinterpret_cast<const uint4*>(values + (fragment * 32 + lane) * 16);
#pragma unroll
      for (int i = 0; i < kProducts; ++i) {
        uint32_t a[4];
        FloatFragment<kType>(v, i, a);
#pragma unroll
        for (int k = 0; kMayEnd && k < 4; ++k) a[k] &= exist[t + i][k / 2];
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
          ptx::MmaFloat<kType == DecodeCodes::kBF16>(sums[n], a, b[n][t + i][0], b[n][t + i][1]);
        }
      }
    }
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float& o = state->o[n][m][h];
        o = fmaf(sums[n][2 * h] + sums[n][2 * h + 1], unit[n], o);
      }
    }
  }
}

// fn<type>() of a float type.
template <typename Fn>
__device__ __forceinline__ void OfFloatType(DecodeCodes type, const Fn& fn) {
  if (type == DecodeCodes::kF16) {
    fn.template operator()<DecodeCodes::kF16>();
  } else if (type == DecodeCodes::kBF16) {
    fn.template operator()<DecodeCodes::kBF16>();
  } else {
    fn.template operator()<DecodeCodes::kFP8>();
  }
}
// fn<kind, planes>() of codes that have scales in groups. With kChoose what presets have, in groups
// of more than 16 channels, gets code of its own: it is 20 to 35 % faster, and long to compile.
template <bool kChoose, typename Fn>
__device__ __forceinline__ void OfGroupKind(DecodeCodes kind, const DecodeGroups& groups,
                                            const Fn& fn) {
  const auto of_planes = [&]<DecodeCodes kKind>() {
    if constexpr (kChoose) {
      if (groups.len > 16 && groups.log8 == 0 && groups.affine != 0) {
        return fn.template operator()<kKind, Planes::kHalves>();
      }
      if constexpr (kKind == DecodeCodes::kInt8) {
        if (groups.len > 16 && groups.log8 != 0 && groups.affine == 0) {
          return fn.template operator()<kKind, Planes::kLog8>();
        }
      }
    }
    fn.template operator()<kKind, Planes::kAny>();
  };
  if (kind == DecodeCodes::kInt8) {
    of_planes.template operator()<DecodeCodes::kInt8>();
  } else if (kind == DecodeCodes::kTable4) {
    of_planes.template operator()<DecodeCodes::kTable4>();
  } else if (kind == DecodeCodes::kTable3) {
    of_planes.template operator()<DecodeCodes::kTable3>();
  } else {
    of_planes.template operator()<DecodeCodes::kTable2>();
  }
}

}  // namespace
}  // namespace tq
