// One sealed page of one KV head: QK, softmax step, PV. See decode_cuda.cu for the idea; what is
// here runs once for each page and warp.
#pragma once

#include "turboquant/attention/decode_extras.cuh"
#include "turboquant/attention/decode_wide.cuh"
#include "turboquant/attention/v_skip.h"

namespace tq {
namespace {

// ---- A sealed page ------------------------------------------------------------------------------

// scores[n][2 t + h] of tokens 16 t + 8 h + r, in units of q scale x K base.
template <DecodeCodes kKind, int kDim, int kTiles>
__device__ __forceinline__ void PageScores(const uint8_t* codes, const float* scales,
                                           const DecodeTable& table, const LoopConstants& k,
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
      const FragmentLevels<kKind> levels(group, f, table, k);
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        if (j == 0) k.StartSum(sums[n]);
#pragma unroll
        for (int o = 0; o < levels.kOperands; ++o) {
          ptx::MmaS8S8(sums[n], levels.a[o], q.digits[n][j][0], q.digits[n][j][1], sums[n]);
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
                                           const LoopConstants& k,
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
        const FragmentLevels<kKind> levels(group, 4 * s + m, table, k);
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
          if (s == 0) k.StartSum(sums[n][m]);
#pragma unroll
          for (int o = 0; o < levels.kOperands; ++o) {
            ptx::MmaS8U8(sums[n][m], levels.a[o], columns[n][2 * s], columns[n][2 * s + 1],
                         sums[n][m]);
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

// A page at hand. What is seldom needed stays in shared memory: registers are few, and what does
// not fit waits in memory behind the pages.
struct PageTask {
  const DecodeHead* head;
  const DecodeTable *k_table, *v_table;  // TurnedTable
  const uint4* center;                   // DecodeCenter::digits
  const float* center_scores = nullptr;  // of the page, with PacksCenters
  float v_factor = 1;                    // VScaleFactor
  int block = 0;
  bool masked = false;  // softcap or sliding window
};
// What the scales of V are multiplied with to become digits, of the lane's pair of tokens.
__device__ __forceinline__ float VScaleFactor(const DecodeHead& head, int lane) {
  const bool turned = head.v_kind == DecodeCodes::kInPlace2 && lane % 2 == 0;
  return head.p_limit * (turned ? kInPlaceFactor : 1.f);
}
template <bool kWide>
__device__ __forceinline__ bool IsPlain(DecodeCodes kind, const DecodeGroups& groups) {
  return !kWide || (!IsFloat(kind) && groups.len == 0);
}

// The weights of a page's tokens, ready for PV.
template <int kTiles>
struct PageWeights {
  uint32_t columns[kTiles][4];
  float unit[kTiles], offset[kTiles];
  float plain[kTiles][8];  // of wide kernels, of values that are not plain
};

// Scores of keys that only wide kernels read; see PageScores and FloatScores for their units.
template <int kDim, int kTiles>
__device__ __forceinline__ void WideScores(const uint8_t* page, const DecodeHead& head,
                                           const Shared<kDim, kTiles>& sh,
                                           const WideShared<kDim, kTiles>& wide,
                                           const Queries<kDim, kTiles>& q, int lane,
                                           float (&scores)[kTiles][8]) {
  if (IsFloat(head.k_kind)) {
    OfFloatType(head.k_kind,
                [&]<DecodeCodes kType>() { FloatScores<kType, 4>(page, 0, wide, lane, scores); });
    return;
  }
  constexpr bool kChoose = kDim == 128 && kTiles == 1;
  OfGroupKind<kChoose>(head.k_kind, head.k_groups, [&]<DecodeCodes kKind, Planes kPlanes>() {
    const uint8_t* const planes = page + head.k_scales;
    bool is_short = false;
    if constexpr (kPlanes == Planes::kAny) is_short = head.k_groups.len == 16;
    if (is_short) {
      GroupScores<kKind, Planes::kAny, true>(page, planes, head.k_groups, head.k_table, sh.log8,
                                             wide, q, lane, scores);
    } else {
      GroupScores<kKind, kPlanes, false>(page, planes, head.k_groups, head.k_table, sh.log8, wide,
                                         q, lane, scores);
    }
  });
}

// o += values that only wide kernels read.
template <int kDim, int kTiles>
__device__ __forceinline__ void WideValues(const uint8_t* page, const DecodeHead& head,
                                           const float* log8, const PageWeights<kTiles>& weights,
                                           int lane, State<kDim, kTiles>* state) {
  const uint8_t* const values = page + head.v_codes;
  if (IsFloat(head.v_kind)) {
    OfFloatType(head.v_kind, [&]<DecodeCodes kType>() {
      FloatValues<kType, 4>(values, 0, kPageLen, weights.plain, weights.unit, lane, state);
    });
    return;
  }
  constexpr bool kChoose = kDim == 128 && kTiles == 1;
  OfGroupKind<kChoose>(head.v_kind, head.v_groups, [&]<DecodeCodes kKind, Planes kPlanes>() {
    GroupValues<kKind, kPlanes>(values, page + head.v_scales, head.v_groups, head.v_table, log8,
                                weights.plain, weights.unit, lane, state);
  });
}

// Scores of a page, a softmax step, the anchors' values. With skipping: false, and the state as it
// was, where no row's weights of the page sum up to more than its limit (SetSkipLimits); `pending`:
// weights of an earlier page that are still to be used, they follow the state's scale.
template <DecodeVariant kVariant, int kDim, int kTiles>
__device__ __forceinline__ bool SealedScores(
    const DecodeParams& p, const Unit& u, const PageTask& task, const uint8_t* page,
    const LoopConstants& k, const Queries<kDim, kTiles>& q, const Shared<kDim, kTiles>& sh,
    [[maybe_unused]] const WideShared<kDim, kTiles>* wide, WarpShared<kTiles>* own, int lane,
    State<kDim, kTiles>* state, [[maybe_unused]] PageWeights<kTiles>* pending,
    PageWeights<kTiles>* weights) {
  constexpr bool kSkip = kVariant == DecodeVariant::kSkip;
  constexpr bool kWide = kVariant == DecodeVariant::kWide;
  const DecodeHead& head = *task.head;
  float(*const scales)[kPageLen] = own->scales;
  const uint8_t* const side = page + p.side_at;
  const uint32_t bases = *reinterpret_cast<const uint32_t*>(side);
  const float k_base = __uint_as_float(bases << 16);
  float v_base = __uint_as_float(bases & 0xffff0000u);
  if constexpr (kWide) {
    if (IsFloat(head.v_kind)) v_base = 1;
  }
  // Two scales of K and of V a lane, shared with the warp.
  {
    const uint8_t* const k2 = page + head.k_scales + 2 * lane;
    const uint8_t* const v2 = page + head.v_scales + 2 * lane;
    *reinterpret_cast<float2*>(&scales[0][2 * lane]) = make_float2(sh.log8[k2[0]], sh.log8[k2[1]]);
    *reinterpret_cast<float2*>(&scales[1][2 * lane]) =
        make_float2(sh.log8[v2[0]] * task.v_factor, sh.log8[v2[1]] * task.v_factor);
  }
  __syncwarp();
  float scores[kTiles][8];
  const auto qk = [&]<DecodeCodes kKind>() {
    PageScores<kKind>(page, scales[0], *task.k_table, k, q, lane, scores);
  };
  const DecodeCodes k_kind = head.k_kind;
  if (kWide && !IsPlain<kWide>(k_kind, head.k_groups)) {
    WideScores<kDim, kTiles>(page, head, sh, *wide, q, lane, scores);
  } else if (k_kind == DecodeCodes::kTable3) {
    qk.template operator()<DecodeCodes::kTable3>();
  } else if (k_kind == DecodeCodes::kTable4) {
    qk.template operator()<DecodeCodes::kTable4>();
  } else if (k_kind == DecodeCodes::kInPlace2) {
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
  float score_scale[kTiles];
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    score_scale[n] = q.scale[n] * k_base;
    if constexpr (kWide) {
      if (IsFloat(head.k_kind)) score_scale[n] = wide->scale[4 * n + lane % 4];
    }
  }
  const bool packs = PacksCenters<kTiles, kWide>(p) && head.center >= 0;
  if (packs) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float4 v = *reinterpret_cast<const float4*>(task.center_scores + lane / 4 * 8 + 4 * i);
      scores[0][4 * i] = fmaf(scores[0][4 * i], score_scale[0], v.x);
      scores[0][4 * i + 1] = fmaf(scores[0][4 * i + 1], score_scale[0], v.y);
      scores[0][4 * i + 2] = fmaf(scores[0][4 * i + 2], score_scale[0], v.z);
      scores[0][4 * i + 3] = fmaf(scores[0][4 * i + 3], score_scale[0], v.w);
    }
    score_scale[0] = 1;
  }
  if ((head.center >= 0 && !packs) || head.num_anchors > 0) {
    // They are added in the units that scores have so far. A scale of 0 has scores of 0.
    float inverse[kTiles];
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      score_scale[n] = fmaxf(score_scale[n], 1e-30f);
      inverse[n] = ptx::Reciprocal(score_scale[n]);
    }
    if (head.center >= 0 && !packs) {
      const CenterStarts starts = CenterStartsOf(sh.center_turns, task.block, lane);
      AddCenter<kDim, kTiles, 4>(task.center, starts, sh, inverse, 0, lane, scores);
    }
    for (int a = 0; a < head.num_anchors; ++a) {
      AddKeyAnchor<kDim, kTiles>(sh, page + head.k_anchors + a * kDim * head.anchor_bits / 8,
                                 head.anchor_bits, AnchorAt(side, a), inverse, lane, scores);
    }
  }
  if (task.masked) {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const int token = (u.row_group * 4 * kTiles + 4 * n + lane % 4) / p.group;
      // Or scores would be multiplied in front of the branch.
      const float scale = ptx::KeepRegister(score_scale[n]);
      const int lowest =
          p.sliding_window > 0 ? static_cast<int>(u.tile.first_pos) + token - p.sliding_window : -1;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int key = task.block * kPageLen + 16 * (i / 2) + 8 * (i % 2) + lane / 4;
        scores[n][i] *= scale;
        if (p.softcap > 0) scores[n][i] = SoftCap(scores[n][i], p.softcap);
        if (key <= lowest) scores[n][i] = -INFINITY;
      }
      score_scale[n] = 1;
    }
  }
  const uint32_t selector = ColumnSelector(lane);
  float tops[kTiles], factors[kTiles];
  float sums[kTiles];
  int digit_sums[kTiles];
  const bool in_place = head.v_kind == DecodeCodes::kInPlace2;
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    const float scale = score_scale[n];
    float top = fmaxf(fmaxf(fmaxf(scores[n][0], scores[n][1]), fmaxf(scores[n][2], scores[n][3])),
                      fmaxf(fmaxf(scores[n][4], scores[n][5]), fmaxf(scores[n][6], scores[n][7])));
    top = fmaxf(RowMax(top) * scale, kSmallest);
    tops[n] = top;
    float sum = 0;
    uint32_t digit_sum[2] = {0, 0};
    if constexpr (kWide) {
      if (!IsPlain<kWide>(head.v_kind, head.v_groups)) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          weights->plain[n][i] = ptx::Exp2(fmaf(scores[n][i], scale, -top));
          sum += weights->plain[n][i];
        }
        sums[n] = sum, digit_sums[n] = 0;
        continue;
      }
    }
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
      weights->columns[n][t] = WeightsToColumns(digits[0], digits[1], selector);
    }
    sums[n] = sum;
    const uint32_t odd = in_place ? 4 : 1;
    digit_sums[n] =
        static_cast<int>(digit_sum[0] + odd * digit_sum[1] - (4 + 4 * odd) * 0x4B000000u);
  }
  if constexpr (kSkip) {
    bool small = true;
    float masses[kTiles];
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      masses[n] = RowSum(sums[n]) * ptx::Exp2(tops[n] - sh.reference[4 * n + lane % 4]);
      small &= masses[n] <= sh.skip_limit[4 * n + lane % 4];
    }
    if (__all_sync(kAllLanes, small)) {
      const float v_bound =
          __uint_as_float(
              static_cast<uint32_t>(reinterpret_cast<const RecordSideInfo*>(side)->v_bound) << 16) *
          (head.num_anchors > 0 ? kAnchorBoundFactor : 1.f);
      if (lane < 4) {
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
          own->skipped[4 * n + lane][0] += masses[n];
          own->skipped[4 * n + lane][1] += masses[n] * v_bound;
        }
      }
      return false;
    }
  }
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    float raised = 1;
    const float factor = state->Raise(n, tops[n], &raised);
    if constexpr (kSkip) pending->unit[n] *= raised;
    factors[n] = factor;
    state->l[n] = fmaf(sums[n], factor, state->l[n]);
    weights->unit[n] = factor * v_base * head.p_unit;
    weights->offset[n] = kMagic;
    if (head.v_offset != 0) {  // what the codes have in front of the levels
      if (in_place) {
        state->z[n] = fmaf(static_cast<float>(digit_sums[n]), weights->unit[n], state->z[n]);
      } else {
        weights->offset[n] = fmaf(static_cast<float>(RowSum(digit_sums[n])), head.v_offset, kMagic);
      }
    }
  }
  for (int a = 0; a < head.num_anchors; ++a) {
    AddValueAnchor<kDim, kTiles>(page + head.v_anchors + a * kDim * head.anchor_bits / 8,
                                 head.anchor_bits, AnchorAt(side, a), lane, scores, score_scale,
                                 tops, factors, state);
  }
  return true;
}

