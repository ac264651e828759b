// Sealing of what has other scales than one log8 byte a token with 2 to 4 bits: 8-bit codes, scales
// in groups of channels, float rows. The same operations in the same order as codec/encode.cc and
// codec/group_scales.cc, by a thread block each. Included by append_cuda.cu.
#pragma once

#include "turboquant/cache/append_rows.cuh"

namespace tq {
namespace {

// Log8EncodeUp of codec/log8.h.
__device__ uint8_t EncodeScaleUp(float scale, float base) {
  if (!(scale > 0)) return 0;
  const float log = static_cast<float>(log2(static_cast<double>(__fdiv_rn(scale, base))));
  const float exact = 255.f + 16.f * log;
  if (exact < -15.f) return 0;
  return static_cast<uint8_t>(fminf(fmaxf(ceilf(exact - 1e-4f), 1.f), 255.f));
}

// base of a record for the largest of its scales, and the same as a float.
__device__ __forceinline__ float BaseOf(float largest, uint16_t* base) {
  *base = largest > 0 ? BF16RoundUp(largest) : 0;
  return __uint_as_float(static_cast<uint32_t>(*base) << 16);
}

// Of the lengths in sh.scale; one warp.
template <int kDim>
__device__ __forceinline__ uint16_t BoundOfRows(const SealShared<kDim>& sh, Side which, int lane) {
  const float* const lengths = sh.scale[which == Side::kV];
  return BF16RoundUp(WarpMax(fmaxf(lengths[lane], lengths[lane + 32])) * 1.0001f);
}

// ---- Float rows ---------------------------------------------------------------------------------

template <int kDim>
__device__ __forceinline__ float RowValue(const AppendSide& side, Side which, const uint8_t* values,
                                          int token, int channel) {
  if (side.row_type == AppendRowType::kFP8) {
    const uint32_t b = values[FragmentByte(FragmentOf(which, kDim, token, channel))];
    return kFP8ToHalf * __half2float(__ushort_as_half(static_cast<uint16_t>(HalvesOfEvenFP8(b))));
  }
  const auto h =
      *reinterpret_cast<const uint16_t*>(values + FragmentHalfByte(which, kDim, token, channel));
  return side.row_type == AppendRowType::kBF16 ? __uint_as_float(static_cast<uint32_t>(h) << 16)
                                               : __half2float(__ushort_as_half(h));
}

// Rows are final, and both orders are the same.
template <int kDim>
__device__ void SealFloats(const AppendSide& side, Side which, const uint8_t* open, uint8_t* record,
                           SealShared<kDim>* sh, int warp, int lane) {
  constexpr int kEach = kDim / 32;
  const uint8_t* const values = open + side.open_values;
  const int bytes = kDim * kPageLen * side.bits / 8;
  for (int i = threadIdx.x; i < bytes / 16; i += blockDim.x) {
    reinterpret_cast<uint4*>(record + side.codes)[i] = reinterpret_cast<const uint4*>(values)[i];
  }
  for (int t = warp; t < kPageLen; t += kWarps) {
    double sum = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const double v = RowValue<kDim>(side, which, values, t, lane * kEach + i);
      sum += v * v;
    }
    sum = WarpSum(sum);
    if (lane == 0) sh->scale[which == Side::kV][t] = static_cast<float>(sqrt(sum));
  }
}

// ---- 8-bit codes --------------------------------------------------------------------------------

template <int kDim>
__device__ uint16_t SealInt8(const AppendParams& p, const AppendSide& side, Side which,
                             const uint8_t* open, uint8_t* record, SealShared<kDim>* sh, int warp,
                             int lane) {
  constexpr int kEach = kDim / 32;
  const float largest =
      WarpMax(fmaxf(OpenScale(side, open, lane), OpenScale(side, open, lane + 32)));
  uint16_t base;
  const float base_value = BaseOf(largest, &base);
  for (int t = warp; t < kPageLen; t += kWarps) {
    const float row_scale = OpenScale(side, open, t);
    const uint8_t code = EncodeScaleUp(row_scale, base_value);
    const float scale = base_value * p.log8[code];
    const float ratio = scale > 0 ? __fdiv_rn(row_scale, scale) : 0.f;
    int sum = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int c = lane * kEach + i;
      const int exact =
          __float2int_rn(static_cast<float>(OpenLevel<kDim>(side, which, open, t, c)) * ratio);
      const int level = min(max(exact, -127), 127);
      sh->codes[which == Side::kV][t][c] = static_cast<uint8_t>(level);
      sum += level * level;
    }
    sum = WarpSum(sum);
    if (lane == 0) {
      record[side.scales + FragmentScaleIndex(t)] = code;
      sh->scale[which == Side::kV][t] = scale * __fsqrt_rn(static_cast<float>(sum));
    }
  }
  return base;
}

