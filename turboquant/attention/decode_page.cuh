// One sealed page of one KV head: codes to levels, QK, softmax step, PV. See decode_cuda.cu for the
// idea; what is here runs once for each page and warp.
#pragma once

#include "turboquant/attention/decode_units.cuh"
#include "turboquant/base/ptx.cuh"

namespace tq {
namespace {

using ptx::kAllLanes;

// 1.5 x 2^23 as bits: added to an integer below 2^22 in size, the sum is a float with that value.
constexpr int kMagicBits = 0x4B400000;
constexpr float kMagic = 12582912.f;
constexpr float kTwo23 = 8388608.f;
constexpr float kSmallest = -1e30f;  // a score that no key has; -inf would make NaN of a difference
// A state's scale is raised when a page exceeds it by more than this (powers of two).
constexpr float kSlack = 24.f;
constexpr float kRowDigit = 32512.f;  // 127 * 256: the high byte stays signed
constexpr float kRowWeight = 65000.f;

// ---- Codes to levels ----------------------------------------------------------------------------

// 4-bit levels are multiplied + 64 (kWideOffset), so that a table of non-negative bytes can be
// looked up in halves: where bit 3 of a selector is set, the permute repeats the sign of the byte,
// which is 0. Uniform 2-bit codes c are multiplied as they are, level = 2 c - 3, and those of the
// second half of a fragment's depth as 4 c, in place: the digits of the first half are 4 times as
// large instead.
constexpr float kInPlaceFactor = 4;

constexpr int BitsOf(DecodeCodes kind) {
  return kind == DecodeCodes::kTable4 ? 4 : kind == DecodeCodes::kTable3 ? 3 : 2;
}

// 8 fragments of a lane's stream: 32 registers of 4 levels.
template <DecodeCodes kKind>
struct Group {
  static constexpr int kBits = BitsOf(kKind);
  static constexpr int kWords = 4 * kBits;
  uint32_t words[kWords];

  __device__ __forceinline__ void Load(const uint8_t* codes, int group, int lane) {
#pragma unroll
    for (int i = 0; i < kBits; ++i) {
      const uint4 v =
          *reinterpret_cast<const uint4*>(codes + ((group * kBits + i) * 32 + lane) * 16);
      words[4 * i] = v.x, words[4 * i + 1] = v.y, words[4 * i + 2] = v.z, words[4 * i + 3] = v.w;
    }
  }
  // Two registers from a word of nibbles.
  static __device__ __forceinline__ void Pair(uint32_t nibbles, const DecodeTable& t, uint32_t* a,
                                              uint32_t* b) {
    if constexpr (kBits == 4) {
      const uint32_t other = nibbles ^ 0x88888888u;
      *a = ptx::Permute(t.words[0], t.words[1], nibbles) |
           ptx::Permute(t.words[2], t.words[3], other);
      *b = ptx::Permute(t.words[0], t.words[1], nibbles >> 16) |
           ptx::Permute(t.words[2], t.words[3], other >> 16);
    } else {
      *a = ptx::Permute(t.words[0], t.words[1], nibbles);
      *b = ptx::Permute(t.words[0], t.words[1], nibbles >> 16);
    }
  }
  // Fragment f of the 8.
  __device__ __forceinline__ void Fragment(int f, const DecodeTable& t, uint32_t (&a)[4]) const {
    if constexpr (kKind == DecodeCodes::kInPlace2) {
      const uint32_t shifted = words[f] >> 4;
      a[0] = words[f] & 0x03030303u, a[2] = words[f] & 0x0c0c0c0cu;
      a[1] = shifted & 0x03030303u, a[3] = shifted & 0x0c0c0c0cu;
    } else if constexpr (kKind == DecodeCodes::kTable2) {
      Pair(words[f] & 0x33333333u, t, &a[0], &a[1]);
      Pair(words[f] >> 2 & 0x33333333u, t, &a[2], &a[3]);
    } else if constexpr (kKind == DecodeCodes::kTable3) {
      const uint32_t* w = words + f / 2 * 3;
      if (f % 2 == 0) {
        Pair(w[0] & 0x77777777u, t, &a[0], &a[1]);
        Pair(w[1] & 0x77777777u, t, &a[2], &a[3]);
      } else {
        Pair(w[2] & 0x77777777u, t, &a[0], &a[1]);
        const uint32_t spread = ptx::AndOr(
            w[2] >> 1, 0x44444444u, ptx::AndOr(w[1] >> 2, 0x22222222u, w[0] >> 3 & 0x11111111u));
        Pair(spread, t, &a[2], &a[3]);
      }
    } else {
      Pair(words[2 * f], t, &a[0], &a[1]);
      Pair(words[2 * f + 1], t, &a[2], &a[3]);
    }
  }
};

// {0, 1.5 x 2^23, 0, 1.5 x 2^23}: what sums of (high, low) digits start from. It lies in shared
// memory, so that it is 4 registers and not 4 moves in front of every sum.
struct SumStart {
  int values[4];
};

// ---- A lane's share of the queries and of the state ---------------------------------------------

// Columns 8 n .. 8 n + 7 of B: rows 4 n .. 4 n + 3. A lane's row in the results is 4 n + lane % 4.
template <int kDim, int kTiles>
struct Queries {
  uint32_t digits[kTiles][kDim / 32][2];
  float scale[kTiles];   // of the row
  float offset[kTiles];  // kMagic + what stored levels add to every sum
};

template <int kDim, int kTiles>
struct State {
  float m[kTiles], l[kTiles];  // l: of the lane's own tokens
  float o[kTiles][kDim / 16][2];
  // Of in-place codes: the lane's weights, as the levels' common part is taken off at the end.
  // (Wide levels have a part that is too large for that.)
  float z[kTiles];

