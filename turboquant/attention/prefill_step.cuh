// A step of prefill: blocks unpacked to bytes in shared memory once for a whole thread block, and
// the softmax step of a warp's rows. See prefill_cuda.cu for the idea.
#pragma once

#include "turboquant/attention/prefill_tile.cuh"

namespace tq {
namespace {

// ---- Blocks in shared memory --------------------------------------------------------------------

// How bytes lie there. kFragments: as mma.sync wants them in registers, 16 bytes a lane. kCores: as
// wgmma reads them, matrices of 8 rows x 16 bytes of depth in 128 consecutive bytes; those of equal
// depth follow each other. Rows are tokens and the depth channels for K, the other way round for V.
enum class PrefillOrder { kFragments, kCores };

template <int kDim, int kBlocks>
struct alignas(128) PrefillStage {
  static constexpr int kTokens = kBlocks * kPageLen;
  uint8_t k[kTokens * kDim], v[kTokens * kDim];
  // Scales of the tokens; token 16 t + 8 h + r is number 16 t + 4 (r / 2) + 2 h + r % 2: four in a
  // row are those of a lane. V: of sealed blocks relative to the block's base.
  float k_scale[kTokens], v_scale[kTokens];
  float v_base[kBlocks];
};

// Bytes of level 2 c - 3 from bytes of code c.
__device__ __forceinline__ uint32_t InPlaceLevels(uint32_t codes) {
  const uint32_t low = codes << 1 & 0x02020202u | 0x01010101u;
  return (~codes & 0x02020202u) * 126u + low;
}

// Fragments 8 group .. 8 group + 7 of one side of a block, by a warp. `block`: in the stage.
template <DecodeCodes kKind>
__device__ __forceinline__ void LoadPrefillWords(const uint8_t* codes, int group, int lane,
                                                 uint4* words) {
  constexpr int kLoads = kKind == DecodeCodes::kInt8 ? 8 : BitsOf(kKind);
#pragma unroll
  for (int i = 0; i < kLoads; ++i) {
    words[i] = __ldg(reinterpret_cast<const uint4*>(codes) + (group * kLoads + i) * 32 + lane);
  }
}

template <DecodeCodes kKind>
__device__ __forceinline__ void PrefillLevels(const uint4* words, int f, const DecodeTable& table,
                                              uint32_t (&a)[4]) {
  if constexpr (kKind == DecodeCodes::kInt8) {
    a[0] = words[f].x, a[1] = words[f].y, a[2] = words[f].z, a[3] = words[f].w;
  } else {
    Group<kKind> group;
#pragma unroll
    for (int i = 0; i < BitsOf(kKind); ++i) {
      group.words[4 * i] = words[i].x, group.words[4 * i + 1] = words[i].y;
      group.words[4 * i + 2] = words[i].z, group.words[4 * i + 3] = words[i].w;
    }
    group.Fragment(f, table, a);
    if constexpr (kKind == DecodeCodes::kTable4) {
#pragma unroll
      for (int i = 0; i < 4; ++i) a[i] <<= 1;
    } else if constexpr (kKind == DecodeCodes::kInPlace2) {
      a[0] = InPlaceLevels(a[0]), a[1] = InPlaceLevels(a[1]);
      a[2] = InPlaceLevels(a[2] >> 2), a[3] = InPlaceLevels(a[3] >> 2);
    }
  }
}

template <Side kSide, PrefillOrder kOrder, int kDim, int kBlocks, DecodeCodes kKind>
__device__ __forceinline__ void StorePrefillLevels(const uint4* words, int block, int group,
                                                   const DecodeTable& table, int lane,
                                                   uint8_t* to) {
#pragma unroll
  for (int f = 0; f < 8; ++f) {
    uint32_t a[4];
    PrefillLevels<kKind>(words, f, table, a);
    const int fragment = 8 * group + f;
    if constexpr (kOrder == PrefillOrder::kFragments) {
      *reinterpret_cast<uint4*>(to + ((block * (kDim / 8) + fragment) * 32 + lane) * 16) = {
          a[0], a[1], a[2], a[3]};
    } else {
      constexpr int kRowCores = kSide == Side::kK ? kBlocks * 8 : kDim / 8;
      constexpr int kSteps = kDim / 32;
      const int row = kSide == Side::kK ? block * 8 + fragment / kSteps * 2
                                        : (fragment / 8 * 4 + fragment % 4) * 2;
      const int depth =
          kSide == Side::kK ? fragment % kSteps * 2 : block * 4 + fragment / 4 % 2 * 2;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int core = (depth + (i >> 1)) * kRowCores + row + (i & 1);
        *reinterpret_cast<uint32_t*>(to + core * 128 + lane * 4) = a[i];
      }
    }
  }
}

// fn.template operator()<kKind>() for what a side of a record may be.
template <typename Fn>
__device__ __forceinline__ void OfCodeKind(DecodeCodes kind, const Fn& fn) {
  if (kind == DecodeCodes::kTable3) {
    fn.template operator()<DecodeCodes::kTable3>();
  } else if (kind == DecodeCodes::kTable4) {
    fn.template operator()<DecodeCodes::kTable4>();
  } else if (kind == DecodeCodes::kInPlace2) {
    fn.template operator()<DecodeCodes::kInPlace2>();
  } else {
    fn.template operator()<DecodeCodes::kTable2>();
  }
}

// Scales of a block, by a warp. Rows from `end` on have not been written: theirs are 0.
__device__ __forceinline__ void StoreSealedScales(const uint8_t* record, const uint8_t* side,
                                                  const PrefillHead& head, const float* log8,
                                                  int lane, float* k_scale, float* v_scale,
                                                  float* v_base) {
  const uint32_t bases = __ldg(reinterpret_cast<const uint32_t*>(side));
  const float k_base = __uint_as_float(bases << 16);
  const uint32_t k2 = __ldg(reinterpret_cast<const uint16_t*>(record + head.k_scales) + lane);
  const uint32_t v2 = __ldg(reinterpret_cast<const uint16_t*>(record + head.v_scales) + lane);
  const int r = lane / 4, at = 16 * (lane % 4) + 4 * (r / 2) + r % 2;
  k_scale[at] = log8[k2 & 255] * k_base, k_scale[at + 2] = log8[k2 >> 8] * k_base;
  v_scale[at] = log8[v2 & 255], v_scale[at + 2] = log8[v2 >> 8];
  if (lane == 0) *v_base = __uint_as_float(bases & 0xffff0000u);
}
__device__ __forceinline__ void StoreOpenScales(const uint8_t* open, const PrefillHead& head,
                                                int end, int lane, float* k_scale, float* v_scale) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int token = lane + 32 * i, r = token % 8;
    const int at = token / 16 * 16 + 4 * (r / 2) + token / 8 % 2 * 2 + r % 2;
    const bool written = token < end;
    k_scale[at] =
        written ? __ldg(reinterpret_cast<const float*>(open + head.open_k_scales) + token) : 0.f;
    v_scale[at] =
        written ? __ldg(reinterpret_cast<const float*>(open + head.open_v_scales) + token) : 0.f;
  }
}