// ---- Groups -------------------------------------------------------------------------------------

// Scale and offset of each group of a token, before they are stored; codes of books too.
template <int kDim>
__device__ void MeasureGroups(const AppendSide& side, Side which, const uint8_t* open, int token,
                              SealShared<kDim>* sh, int lane) {
  constexpr int kEach = kDim / 32;
  const int lanes = side.group_len / kEach, group = lane / lanes;
  const bool affine = side.affine != 0;
  const float row_scale = OpenScale(side, open, token);
  int row[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    row[i] = OpenLevel<kDim>(side, which, open, token, lane * kEach + i);
  }
  float scale = 0, offset = 0;
  if (affine || side.bits == 8) {
    int low = affine ? 127 : 0, high = affine ? -127 : 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (affine) low = min(low, row[i]);
      high = max(high, affine ? row[i] : abs(row[i]));
    }
    low = OverLanes(low, lanes, [](int a, int b) { return min(a, b); });
    high = OverLanes(high, lanes, [](int a, int b) { return max(a, b); });
    const float half = affine ? 0.5f * static_cast<float>(high - low) : static_cast<float>(high);
    scale = __fdiv_rn(row_scale * half, side.top_level);
    offset = affine ? row_scale * 0.5f * static_cast<float>(high + low) : 0.f;
  } else {
    const CodeSums sums = CodeChannels<kDim>(side, which, row, lanes, token, sh, lane);
    scale = row_scale * GainOf(side, sums);
  }
  if (lane % lanes == 0) {
    sh->group[0][group][token] = scale;
    sh->group[1][group][token] = offset;
  }
}

// StoreGroupScale: a pair to the record; what is kept of it is what it will be read as.
__device__ void StoreGroupPair(const AppendParams& p, const AppendSide& side, float base, int group,
                               int token, uint8_t* planes, float* scale, float* offset) {
  const int i = group * kPageLen + FragmentScaleIndex(token);
  const int plane = side.num_groups * kPageLen;
  const bool affine = side.affine != 0, round_up = affine || side.bits == 8;
  if (side.log8 == 0) {
    auto* const halves = reinterpret_cast<uint16_t*>(planes);
    const float relative = base > 0 ? __fdiv_rn(*scale, base) : 0.f;
    uint16_t h = __half_as_ushort(__float2half_rn(relative));
    if (round_up && __half2float(__ushort_as_half(h)) < relative) ++h;
    halves[i] = h;
    *scale = base * __half2float(__ushort_as_half(h));
    if (affine) {
      const __half o = __float2half_rn(base > 0 ? __fdiv_rn(*offset, base) : 0.f);
      halves[plane + i] = __half_as_ushort(o);
      *offset = base * __half2float(o);
    }
    return;
  }
  float s = *scale;
  if (affine) s = fmaxf(s, __fdiv_rn(fabsf(*offset) * 8.f, 127.f * side.level_step));
  const uint8_t code = round_up ? EncodeScaleUp(s, base) : EncodeScale(s, base);
  planes[i] = code;
  *scale = base * p.log8[code];
  if (affine) {
    const float eighths =
        *scale > 0 ? rintf(__fdiv_rn(*offset * 8.f, *scale * side.level_step)) : 0.f;
    const auto stored = static_cast<int8_t>(fminf(fmaxf(eighths, -127.f), 127.f));
    planes[plane + i] = static_cast<uint8_t>(stored);
    *offset = __fdiv_rn(*scale * side.level_step * static_cast<float>(stored), 8.f);
  }
}

