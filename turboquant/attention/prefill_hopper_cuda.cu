// The prefill kernel of compute capability 9.0, head_dim 128: see prefill_cuda.cu for the idea and
// the arithmetic, which are the same.
//
// A warpgroup fills a ring of stages with bytes, ordered as wgmma reads them, from records that
// bulk copies have brought to shared memory. Two warpgroups have a unit each and go through the
// stages on their own, so that one is at its products while the other is at its softmax step.
// Operands A, the digits of queries and of weights, are in registers. Values are taken in two
// halves of the channels: sums of one become floats while fewer registers are held than for both.
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
constexpr int kFillRegisters = 56, kUnitRegisters = 224;
// Of data that other thread blocks read too: the default of createpolicy.
constexpr uint64_t kSharedPolicy = 0x1000000000000000ull;  // evict_normal
constexpr int kFillBarrier = kUnits + 1;                   // and 1 to kUnits of the units

// What a step has in memory: two records and their side infos, or the open part of a block.
constexpr size_t kSideBytesEach = 16;
constexpr HeadFormat kLargestFormat = {
    .k = {.type = ValueType::kInt, .bits = 4, .scale = ScaleType::kLog8},
    .v = {.type = ValueType::kInt, .bits = 4, .scale = ScaleType::kLog8}};
struct alignas(128) PackedStep {
  union {
    uint8_t records[kBlocks][RecordLayout::For(kLargestFormat, kDim).bytes];
    uint8_t open[OpenLayout::For(kLargestFormat, RecentType::kQ8, kDim).bytes];
  };
  uint8_t sides[kBlocks][kSideBytesEach];
};

using Stage = PrefillStage<kDim, kBlocks>;
struct HopperShared {
  Stage stage[kStages];
  PackedStep packed[kStages];
  PrefillQueries<kDim> q[kUnits];  // at the end the rows on their way out
  float log8[256];
  PrefillSteps<kBlocks> steps;
  PrefillUnit units[kUnits];
  float zero;
  uint64_t full[kStages], empty[kStages], arrived[kStages];
};
static_assert(sizeof(PrefillQueries<kDim>) >= 4 * kPrefillOutBytes<kDim>);

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// ---- Filling stages -----------------------------------------------------------------------------

// Asks for what a step reads; one thread.
__device__ __forceinline__ void CopyStep(const PrefillParams& p, const PrefillTile& t,
                                         const PrefillHead& head,
                                         const PrefillSteps<kBlocks>& steps, int step,
                                         PackedStep* to, uint32_t barrier) {
  const int64_t row = static_cast<int64_t>(t.sequence) * p.table_stride;
  const int first = steps.BlockOf(step);
  const auto copy = [&](void* target, const uint8_t* from, uint32_t bytes) {
    ptx::BulkCopy(ptx::SharedAddress(target), from, bytes, barrier, kSharedPolicy);
  };
  if (!steps.IsSealed(step)) {
    const int64_t slot = __ldg(p.open_table + row + first);
    ptx::BarrierExpect(barrier, head.open_bytes);
    copy(to->open, p.open + static_cast<uint64_t>(slot) * p.open_stride + head.open_offset,
         head.open_bytes);
    return;
  }
  const int begin = max(first, steps.sealed_begin), end = min(first + kBlocks, steps.sealed_end);
  ptx::BarrierExpect(barrier, static_cast<uint32_t>(end - begin) *
                                  (head.record_bytes + static_cast<uint32_t>(kSideBytesEach)));
  for (int block = begin; block < end; ++block) {
    const uint64_t slot = static_cast<uint64_t>(__ldg(p.sealed_table + row + block));
    copy(to->records[block - first], p.sealed + slot * p.sealed_stride + head.record_offset,
         head.record_bytes);
    copy(to->sides[block - first], p.sides + slot * p.side_stride + head.side_offset,
         kSideBytesEach);
  }
}

// Where the cores of a side lie: bytes from a fragment's to that of the next 16 rows, of the next
// 32 of depth.
struct CoreSteps {
  uint32_t row, depth;
};
constexpr uint32_t kCoreBytes = 128;
constexpr uint32_t kDepthBytes = 16 * kCoreBytes;  // 128 tokens or channels are 16 cores
static_assert(Stage::kTokens == 128 && kDim == 128);