// A step's blocks to a stage, by warps `warp`, warp + num_warps, ...: the share of one of them.
template <PrefillOrder kOrder, int kDim, int kBlocks>
__device__ __forceinline__ void FillPrefillStage(const PrefillParams& p, const PrefillTile& t,
                                                 const PrefillHead& head,
                                                 const PrefillSteps<kBlocks>& steps, int step,
                                                 const float* log8, int warp, int num_warps,
                                                 int lane, PrefillStage<kDim, kBlocks>* stage) {
  constexpr int kGroups = kDim / 64;  // of a side of a block
  const int first = steps.BlockOf(step);
  const int64_t row = static_cast<int64_t>(t.sequence) * p.table_stride;
  if (steps.IsSealed(step)) {
    for (int task = warp; task < kBlocks * 2 * kGroups; task += num_warps) {
      const int b = task / (2 * kGroups), group = task % kGroups, block = first + b;
      if (block < steps.sealed_begin || block >= steps.sealed_end) continue;
      const int64_t slot = __ldg(p.sealed_table + row + block);
      const uint8_t* const record =
          p.sealed + static_cast<uint64_t>(slot) * p.sealed_stride + head.record_offset;
      if (task / kGroups % 2 == 0) {
        OfCodeKind(head.k_kind, [&]<DecodeCodes kKind>() {
          uint4 words[4];
          LoadPrefillWords<kKind>(record, group, lane, words);
          StorePrefillLevels<Side::kK, kOrder, kDim, kBlocks, kKind>(words, b, group, head.k_table,
                                                                     lane, stage->k);
        });
        continue;
      }
      OfCodeKind(head.v_kind, [&]<DecodeCodes kKind>() {
        uint4 words[4];
        LoadPrefillWords<kKind>(record + head.v_codes, group, lane, words);
        StorePrefillLevels<Side::kV, kOrder, kDim, kBlocks, kKind>(words, b, group, head.v_table,
                                                                   lane, stage->v);
      });
    }
    for (int b = warp; b < kBlocks; b += num_warps) {
      const int block = first + b;
      if (block < steps.sealed_begin || block >= steps.sealed_end) {
        // Nobody's weights: but numbers, as they are multiplied with 0.
        for (int i = lane; i < kPageLen; i += 32) {
          stage->k_scale[b * kPageLen + i] = stage->v_scale[b * kPageLen + i] = 0;
        }
        if (lane == 0) stage->v_base[b] = 0;
        continue;
      }
      const int64_t slot = __ldg(p.sealed_table + row + block);
      StoreSealedScales(
          p.sealed + static_cast<uint64_t>(slot) * p.sealed_stride + head.record_offset,
          p.sides + static_cast<uint64_t>(slot) * p.side_stride + head.side_offset, head, log8,
          lane, stage->k_scale + b * kPageLen, stage->v_scale + b * kPageLen, &stage->v_base[b]);
    }
    return;
  }
  const int64_t slot = __ldg(p.open_table + row + first);
  const uint8_t* const open =
      p.open + static_cast<uint64_t>(slot) * p.open_stride + head.open_offset;
  for (int task = warp; task < 2 * kGroups; task += num_warps) {
    uint4 words[8];
    const int group = task % kGroups;
    if (task < kGroups) {
      LoadPrefillWords<DecodeCodes::kInt8>(open, group, lane, words);
      StorePrefillLevels<Side::kK, kOrder, kDim, kBlocks, DecodeCodes::kInt8>(
          words, 0, group, head.k_table, lane, stage->k);
    } else {
      LoadPrefillWords<DecodeCodes::kInt8>(open + head.open_v_values, group, lane, words);
      StorePrefillLevels<Side::kV, kOrder, kDim, kBlocks, DecodeCodes::kInt8>(
          words, 0, group, head.v_table, lane, stage->v);
    }
  }
  if (warp == num_warps - 1) {
    StoreOpenScales(open, head, t.first_pos + t.num_tokens - first * kPageLen, lane, stage->k_scale,
                    stage->v_scale);
  }
}