// o += the values of a page times its weights.
template <bool kWide, int kDim, int kTiles>
__device__ __forceinline__ void SealedValues(const PageTask& task, const uint8_t* page,
                                             const LoopConstants& k, const float* log8,
                                             const PageWeights<kTiles>& weights, int lane,
                                             State<kDim, kTiles>* state) {
  const DecodeHead& head = *task.head;
  const uint8_t* const values = page + head.v_codes;
  const auto pv = [&]<DecodeCodes kKind>() {
    PageValues<kKind>(values, *task.v_table, k, weights.columns, weights.offset, weights.unit, lane,
                      state);
  };
  const DecodeCodes v_kind = head.v_kind;
  if (kWide && !IsPlain<kWide>(v_kind, head.v_groups)) {
    WideValues<kDim, kTiles>(page, head, log8, weights, lane, state);
  } else if (v_kind == DecodeCodes::kInPlace2) {
    pv.template operator()<DecodeCodes::kInPlace2>();
  } else if (v_kind == DecodeCodes::kTable4) {
    pv.template operator()<DecodeCodes::kTable4>();
  } else if (v_kind == DecodeCodes::kTable3) {
    pv.template operator()<DecodeCodes::kTable3>();
  } else {
    pv.template operator()<DecodeCodes::kTable2>();
  }
}

}  // namespace
}  // namespace tq