template <int kDim>
__device__ uint16_t SealGroups(const AppendParams& p, const AppendSide& side, Side which,
                               const uint8_t* open, uint8_t* record, SealShared<kDim>* sh, int warp,
                               int lane) {
  constexpr int kEach = kDim / 32;
  for (int t = warp; t < kPageLen; t += kWarps) {
    MeasureGroups<kDim>(side, which, open, t, sh, lane);
  }
  __syncthreads();
  const bool affine = side.affine != 0;
  const int count = side.num_groups * kPageLen;
  float largest = 0;  // GroupBase; every warp for itself
  for (int i = lane; i < count; i += 32) {
    float s = sh->group[0][i / kPageLen][i % kPageLen];
    const float size = fabsf(sh->group[1][i / kPageLen][i % kPageLen]);
    if (affine && side.log8 != 0) s = fmaxf(s, __fdiv_rn(size * 8.f, 127.f * side.level_step));
    largest = fmaxf(largest, s);
    if (side.log8 == 0) largest = fmaxf(largest, size);
  }
  uint16_t base;
  const float base_value = BaseOf(WarpMax(largest), &base);
  __syncthreads();  // they are replaced now
  for (int i = threadIdx.x; i < count; i += blockDim.x) {
    const int group = i / kPageLen, token = i % kPageLen;
    StoreGroupPair(p, side, base_value, group, token, record + side.scales,
                   &sh->group[0][group][token], &sh->group[1][group][token]);
  }
  __syncthreads();
  const int group = lane * kEach / side.group_len;
  for (int t = warp; t < kPageLen; t += kWarps) {
    const float scale = sh->group[0][group][t], offset = sh->group[1][group][t];
    const float row_scale = OpenScale(side, open, t);
    double sum = 0;  // of the row as it will be read
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int c = lane * kEach + i;
      uint8_t& code = sh->codes[which == Side::kV][t][c];
      if (affine || side.bits == 8) {
        const float x =
            row_scale * static_cast<float>(OpenLevel<kDim>(side, which, open, t, c)) - offset;
        const float at = scale > 0 ? __fdiv_rn(x, scale) : 0.f;
        if (side.bits == 8) {
          code = static_cast<uint8_t>(__float2int_rn(fminf(fmaxf(at, -127.f), 127.f)));
        } else {
          const float exact = rintf(__fdiv_rn(at + side.top_level, side.level_step));
          code = static_cast<uint8_t>(fminf(fmaxf(exact, 0.f), side.top_level));
        }
      }
      const int level = side.bits == 8 ? static_cast<int8_t>(code) : side.levels[code];
      const double v = scale * static_cast<float>(level) + offset;
      sum += v * v;
    }
    sum = WarpSum(sum);
    if (lane == 0) sh->scale[which == Side::kV][t] = static_cast<float>(sqrt(sum));
  }
  return base;
}

// A side that is no kBook: everything but its words. The thread block; returns the base.
template <int kDim>
__device__ __noinline__ uint16_t SealWide(const AppendParams& p, const AppendSide& side, Side which,
                                          const uint8_t* open, uint8_t* record,
                                          SealShared<kDim>* sh, int warp, int lane) {
  if (side.kind == AppendKind::kFloat) {
    SealFloats<kDim>(side, which, open, record, sh, warp, lane);
    return 0;
  }
  if (side.kind == AppendKind::kInt8) {
    return SealInt8<kDim>(p, side, which, open, record, sh, warp, lane);
  }
  return SealGroups<kDim>(p, side, which, open, record, sh, warp, lane);
}

}  // namespace
}  // namespace tq