// 8 fragments of a lane's stream: two 16 rows of four of depth each (K), or the other way round
// (V): `low` is the step of the first two bits of a fragment's number, `high` that of the third.
template <DecodeCodes kKind>
__device__ __forceinline__ void StoreGroup(const uint8_t* codes, int group,
                                           const DecodeTable& table, uint32_t low, uint32_t high,
                                           int lane, uint8_t* to) {
  constexpr int kLoads = kKind == DecodeCodes::kInt8 ? 8 : BitsOf(kKind);
  uint4 words[kLoads];
#pragma unroll
  for (int i = 0; i < kLoads; ++i) {
    words[i] = reinterpret_cast<const uint4*>(codes)[(group * kLoads + i) * 32 + lane];
  }
#pragma unroll
  for (int f = 0; f < 8; ++f) {
    uint32_t a[4];
    PrefillLevels<kKind>(words, f, table, a);
    uint8_t* const at = to + f % 4 * low + f / 4 * high;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      *reinterpret_cast<uint32_t*>(at + (i >> 1) * kDepthBytes + (i & 1) * kCoreBytes) = a[i];
    }
  }
}

// The share of a warp of four. Sealed: one side of one block. Open: half of one side.
__device__ __forceinline__ void FillStage(const PrefillTile& t, const PrefillHead& head,
                                          const PrefillSteps<kBlocks>& steps, int step,
                                          const PackedStep& packed, const float* log8, int warp,
                                          int lane, Stage* stage) {
  const bool is_v = warp % 2 == 1;
  const int half = warp / 2, first = steps.BlockOf(step);
  float* const scales = is_v ? stage->v_scale : stage->k_scale;
  // Fragments of K follow each other in depth, then in rows; those of V in rows, then in depth.
  const uint32_t low = is_v ? 2 * kCoreBytes : 2 * kDepthBytes;
  const uint32_t high = is_v ? 2 * kDepthBytes : 2 * kCoreBytes;
  const uint32_t next_group = is_v ? 8 * kCoreBytes : 4 * kCoreBytes;
  uint8_t* const to = (is_v ? stage->v : stage->k) + lane * 4;
  if (!steps.IsSealed(step)) {
    StoreGroup<DecodeCodes::kInt8>(packed.open + (is_v ? head.open_v_values : 0), half,
                                   head.k_table, low, high, lane, to + half * next_group);
    if (half > 0) return;
    const auto* const from = reinterpret_cast<const float*>(
        packed.open + (is_v ? head.open_v_scales : head.open_k_scales));
    const int end = t.first_pos + t.num_tokens - first * kPageLen;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int token = lane + 32 * i, r = token % 8;
      scales[token / 16 * 16 + 4 * (r / 2) + token / 8 % 2 * 2 + r % 2] =
          token < end ? from[token] : 0.f;  // rows behind have not been written
    }
    return;
  }
  const int r = lane / 4, at = half * kPageLen + 16 * (lane % 4) + 4 * (r / 2) + r % 2;
  const auto counts = [&](int block) {
    return block >= steps.sealed_begin && block < steps.sealed_end;
  };
  if (!counts(first + half)) {  // of no unit; but numbers, as they are multiplied
    scales[at] = scales[at + 2] = 0;
    if (is_v) stage->v_digit[at] = stage->v_digit[at + 2] = 0;
    if (is_v && lane == 0) stage->v_base[half] = 0;
    return;
  }
  const uint8_t* const record = packed.records[half];
  const uint32_t codes =
      reinterpret_cast<const uint16_t*>(record + (is_v ? head.v_scales : head.k_scales))[lane];
  const uint32_t bases = *reinterpret_cast<const uint32_t*>(packed.sides[half]);
  const float first_scale = log8[codes & 255], second_scale = log8[codes >> 8];
  if (is_v) {
    const float base = __uint_as_float(bases & 0xffff0000u);
    float top = base;
    if (counts(first + 1 - half)) {
      top = fmaxf(top, __uint_as_float(*reinterpret_cast<const uint32_t*>(packed.sides[1 - half]) &
                                       0xffff0000u));
    }
    const float digit = PrefillVDigit(base, top);
    scales[at] = first_scale, scales[at + 2] = second_scale;
    stage->v_digit[at] = first_scale * digit, stage->v_digit[at + 2] = second_scale * digit;
    if (lane == 0) stage->v_base[half] = base;
  } else {
    const float base = __uint_as_float(bases << 16);
    scales[at] = first_scale * base, scales[at + 2] = second_scale * base;
  }
  const DecodeTable table = is_v ? head.v_table : head.k_table;
  const uint8_t* const from = record + (is_v ? head.v_codes : 0);
  uint8_t* const block_to = to + half * (is_v ? 4 * kDepthBytes : 8 * kCoreBytes);
  OfCodeKind(is_v ? head.v_kind : head.k_kind, [&]<DecodeCodes kKind>() {
#pragma unroll 1
    for (int group = 0; group < 2; ++group) {
      StoreGroup<kKind>(from, group, table, low, high, lane, block_to + group * next_group);
    }
  });
}