// ---- The softmax step ---------------------------------------------------------------------------

// The largest of a row, or the sum: lanes of equal lane / 4 hold its tokens.
__device__ __forceinline__ float QuadMax(float x) {
  x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, 1));
  return fmaxf(x, __shfl_xor_sync(kAllLanes, x, 2));
}

// Where the warp's rows stand, and what they do not see of a step.
struct PrefillRows {
  int first_pos;   // of the lane's row r; its other row is 8 further
  int begin, end;  // blocks that count
  float softcap;
  int sliding_window;
  bool special;  // something of this is to be done
};

// scores[j][2 h + e]: of row r + 8 h, token 8 j + 2 c + e of the step. Scores become whole.
template <int kTokenTiles>
__device__ __forceinline__ void MaskPrefillScores(const PrefillRows& rows, int first_block,
                                                  int lane, float (&scale)[2],
                                                  float (&scores)[kTokenTiles][4]) {
#pragma unroll
  for (int j = 0; j < kTokenTiles; ++j) {
    const int block = first_block + j / 8;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int pos = rows.first_pos + 8 * (i / 2);
      const int key = first_block * kPageLen + 8 * j + 2 * (lane % 4) + i % 2;
      float s = scores[j][i] * scale[i / 2];
      if (rows.softcap > 0) s = SoftCap(s, rows.softcap);
      const bool hidden = key > pos || block < rows.begin || block >= rows.end ||
                          (rows.sliding_window > 0 && key <= pos - rows.sliding_window);
      scores[j][i] = hidden ? -INFINITY : s;
    }
  }
  scale[0] = scale[1] = 1;
}

