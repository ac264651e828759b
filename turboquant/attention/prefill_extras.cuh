// What scores of prefill have besides codes and rows: the centre, and the residual rows of anchors.
#pragma once

#include "turboquant/attention/decode_extras.cuh"
#include "turboquant/attention/prefill_step.cuh"

namespace tq {
namespace {

// a and b of each pair (PrefillCenter), of the queries of a unit.
struct PrefillCenterRows {
  float ab[kPageLen][kDecodePairs][2];
};

// 16 rows of a unit, by a warp.
template <int kDim>
__device__ void PreparePrefillCenter(const PrefillParams& p, const PrefillTile& t,
                                     const PrefillUnit& u, const PrefillHead& head, int kv_head,
                                     int first_row, int lane, PrefillCenterRows* rows) {
  if (head.center < 0 || lane >= kDecodePairs) return;
  const PrefillCenter& center = p.centers[head.center];
  for (int row = first_row; row < first_row + 16; ++row) {
    const int64_t from = PrefillRow(p, t, u, kv_head, row) * kDim;
    float a = 0, b = 0;
    if (from >= 0) {
      const float x = LoadIo(p.q, from + center.i[lane], p.io) * p.scale;
      const bool alone = center.i[lane] == center.j[lane];
      const float y = alone ? 0.f : LoadIo(p.q, from + center.j[lane], p.io) * p.scale;
      a = x * center.mu_i[lane] + y * center.mu_j[lane];
      b = y * center.mu_i[lane] - x * center.mu_j[lane];
    }
    rows->ab[row][lane][0] = a, rows->ab[row][lane][1] = b;
  }
}

__device__ __forceinline__ uint32_t Halves(float x, float y) {
  return static_cast<uint32_t>(__half_as_ushort(__float2half_rn(x))) |
         static_cast<uint32_t>(__half_as_ushort(__float2half_rn(y))) << 16;
}
__device__ __forceinline__ float WithoutHalf(float x) {
  return x - __half2float(__float2half_rn(x));
}

// A head with a centre or anchors, for 16 rows of a unit.
template <int kDim>
struct PrefillExtras {
  const PrefillParams& p;
  const PrefillTile& tile;
  const PrefillHead& head;
  const PrefillQueries<kDim>& q;
  const PrefillCenterRows& center_rows;
  int warp, lane;  // of the four of the unit

  // Scores of blocks [begin, end) of a step from first_block on become whole.
  template <int kTokenTiles>
  __device__ __forceinline__ void AddScores(int first_block, int begin, int end, bool sealed,
                                            float (&scale)[2],
                                            float (&scores)[kTokenTiles][4]) const {
#pragma unroll
    for (int j = 0; j < kTokenTiles; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[j][i] *= scale[i / 2];
    }
    scale[0] = scale[1] = 1;
#pragma unroll
    for (int b = 0; b < kTokenTiles / 8; ++b) {
      const int block = first_block + b;
      if (block < begin || block >= end) continue;
      if (head.center >= 0) AddCenter<kTokenTiles>(block, b, scores);
      if (sealed && head.num_anchors > 0) AddKeyAnchors<kTokenTiles>(block, b, scores);
    }
  }

  // o += weights of the anchors' tokens x residual rows of V. weights: relative to the step's top.
  template <int kTokenTiles>
  __device__ __forceinline__ void AddValues(int first_block, int begin, int end,
                                            const float (&weights)[kTokenTiles][4],
                                            const float (&factor)[2],
                                            PrefillState<kDim>* state) const {
#pragma unroll
    for (int b = 0; b < kTokenTiles / 8; ++b) {
      const int block = first_block + b;
      if (block < begin || block >= end) continue;
      for (int a = 0; a < head.num_anchors; ++a) {
        AddValueAnchor<kTokenTiles>(block, b, a, weights, factor, state);
      }
    }
  }

 private:
  // The centre's term: 32 numbers of a row, turned by the block's first position, times a table of
  // cos and sin of 64 offsets; both as sums of two halves, 22 bits.
  template <int kTokenTiles>
  __device__ __forceinline__ void AddCenter(int block, int b,
                                            float (&scores)[kTokenTiles][4]) const {
    const PrefillCenter& center = p.centers[head.center];
    const int r = lane / 4, c = lane % 4;
    uint32_t high[2][4], low[2][4];
#pragma unroll
    for (int s = 0; s < 2; ++s) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int pair = 8 * s + 4 * (i >> 1) + c;
        const float* const ab = center_rows.ab[16 * warp + r + 8 * (i & 1)][pair];
        const float2 start =
            __ldg(reinterpret_cast<const float2*>(p.center_table.starts) +
                  static_cast<int64_t>(block) * p.center_table.num_slots + center.slot[pair]);
        // Far beyond what a softmax can tell apart, but finite as a half.
        const auto limited = [](float x) { return fminf(fmaxf(x, -60000.f), 60000.f); };
        const float cos_part = limited(ab[0] * start.x + ab[1] * start.y);
        const float sin_part = limited(ab[1] * start.x - ab[0] * start.y);
        high[s][i] = Halves(cos_part, sin_part);
        low[s][i] = Halves(WithoutHalf(cos_part), WithoutHalf(sin_part));
      }
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) {
#pragma unroll
      for (int s = 0; s < 2; ++s) {
        const uint32_t* const table = center.table[j][s][0][lane];
        const uint32_t* const rest = center.table[j][s][1][lane];
        ptx::MmaFloat<false>(scores[8 * b + j], high[s], __ldg(table), __ldg(table + 1));
        ptx::MmaFloat<false>(scores[8 * b + j], high[s], __ldg(rest), __ldg(rest + 1));
        ptx::MmaFloat<false>(scores[8 * b + j], low[s], __ldg(table), __ldg(table + 1));
      }
    }
  }

