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
  // row are those of a lane. V of sealed blocks: relative to the block's base; and what weights are
  // multiplied with to be digits, if all blocks of the step count (PrefillVDigit).
  float k_scale[kTokens], v_scale[kTokens], v_digit[kTokens];
  float v_base[kBlocks];  // 0: no unit reads the block
};

// Of a sealed block with `base`, in a step of which the largest base that counts is `top`.
__device__ __forceinline__ float PrefillVDigit(float base, float top) {
  return top > 0 ? base * (255.f / top) : 0.f;
}

// A lane's 16 codes of 2 bits, in place (codec/fragment_layout.h), as registers of levels
// 2 code - 3. Selectors of a permute are nibbles, so it takes fields 0 and 2 of each byte at once.
__device__ __forceinline__ void InPlaceLevels(uint32_t word, uint32_t (&a)[4]) {
  constexpr uint32_t kLevels = 0x0301FFFDu;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t n = (i == 0 ? word : word >> 2) & 0x33333333u;
    const uint32_t low = ptx::Permute(kLevels, 0, n), high = ptx::Permute(kLevels, 0, n >> 16);
    a[2 * i] = ptx::Permute(low, high, 0x6420), a[2 * i + 1] = ptx::Permute(low, high, 0x7531);
  }
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
  } else if constexpr (kKind == DecodeCodes::kInPlace2) {
    const uint4& v = words[f / 4];
    InPlaceLevels(f % 4 == 0 ? v.x : f % 4 == 1 ? v.y : f % 4 == 2 ? v.z : v.w, a);
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

// Scales of a sealed block, by a warp. top: the largest base of V in the step.
__device__ __forceinline__ void StoreSealedScales(const uint8_t* record, const PrefillHead& head,
                                                  const float* log8, uint32_t bases, float top,
                                                  int lane, float* k_scale, float* v_scale,
                                                  float* v_digit) {
  const float k_base = __uint_as_float(bases << 16);
  const float digit = PrefillVDigit(__uint_as_float(bases & 0xffff0000u), top);
  const uint32_t k2 = __ldg(reinterpret_cast<const uint16_t*>(record + head.k_scales) + lane);
  const uint32_t v2 = __ldg(reinterpret_cast<const uint16_t*>(record + head.v_scales) + lane);
  const int r = lane / 4, at = 16 * (lane % 4) + 4 * (r / 2) + r % 2;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    k_scale[at + 2 * h] = log8[k2 >> 8 * h & 255] * k_base;
    v_scale[at + 2 * h] = log8[v2 >> 8 * h & 255];
    v_digit[at + 2 * h] = v_scale[at + 2 * h] * digit;
  }
}
// Rows from `end` on have not been written: their scales are 0.
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
      uint32_t bases[kBlocks];
      const uint8_t* record = nullptr;
      float top = 0;
#pragma unroll
      for (int other = 0; other < kBlocks; ++other) {
        const int block = first + other;
        bases[other] = 0;
        if (block < steps.sealed_begin || block >= steps.sealed_end) continue;
        const int64_t slot = __ldg(p.sealed_table + row + block);
        bases[other] = __ldg(reinterpret_cast<const uint32_t*>(
            p.sides + static_cast<uint64_t>(slot) * p.side_stride + head.side_offset));
        top = fmaxf(top, __uint_as_float(bases[other] & 0xffff0000u));
        if (other != b) continue;
        record = p.sealed + static_cast<uint64_t>(slot) * p.sealed_stride + head.record_offset;
      }
      const uint32_t own = bases[kBlocks > 1 ? b : 0];
      if (lane == 0) stage->v_base[b] = __uint_as_float(own & 0xffff0000u);
      if (record == nullptr) {
        // Nobody's: but numbers, as they are multiplied.
        for (int i = b * kPageLen + lane; i < (b + 1) * kPageLen; i += 32) {
          stage->k_scale[i] = stage->v_scale[i] = stage->v_digit[i] = 0;
        }
        continue;
      }
      StoreSealedScales(record, head, log8, own, top, lane, stage->k_scale + b * kPageLen,
                        stage->v_scale + b * kPageLen, stage->v_digit + b * kPageLen);
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

// scores[j][2 h + e]: of row r + 8 h, token 8 j + 2 c + e of the step.
template <int kTokenTiles>
__device__ __forceinline__ void MaskPrefillScores(const PrefillRows& rows, int first_block,
                                                  int lane, float (&scale)[2],
                                                  float (&scores)[kTokenTiles][4]) {
  if (rows.softcap > 0) {
#pragma unroll
    for (int j = 0; j < kTokenTiles; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        scores[j][i] = SoftCap(scores[j][i] * scale[i / 2], rows.softcap);
      }
    }
    scale[0] = scale[1] = 1;
  }
  // Of the lane's first token: the keys from `lowest` to `highest` are seen.
  const int key = first_block * kPageLen + 2 * (lane % 4);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int pos = rows.first_pos + 8 * h;
    int lowest = rows.begin * kPageLen;
    if (rows.sliding_window > 0) lowest = max(lowest, pos - rows.sliding_window + 1);
    lowest -= key;
    const int highest = min(pos, rows.end * kPageLen - 1) - key;
#pragma unroll
    for (int j = 0; j < kTokenTiles; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        if (8 * j + e < lowest || 8 * j + e > highest) scores[j][2 * h + e] = -INFINITY;
      }
    }
  }
}

// Who may exponentiate: everybody at any time.
struct NoTurns {
  __device__ __forceinline__ float Begin() const {
    return 0;
  }                                                    // what it returns is added to scores
  __device__ __forceinline__ void End(float) const {}  // given a number >= 0
};

