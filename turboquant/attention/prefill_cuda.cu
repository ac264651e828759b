// Prefill attention over quantized blocks on the INT8 tensor cores.
//
// A thread block owns a few units: 64 queries of one block of positions and one query head, a group
// of four warps each, 16 rows a warp. It goes through the blocks that they read in order. A step
// (two sealed blocks, or one open one) is unpacked once, from codes to bytes of levels in shared
// memory; scores are then an exact integer product with 8-bit digits of the queries, one softmax
// step in float32 follows, and the weights, 8 bits relative to the step's largest, times the V
// scales, are operand A of the next integer product as they lie in the registers: the order of
// tokens in V codes is that of the lanes' scores. Open rows have 16-bit digits of queries and of
// weights, two products each. These are the digits that attention on the CPU has.
//
// What a row reads, and in which steps, depends on its position alone; nothing of its arithmetic
// depends on other rows. So the result of a query is the same bits for any cut of a prompt into
// parts, any batch and any order of the pages.
//
// Read: prefill_tile.cuh (units, steps, rows), prefill_step.cuh (a step), prefill_extras.cuh
// (centre and anchors), then the kernel here, which runs everywhere, and prefill_hopper_cuda.cu,
// which is for compute capability 9.0.
#include <cuda_runtime_api.h>

#include "turboquant/attention/prefill_entry.h"
#include "turboquant/attention/prefill_extras.cuh"
#include "turboquant/base/device.h"
#include "turboquant/base/device_status.h"

namespace tq {
namespace {

template <int kDim>
struct PrefillShape {
  static constexpr int kUnits = kDim <= 128 ? 2 : 1;
  static constexpr int kBlocks = kDim <= 128 ? 2 : 1;  // of a step
  static constexpr int kThreads = 128 * kUnits;
};

template <int kDim>
struct PrefillShared {
  PrefillStage<kDim, PrefillShape<kDim>::kBlocks> stage[2];
  PrefillQueries<kDim> q[PrefillShape<kDim>::kUnits];
  float log8[256];
};

// With kExtras, behind PrefillShared.
template <int kDim>
struct PrefillExtrasShared {
  PrefillCenterRows center[PrefillShape<kDim>::kUnits];
};

// sums[j] += 16 rows x tokens 8 j ..; kTiles tiles of 8 tokens.
template <int kDim, int kTiles>
__device__ __forceinline__ void QueryKeys(const uint32_t (&q)[kDim / 32][4], const uint8_t* k,
                                          int lane, int (&sums)[kTiles][4]) {
  constexpr int kSteps = kDim / 32;
#pragma unroll
  for (int t = 0; t < kTiles / 2; ++t) {
#pragma unroll
    for (int j = 0; j < kSteps; ++j) {
      const uint4 v = *reinterpret_cast<const uint4*>(k + ((t * kSteps + j) * 32 + lane) * 16);
      ptx::MmaS8S8(sums[2 * t], q[j], v.x, v.z, sums[2 * t]);
      ptx::MmaS8S8(sums[2 * t + 1], q[j], v.y, v.w, sums[2 * t + 1]);
    }
  }
}

// o += unit x (weights x values), kSteps times 32 tokens.
template <int kDim, int kSteps>
__device__ __forceinline__ void WeightValues(const uint32_t (&weights)[kSteps][4], const uint8_t* v,
                                             const float (&unit)[2], int lane,
                                             PrefillState<kDim>* state) {
#pragma unroll
  for (int m = 0; m < kDim / 16; ++m) {
    int sums[2][4] = {};
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const int fragment = s / 2 * (kDim / 8) + (m / 4 * 2 + s % 2) * 4 + m % 4;
      const uint4 b = *reinterpret_cast<const uint4*>(v + (fragment * 32 + lane) * 16);
      ptx::MmaU8S8(sums[0], weights[s], b.x, b.z, sums[0]);
      ptx::MmaU8S8(sums[1], weights[s], b.y, b.w, sums[1]);
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& o = state->o[2 * m + h][i];
        o = fmaf(static_cast<float>(sums[h][i]), unit[i / 2], o);
      }
    }
  }
}

