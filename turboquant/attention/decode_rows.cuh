// Rows of queries and outputs: digits, and the open rows of the window.
#pragma once

#include "turboquant/attention/decode_page.cuh"
#include "turboquant/codec/device_row.cuh"

namespace tq {
namespace {

// ---- Queries ------------------------------------------------------------------------------------

// One row of the queries, a warp: as it comes from memory, times p.scale, and of a centre the
// lane's pair. Zeros where there is no query.
template <int kDim>
struct QueryRow {
  float x[kDim / 32];  // channels kDim / 32 x lane + i
  int i = 0, j = 0;    // channels of the pair, of lanes below kDecodePairs
  float mu_i = 0, mu_j = 0;
  uint32_t turn = 0;  // DecodeCenter::turns

  // Channel c, which is the same or another for each lane.
  __device__ __forceinline__ float At(int c) const {
    constexpr int kEach = kDim / 32;
    float y = 0;
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      const float other = __shfl_sync(kAllLanes, x[e], c / kEach);
      if (c % kEach == e) y = other;
    }
    return y;
  }
};
// `center`: the head's, or -1.
template <int kDim, int kTiles>
__device__ __forceinline__ QueryRow<kDim> LoadQueryRow(const DecodeParams& p, const Unit& u,
                                                       int center, int row, int lane) {
  constexpr int kRows = 4 * kTiles, kEach = kDim / 32;
  QueryRow<kDim> query;
  const int in_tile = u.row_group * kRows + row;
  const int token = in_tile / p.group;
  const bool exists = row < kRows && token < u.tile.num_tokens;
  const int64_t from =
      ((static_cast<int64_t>(u.tile.sequence) * p.num_tokens + u.tile.first_token + token) *
           p.num_kv_heads * p.group +
       u.head * p.group + in_tile % p.group) *
      kDim;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    query.x[i] = exists ? LoadIo(p.q, from + lane * kEach + i, p.io) * p.scale : 0.f;
  }
  if (exists && center >= 0 && lane < kDecodePairs) {
    const DecodeCenter& c = p.centers[center];
    query.i = c.i[lane], query.j = c.j[lane];
    query.mu_i = c.mu_i[lane], query.mu_j = c.mu_j[lane], query.turn = c.turns[lane];
  }
  return query;
}

// a and b of the centre's pairs of one row, a warp: lanes below kDecodePairs have one each.
template <int kDim, int kTiles>
__device__ __forceinline__ void PrepareCenter(const QueryRow<kDim>& query, int row,
                                              Shared<kDim, kTiles>* sh, int lane) {
  const float x = query.At(query.i), other = query.At(query.j);
  const float y = query.i == query.j ? 0.f : other;
  const float a = x * query.mu_i + y * query.mu_j, b = y * query.mu_i - x * query.mu_j;
  // Turning (a, b) does not change its length.
  float largest = sqrtf(a * a + b * b);
#pragma unroll
  for (int s = 16; s > 0; s /= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, s));
  }
  largest = fmaxf(largest, 1e-30f);
  const float inverse = (kCenterDigit - 1) / largest;
  if (lane < kDecodePairs) {
    sh->center_ab[row][lane][0] = a * inverse, sh->center_ab[row][lane][1] = b * inverse;
    if (row == 0) sh->center_turns[lane] = query.turn;
  }
  // Sums come in units of 256 digit products.
  if (lane == 0) sh->center_scale[row] = 256.f / inverse / kCenterDigit;
}

