// What a warp holds: registers of levels made from codes, its share of the queries, its softmax
// state. See decode_cuda.cu for the idea.
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
  // The codes of fragment f of the 8 as nibbles: the first word has those of the registers 0 and 1,
  // in its low and in its high half, the second those of 2 and 3.
  __device__ __forceinline__ void Nibbles(int f, uint32_t (&n)[2]) const {
    if constexpr (kKind == DecodeCodes::kTable2) {
      n[0] = words[f] & 0x33333333u;
      n[1] = words[f] >> 2 & 0x33333333u;
    } else if constexpr (kKind == DecodeCodes::kTable3) {
      const uint32_t* w = words + f / 2 * 3;
      if (f % 2 == 0) {
        n[0] = w[0] & 0x77777777u;
        n[1] = w[1] & 0x77777777u;
      } else {
        n[0] = w[2] & 0x77777777u;
        n[1] = ptx::AndOr(w[2] >> 1, 0x44444444u,
                          ptx::AndOr(w[1] >> 2, 0x22222222u, w[0] >> 3 & 0x11111111u));
      }
    } else {
      n[0] = words[2 * f], n[1] = words[2 * f + 1];
    }
  }
  // Fragment f.
  __device__ __forceinline__ void Fragment(int f, const DecodeTable& t, uint32_t (&a)[4]) const {
    if constexpr (kKind == DecodeCodes::kInPlace2) {
      const uint32_t shifted = words[f] >> 4;
      a[0] = words[f] & 0x03030303u, a[2] = words[f] & 0x0c0c0c0cu;
      a[1] = shifted & 0x03030303u, a[3] = shifted & 0x0c0c0c0cu;
    } else {
      uint32_t n[2];
      Nibbles(f, n);
      Pair(n[0], t, &a[0], &a[1]);
      Pair(n[1], t, &a[2], &a[3]);
    }
  }
};

// Constants of the loop over pages, from shared memory: so they are registers, made once, and the
// compiler does not turn products with them into what they were put in place of.
struct LoopConstants {
  static constexpr int kWords = 6;
  int sum_start[4];        // {0, 1.5 x 2^23, 0, 1.5 x 2^23}, for sums of (high, low) digits
  uint32_t two16, minus1;  // 2^16 and -1

  static __device__ __forceinline__ uint32_t Word(int i) {
    return i < 4 ? (i % 2 == 0 ? 0u : static_cast<uint32_t>(kMagicBits)) : i == 4 ? 65536u : ~0u;
  }
  __device__ __forceinline__ void StartSum(int (&sum)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) sum[i] = sum_start[i];
  }
  explicit __device__ __forceinline__ LoopConstants(const uint32_t* words) {
    *reinterpret_cast<int4*>(sum_start) = *reinterpret_cast<const int4*>(words);
    two16 = words[4], minus1 = words[5];
  }
};

// Levels of a fragment as the operands of one product, or of two that are added: of 4-bit codes the
// lower half of the table and its upper half, each with zeros for the codes of the other. The unit
// for bits and bytes is the busiest one, so a product more costs less than joining the halves, and
// shifts and complements are multiplications.
template <DecodeCodes kKind>
struct FragmentLevels {
  static constexpr int kOperands = kKind == DecodeCodes::kTable4 ? 2 : 1;
  uint32_t a[kOperands][4];

  // `table`: of TurnedTable.
  __device__ __forceinline__ FragmentLevels(const Group<kKind>& group, int f,
                                            const DecodeTable& table, const LoopConstants& k) {
    if constexpr (kKind == DecodeCodes::kInPlace2) {
      group.Fragment(f, table, a[0]);
      return;
    } else {
      uint32_t n[2];
      group.Nibbles(f, n);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint32_t high = ptx::UpperProduct(n[i], k.two16);
        a[0][2 * i] = ptx::Permute(table.words[0], table.words[1], n[i]);
        a[0][2 * i + 1] = ptx::Permute(table.words[0], table.words[1], high);
        if constexpr (kOperands == 2) {
          a[1][2 * i] = ptx::Permute(table.words[2], table.words[3],
                                     ptx::MultiplyAdd(n[i], k.minus1, k.minus1));
          a[1][2 * i + 1] = ptx::Permute(table.words[2], table.words[3],
                                         ptx::MultiplyAdd(high, k.minus1, k.minus1));
        }
      }
    }
  }
};
// The upper half from its end, for the complements of codes.
__device__ __forceinline__ DecodeTable TurnedTable(const DecodeTable& t) {
  return {{t.words[0], t.words[1], __byte_perm(t.words[3], 0, 0x0123),
           __byte_perm(t.words[2], 0, 0x0123)}};
}

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
  // Makes room for scores up to `top`; returns the factor of weights relative to it. `scaled_by`
  // gets what the state was scaled by, if it was.
  __device__ __forceinline__ float Raise(int n, float top, float* scaled_by = nullptr) {
    if (__any_sync(kAllLanes, top > m[n] + kSlack)) {
      const float raised = fmaxf(m[n], top), factor = ptx::Exp2(m[n] - raised);
      m[n] = raised;
      l[n] *= factor, z[n] *= factor;
      if (scaled_by != nullptr) *scaled_by = factor;
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

}  // namespace
}  // namespace tq
