// Skipping of V: a sealed page whose softmax mass is small for every row is treated as masked, and
// its V codes are not read.
//
// "Small" is eps times the mass of the open rows (sinks and window), which a thread block sums up
// for itself when it begins a unit: so which pages are skipped depends on the sequence, the query
// and the head alone, not on how the work of a batch is cut. Masses of what is skipped are summed
// up and reported: with s the share of the whole mass that was skipped and b its sum weighted with
// each page's bound of |v|, the output is off by at most s |output| + b.
#pragma once

#include "turboquant/attention/decode_rows.cuh"

namespace tq {
namespace {

// The whole thread block, when the queries' digits are in shared memory.
template <int kDim, int kTiles>
__device__ __forceinline__ void SetSkipLimits(const DecodeParams& p, const Unit& u,
                                              Shared<kDim, kTiles>* sh, uint8_t* warps,
                                              size_t warp_bytes, int warp, int lane) {
  constexpr int kRows = 4 * kTiles;
  const int num_warps = static_cast<int>(blockDim.x / 32);
  const auto of_warp = [&](int w) {
    return reinterpret_cast<WarpShared<kTiles>*>(warps + w * warp_bytes);
  };
  Queries<kDim, kTiles> q;
  LoadQueries<kDim, kTiles>(sh->row_digits, sh->row_scale, nullptr, lane, &q);
  float m[kTiles], l[kTiles];
#pragma unroll
  for (int n = 0; n < kTiles; ++n) m[n] = kSmallest, l[n] = 0;
  for (int item = warp; item < u.tile.num_open_items; item += num_warps) {
    const OpenHalf o = OpenHalfOf(p, u, sh->head, item);
    if (o.base == nullptr) continue;
    float scores[kTiles][4];
    OpenScores<false, kDim, kTiles>(p, u, sh->head, o, *sh, nullptr, q, lane, scores);
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const float top = fmaxf(m[n], RowMax(fmaxf(fmaxf(scores[n][0], scores[n][1]),
                                                 fmaxf(scores[n][2], scores[n][3]))));
      float sum = 0;
#pragma unroll
      for (int i = 0; i < 4; ++i) sum += ptx::Exp2(scores[n][i] - top);
      l[n] = fmaf(l[n], ptx::Exp2(m[n] - top), RowSum(sum));
      m[n] = top;
    }
  }
  if (lane < 4) {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      WarpShared<kTiles>* const own = of_warp(warp);
      own->m[4 * n + lane] = m[n], own->l[4 * n + lane] = l[n];
      own->skipped[4 * n + lane][0] = own->skipped[4 * n + lane][1] = 0;
    }
  }
  __syncthreads();
  if (const int row = threadIdx.x; row < kRows) {
    float top = of_warp(0)->m[row], mass = 0;
    for (int w = 1; w < num_warps; ++w) top = fmaxf(top, of_warp(w)->m[row]);
    for (int w = 0; w < num_warps; ++w) {
      mass = fmaf(of_warp(w)->l[row], ptx::Exp2(of_warp(w)->m[row] - top), mass);
    }
    const bool has_query = (u.row_group * kRows + row) / p.group < u.tile.num_tokens;
    sh->reference[row] = top;
    sh->skip_limit[row] = has_query ? p.v_skip * mass : INFINITY;
  }
  __syncthreads();
}

// What was skipped of one row, by mass and by mass x bound, in units of 2^reference.
struct SkippedMass {
  float mass = 0, bound = 0;
};

}  // namespace
}  // namespace tq