template <int kDim, bool kExtras>
__global__ void __launch_bounds__(PrefillShape<kDim>::kThreads, 1)
    PrefillKernel(const __grid_constant__ PrefillParams p) {
  constexpr int kUnits = PrefillShape<kDim>::kUnits, kBlocks = PrefillShape<kDim>::kBlocks;
  constexpr int kWarps = 4 * kUnits;
  auto& sh = *reinterpret_cast<PrefillShared<kDim>*>(ptx::DynamicShared());
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, r = lane / 4;
  const PrefillTile tile = p.tiles[blockIdx.x / p.num_kv_heads];
  const int kv_head = static_cast<int>(blockIdx.x) % p.num_kv_heads;
  const PrefillHead& head = p.heads[kv_head];
  PrefillUnit units[kUnits];
#pragma unroll
  for (int i = 0; i < kUnits; ++i) units[i] = PrefillUnitOf(p, tile, i);
  PrefillSteps<kBlocks> steps;
  steps.Set(units);
  for (int i = threadIdx.x; i < 256; i += blockDim.x) sh.log8[i] = p.log8[i];
  const PrefillUnit unit = kUnits > 1 && warp >= 4 ? units[kUnits - 1] : units[0];
  const PrefillQueries<kDim>& q = sh.q[warp / 4];
  const int first_row = warp % 4 * 16;
  PreparePrefillQueries<kDim>(p, tile, unit, head, kv_head, first_row, lane, &sh.q[warp / 4]);
  auto& extras_shared = *reinterpret_cast<PrefillExtrasShared<kDim>*>(&sh + 1);
  const PrefillExtras<kDim> with = {p,        tile, head, q, extras_shared.center[warp / 4],
                                    warp % 4, lane};
  const auto extras = [&] {
    if constexpr (kExtras) {
      return with;
    } else {
      return NoExtras();
    }
  }();
  if constexpr (kExtras) {
    PreparePrefillCenter<kDim>(p, tile, unit, head, kv_head, first_row, lane,
                               &extras_shared.center[warp / 4]);
  }
  PrefillRows rows;
  rows.first_pos = unit.block * kPageLen + first_row + r;
  rows.softcap = p.softcap;
  rows.sliding_window = p.sliding_window;
  PrefillState<kDim> state;
  state.Reset();
  const auto fill = [&](int step) {
    if (step < steps.count) {
      FillPrefillStage<PrefillOrder::kFragments>(p, tile, head, steps, step, sh.log8, warp, kWarps,
                                                 lane, &sh.stage[step % 2]);
    }
  };
  __syncthreads();
  fill(0);
  for (int step = 0; step < steps.count; ++step) {
    __syncthreads();
    fill(step + 1);
    const auto& stage = sh.stage[step % 2];
    const bool sealed = steps.IsSealed(step);
    const int block = steps.BlockOf(step);
    if (!TakesPart<kBlocks>(unit, sealed, block)) continue;
    uint32_t digits[kDim / 32][4];
    float unit_of[2];
    if (sealed) {
      rows.begin = unit.sealed_begin, rows.end = unit.sealed_end;
      rows.special =
          p.softcap > 0 || p.sliding_window > 0 || block < rows.begin || block + kBlocks > rows.end;
      LoadQueryFragments<kDim>(q.code, warp % 4, lane, digits);
      int sums[kBlocks * 8][4] = {};
      QueryKeys<kDim, kBlocks * 8>(digits, stage.k, lane, sums);
      const float scale[2] = {q.code_scale[first_row + r], q.code_scale[first_row + r + 8]};
      uint32_t weights[kBlocks * 2][4];
      SealedPrefillWeights(NoTurns(), extras, stage, rows, block, scale, head.v_unit, sums, lane,
                           &state, weights, unit_of);
      WeightValues<kDim, kBlocks * 2>(weights, stage.v, unit_of, lane, &state);
    } else {
      rows.begin = block, rows.end = block + 1;
      rows.special = p.softcap > 0 || p.sliding_window > 0 || block == unit.block;
      int high[8][4] = {}, low[8][4] = {};
      LoadQueryFragments<kDim>(q.high, warp % 4, lane, digits);
      QueryKeys<kDim, 8>(digits, stage.k, lane, high);
      LoadQueryFragments<kDim>(q.low, warp % 4, lane, digits);
      QueryKeys<kDim, 8>(digits, stage.k, lane, low);
      const float scale[2] = {q.row_scale[first_row + r], q.row_scale[first_row + r + 8]};
      uint32_t high_weights[2][4], low_weights[2][4];
      OpenPrefillWeights(extras, stage, rows, block, scale, high, low, lane, &state, high_weights,
                         low_weights, unit_of);
      const float high_unit[2] = {256 * unit_of[0], 256 * unit_of[1]};
      WeightValues<kDim, 2>(high_weights, stage.v, high_unit, lane, &state);
      WeightValues<kDim, 2>(low_weights, stage.v, unit_of, lane, &state);
    }
  }
  __syncthreads();  // the stages are free now
  static_assert(kWarps * kPrefillOutBytes<kDim> <= sizeof(sh.stage));
  WritePrefillRows<kDim>(
      p, tile, unit, head, kv_head, first_row, lane, state,
      reinterpret_cast<float*>(reinterpret_cast<uint8_t*>(&sh) + warp * kPrefillOutBytes<kDim>));
}