  __device__ __forceinline__ int64_t SlotOf(int block) const {
    return __ldg(p.sealed_table + static_cast<int64_t>(tile.sequence) * p.table_stride + block);
  }
  __device__ __forceinline__ const uint8_t* RecordOf(int64_t slot) const {
    return p.sealed + static_cast<uint64_t>(slot) * p.sealed_stride + head.record_offset;
  }
  __device__ __forceinline__ Anchor AnchorOf(int64_t slot, int a) const {
    return AnchorAt(p.sides + static_cast<uint64_t>(slot) * p.side_stride + head.side_offset, a);
  }

  // The anchors are columns of B: a column for each lane / 4.
  template <int kTokenTiles>
  __device__ __forceinline__ void AddKeyAnchors(int block, int b,
                                                float (&scores)[kTokenTiles][4]) const {
    const int r = lane / 4, c = lane % 4;
    const int64_t slot = SlotOf(block);
    const bool mine = r < head.num_anchors;
    const uint8_t* const row = RecordOf(slot) + head.k_anchors + r * (kDim * head.anchor_bits / 8);
    int high[4] = {}, low[4] = {};
    uint32_t digits[kDim / 32][4], low_digits[kDim / 32][4];
    LoadQueryFragments<kDim>(q.high, warp, lane, digits);
    LoadQueryFragments<kDim>(q.low, warp, lane, low_digits);
#pragma unroll
    for (int j = 0; j < kDim / 32; ++j) {
      const uint32_t b0 = mine ? AnchorLevels(row, head.anchor_bits, 8 * j + c) : 0;
      const uint32_t b1 = mine ? AnchorLevels(row, head.anchor_bits, 8 * j + 4 + c) : 0;
      ptx::MmaS8S8(high, digits[j], b0, b1, high);
      ptx::MmaS8S8(low, low_digits[j], b0, b1, low);
    }
    for (int a = 0; a < head.num_anchors; ++a) {
      const Anchor anchor = AnchorOf(slot, a);
      const bool odd = a % 2 == 1;
      const int from = (lane & ~3) | a / 2, token = anchor.token;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int high_sum = odd ? high[2 * h + 1] : high[2 * h];
        const int low_sum = odd ? low[2 * h + 1] : low[2 * h];
        const float sum = fmaf(static_cast<float>(high_sum), 256.f, static_cast<float>(low_sum));
        const float more = __shfl_sync(kAllLanes, sum, from) *
                           (q.row_scale[16 * warp + r + 8 * h] * anchor.k_scale);
#pragma unroll
        for (int j = 0; j < 8; ++j) {
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            if (token == 8 * j + 2 * c + e) scores[8 * b + j][2 * h + e] += more;
          }
        }
      }
    }
  }

  template <int kTokenTiles>
  __device__ __forceinline__ void AddValueAnchor(int block, int b, int a,
                                                 const float (&weights)[kTokenTiles][4],
                                                 const float (&factor)[2],
                                                 PrefillState<kDim>* state) const {
    const int c = lane % 4;
    const int64_t slot = SlotOf(block);
    const Anchor anchor = AnchorOf(slot, a);
    const int token = anchor.token, from = (lane & ~3) | token % 8 / 2;
    float weight[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float own = 0;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          if (token == 8 * j + 2 * c + e) own = weights[8 * b + j][2 * h + e];
        }
      }
      weight[h] = __shfl_sync(kAllLanes, own, from) * factor[h] * anchor.v_scale;
    }
    const uint8_t* const row = RecordOf(slot) + head.v_anchors + a * (kDim * head.anchor_bits / 8);
#pragma unroll
    for (int j = 0; j < kDim / 8; ++j) {
      float level[2];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int channel = 8 * j + 2 * c + e;
        level[e] = head.anchor_bits == 8
                       ? static_cast<float>(static_cast<int8_t>(row[channel]))
                       : static_cast<float>((row[channel / 2] >> (4 * e) & 15) - 8);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        state->o[j][i] = fmaf(weight[i / 2], level[i % 2], state->o[j][i]);
      }
    }
  }
};

}  // namespace
}  // namespace tq