// `first`: the row of the warp's number.
template <bool kWide, int kDim, int kTiles>
__device__ void PrepareQueries(const DecodeParams& p, const Unit& u, const QueryRow<kDim>& first,
                               Shared<kDim, kTiles>* sh,
                               [[maybe_unused]] WideShared<kDim, kTiles>* wide, int warp,
                               int lane) {
  constexpr int kRows = 4 * kTiles, kEach = kDim / 32;
  const DecodeHead& head = sh->head;
  for (int row = warp; row < kRows; row += static_cast<int>(blockDim.x / 32)) {
    QueryRow<kDim> query = first;
    if (row != warp) query = LoadQueryRow<kDim, kTiles>(p, u, head.center, row, lane);
    if (head.center >= 0) PrepareCenter<kDim>(query, row, sh, lane);
    auto& x = query.x;
    if (!kWide || head.k_rotated != 0) {
      FlipSigns<kDim>(head.k_signs, x, lane);
      Hadamard<kDim>(x, lane, rsqrtf(static_cast<float>(kDim)));
    }
    float largest = 0, sum = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) largest = fmaxf(largest, fabsf(x[i])), sum += fabsf(x[i]);
#pragma unroll
    for (int s = 16; s > 0; s /= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, s));
      sum += __shfl_xor_sync(kAllLanes, sum, s);
    }
    largest = fmaxf(largest, 1e-30f), sum = fmaxf(sum, 1e-30f);
    // The largest digit for which no sum over the channels can reach 2^22, rounding included.
    const bool in_place = head.k_kind == DecodeCodes::kInPlace2;
    const float limit = fminf(in_place ? kRowDigit / kInPlaceFactor : kRowDigit,
                              floorf((4194303.f / head.k_top - kDim) * largest / sum * 0.9999f));
    const auto store = [&](float top, bool scaled, int8_t(*digits)[kDim]) {
      const float inverse = top / largest;
      int all = 0;
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const int c = lane * kEach + i;
        int v = __float2int_rn(x[i] * inverse);
        all += v;
        if (scaled && c % 32 < 16) v *= 4;
        const int low = static_cast<int8_t>(v & 0xff);
        digits[0][c] = static_cast<int8_t>((v - low) >> 8);
        digits[1][c] = static_cast<int8_t>(low);
      }
      return all;
    };
    store(kRowDigit, false, sh->row_digits[row]);
    if constexpr (kWide) PrepareWideQuery<kDim>(head, x, largest, row, *sh, wide, lane);
    int all = store(limit, in_place, sh->code_digits[row]);
#pragma unroll
    for (int s = 16; s > 0; s /= 2) all += __shfl_xor_sync(kAllLanes, all, s);
    if (lane == 0) {
      sh->row_scale[row] = largest / kRowDigit;
      sh->code_scale[row] = largest / limit * (in_place ? 0.5f : 1.f);
      sh->code_offset[row] = kMagic + head.k_offset * static_cast<float>(all);
    }
  }
}

template <int kDim, int kTiles>
__device__ __forceinline__ void LoadQueries(const int8_t (*digits)[2][kDim], const float* scale,
                                            const float* offset, int lane,
                                            Queries<kDim, kTiles>* q) {
  const int r = lane / 4, c = lane % 4;
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int j = 0; j < kDim / 32; ++j) {
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        q->digits[n][j][k] = *reinterpret_cast<const uint32_t*>(
            &digits[4 * n + r / 2][r % 2][32 * j + 16 * k + 4 * c]);
      }
    }
    q->scale[n] = scale[4 * n + c];
    q->offset[n] = offset == nullptr ? kMagic : offset[4 * n + c];
  }
}

// ---- Half an open block -------------------------------------------------------------------------

// Tokens [32 half, 32 half + 32) of an open block, straight from memory: few pages are open.
struct OpenHalf {
  int half, block, first_pos;
  const uint8_t* base;  // of the head's part; nullptr: an empty sequence
};
__device__ __forceinline__ OpenHalf OpenHalfOf(const DecodeParams& p, const Unit& u,
                                               const DecodeHead& head, int item) {
  OpenHalf o;
  o.half = item % 2;
  const int index = item / 2;
  o.block = index < u.tile.num_sinks ? u.tile.first_sink + index
                                     : u.tile.first_recent + index - u.tile.num_sinks;
  o.first_pos = o.block * kPageLen + 32 * o.half;
  o.base = nullptr;
  if (o.first_pos >= static_cast<int>(u.tile.first_pos) + u.tile.num_tokens) return o;
  const int slot = p.open_table[static_cast<int64_t>(u.tile.table_row) * p.table_stride + o.block];
  o.base = p.open + static_cast<uint64_t>(slot) * p.open_stride + head.open_offset;
  return o;
}

