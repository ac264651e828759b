// What a score has besides its codes: the centre, and the residual rows of anchors. Only heads that
// have them get here.
#pragma once

#include "turboquant/attention/decode_fragments.cuh"
#include "turboquant/attention/decode_shared.cuh"

namespace tq {
namespace {

// ---- Centre -------------------------------------------------------------------------------------

// cos and sin at the first position of a block, of the lane's pairs: 2 c, 2 c + 1 and 8 more.
// `turns`: DecodeCenter's.
struct CenterStarts {
  float4 values[2];
};
__device__ __forceinline__ CenterStarts CenterStartsOf(const uint32_t* turns, int block, int lane) {
  constexpr float kRadians = 1.4629180792671596e-9f;  // of 2^-32 of a turn
  CenterStarts starts;
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    const uint2 turn = *reinterpret_cast<const uint2*>(turns + 2 * (lane % 4) + 8 * k);
    const auto radians = [block](uint32_t t) {
      return static_cast<float>(static_cast<int32_t>(static_cast<uint32_t>(block) * t)) * kRadians;
    };
    float4& v = starts.values[k];
    ptx::SinCos(radians(turn.x), &v.y, &v.x);
    ptx::SinCos(radians(turn.y), &v.w, &v.z);
  }
  return starts;
}

// Columns of B for the products of a centre's table with `ab`, a and b of a row (Shared), as they
// are at `start`: (high, low) digits for the table's high digits, (0, high) for its low ones, so
// that sums of equal weight meet, and those of two low digits are left out. A lane's own column is
// lane / 4.
struct CenterColumns {
  uint32_t both[2], high[2];
};
__device__ __forceinline__ CenterColumns CenterColumnsOf(const float (*ab)[2],
                                                         const CenterStarts& start, int lane) {
  const int r = lane / 4, c = lane % 4;
  // Digit + 128 in the low half of a float: its bytes are high digit and low digit + 128.
  constexpr float kToDigit = kMagic + 128.f;
  const uint32_t selector = r % 2 == 0 ? 0x0051u : 0x0040u;
  const uint32_t flip = r % 2 == 0 ? 0u : 0x80808080u;
  CenterColumns columns;
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    const float4 v = *reinterpret_cast<const float4*>(ab[2 * c + 8 * k]);
    const float4 s = start.values[k];
    const auto digit = [](float x, float cos_part, float y, float sin_part) {
      return __float_as_uint(fmaf(x, cos_part, fmaf(y, sin_part, kToDigit)));
    };
    const uint32_t first =
        __byte_perm(digit(v.x, s.x, v.y, s.y), digit(v.y, s.x, -v.x, s.y), selector);
    const uint32_t second =
        __byte_perm(digit(v.z, s.z, v.w, s.w), digit(v.w, s.z, -v.z, s.w), selector);
    columns.both[k] = __byte_perm(first, second, 0x5410) ^ flip;
    const uint32_t other = __shfl_xor_sync(kAllLanes, columns.both[k], 4);
    columns.high[k] = r % 2 == 0 ? 0u : other;
  }
  return columns;
}

// Sums of digits of tokens 16 tile + r and 8 more, for the lane's pair of columns. `digits`:
// DecodeCenter's.
struct CenterTile {
  uint32_t a[2][4];

  __device__ __forceinline__ CenterTile(const uint4* digits, int tile, int lane) {
    const uint4 high = digits[(tile * 2) * 32 + lane];
    const uint4 low = digits[(tile * 2 + 1) * 32 + lane];
    a[0][0] = high.x, a[0][1] = high.y, a[0][2] = high.z, a[0][3] = high.w;
    a[1][0] = low.x, a[1][1] = low.y, a[1][2] = low.z, a[1][3] = low.w;
  }
  __device__ __forceinline__ void Sums(const CenterColumns& columns, float (&out)[2]) const {
    const int zero[4] = {0, 0, 0, 0};
    int sums[4];
    ptx::MmaS8S8(sums, a[0], columns.both[0], columns.both[1], zero);
    ptx::MmaS8S8(sums, a[1], columns.high[0], columns.high[1], sums);
#pragma unroll
    for (int h = 0; h < 2; ++h) out[h] = static_cast<float>(sums[2 * h] * 256 + sums[2 * h + 1]);
  }
};