// The low bytes of four floats 2^23 + digit.
__device__ __forceinline__ uint32_t PackDigits(const float (&d)[4]) {
  const uint32_t a = __byte_perm(__float_as_uint(d[0]), __float_as_uint(d[1]), 0x0040);
  const uint32_t b = __byte_perm(__float_as_uint(d[2]), __float_as_uint(d[3]), 0x0040);
  return __byte_perm(a, b, 0x5410);
}

// Scores to weights relative to the row's largest, sums, state.
template <int kDim, int kTokenTiles>
__device__ __forceinline__ void PrefillWeights(const float (&scale)[2],
                                               float (&scores)[kTokenTiles][4],
                                               PrefillState<kDim>* state, float (&factor)[2]) {
  float top[2] = {-INFINITY, -INFINITY};
#pragma unroll
  for (int j = 0; j < kTokenTiles; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) top[i / 2] = fmaxf(top[i / 2], scores[j][i]);
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) top[i] = fmaxf(QuadMax(top[i]) * scale[i], kSmallest);
  float sum[2] = {};
#pragma unroll
  for (int j = 0; j < kTokenTiles; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      scores[j][i] = ptx::Exp2(fmaf(scores[j][i], scale[i / 2], -top[i / 2]));
      sum[i / 2] += scores[j][i];
    }
  }
  state->Raise(top, factor);
#pragma unroll
  for (int i = 0; i < 2; ++i) state->l[i] = fmaf(sum[i], factor[i], state->l[i]);
}

// A step of sealed blocks: integer sums of QK to operand A of PV, weights of 8 bits relative to the
// row's largest and the largest V base; unit: of a digit times a level, by row.
template <int kDim, int kBlocks>
__device__ __forceinline__ void SealedPrefillWeights(
    const PrefillStage<kDim, kBlocks>& stage, const PrefillRows& rows, int first_block,
    const float (&row_scale)[2], float v_unit, const int (&sums)[kBlocks * 8][4], int lane,
    PrefillState<kDim>* state, uint32_t (&weights)[kBlocks * 2][4], float (&unit)[2]) {
  constexpr int kTiles = kBlocks * 8;
  const int c = lane % 4;
  float scores[kTiles][4], scale[2] = {row_scale[0], row_scale[1]}, factor[2];
#pragma unroll
  for (int j = 0; j < kTiles; j += 2) {
    const float4 k = *reinterpret_cast<const float4*>(&stage.k_scale[8 * j + 4 * c]);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      scores[j][2 * h] = static_cast<float>(sums[j][2 * h]) * k.x;
      scores[j][2 * h + 1] = static_cast<float>(sums[j][2 * h + 1]) * k.y;
      scores[j + 1][2 * h] = static_cast<float>(sums[j + 1][2 * h]) * k.z;
      scores[j + 1][2 * h + 1] = static_cast<float>(sums[j + 1][2 * h + 1]) * k.w;
    }
  }
  if (rows.special) MaskPrefillScores<kTiles>(rows, first_block, lane, scale, scores);
  PrefillWeights<kDim, kTiles>(scale, scores, state, factor);
  // Bases of blocks that count; a row does not notice what else is in the step.
  float base = 0, digit[kBlocks];
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
    const bool counts = first_block + b >= rows.begin && first_block + b < rows.end;
    digit[b] = counts ? stage.v_base[b] : 0.f;
    base = fmaxf(base, digit[b]);
  }
  const float inverse = base > 0 ? 255.f / base : 0.f;
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) digit[b] *= inverse;
#pragma unroll
  for (int j = 0; j < kTiles; j += 2) {
    float4 v = *reinterpret_cast<const float4*>(&stage.v_scale[8 * j + 4 * c]);
    v.x *= digit[j / 8], v.y *= digit[j / 8], v.z *= digit[j / 8], v.w *= digit[j / 8];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float d[4] = {
          fmaf(scores[j][2 * h], v.x, kTwo23), fmaf(scores[j][2 * h + 1], v.y, kTwo23),
          fmaf(scores[j + 1][2 * h], v.z, kTwo23), fmaf(scores[j + 1][2 * h + 1], v.w, kTwo23)};
      weights[j / 4][h + j % 4] = PackDigits(d);
    }
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) unit[i] = factor[i] * base * (v_unit / 255.f);
}