// K of 8-bit rows x queries: scores of tokens 16 t + 8 h + r of the half.
template <int kDim, int kTiles>
__device__ __forceinline__ void RowScores(const DecodeHead& head, const OpenHalf& o,
                                          const Queries<kDim, kTiles>& q, int lane,
                                          float (&scores)[kTiles][4]) {
  constexpr int kSteps = kDim / 32;
  const int r = lane / 4, half = o.half;
  const uint8_t* const base = o.base;
  const float* k_scales = reinterpret_cast<const float*>(base + head.open_k_scales) + 32 * half;
  const int zero[4] = {kMagicBits, kMagicBits, kMagicBits, kMagicBits};
#pragma unroll
  for (int t = 0; t < 2; ++t) {
    int sums[kTiles][4];
#pragma unroll
    for (int j = 0; j < kSteps; ++j) {
      const uint4 v =
          *reinterpret_cast<const uint4*>(base + (((2 * half + t) * kSteps + j) * 32 + lane) * 16);
      const uint32_t a[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        if (j == 0) {
          ptx::MmaS8S8(sums[n], a, q.digits[n][j][0], q.digits[n][j][1], zero);
        } else {
          ptx::MmaS8S8(sums[n], a, q.digits[n][j][0], q.digits[n][j][1], sums[n]);
        }
      }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float scale = k_scales[16 * t + 8 * h + r];
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        const float high = __int_as_float(sums[n][2 * h]) - kMagic;
        const float low = __int_as_float(sums[n][2 * h + 1]) - kMagic;
        scores[n][2 * t + h] = fmaf(high, 256.f, low) * scale * q.scale[n];
      }
    }
  }
}

// scores[n][2 t + h] of tokens 16 t + 8 h + r of the half; -inf where a query does not see them.
template <bool kWide, int kDim, int kTiles>
__device__ __forceinline__ void OpenScores(const DecodeParams& p, const Unit& u,
                                           const DecodeHead& head, const OpenHalf& o,
                                           const Shared<kDim, kTiles>& sh,
                                           [[maybe_unused]] const WideShared<kDim, kTiles>* wide,
                                           const Queries<kDim, kTiles>& q, int lane,
                                           float (&scores)[kTiles][4]) {
  const int r = lane / 4, c = lane % 4, half = o.half;
  if (kWide && head.k_open != DecodeCodes::kInt8) {
    OfFloatType(head.k_open, [&]<DecodeCodes kType>() {
      FloatScores<kType, 2>(o.base, 2 * half, *wide, lane, scores);
    });
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const float scale = wide->scale[4 * n + c];
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[n][i] *= scale;
    }
  } else {
    RowScores<kDim, kTiles>(head, o, q, lane, scores);
  }
  if (head.center >= 0) {
    const DecodeCenter& center = p.centers[head.center];
    const CenterStarts starts = CenterStartsOf(sh.center_turns, o.block, lane);
    float ones[kTiles];
#pragma unroll
    for (int n = 0; n < kTiles; ++n) ones[n] = 1;
    AddCenter<kDim, kTiles, 2>(reinterpret_cast<const uint4*>(center.digits), starts, sh, ones,
                               2 * half, lane, scores);
  }
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    const int token = (u.row_group * 4 * kTiles + 4 * n + c) / p.group;
    const int pos = static_cast<int>(u.tile.first_pos) + token;
    const int lowest = p.sliding_window > 0 ? pos - p.sliding_window : -1;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int key = o.first_pos + 16 * (i / 2) + 8 * (i % 2) + r;
      if (p.softcap > 0) scores[n][i] = SoftCap(scores[n][i], p.softcap);
      if (key > pos || key <= lowest) scores[n][i] = -INFINITY;
    }
  }
}

// An open half whose V is of floats.
template <int kDim, int kTiles>
__device__ __forceinline__ void FloatItem(const DecodeParams& p, const Unit& u,
                                          const DecodeHead& head, const OpenHalf& o,
                                          const Shared<kDim, kTiles>& sh,
                                          const WideShared<kDim, kTiles>* wide,
                                          const Queries<kDim, kTiles>& q, int lane,
                                          State<kDim, kTiles>* state) {
  float w[kTiles][4], unit[kTiles];
  OpenScores<true, kDim, kTiles>(p, u, head, o, sh, wide, q, lane, w);
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    float top = kSmallest, sum = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) top = fmaxf(top, w[n][i]);
    top = RowMax(top);
    const float factor = state->Raise(n, top);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      w[n][i] = ptx::Exp2(w[n][i] - top);
      sum += w[n][i];
    }
    state->l[n] = fmaf(sum, factor, state->l[n]);
    unit[n] = head.v_open == DecodeCodes::kFP8 ? factor * kFP8ToHalf : factor;
  }
  const int end = static_cast<int>(u.tile.first_pos) + u.tile.num_tokens - o.first_pos;
  OfFloatType(head.v_open, [&]<DecodeCodes kType>() {
    FloatValues<kType, 2>(o.base + head.open_v_values, 2 * o.half, end, w, unit, lane, state);
  });
}

