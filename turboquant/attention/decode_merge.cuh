// The ends of a unit: the states of a thread block's warps become one, those of the blocks that
// worked on the unit become its output.
#pragma once

#include <type_traits>

#include "turboquant/attention/decode_skip.cuh"

namespace tq {
namespace {

// o / l of one row (a warp), rotated back, to the output. m, reference: what l and `skipped` are
// relative to.
template <DecodeVariant kVariant, int kDim>
__device__ void WriteRow(const DecodeParams& p, const Unit& u, const DecodeHead& head, int rows,
                         int row, float m, float l, float reference, const SkippedMass& skipped,
                         float (&o)[kDim / 32], int lane) {
  constexpr int kEach = kDim / 32;
  const int in_tile = u.row_group * rows + row, token = in_tile / p.group;
  if (token >= u.tile.num_tokens) return;
  const float inverse = l > 0 ? 1.f / l : 0.f;
#pragma unroll
  for (int i = 0; i < kEach; ++i) o[i] *= inverse;
  if (kVariant != DecodeVariant::kWide || head.v_rotated != 0) {
    Hadamard<kDim>(o, lane, rsqrtf(static_cast<float>(kDim)));
    FlipSigns<kDim>(head.v_signs, o, lane);
  }
  const int64_t to =
      ((static_cast<int64_t>(u.tile.sequence) * p.num_tokens + u.tile.first_token + token) *
           p.num_kv_heads * p.group +
       u.head * p.group + in_tile % p.group) *
      kDim;
#pragma unroll
  for (int i = 0; i < kEach; ++i) StoreIo(p.out, to + lane * kEach + i, o[i], p.io);
  if constexpr (kVariant == DecodeVariant::kSkip) {
    if (p.skipped == nullptr || lane != 0) return;
    const float all = skipped.mass + l * ptx::Exp2(m - reference);
    const float part = all > 0 ? 1.f / all : 0.f;
    reinterpret_cast<float2*>(p.skipped)[to / kDim] =
        make_float2(skipped.mass * part, skipped.bound * part);
  }
}

// Where warp `w` has its state.
template <int kTiles>
__device__ __forceinline__ float* StateOf(uint8_t* warps, size_t warp_bytes, int w) {
  auto* const own = reinterpret_cast<WarpShared<kTiles>*>(warps + w * warp_bytes);
  return reinterpret_cast<float*>(reinterpret_cast<uint8_t*>(own + 1) + own->state_at);
}

// float2 of a row of a part: (m, l), and what was skipped.
template <bool kSkip>
constexpr int kPartWidth = kSkip ? 2 : 1;

// Merges the parts [first, first + count) of a unit and writes the output. Warps share a row when
// there are few rows; each has every n-th part, and its place (StateOf) for what it found. The
// order is fixed.
template <DecodeVariant kVariant, int kDim, int kTiles>
__device__ void MergeParts(const DecodeParams& p, const Unit& u, const DecodeHead& head,
                           int64_t first, int count, int warp, int lane, uint8_t* warps,
                           size_t warp_bytes, const Shared<kDim, kTiles>& sh) {
  constexpr bool kSkip = kVariant == DecodeVariant::kSkip;
  constexpr int kRows = 4 * kTiles, kEach = kDim / 32;
  constexpr int kWide = kEach % 4 == 0 ? 4 : 2;
  using Wide = std::conditional_t<kWide == 4, float4, float2>;
  const int rows = min(kRows, u.tile.num_tokens * p.group - u.row_group * kRows);
  const int num_warps = static_cast<int>(blockDim.x / 32);
  const auto place = [&](int w) { return StateOf<kTiles>(warps, warp_bytes, w); };
  int share = 1;  // warps of a row
  while (2 * share * rows <= num_warps && share < count) share *= 2;
  const int turn = warp % share, rows_at_once = num_warps / share;
  for (int base_row = 0; base_row < rows; base_row += rows_at_once) {
    // Warps behind the last whole group of `share` have no row.
    const int row = warp / share < rows_at_once ? base_row + warp / share : rows;
    float l = 0, top = kSmallest, o[kEach] = {};
    SkippedMass skipped;
    // A lane has the state of a part, 32 parts at a time. Their sums are asked for together with
    // the states.
    for (int base = turn; row < rows && base < count; base += 32 * share) {
      float2 state = make_float2(kSmallest, 0.f);
      if (base + lane * share < count) {
        const auto* const from = reinterpret_cast<const float2*>(p.partial_state) +
                                 ((first + base + lane * share) * kRows + row) * kPartWidth<kSkip>;
        state = __ldcg(from);
        if constexpr (kSkip) {
          const float2 part = __ldcg(from + 1);
          skipped.mass += part.x, skipped.bound += part.y;
        }
      }
      const int n = min(32, (count - base + share - 1) / share);
      const float* const sums =
          p.partial_out + ((first + base) * kRows + row) * kDim + lane * kEach;
      constexpr int kAhead = 4;
      Wide ahead[kAhead][kEach / kWide];
      const auto load = [&](int k, int to) {
        if (k >= n) return;
#pragma unroll
        for (int i = 0; i < kEach / kWide; ++i) {
          ahead[to][i] =
              __ldcg(reinterpret_cast<const Wide*>(sums + k * share * kRows * kDim + i * kWide));
        }
      };
#pragma unroll
      for (int k = 0; k < kAhead; ++k) load(k, k);
      float raised = fmaxf(top, state.x);
#pragma unroll
      for (int s = 16; s > 0; s /= 2) {
        raised = fmaxf(raised, __shfl_xor_sync(kAllLanes, raised, s));
      }
      const float factor = ptx::Exp2(top - raised), weight = ptx::Exp2(state.x - raised);
      top = raised;
      l = fmaf(weight, state.y, l * factor);
#pragma unroll
      for (int i = 0; i < kEach; ++i) o[i] *= factor;
      for (int k = 0; k < n; k += kAhead) {
#pragma unroll
        for (int a = 0; a < kAhead; ++a) {
          if (k + a >= n) break;
          const float w = __shfl_sync(kAllLanes, weight, k + a);
          const float* const part = reinterpret_cast<const float*>(ahead[a]);
#pragma unroll
          for (int i = 0; i < kEach; ++i) o[i] = fmaf(w, part[i], o[i]);
          load(k + a + kAhead, a);
        }
      }
    }
#pragma unroll
    for (int s = 16; s > 0; s /= 2) {
      l += __shfl_xor_sync(kAllLanes, l, s);
      if constexpr (kSkip) {
        skipped.mass += __shfl_xor_sync(kAllLanes, skipped.mass, s);
        skipped.bound += __shfl_xor_sync(kAllLanes, skipped.bound, s);
      }
    }
    if (share > 1) {
      __syncthreads();
      float* const mine = place(warp);
#pragma unroll
      for (int i = 0; i < kEach; ++i) mine[lane * kEach + i] = o[i];
      if (lane == 0) mine[kDim] = l, mine[kDim + 1] = top;
      if (kSkip && lane == 0) mine[kDim + 2] = skipped.mass, mine[kDim + 3] = skipped.bound;
      __syncthreads();
      for (int w = warp + 1; row < rows && turn == 0 && w < warp + share; ++w) {
        const float* const other = place(w);
        const float raised = fmaxf(top, other[kDim + 1]);
        const float factor = ptx::Exp2(top - raised);
        const float weight = ptx::Exp2(other[kDim + 1] - raised);
        top = raised;
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
          o[i] = fmaf(weight, other[lane * kEach + i], o[i] * factor);
        }
        l = fmaf(weight, other[kDim], l * factor);
        if constexpr (kSkip) skipped.mass += other[kDim + 2], skipped.bound += other[kDim + 3];
      }
    }
    if (row < rows && turn == 0) {
      WriteRow<kVariant, kDim>(p, u, head, kRows, row, top, l, sh.reference[row], skipped, o, lane);
    }
  }
}

// Merges the states of the block's warps (StateOf), [row][kStateStride]. Writes
// the output, or a part of it: then the block that comes last merges the parts. All threads;
// `range`: the block's.
template <DecodeVariant kVariant, int kDim, int kTiles>
__device__ __forceinline__ void MergeWarps(const DecodeParams& p, const Work& work,
                                           const DecodeHead& head, int range, int warp, int lane,
                                           uint8_t* warps, size_t warp_bytes,
                                           Shared<kDim, kTiles>* sh) {
  constexpr bool kSkip = kVariant == DecodeVariant::kSkip;
  constexpr int kRows = 4 * kTiles, kEach = kDim / 32;
  const Unit& u = work.unit;
  const int num_warps = static_cast<int>(blockDim.x / 32), num_parts = work.num_parts;
  const int rows = min(kRows, u.tile.num_tokens * p.group - u.row_group * kRows);
  const int unit_index = (u.tile_index * p.num_kv_heads + u.head) * p.num_row_groups + u.row_group;
  // Unique: both grow along the work.
  const int64_t part = static_cast<int64_t>(range) + unit_index;
  for (int row = warp; row < rows; row += num_warps) {
    // A lane has the state of a warp.
    const auto* const state = reinterpret_cast<const WarpShared<kTiles>*>(
        warps + static_cast<size_t>(min(lane, num_warps - 1)) * warp_bytes);
    const bool exists = lane < num_warps;
    const float m = exists ? state->m[row] : kSmallest;
    float top = m;
#pragma unroll
    for (int s = 16; s > 0; s /= 2) top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, s));
    const float weight = exists ? ptx::Exp2(m - top) : 0.f;
    float l = weight * (exists ? state->l[row] : 0.f);
    SkippedMass skipped;
    if (kSkip && exists)
      skipped.mass = state->skipped[row][0], skipped.bound = state->skipped[row][1];
#pragma unroll
    for (int s = 16; s > 0; s /= 2) {
      l += __shfl_xor_sync(kAllLanes, l, s);
      if constexpr (kSkip) {
        skipped.mass += __shfl_xor_sync(kAllLanes, skipped.mass, s);
        skipped.bound += __shfl_xor_sync(kAllLanes, skipped.bound, s);
      }
    }
    float o[kEach] = {};
#pragma unroll 4
    for (int w = 0; w < num_warps; ++w) {
      const float factor = __shfl_sync(kAllLanes, weight, w);
      const float* const from =
          StateOf<kTiles>(warps, warp_bytes, w) + row * kStateStride<kDim> + lane * kEach;
#pragma unroll
      for (int i = 0; i < kEach; ++i) o[i] = fmaf(factor, from[i], o[i]);
    }
    if (num_parts == 1) {
      WriteRow<kVariant, kDim>(p, u, head, kRows, row, top, l, sh->reference[row], skipped, o,
                               lane);
      continue;
    }
    float* const to = p.partial_out + (part * kRows + row) * kDim + lane * kEach;
#pragma unroll
    for (int i = 0; i < kEach; i += 2) {
      __stcg(reinterpret_cast<float2*>(to + i), make_float2(o[i], o[i + 1]));
    }
    if (lane == 0) {
      float2* const to_state =
          reinterpret_cast<float2*>(p.partial_state) + (part * kRows + row) * kPartWidth<kSkip>;
      __stcg(to_state, make_float2(top, l));
      if constexpr (kSkip) __stcg(to_state + 1, make_float2(skipped.mass, skipped.bound));
    }
  }
  if (num_parts == 1) return;
  __syncthreads();
  if (threadIdx.x == 0) {
    const auto last = static_cast<uint32_t>(num_parts - 1);
    sh->is_last = ptx::CountArrival(&p.arrivals[unit_index], last) == last;
  }
  __syncthreads();
  if (!sh->is_last) return;
  MergeParts<kVariant, kDim, kTiles>(p, u, head, static_cast<int64_t>(work.first_part) + unit_index,
                                     num_parts, warp, lane, warps, warp_bytes, *sh);
}

}  // namespace
}  // namespace tq