  __device__ __forceinline__ void Reset() {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      m[n] = kSmallest, l[n] = z[n] = 0;
#pragma unroll
      for (int i = 0; i < kDim / 16; ++i) o[n][i][0] = o[n][i][1] = 0;
    }
  }
  // Makes room for scores up to `top`; returns the factor of weights relative to it.
  __device__ __forceinline__ float Raise(int n, float top) {
    if (__any_sync(kAllLanes, top > m[n] + kSlack)) {
      const float raised = fmaxf(m[n], top), factor = ptx::Exp2(m[n] - raised);
      m[n] = raised;
      l[n] *= factor, z[n] *= factor;
#pragma unroll
      for (int i = 0; i < kDim / 16; ++i) o[n][i][0] *= factor, o[n][i][1] *= factor;
    }
    return ptx::Exp2(top - m[n]);
  }
};

// The largest of a row: lanes with equal lane % 4 hold its tokens.
__device__ __forceinline__ float RowMax(float x) {
  x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, 4));
  x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, 8));
  return fmaxf(x, __shfl_xor_sync(kAllLanes, x, 16));
}
template <typename T>
__device__ __forceinline__ T RowSum(T x) {
  x += __shfl_xor_sync(kAllLanes, x, 4);
  x += __shfl_xor_sync(kAllLanes, x, 8);
  return x + __shfl_xor_sync(kAllLanes, x, 16);
}

// The weights of tokens r and r + 8 of 16 (as 2^23 + digit, so the digit is in the low half) to a
// register of B: tokens {2 c, 2 c + 1, 2 c + 8, 2 c + 9}, column r.
__device__ __forceinline__ uint32_t WeightsToColumns(float low, float high, uint32_t selector) {
  const uint32_t pair = __byte_perm(__float_as_uint(low), __float_as_uint(high), 0x5410);
  const uint32_t own = ptx::Transpose8x8(pair);
  return __byte_perm(own, __shfl_xor_sync(kAllLanes, own, 4), selector);
}
// Even columns take the high bytes of the digits, odd ones the low bytes.
__device__ __forceinline__ uint32_t ColumnSelector(int lane) {
  return lane & 4 ? 0x2064u : 0x7531u;
}

__device__ __forceinline__ float SoftCap(float score, float cap) {
  // cap * tanh(score / cap), both in powers of two.
  const float e = ptx::Exp2(__fdividef(score, cap) * 2.885390082f);
  return cap * (1.f - __fdividef(2.f, 1.f + e));
}

// ---- A sealed page ------------------------------------------------------------------------------

// scores[n][2 t + h] of tokens 16 t + 8 h + r, in units of q scale x K base.
template <DecodeCodes kKind, int kDim, int kTiles>
__device__ __forceinline__ void PageScores(const uint8_t* codes, const float* scales,
                                           const DecodeTable& table, const SumStart& start,
                                           const Queries<kDim, kTiles>& q, int lane,
                                           float (&scores)[kTiles][8]) {
  constexpr int kSteps = kDim / 32;  // fragments of 16 tokens
  float scale[8];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float4 v = *reinterpret_cast<const float4*>(scales + lane / 4 * 8 + 4 * i);
    scale[4 * i] = v.x, scale[4 * i + 1] = v.y, scale[4 * i + 2] = v.z, scale[4 * i + 3] = v.w;
  }
  int sums[kTiles][4];