template <bool kWide, int kDim, int kTiles>
__device__ void OpenItem(const DecodeParams& p, const Unit& u, const DecodeHead& head, int item,
                         const Shared<kDim, kTiles>& sh, const WideShared<kDim, kTiles>* wide,
                         const Queries<kDim, kTiles>& q, int lane, State<kDim, kTiles>* state) {
  const int r = lane / 4;
  const OpenHalf o = OpenHalfOf(p, u, head, item);
  if (o.base == nullptr) return;
  if constexpr (kWide) {
    if (head.v_open != DecodeCodes::kInt8) {
      FloatItem<kDim, kTiles>(p, u, head, o, sh, wide, q, lane, state);
      return;
    }
  }
  const uint8_t* const base = o.base;
  const int half = o.half, end = static_cast<int>(u.tile.first_pos) + u.tile.num_tokens;
  const float* v_scales = reinterpret_cast<const float*>(base + head.open_v_scales) + 32 * half;
  const int zero[4] = {kMagicBits, kMagicBits, kMagicBits, kMagicBits};
  // Values are asked for together with the keys, as far as registers go.
  constexpr int kAhead = kTiles > 1 ? 0 : kDim / 16 < 8 ? kDim / 16 : 8;
  uint4 ahead[kAhead + 1];
  const auto load_values = [&](int m) {
    return __ldcg(reinterpret_cast<const uint4*>(
        base + head.open_v_values + (((m / 4 * 2 + half) * 4 + m % 4) * 32 + lane) * 16));
  };
#pragma unroll
  for (int m = 0; m < kAhead; ++m) ahead[m] = load_values(m);
  float scores[kTiles][4];
  OpenScores<kWide, kDim, kTiles>(p, u, head, o, sh, wide, q, lane, scores);
  float v_scale[4], v_top = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int token = 16 * (i / 2) + 8 * (i % 2) + r;
    v_scale[i] = o.first_pos + token < end ? v_scales[token] : 0.f;
    v_top = fmaxf(v_top, v_scale[i]);
  }
  v_top = RowMax(v_top);
  const float to_digit = v_top > 0 ? kRowWeight / v_top : 0.f;
  uint32_t columns[kTiles][2];
  float unit[kTiles];
  const uint32_t selector = ColumnSelector(lane);
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    float top = kSmallest;
#pragma unroll
    for (int i = 0; i < 4; ++i) top = fmaxf(top, scores[n][i]);
    top = RowMax(top);
    const float factor = state->Raise(n, top);
    float digits[4], sum = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float w = ptx::Exp2(scores[n][i] - top);
      sum += w;
      digits[i] = fmaf(w, v_scale[i] * to_digit, kTwo23);
    }
    state->l[n] = fmaf(sum, factor, state->l[n]);
    unit[n] = factor * v_top * (1.f / kRowWeight);
#pragma unroll
    for (int t = 0; t < 2; ++t) {
      columns[n][t] = WeightsToColumns(digits[2 * t], digits[2 * t + 1], selector);
    }
  }
#pragma unroll
  for (int m = 0; m < kDim / 16; ++m) {
    const uint4 v = m < kAhead ? ahead[min(m, kAhead)] : load_values(m);
    const uint32_t a[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      int sums[4];
      ptx::MmaS8U8(sums, a, columns[n][0], columns[n][1], zero);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float high = __int_as_float(sums[2 * h]) - kMagic;
        const float low = __int_as_float(sums[2 * h + 1]) - kMagic;
        state->o[n][m][h] = fmaf(fmaf(high, 256.f, low), unit[n], state->o[n][m][h]);
      }
    }
  }
}

}  // namespace
}  // namespace tq