// ---- Launchers ----------------------------------------------------------------------------------

template <int kDim>
PrefillEntry MakePrefillEntry(bool extras) {
  return {extras ? PrefillKernel<kDim, true> : PrefillKernel<kDim, false>,
          PrefillShape<kDim>::kUnits, PrefillShape<kDim>::kThreads,
          sizeof(PrefillShared<kDim>) + (extras ? sizeof(PrefillExtrasShared<kDim>) : 0)};
}
PrefillEntry EntryFor(int head_dim, PrefillKernelKind kind) {
  if (kind == PrefillKernelKind::kHopper) return HopperPrefillEntry();
  const bool extras = kind == PrefillKernelKind::kExtras;
  if (head_dim == 64) return MakePrefillEntry<64>(extras);
  if (head_dim == 128) return MakePrefillEntry<128>(extras);
  return MakePrefillEntry<256>(extras);
}

}  // namespace

Result<PrefillKernelInfo> PreparePrefillKernel(int head_dim, bool plain, bool extras) {
  TQ_ASSIGN_OR_RETURN(const CudaDeviceInfo device, GetCudaDeviceInfo());
  PrefillKernelInfo info;
  if (extras) {
    info.kind = PrefillKernelKind::kExtras;
  } else if (!plain && head_dim == 128 && device.compute_major == 9) {
    // Compiled for another architecture it is empty.
    cudaFuncAttributes attributes;
    TQ_RETURN_IF_ERROR(TQ_CUDA(cudaFuncGetAttributes(&attributes, HopperPrefillEntry().kernel)));
    if (attributes.ptxVersion == 90) info.kind = PrefillKernelKind::kHopper;
  }
  const PrefillEntry entry = EntryFor(head_dim, info.kind);
  info.units = entry.units;
  if (entry.shared_bytes > device.shared_bytes_per_block) {
    return Unsupported("cuda prefill attention: head_dim ", head_dim, " needs ", entry.shared_bytes,
                       " bytes of shared memory a thread block, ", device.name, " has ",
                       device.shared_bytes_per_block, "; supported there: a smaller head_dim");
  }
  TQ_RETURN_IF_ERROR(
      TQ_CUDA(cudaFuncSetAttribute(entry.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   static_cast<int>(entry.shared_bytes))));
  return info;
}

Status LaunchPrefillKernel(int head_dim, PrefillKernelKind kind, const PrefillParams& params,
                           void* stream) {
  const PrefillEntry entry = EntryFor(head_dim, kind);
  ptx::Launch(
      entry.kernel,
      dim3(static_cast<unsigned>(params.num_tiles) * static_cast<unsigned>(params.num_kv_heads)),
      entry.threads, entry.shared_bytes, stream, params);
  return TQ_CUDA(cudaGetLastError());
}

}  // namespace tq