// The same of an open block of 8-bit rows: digits of queries and weights have 16 bits, those of
// weights relative to the row's largest product with a V scale.
constexpr float kOpenWeight = 65280.f;  // 255 * 256: the high byte stays one
template <int kDim, int kBlocks>
__device__ __forceinline__ void OpenPrefillWeights(
    const PrefillStage<kDim, kBlocks>& stage, const PrefillRows& rows, int block,
    const float (&row_scale)[2], const int (&high)[8][4], const int (&low)[8][4], int lane,
    PrefillState<kDim>* state, uint32_t (&high_weights)[2][4], uint32_t (&low_weights)[2][4],
    float (&unit)[2]) {
  const int c = lane % 4;
  float scores[8][4], scale[2] = {row_scale[0], row_scale[1]}, factor[2], largest[2] = {};
  const auto score = [](int h, int l) {
    return fmaf(static_cast<float>(h), 256.f, static_cast<float>(l));
  };
#pragma unroll
  for (int j = 0; j < 8; j += 2) {
    const float4 k = *reinterpret_cast<const float4*>(&stage.k_scale[8 * j + 4 * c]);
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      scores[j][i] = score(high[j][i], low[j][i]) * k.x;
      scores[j][i + 1] = score(high[j][i + 1], low[j][i + 1]) * k.y;
      scores[j + 1][i] = score(high[j + 1][i], low[j + 1][i]) * k.z;
      scores[j + 1][i + 1] = score(high[j + 1][i + 1], low[j + 1][i + 1]) * k.w;
    }
  }
  if (rows.special) MaskPrefillScores<8>(rows, block, lane, scale, scores);
  PrefillWeights<kDim, 8>(scale, scores, state, factor);
#pragma unroll
  for (int j = 0; j < 8; j += 2) {
    const float4 v = *reinterpret_cast<const float4*>(&stage.v_scale[8 * j + 4 * c]);
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      scores[j][i] *= v.x, scores[j][i + 1] *= v.y;
      scores[j + 1][i] *= v.z, scores[j + 1][i + 1] *= v.w;
      largest[i / 2] = fmaxf(fmaxf(largest[i / 2], fmaxf(scores[j][i], scores[j][i + 1])),
                             fmaxf(scores[j + 1][i], scores[j + 1][i + 1]));
    }
  }
  float to_digit[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    largest[i] = QuadMax(largest[i]);
    to_digit[i] = largest[i] > 0 ? kOpenWeight / largest[i] : 0.f;
    unit[i] = factor[i] * largest[i] * (1.f / kOpenWeight);
  }
#pragma unroll
  for (int j = 0; j < 8; j += 2) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      uint32_t d[4];
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        d[e] = __float_as_uint(fmaf(scores[j + e / 2][2 * h + e % 2], to_digit[h], kTwo23));
      }
      const uint32_t a = __byte_perm(d[0], d[1], 0x5140), b = __byte_perm(d[2], d[3], 0x5140);
      low_weights[j / 4][h + j % 4] = __byte_perm(a, b, 0x5410);
      high_weights[j / 4][h + j % 4] = __byte_perm(a, b, 0x7632);
    }
  }
}

}  // namespace
}  // namespace tq