// A head without centre and anchors (prefill_extras.cuh has the others).
struct NoExtras {
  template <int kTokenTiles>
  __device__ __forceinline__ void AddScores(int, int, int, bool, float (&)[2],
                                            float (&)[kTokenTiles][4]) const {}
  template <int kTokenTiles, typename State>
  __device__ __forceinline__ void AddValues(int, int, int, const float (&)[kTokenTiles][4],
                                            const float (&)[2], State*) const {}
};

// Scores to weights relative to the row's largest, sums, state.
template <int kDim, int kTokenTiles, typename Turns>
__device__ __forceinline__ void PrefillWeights(const Turns& turns, const float (&scale)[2],
                                               float (&scores)[kTokenTiles][4],
                                               PrefillState<kDim>* state, float (&factor)[2]) {
  // Short chains: few warps are there to hide how long an instruction takes.
  constexpr int kChains = 4;
  float top[2], tops[2][kChains], sums[2][kChains];
#pragma unroll
  for (int j = 0; j < kTokenTiles; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float& t = tops[i / 2][2 * (j % 2) + i % 2];
      t = j < 2 ? scores[j][i] : fmaxf(t, scores[j][i]);
    }
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    top[i] = fmaxf(fmaxf(tops[i][0], tops[i][1]), fmaxf(tops[i][2], tops[i][3]));
    top[i] = fmaxf(QuadMax(top[i]) * scale[i], kSmallest);
  }
  state->Raise(top, factor);
  const float zero = turns.Begin();
  const float down[2] = {zero - top[0], zero - top[1]};
#pragma unroll
  for (int j = 0; j < kTokenTiles; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      scores[j][i] = ptx::Exp2(fmaf(scores[j][i], scale[i / 2], down[i / 2]));
      float& sum = sums[i / 2][2 * (j % 2) + i % 2];
      sum = j < 2 ? scores[j][i] : sum + scores[j][i];
    }
  }
  float sum[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    sum[i] = (sums[i][0] + sums[i][1]) + (sums[i][2] + sums[i][3]);
    state->l[i] = fmaf(sum[i], factor[i], state->l[i]);
  }
  turns.End(sum[0] + sum[1]);
}

// A step of sealed blocks: integer sums of QK to operand A of PV, weights of 8 bits relative to the
// row's largest and the largest V base; unit: of a digit times a level, by row.
template <int kDim, int kBlocks, typename Turns, typename Extras>
__device__ __forceinline__ void SealedPrefillWeights(
    const Turns& turns, const Extras& extras, const PrefillStage<kDim, kBlocks>& stage,
    const PrefillRows& rows, int first_block, const float (&row_scale)[2], float v_unit,
    const int (&sums)[kBlocks * 8][4], int lane, PrefillState<kDim>* state,
    uint32_t (&weights)[kBlocks * 2][4], float (&unit)[2]) {
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
  extras.template AddScores<kTiles>(first_block, rows.begin, rows.end, true, scale, scores);
  if (rows.special) MaskPrefillScores<kTiles>(rows, first_block, lane, scale, scores);
  PrefillWeights<kDim, kTiles>(turns, scale, scores, state, factor);
  extras.template AddValues<kTiles>(first_block, rows.begin, rows.end, scores, factor, state);
  // Blocks that count: a row does not notice what else is in the step.
  float base = 0;
  bool all = true;
#pragma unroll
  for (int b = 0; b < kBlocks; ++b) {
    const bool counts = first_block + b >= rows.begin && first_block + b < rows.end;
    all &= counts;
    base = fmaxf(base, counts ? stage.v_base[b] : 0.f);
  }
  const auto pack = [&](int j, const float4& v) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float d[4] = {
          fmaf(scores[j][2 * h], v.x, kTwo23), fmaf(scores[j][2 * h + 1], v.y, kTwo23),
          fmaf(scores[j + 1][2 * h], v.z, kTwo23), fmaf(scores[j + 1][2 * h + 1], v.w, kTwo23)};
      weights[j / 4][h + j % 4] = LowBytes(d);
    }
  };
  if (all) {
#pragma unroll
    for (int j = 0; j < kTiles; j += 2) {
      pack(j, *reinterpret_cast<const float4*>(&stage.v_digit[8 * j + 4 * c]));
    }
  } else {
#pragma unroll
    for (int j = 0; j < kTiles; j += 2) {
      const int block = first_block + j / 8;
      const bool counts = block >= rows.begin && block < rows.end;
      const float digit = counts ? PrefillVDigit(stage.v_base[j / 8], base) : 0.f;
      float4 v = *reinterpret_cast<const float4*>(&stage.v_scale[8 * j + 4 * c]);
      v.x *= digit, v.y *= digit, v.z *= digit, v.w *= digit;
      pack(j, v);
    }
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) unit[i] = factor[i] * base * (v_unit / 255.f);
}

// The same of an open block of 8-bit rows: digits of queries and weights have 16 bits, those of
// weights relative to the row's largest product with a V scale.
constexpr float kOpenWeight = 65280.f;  // 255 * 256: the high byte stays one
template <int kDim, int kBlocks, typename Extras>
__device__ __forceinline__ void OpenPrefillWeights(
    const Extras& extras, const PrefillStage<kDim, kBlocks>& stage, const PrefillRows& rows,
    int block, const float (&row_scale)[2], const int (&high)[8][4], const int (&low)[8][4],
    int lane, PrefillState<kDim>* state, uint32_t (&high_weights)[2][4],
    uint32_t (&low_weights)[2][4], float (&unit)[2]) {
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
  extras.template AddScores<8>(block, block, block + 1, false, scale, scores);
  if (rows.special) MaskPrefillScores<8>(rows, block, lane, scale, scores);
  PrefillWeights<kDim, 8>(NoTurns(), scale, scores, state, factor);
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