#pragma unroll
  for (int g = 0; g < kDim / 64; ++g) {
    Group<kKind> group;
    group.Load(codes, g, lane);
#pragma unroll
    for (int f = 0; f < 8; ++f) {
      const int t = (8 * g + f) / kSteps, j = (8 * g + f) % kSteps;
      uint32_t a[4];
      group.Fragment(f, table, a);
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        if (j == 0) {
          ptx::MmaS8S8(sums[n], a, q.digits[n][j][0], q.digits[n][j][1], start.values);
        } else {
          ptx::MmaS8S8(sums[n], a, q.digits[n][j][0], q.digits[n][j][1], sums[n]);
        }
        if (j == kSteps - 1) {
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            const int sum = sums[n][2 * h] * 256 + sums[n][2 * h + 1];
            scores[n][2 * t + h] = (__int_as_float(sum) - q.offset[n]) * scale[2 * t + h];
          }
        }
      }
    }
  }
}

// o += V^T x weights. columns[n][i]: tokens 16 i .. 16 i + 15. `unit`: of a weight digit.
template <DecodeCodes kKind, int kDim, int kTiles>
__device__ __forceinline__ void PageValues(const uint8_t* codes, const DecodeTable& table,
                                           const SumStart& start,
                                           const uint32_t (&columns)[kTiles][4],
                                           const float (&offset)[kTiles],
                                           const float (&unit)[kTiles], int lane,
                                           State<kDim, kTiles>* state) {
#pragma unroll
  for (int g = 0; g < kDim / 64; ++g) {
    Group<kKind> group;
    group.Load(codes, g, lane);
    int sums[kTiles][4][4];
#pragma unroll
    for (int s = 0; s < 2; ++s) {
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        uint32_t a[4];
        group.Fragment(4 * s + m, table, a);
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
          if (s == 0) {
            ptx::MmaS8U8(sums[n][m], a, columns[n][0], columns[n][1], start.values);
          } else {
            ptx::MmaS8U8(sums[n][m], a, columns[n][2], columns[n][3], sums[n][m]);
          }
        }
      }
    }
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int m = 0; m < 4; ++m) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int sum = sums[n][m][2 * h] * 256 + sums[n][m][2 * h + 1];
          float& o = state->o[n][4 * g + m][h];
          o = fmaf(__int_as_float(sum) - offset[n], unit[n], o);
        }
      }
    }
  }
}

// ---- Sealed pages of a unit ---------------------------------------------------------------------

// Copies a record of chunks x 512 bytes and then the lanes below `tail` x 16 bytes: one instruction
// for each 512 bytes. `to` and `from` are the lane's.
__device__ __forceinline__ void CopyRecord(uint32_t to, const uint8_t* from, int chunks, bool tail,
                                           uint64_t policy) {
  if (tail) ptx::CopyAsync16(to + chunks * 512, from + chunks * 512, policy);
  switch (chunks) {
#define TQ_CHUNK(n)                                                     \
  case n:                                                               \
    ptx::CopyAsync16(to + (n - 1) * 512, from + (n - 1) * 512, policy); \
    [[fallthrough]];
#define TQ_CHUNKS(n) TQ_CHUNK(n + 4) TQ_CHUNK(n + 3) TQ_CHUNK(n + 2) TQ_CHUNK(n + 1)
    TQ_CHUNKS(28)
    TQ_CHUNKS(24)
    TQ_CHUNKS(20)
    TQ_CHUNKS(16) TQ_CHUNKS(12) TQ_CHUNKS(8) TQ_CHUNKS(4) TQ_CHUNKS(0)
#undef TQ_CHUNKS
#undef TQ_CHUNK
        default : break;
  }
}

// A value that the compiler keeps in a register and does not take apart.
template <typename T>
__device__ __forceinline__ const T* Keep(const T* p) {
  asm volatile("" : "+l"(p));
  return p;
}

// What a warp needs of the head at hand, in registers.
struct PageLayout {
  uint32_t k_scales, v_scales;  // of the lane's first scale
  uint32_t v_codes;
  DecodeCodes k_kind, v_kind;
  float v_factor;  // of V scales: to digits
  float p_unit, v_offset;
  DecodeTable k_table, v_table;
  bool special;  // softcap or sliding window
};