// ---- Turns --------------------------------------------------------------------------------------

// Warpgroups take turns at exponentials, which have a unit of their own: left alone, they fall into
// step, and then all want the same unit at the same time.
struct Turns {
  int which;
  bool is_last;   // nobody waits for the end
  uint32_t zero;  // address of a 0 in shared memory: makes what follows wait for it

  __device__ __forceinline__ void Start() const {
    if (which == kUnits - 1) Pass(0);
  }
  __device__ __forceinline__ float Begin() const {
    float x;
    asm volatile("bar.sync %1, 256;\nld.volatile.shared.f32 %0, [%2];"
                 : "=f"(x)
                 : "r"(1 + which), "r"(zero)
                 : "memory");
    return x;
  }
  __device__ __forceinline__ void End(float sum) const {
    if (!is_last) Pass(sum < 0 ? 8 : 0);  // never: but it is known only when the sum is
  }

 private:
  __device__ __forceinline__ void Pass(int more) const {
    asm volatile("bar.arrive %0, 256;" ::"r"(1 + (which + 1) % kUnits + more) : "memory");
  }
};

// ---- Products -----------------------------------------------------------------------------------

// sums of 64 rows x kTiles tiles of 8 tokens.
template <int kTiles>
__device__ __forceinline__ void QueryKeys(const uint8_t* digits, uint32_t k, int warp, int lane,
                                          int (&sums)[kTiles][4]) {
  uint32_t q[kDim / 32][4];
  LoadQueryFragments<kDim>(digits, warp, lane, q);
  ptx::WgmmaFence();
#pragma unroll
  for (int j = 0; j < kDim / 32; ++j) {
    ptx::WgmmaS8S8(sums, q[j], ptx::MatrixDescriptor(k + 2 * j * kDepthBytes, kDepthBytes), j > 0);
  }
  ptx::WgmmaCommit();
  ptx::WgmmaWait<0>();
}
// o += unit x (weights x values), kSteps times 32 tokens; half of the channels at a time.
template <int kSteps>
__device__ __forceinline__ void WeightValues(const uint32_t (&weights)[kSteps][4], uint32_t v,
                                             const float (&unit)[2], PrefillState<kDim>* state) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    int sums[kDim / 16][4];
    ptx::WgmmaFence();
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      ptx::WgmmaU8S8(
          sums, weights[s],
          ptx::MatrixDescriptor(v + half * 8 * kCoreBytes + 2 * s * kDepthBytes, kDepthBytes),
          s > 0);
    }
    ptx::WgmmaCommit();
    ptx::WgmmaWait<0>();