// scores[n][2 t + h] += factor[n] x centre of token 16 (first_tile + t) + 8 h + r of the block; see
// DecodeCenter. `digits`: its table.
template <int kDim, int kTiles, int kTokenTiles>
__device__ __forceinline__ void AddCenter(const uint4* digits, const CenterStarts& start,
                                          const Shared<kDim, kTiles>& sh,
                                          const float (&factor)[kTiles], int first_tile, int lane,
                                          float (&scores)[kTiles][2 * kTokenTiles]) {
  CenterColumns columns[kTiles];
  float scale[kTiles];
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    columns[n] = CenterColumnsOf(sh.center_ab[4 * n + lane / 8], start, lane);
    scale[n] = sh.center_scale[4 * n + lane % 4] * factor[n];
  }
#pragma unroll
  for (int t = 0; t < kTokenTiles; ++t) {
    const CenterTile tile(digits, first_tile + t, lane);
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      float sums[2];
      tile.Sums(columns[n], sums);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        scores[n][2 * t + h] = fmaf(sums[h], scale[n], scores[n][2 * t + h]);
      }
    }
  }
}

// The centres of `pages` pages at once, block and every num_warps-th behind it, where there is one
// row of queries: pages take the columns of the rows that a tile has room for. `to`:
// Ring::CenterScores.
template <int kDim>
__device__ __forceinline__ void CentersOfPages(const uint4* digits, int block, int num_warps,
                                               int pages, const Shared<kDim, 1>& sh, int lane,
                                               float* to) {
  const int r = lane / 4, c = lane % 4;
  const CenterStarts start = CenterStartsOf(sh.center_turns, block + r / 2 * num_warps, lane);
  const CenterColumns columns = CenterColumnsOf(sh.center_ab[0], start, lane);
  const float scale = sh.center_scale[0];
  float scores[kPageLen / 16][2];
#pragma unroll
  for (int t = 0; t < kPageLen / 16; ++t) {
    CenterTile(digits, t, lane).Sums(columns, scores[t]);
    scores[t][0] *= scale, scores[t][1] *= scale;
  }
  if (c < pages) {
    auto* const its = reinterpret_cast<float4*>(to + c * kPageLen + 8 * r);
    its[0] = make_float4(scores[0][0], scores[0][1], scores[1][0], scores[1][1]);
    its[1] = make_float4(scores[2][0], scores[2][1], scores[3][0], scores[3][1]);
  }
  __syncwarp();
}

// ---- Anchors ------------------------------------------------------------------------------------

// An AnchorInfo of the page; `side`: its RecordSideInfo.
struct Anchor {
  int token;
  float k_scale, v_scale;
};
__device__ __forceinline__ Anchor AnchorAt(const uint8_t* side, int i) {
  const auto* const info =
      reinterpret_cast<const uint16_t*>(side + sizeof(RecordSideInfo) + i * sizeof(AnchorInfo));
  return {info[0], __uint_as_float(static_cast<uint32_t>(info[1]) << 16),
          __uint_as_float(static_cast<uint32_t>(info[2]) << 16)};
}

// Which of a lane's 8 scores is of a token: that bit, or none.
__device__ __forceinline__ uint32_t ScoreOfAnchor(int token, int r) {
  return r == token % 8 ? 1u << token / 8 : 0u;
}

// Levels of channels 4 q .. 4 q + 3 of a residual row, as bytes.
__device__ __forceinline__ uint32_t AnchorLevels(const uint8_t* row, int bits, int q) {
  if (bits == 8) return *reinterpret_cast<const uint32_t*>(row + 4 * q);
  const uint32_t codes = *reinterpret_cast<const uint16_t*>(row + 2 * q);
  const uint32_t pairs = (codes | codes << 8) & 0x00ff00ffu;
  const uint32_t bytes = (pairs | pairs << 4) & 0x0f0f0f0fu;
  return ((bytes | 0x80808080u) - 0x08080808u) ^ 0x80808080u;  // less 8
}