template <int kDim, int kTiles>
__device__ __forceinline__ void SealedPage(const DecodeParams& p, const Unit& u,
                                           const PageLayout& layout, const uint8_t* page,
                                           uint32_t bases, int block, const SumStart& start,
                                           const float* log8, const Queries<kDim, kTiles>& q,
                                           float (*scales)[kPageLen], int lane,
                                           State<kDim, kTiles>* state) {
  const float k_base = __uint_as_float(bases << 16);
  const float v_base = __uint_as_float(bases & 0xffff0000u);
  // Two scales of K and of V a lane, shared with the warp.
  {
    const uint8_t* const k2 = page + layout.k_scales;
    const uint8_t* const v2 = page + layout.v_scales;
    *reinterpret_cast<float2*>(&scales[0][2 * lane]) = make_float2(log8[k2[0]], log8[k2[1]]);
    *reinterpret_cast<float2*>(&scales[1][2 * lane]) =
        make_float2(log8[v2[0]] * layout.v_factor, log8[v2[1]] * layout.v_factor);
  }
  __syncwarp();
  float scores[kTiles][8];
  const auto qk = [&]<DecodeCodes kKind>() {
    PageScores<kKind>(page, scales[0], layout.k_table, start, q, lane, scores);
  };
  if (layout.k_kind == DecodeCodes::kTable3) {
    qk.template operator()<DecodeCodes::kTable3>();
  } else if (layout.k_kind == DecodeCodes::kTable4) {
    qk.template operator()<DecodeCodes::kTable4>();
  } else if (layout.k_kind == DecodeCodes::kInPlace2) {
    qk.template operator()<DecodeCodes::kInPlace2>();
  } else {
    qk.template operator()<DecodeCodes::kTable2>();
  }
  float v_scale[8];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float4 v = *reinterpret_cast<const float4*>(&scales[1][lane / 4 * 8 + 4 * i]);
    v_scale[4 * i] = v.x, v_scale[4 * i + 1] = v.y, v_scale[4 * i + 2] = v.z;
    v_scale[4 * i + 3] = v.w;
  }
  const uint32_t selector = ColumnSelector(lane);
  uint32_t columns[kTiles][4];
  float unit[kTiles], offset[kTiles];
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    float scale = q.scale[n] * k_base;
    if (layout.special) {
      const int token = (u.row_group * 4 * kTiles + 4 * n + lane % 4) / p.group;
      const int lowest =
          p.sliding_window > 0 ? static_cast<int>(u.tile.first_pos) + token - p.sliding_window : -1;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int key = block * kPageLen + 16 * (i / 2) + 8 * (i % 2) + lane / 4;
        scores[n][i] *= scale;
        if (p.softcap > 0) scores[n][i] = SoftCap(scores[n][i], p.softcap);
        if (key <= lowest) scores[n][i] = -INFINITY;
      }
      scale = 1;
    }
    float top = fmaxf(fmaxf(fmaxf(scores[n][0], scores[n][1]), fmaxf(scores[n][2], scores[n][3])),
                      fmaxf(fmaxf(scores[n][4], scores[n][5]), fmaxf(scores[n][6], scores[n][7])));
    top = fmaxf(RowMax(top) * scale, kSmallest);
    const float factor = state->Raise(n, top);
    float sum = 0;
    uint32_t digit_sum[2] = {0, 0};
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      float digits[2];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float w = ptx::Exp2(fmaf(scores[n][2 * t + h], scale, -top));
        sum += w;
        digits[h] = fmaf(w, v_scale[2 * t + h], kTwo23);
        digit_sum[t % 2] += __float_as_uint(digits[h]);
      }
      columns[n][t] = WeightsToColumns(digits[0], digits[1], selector);
    }
    state->l[n] = fmaf(sum, factor, state->l[n]);
    unit[n] = factor * v_base * layout.p_unit;
    offset[n] = kMagic;
    if (layout.v_offset != 0) {  // what the codes have in front of the levels
      const bool in_place = layout.v_kind == DecodeCodes::kInPlace2;
      const uint32_t odd = in_place ? 4 : 1;
      const int own =
          static_cast<int>(digit_sum[0] + odd * digit_sum[1] - (4 + 4 * odd) * 0x4B000000u);
      if (in_place) {
        state->z[n] = fmaf(static_cast<float>(own), unit[n], state->z[n]);
      } else {
        offset[n] = fmaf(static_cast<float>(RowSum(own)), layout.v_offset, kMagic);
      }
    }
  }
  const uint8_t* const values = page + layout.v_codes;
  const auto pv = [&]<DecodeCodes kKind>() {
    PageValues<kKind>(values, layout.v_table, start, columns, offset, unit, lane, state);
  };
  if (layout.v_kind == DecodeCodes::kInPlace2) {
    pv.template operator()<DecodeCodes::kInPlace2>();
  } else if (layout.v_kind == DecodeCodes::kTable4) {
    pv.template operator()<DecodeCodes::kTable4>();
  } else if (layout.v_kind == DecodeCodes::kTable3) {
    pv.template operator()<DecodeCodes::kTable3>();
  } else {
    pv.template operator()<DecodeCodes::kTable2>();
  }
}

}  // namespace
}  // namespace tq