#pragma unroll
    for (int j = 0; j < kDim / 16; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& o = state->o[half * (kDim / 16) + j][i];
        o = fmaf(static_cast<float>(sums[j][i]), unit[i / 2], o);
      }
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
  if (threadIdx.x < 256) sh.log8[threadIdx.x] = p.log8[threadIdx.x];
  if (threadIdx.x == 0) {
    sh.zero = 0;
    PrefillUnit units[kUnits];
#pragma unroll
    for (int i = 0; i < kUnits; ++i) sh.units[i] = units[i] = PrefillUnitOf(p, tile, i);
    PrefillSteps<kBlocks> all;
    all.Set(units);
    sh.steps = all;
#pragma unroll
    for (int i = 0; i < kStages; ++i) {
      ptx::BarrierInit(ptx::SharedAddress(&sh.full[i]), 128);
      ptx::BarrierInit(ptx::SharedAddress(&sh.empty[i]), 4 * kUnits);
      ptx::BarrierInit(ptx::SharedAddress(&sh.arrived[i]), 1);
    }
    ptx::FenceBulkCopy();
  }
  __syncthreads();
  const PrefillSteps<kBlocks>& steps = sh.steps;
  if (warp < 4) {
    ptx::LowerRegisters<kFillRegisters>();
    if (threadIdx.x == 0) {
      for (int step = 0; step < min(kStages, steps.count); ++step) {
        CopyStep(p, tile, head, steps, step, &sh.packed[step],
                 ptx::SharedAddress(&sh.arrived[step]));
      }
    }
    int at = 0;
    uint32_t parity = 0;
    for (int step = 0; step < steps.count; ++step) {
      ptx::BarrierWait(ptx::SharedAddress(&sh.arrived[at]), parity);
      ptx::BarrierWait(ptx::SharedAddress(&sh.empty[at]), parity ^ 1);
      FillStage(tile, head, steps, step, sh.packed[at], sh.log8, warp, lane, &sh.stage[at]);
      ptx::FenceBulkCopy();  // wgmma reads it; and the next copy follows these reads
      ptx::BarrierArrive(ptx::SharedAddress(&sh.full[at]));
      ptx::SyncWarpgroup(kFillBarrier);
      if (threadIdx.x == 0 && step + kStages < steps.count) {
        CopyStep(p, tile, head, steps, step + kStages, &sh.packed[at],
                 ptx::SharedAddress(&sh.arrived[at]));
      }
      if (++at == kStages) at = 0, parity ^= 1;
    }
  } else {
    ptx::RaiseRegisters<kUnitRegisters>();
    const int which = warp / 4 - 1, in_unit = warp % 4, first_row = in_unit * 16;
    const PrefillUnit& unit = sh.units[which];
    PrefillQueries<kDim>& q = sh.q[which];
    PreparePrefillQueries<kDim>(p, tile, unit, head, kv_head, first_row, lane, &q);
    __syncwarp();
    PrefillRows rows;
    rows.first_pos = unit.block * kPageLen + first_row + r;
    rows.softcap = p.softcap;
    rows.sliding_window = p.sliding_window;
    PrefillState<kDim> state;
    state.Reset();
    const float v_unit = head.v_unit;
    Turns turns = {which, false, ptx::SharedAddress(&sh.zero)};
    turns.Start();
    int at = 0;
    uint32_t parity = 0;
    for (int step = 0; step < steps.count; ++step) {
      const Stage& stage = sh.stage[at];
      const uint32_t k = ptx::SharedAddress(stage.k), v = ptx::SharedAddress(stage.v);
      ptx::BarrierWait(ptx::SharedAddress(&sh.full[at]), parity);
      const bool sealed = steps.IsSealed(step);
      const int block = steps.BlockOf(step);
      float unit_of[2];
      turns.is_last = which == kUnits - 1 && step + 1 == steps.count;
      const bool takes_part = TakesPart<kBlocks>(unit, sealed, block);
      if (!takes_part || !sealed) turns.End(turns.Begin());
      if (!takes_part) {
      } else if (sealed) {
        rows.begin = unit.sealed_begin, rows.end = unit.sealed_end;
        rows.special = p.softcap > 0 || p.sliding_window > 0 || block < rows.begin ||
                       block + kBlocks > rows.end;
        int sums[kBlocks * 8][4];
        QueryKeys(q.code, k, in_unit, lane, sums);
        const float scale[2] = {q.code_scale[first_row + r], q.code_scale[first_row + r + 8]};
        uint32_t weights[kBlocks * 2][4];
        SealedPrefillWeights(turns, NoExtras(), stage, rows, block, scale, v_unit, sums, lane,
                             &state, weights, unit_of);
        WeightValues(weights, v, unit_of, &state);
      } else {
        rows.begin = block, rows.end = block + 1;
        rows.special = p.softcap > 0 || p.sliding_window > 0 || block == unit.block;
        int high[8][4], low[8][4];
        QueryKeys(q.high, k, in_unit, lane, high);
        QueryKeys(q.low, k, in_unit, lane, low);
        const float scale[2] = {q.row_scale[first_row + r], q.row_scale[first_row + r + 8]};
        uint32_t high_weights[2][4], low_weights[2][4];
        OpenPrefillWeights(NoExtras(), stage, rows, block, scale, high, low, lane, &state,
                           high_weights, low_weights, unit_of);
        const float high_unit[2] = {256 * unit_of[0], 256 * unit_of[1]};
        WeightValues(high_weights, v, high_unit, &state);
        WeightValues(low_weights, v, unit_of, &state);
      }
      __syncwarp();
      if (lane == 0) ptx::BarrierArrive(ptx::SharedAddress(&sh.empty[at]));
      if (++at == kStages) at = 0, parity ^= 1;
    }
    ptx::SyncWarpgroup(kFillBarrier + 1 + which);
    WritePrefillRows<kDim>(p, tile, unit, head, kv_head, first_row, lane, state,
                           reinterpret_cast<float*>(reinterpret_cast<uint8_t*>(&q) +
                                                    in_unit * kPrefillOutBytes<kDim>));
  }
#endif
}

}  // namespace

PrefillEntry HopperPrefillEntry() {
  return {PrefillHopperKernel, kUnits, kThreads, sizeof(HopperShared)};
}

}  // namespace tq