// scores of the anchor's token += factor[n] x query x residual of K.
template <int kDim, int kTiles>
__device__ __forceinline__ void AddKeyAnchor(const Shared<kDim, kTiles>& sh, const uint8_t* row,
                                             int bits, const Anchor& anchor,
                                             const float (&factor)[kTiles], int lane,
                                             float (&scores)[kTiles][8]) {
  constexpr int kWords =
      kDim / 32;  // of a lane: an eighth of the channels, of the row that it owns
  const int r = lane / 4, c = lane % 4;
  const int first = (r ^ 2 * c) * kWords;  // so that lanes of four rows use different banks
  int high[kTiles] = {}, low[kTiles] = {};
#pragma unroll
  for (int w = 0; w < kWords; ++w) {
    const uint32_t levels = AnchorLevels(row, bits, first + w);
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const auto* const digits = reinterpret_cast<const int*>(sh.row_digits[4 * n + c]);
      high[n] = __dp4a(static_cast<int>(levels), digits[first + w], high[n]);
      low[n] = __dp4a(static_cast<int>(levels), digits[kDim / 4 + first + w], low[n]);
    }
  }
  const uint32_t mine = ScoreOfAnchor(anchor.token, r);
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    const float sum = static_cast<float>(RowSum(high[n] * 256 + low[n]));
    const float add = sum * (sh.row_scale[4 * n + c] * anchor.k_scale * factor[n]);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (mine >> i & 1) scores[n][i] += add;
    }
  }
}

// o += weight of the anchor's token x residual of V. `scale`: of the scores; `top`, `factor`: of
// the page's softmax step.
template <int kDim, int kTiles>
__device__ __forceinline__ void AddValueAnchor(const uint8_t* row, int bits, const Anchor& anchor,
                                               int lane, const float (&scores)[kTiles][8],
                                               const float (&scale)[kTiles],
                                               const float (&top)[kTiles],
                                               const float (&factor)[kTiles],
                                               State<kDim, kTiles>* state) {
  const int r = lane / 4, c = lane % 4;
  const uint32_t its_score = ScoreOfAnchor(anchor.token, anchor.token % 8);
  float weight[kTiles];
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    float score = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (its_score >> i & 1) score = scores[n][i];
    }
    score = __shfl_sync(kAllLanes, score, anchor.token % 8 * 4 + c);
    weight[n] = ptx::Exp2(fmaf(score, scale[n], -top[n])) * factor[n] * anchor.v_scale;
  }
  if (bits == 8) {
#pragma unroll
    for (int i = 0; i < kDim / 8; ++i) {
      // Byte + 128 behind 2^23.
      const float level =
          __uint_as_float((row[8 * i + r] ^ 0x80u) | 0x4B000000u) - (kTwo23 + 128.f);
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        state->o[n][i / 2][i % 2] = fmaf(weight[n], level, state->o[n][i / 2][i % 2]);
      }
    }
    return;
  }
  // A word has the codes of 8 channels, one for each r. 1 + code / 16 as a float; level = code - 8.
  const auto code_bits = static_cast<uint32_t>(ptx::KeepRegister(0x00780000));
#pragma unroll
  for (int i = 0; i < kDim / 8; i += 4) {
    const uint4 v = *reinterpret_cast<const uint4*>(row + 4 * i);
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const uint32_t turned = __funnelshift_l(words[k], words[k], 19 - 4 * r & 31);
      const float level = __uint_as_float(ptx::AndOr(turned, code_bits, 0x3F800000u)) - 1.5f;
      const int m = (i + k) / 2, h = (i + k) % 2;
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        state->o[n][m][h] = fmaf(16.f * weight[n], level, state->o[n][m][h]);
      }
    }
  }
}

}  // namespace
}  // namespace tq
