// The prefill kernel of compute capability 9.0, head_dim 128: see prefill_cuda.cu for the idea and
// the arithmetic, which are the same.
//
// A warpgroup fills a ring of stages, from codes in memory to bytes in shared memory, ordered as
// wgmma reads them. Two warpgroups have a unit each and go through the stages on their own, so that
// one is at its products while the other is at its softmax step. Operands A, the digits of queries
// and of weights, are in registers; a product of 64 rows x 128 tokens or channels reads a stage
// once.
#include <cuda_runtime_api.h>

#include "turboquant/attention/prefill_entry.h"
#include "turboquant/attention/prefill_step.cuh"
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#include "turboquant/base/ptx_sm90a.cuh"
#endif

namespace tq {
namespace {

constexpr int kDim = 128;
constexpr int kBlocks = 2;
constexpr int kUnits = 2;
constexpr int kStages = 3;
constexpr int kThreads = 128 * (kUnits + 1);
constexpr int kFillRegisters = 88, kUnitRegisters = 208;

using Stage = PrefillStage<kDim, kBlocks>;
struct HopperShared {
  Stage stage[kStages];
  PrefillQueries<kDim> q[kUnits];
  float out[4 * kUnits][kPrefillOutBytes<kDim> / sizeof(float)];
  float log8[256];
  uint64_t full[kStages], empty[kStages];
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// ---- Filling stages -----------------------------------------------------------------------------

// What a warp of the four reads of a step, ahead of its use. Sealed: one side of one block. Open:
// half of one side, warps 0 and 1 the scales.
struct Ahead {
  uint4 words[8];
  uint32_t scales[2];  // of two tokens; sealed: codes, bases
  bool any;
};

__device__ __forceinline__ void LoadAhead(const PrefillParams& p, const PrefillTile& t,
                                          const PrefillHead& head,
                                          const PrefillSteps<kBlocks>& steps, int step, int warp,
                                          int lane, Ahead* a) {
  a->any = false;
  if (step >= steps.count) return;
  const bool is_v = warp % 2 == 1;
  const int64_t row = static_cast<int64_t>(t.sequence) * p.table_stride;
  const int first = steps.BlockOf(step);
  const uint4* from;
  int loads;
  if (steps.IsSealed(step)) {
    const int block = first + warp / 2;
    if (block < steps.sealed_begin || block >= steps.sealed_end) return;
    const int64_t slot = __ldg(p.sealed_table + row + block);
    const uint8_t* const record =
        p.sealed + static_cast<uint64_t>(slot) * p.sealed_stride + head.record_offset;
    const DecodeCodes kind = is_v ? head.v_kind : head.k_kind;
    loads = 2 * (kind == DecodeCodes::kTable4 ? 4 : kind == DecodeCodes::kTable3 ? 3 : 2);
    from = reinterpret_cast<const uint4*>(record + (is_v ? head.v_codes : 0));
    a->scales[0] = __ldg(
        reinterpret_cast<const uint16_t*>(record + (is_v ? head.v_scales : head.k_scales)) + lane);
    a->scales[1] = __ldg(reinterpret_cast<const uint32_t*>(
        p.sides + static_cast<uint64_t>(slot) * p.side_stride + head.side_offset));
  } else {
    const int64_t slot = __ldg(p.open_table + row + first);
    const uint8_t* const open =
        p.open + static_cast<uint64_t>(slot) * p.open_stride + head.open_offset;
    from = reinterpret_cast<const uint4*>(open + (is_v ? head.open_v_values : 0)) +
           warp / 2 * (8 * 32);
    loads = 8;
    const auto* const scales =
        reinterpret_cast<const uint32_t*>(open + (is_v ? head.open_v_scales : head.open_k_scales));
    a->scales[0] = __ldg(scales + lane), a->scales[1] = __ldg(scales + lane + 32);
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (i < loads) a->words[i] = __ldg(from + i * 32 + lane);
  }
  a->any = true;
}

__device__ __forceinline__ void StoreAhead(const PrefillTile& t, const PrefillHead& head,
                                           const PrefillSteps<kBlocks>& steps, int step,
                                           const float* log8, int warp, int lane, const Ahead& a,
                                           Stage* stage) {
  const bool is_v = warp % 2 == 1;
  float* const scales = is_v ? stage->v_scale : stage->k_scale;
  constexpr auto kCores = PrefillOrder::kCores;
  if (steps.IsSealed(step)) {
    const int b = warp / 2;
    const int r = lane / 4, at = b * kPageLen + 16 * (lane % 4) + 4 * (r / 2) + r % 2;
    if (!a.any) {  // of no unit; but numbers, as they are multiplied
      scales[at] = scales[at + 2] = 0;
      if (is_v && lane == 0) stage->v_base[b] = 0;
      return;
    }
    const float base = is_v ? 1.f : __uint_as_float(a.scales[1] << 16);
    scales[at] = log8[a.scales[0] & 255] * base;
    scales[at + 2] = log8[a.scales[0] >> 8] * base;
    if (is_v && lane == 0) stage->v_base[b] = __uint_as_float(a.scales[1] & 0xffff0000u);
    OfCodeKind(is_v ? head.v_kind : head.k_kind, [&]<DecodeCodes kKind>() {
      const DecodeTable& table = is_v ? head.v_table : head.k_table;
#pragma unroll
      for (int group = 0; group < 2; ++group) {
        const uint4* const words = a.words + group * BitsOf(kKind);
        if (is_v) {
          StorePrefillLevels<Side::kV, kCores, kDim, kBlocks, kKind>(words, b, group, table, lane,
                                                                     stage->v);
        } else {
          StorePrefillLevels<Side::kK, kCores, kDim, kBlocks, kKind>(words, b, group, table, lane,
                                                                     stage->k);
        }
      }
    });
    return;
  }
  const int group = warp / 2;
  if (is_v) {
    StorePrefillLevels<Side::kV, kCores, kDim, kBlocks, DecodeCodes::kInt8>(
        a.words, 0, group, head.v_table, lane, stage->v);
  } else {
    StorePrefillLevels<Side::kK, kCores, kDim, kBlocks, DecodeCodes::kInt8>(
        a.words, 0, group, head.k_table, lane, stage->k);
  }
  if (group > 0) return;
  const int end = t.first_pos + t.num_tokens - steps.BlockOf(step) * kPageLen;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int token = lane + 32 * i, r = token % 8;
    scales[token / 16 * 16 + 4 * (r / 2) + token / 8 % 2 * 2 + r % 2] =
        token < end ? __uint_as_float(a.scales[i]) : 0.f;  // rows behind have not been written
  }
}

// ---- Products -----------------------------------------------------------------------------------

constexpr uint32_t kKeyDepth = Stage::kTokens / 8 * 128;  // bytes from 16 channels to the next
constexpr uint32_t kValueDepth = kDim / 8 * 128;          // bytes from 16 tokens to the next

// sums of 64 rows x kTiles tiles of 8 tokens.
template <int kTiles>
__device__ __forceinline__ void QueryKeys(const uint32_t (&q)[kDim / 32][4], uint32_t k,
                                          int (&sums)[kTiles][4]) {
  ptx::WgmmaFence();
#pragma unroll
  for (int j = 0; j < kDim / 32; ++j) {
    ptx::WgmmaS8S8(sums, q[j], ptx::MatrixDescriptor(k + 2 * j * kKeyDepth, kKeyDepth), j > 0);
  }
  ptx::WgmmaCommit();
}
// sums of 64 rows x channels, kSteps times 32 tokens.
template <int kSteps>
__device__ __forceinline__ void WeightValues(const uint32_t (&weights)[kSteps][4], uint32_t v,
                                             int (&sums)[kDim / 8][4]) {
  ptx::WgmmaFence();
#pragma unroll
  for (int s = 0; s < kSteps; ++s) {
    ptx::WgmmaU8S8(sums, weights[s], ptx::MatrixDescriptor(v + 2 * s * kValueDepth, kValueDepth),
                   s > 0);
  }
  ptx::WgmmaCommit();
}
__device__ __forceinline__ void AddValues(const int (&sums)[kDim / 8][4], const float (&unit)[2],
                                          PrefillState<kDim>* state) {
#pragma unroll
  for (int j = 0; j < kDim / 8; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      state->o[j][i] = fmaf(static_cast<float>(sums[j][i]), unit[i / 2], state->o[j][i]);
    }
  }
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

__global__ void __launch_bounds__(kThreads, 1)
    PrefillHopperKernel([[maybe_unused]] const __grid_constant__ PrefillParams p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  auto& sh = *reinterpret_cast<HopperShared*>(ptx::DynamicShared());
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, r = lane / 4;
  const PrefillTile tile = p.tiles[blockIdx.x / p.num_kv_heads];
  const int kv_head = static_cast<int>(blockIdx.x) % p.num_kv_heads;
  const PrefillHead& head = p.heads[kv_head];
  PrefillUnit units[kUnits];
#pragma unroll
  for (int i = 0; i < kUnits; ++i) units[i] = PrefillUnitOf(p, tile, i);
  PrefillSteps<kBlocks> steps;
  steps.Set(units);
  if (threadIdx.x < 256) sh.log8[threadIdx.x] = p.log8[threadIdx.x];
  if (threadIdx.x == 0) {
#pragma unroll
    for (int i = 0; i < kStages; ++i) {
      ptx::BarrierInit(ptx::SharedAddress(&sh.full[i]), 128);
      ptx::BarrierInit(ptx::SharedAddress(&sh.empty[i]), 4 * kUnits);
    }
    ptx::FenceBulkCopy();
  }
  __syncthreads();
  if (warp < 4) {
    ptx::LowerRegisters<kFillRegisters>();
    Ahead ahead;
    LoadAhead(p, tile, head, steps, 0, warp, lane, &ahead);
    int at = 0;
    uint32_t parity = 1;
    for (int step = 0; step < steps.count; ++step) {
      ptx::BarrierWait(ptx::SharedAddress(&sh.empty[at]), parity);
      StoreAhead(tile, head, steps, step, sh.log8, warp, lane, ahead, &sh.stage[at]);
      ptx::FenceBulkCopy();  // wgmma reads it
      ptx::BarrierArrive(ptx::SharedAddress(&sh.full[at]));
      LoadAhead(p, tile, head, steps, step + 1, warp, lane, &ahead);
      if (++at == kStages) at = 0, parity ^= 1;
    }
  } else {
    ptx::RaiseRegisters<kUnitRegisters>();
    const int which = warp / 4 - 1, first_row = warp % 4 * 16;
    const PrefillUnit unit = which == 0 ? units[0] : units[1];
    PrefillQueries<kDim>& q = sh.q[which];
    PreparePrefillQueries<kDim>(p, tile, unit, head, kv_head, first_row, lane, &q);
    __syncwarp();
    PrefillRows rows;
    rows.first_pos = unit.block * kPageLen + first_row + r;
    rows.softcap = p.softcap;
    rows.sliding_window = p.sliding_window;
    PrefillState<kDim> state;
    state.Reset();
    const float code_scale[2] = {q.code_scale[first_row + r], q.code_scale[first_row + r + 8]};
    const float v_unit = head.v_unit;
    int at = 0;
    uint32_t parity = 0;
    for (int step = 0; step < steps.count; ++step) {
      const Stage& stage = sh.stage[at];
      const uint32_t k = ptx::SharedAddress(stage.k), v = ptx::SharedAddress(stage.v);
      ptx::BarrierWait(ptx::SharedAddress(&sh.full[at]), parity);
      const bool sealed = steps.IsSealed(step);
      const int block = steps.BlockOf(step);
      float unit_of[2];
      int products[kDim / 8][4];
      uint32_t digits[kDim / 32][4];
      const bool takes_part = TakesPart<kBlocks>(unit, sealed, block);
      if (takes_part && sealed) {
        rows.begin = unit.sealed_begin, rows.end = unit.sealed_end;
        rows.special = p.softcap > 0 || p.sliding_window > 0 || block < rows.begin ||
                       block + kBlocks > rows.end;
        LoadQueryFragments<kDim>(q.code, warp % 4, lane, digits);
        int sums[kBlocks * 8][4];
        QueryKeys(digits, k, sums);
        ptx::WgmmaWait<0>();
        uint32_t weights[kBlocks * 2][4];
        SealedPrefillWeights(stage, rows, block, code_scale, v_unit, sums, lane, &state, weights,
                             unit_of);
        WeightValues(weights, v, products);
        ptx::WgmmaWait<0>();
      } else if (takes_part) {
        rows.begin = block, rows.end = block + 1;
        rows.special = p.softcap > 0 || p.sliding_window > 0 || block == unit.block;
        int high[8][4], low[8][4];
        LoadQueryFragments<kDim>(q.high, warp % 4, lane, digits);
        QueryKeys(digits, k, high);
        ptx::WgmmaWait<0>();
        LoadQueryFragments<kDim>(q.low, warp % 4, lane, digits);
        QueryKeys(digits, k, low);
        ptx::WgmmaWait<0>();
        const float scale[2] = {q.row_scale[first_row + r], q.row_scale[first_row + r + 8]};
        uint32_t high_weights[2][4], low_weights[2][4];
        OpenPrefillWeights(stage, rows, block, scale, high, low, lane, &state, high_weights,
                           low_weights, unit_of);
        WeightValues(high_weights, v, products);
        ptx::WgmmaWait<0>();
        const float high_unit[2] = {256 * unit_of[0], 256 * unit_of[1]};
        AddValues(products, high_unit, &state);
        WeightValues(low_weights, v, products);
        ptx::WgmmaWait<0>();
      }
      __syncwarp();
      if (lane == 0) ptx::BarrierArrive(ptx::SharedAddress(&sh.empty[at]));
      if (takes_part) AddValues(products, unit_of, &state);
      if (++at == kStages) at = 0, parity ^= 1;
    }
    WritePrefillRows<kDim>(p, tile, unit, head, kv_head, first_row, lane, state, sh.out[warp - 4]);
  }
#endif
}

}  // namespace

PrefillEntry HopperPrefillEntry() {
  return {PrefillHopperKernel, kUnits, kThreads, sizeof(HopperShared)};
}

}  // namespace tq
