// Appends tokens to a device cache and seals the block that leaves the window, in one launch.
//
// One thread block for each (sequence, KV head). A warp takes a row: sanitized, rotated, rounded to
// 8 bits, stored in fragment order. When the new tokens reach into a new block, the block that the
// window leaves behind is re-coded: rows to codes in shared memory, scales, then words in fragment
// order. Lengths and page tables are read from memory, so the launch can be captured in a graph and
// decides for itself whether there is something to seal.
//
// The same float operations in the same order as codec/encode.cc, so the bytes are equal; only the
// logarithm of a scale may round differently, and is taken in double for that.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <cfloat>

#include "turboquant/base/device_status.h"
#include "turboquant/cache/append_params.h"
#include "turboquant/codec/device_row.cuh"
#include "turboquant/codec/encode.h"
#include "turboquant/codec/fragment_layout.h"

namespace tq {
namespace {

constexpr int kWarps = 8;
using ptx::kAllLanes;

template <typename T>
__device__ __forceinline__ T WarpSum(T x) {
#pragma unroll
  for (int s = 16; s > 0; s /= 2) x += __shfl_xor_sync(kAllLanes, x, s);
  return x;
}
__device__ __forceinline__ float WarpMax(float x) {
#pragma unroll
  for (int s = 16; s > 0; s /= 2) x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, s));
  return x;
}

// The smallest bfloat16 that is not below f, for f >= 0 and finite.
__device__ __forceinline__ uint16_t BF16RoundUp(float f) {
  return static_cast<uint16_t>((__float_as_uint(f) + 0xffffu) >> 16);
}

template <int kDim>
__device__ void AppendRow(const AppendParams& p, const AppendSide& side, Side which,
                          const void* from, int64_t at, int token, uint8_t* open, int lane) {
  constexpr int kEach = kDim / 32;
  float x[kEach];
  int nonfinite = 0, clamped = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    x[i] = LoadIo(from, at + lane * kEach + i, p.io);
    if (!isfinite(x[i])) {
      x[i] = 0, ++nonfinite;
    } else if (fabsf(x[i]) > kMaxRowValue) {
      x[i] = copysignf(kMaxRowValue, x[i]), ++clamped;
    } else if (fabsf(x[i]) < FLT_MIN) {
      x[i] = 0;
    }
  }
  if (nonfinite > 0) atomicAdd(&p.counters[0], static_cast<unsigned long long>(nonfinite));
  if (clamped > 0) atomicAdd(&p.counters[1], static_cast<unsigned long long>(clamped));
  // Rounded as the CPU rounds it, which rsqrtf is not.
  constexpr float kNorm = kDim == 64 ? 0.125f : kDim == 128 ? 0.08838834764831845f : 0.0625f;
  FlipSigns<kDim>(side.signs, x, lane);
  Hadamard<kDim>(x, lane, kNorm);
  float largest = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) largest = fmaxf(largest, fabsf(x[i]));
  largest = WarpMax(largest);
  float scale = __fdiv_rn(largest, 127.f);
  const bool is_zero = scale < FLT_MIN;
  if (is_zero) scale = 0;
  const float inverse = is_zero ? 0.f : __fdiv_rn(127.f, largest);
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const auto code = static_cast<int8_t>(is_zero ? 0 : __float2int_rn(x[i] * inverse));
    open[side.open_values + FragmentByte(FragmentOf(which, kDim, token, lane * kEach + i))] =
        static_cast<uint8_t>(code);
  }
  if (lane == 0) reinterpret_cast<float*>(open + side.open_scales)[token] = scale;
}

template <int kDim>
struct SealShared {
  uint8_t codes[kPageLen][kDim];
  float scale[kPageLen];
  int energy[kPageLen];
};

// A row of the open block to codes, its scale with gain, and the energy of its levels.
template <int kDim>
__device__ void CodeRow(const AppendSide& side, Side which, const uint8_t* open, int token,
                        SealShared<kDim>* sh, int lane) {
  constexpr int kEach = kDim / 32;
  int row[kEach], rr = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    row[i] = static_cast<int8_t>(
        open[side.open_values + FragmentByte(FragmentOf(which, kDim, token, lane * kEach + i))]);
    rr += row[i] * row[i];
  }
  rr = WarpSum(rr);
  const float reference = __fsqrt_rn(__fdiv_rn(static_cast<float>(rr), static_cast<float>(kDim)));
  int code[kEach] = {};
  for (int t = 0; t + 1 < side.num_levels; ++t) {
    const float threshold = floorf(side.thresholds[t] * reference);
    const int limit = static_cast<int>(fminf(fmaxf(threshold, -128.f), 127.f));
#pragma unroll
    for (int i = 0; i < kEach; ++i) code[i] += row[i] > limit;
  }
  int ll = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int level = side.levels[code[i]];
    ll += level * level;
    sh->codes[token][lane * kEach + i] = static_cast<uint8_t>(code[i]);
  }
  ll = rr == 0 ? 0 : WarpSum(ll);
  if (lane != 0) return;
  const float gain =
      ll > 0 ? __fsqrt_rn(__fdiv_rn(static_cast<float>(rr), static_cast<float>(ll))) : 0.f;
  sh->scale[token] = reinterpret_cast<const float*>(open + side.open_scales)[token] * gain;
  sh->energy[token] = ll;
}

// Log8Encode of codec/log8.h.
__device__ uint8_t EncodeScale(float scale, float base) {
  if (!(scale > 0)) return 0;
  const float log = static_cast<float>(log2(static_cast<double>(__fdiv_rn(scale, base))));
  const float exact = 255.f + 16.f * log;
  if (exact < -15.f) return 0;
  return static_cast<uint8_t>(fminf(fmaxf(rintf(exact), 1.f), 255.f));
}

// One warp: scales of the block; returns the base and the bound of the rows' lengths.
template <int kDim>
__device__ void StoreScales(const AppendParams& p, const AppendSide& side, uint8_t* record,
                            const SealShared<kDim>& sh, int lane, uint16_t* base, uint16_t* bound) {
  const float largest = WarpMax(fmaxf(sh.scale[lane], sh.scale[lane + 32]));
  *base = largest > 0 ? BF16RoundUp(largest) : 0;
  const float value = __uint_as_float(static_cast<uint32_t>(*base) << 16);
  float top = 0;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int token = lane + 32 * i;
    const uint8_t code = EncodeScale(sh.scale[token], value);
    record[side.scales + FragmentScaleByte(token)] = code;
    const float norm = value * p.log8[code] * __fsqrt_rn(static_cast<float>(sh.energy[token]));
    top = fmaxf(top, norm);
  }
  *bound = BF16RoundUp(WarpMax(top) * 1.0001f);
}

// A code by its place in the streams of the lanes: the inverse of FragmentOf.
template <int kDim>
__device__ __forceinline__ uint32_t CodeAt(const SealShared<kDim>& sh, Side which, int lane,
                                           int reg, int byte) {
  const int fragment = reg / 4, i = reg % 4, r = lane / 4, c = lane % 4;
  if (which == Side::kK) {
    constexpr int kSteps = kDim / 32;
    return sh.codes[fragment / kSteps * 16 + r + 8 * (i & 1)]
                   [fragment % kSteps * 32 + 4 * c + byte + 16 * (i >> 1)];
  }
  const int m = fragment / 8 * 4 + fragment % 4, s = fragment / 4 % 2;
  return sh
      .codes[32 * s + 16 * (i >> 1) + 2 * c + byte % 2 + byte / 2 * 8][16 * m + r + 8 * (i & 1)];
}

template <int kDim>
__device__ uint32_t PackWord(const AppendSide& side, const SealShared<kDim>& sh, Side which,
                             int lane, int word) {
  uint32_t bits = 0;
  // Words of a group share the registers of a group; see fragment_layout.h.
  const int words = side.bits == 3 ? 3 : 1, regs = side.bits == 3 ? 8 : 8 / side.bits;
  const int first_reg = word / words * regs;
  for (int reg = first_reg; reg < first_reg + regs; ++reg) {
    for (int byte = 0; byte < 4; ++byte) {
      const uint32_t code = CodeAt<kDim>(sh, which, lane, reg, byte);
      if (FragmentIsSpread(side.bits, reg)) {
        bits |= (code >> (word % 3) & 1) << (4 * (byte + 4 * (reg % 2)) + 3);
        continue;
      }
      const FragmentField field = FragmentFieldOf(side.bits, side.in_place != 0, reg, byte);
      if (field.word == word) bits |= code << field.shift;
    }
  }
  return bits;
}

template <int kDim>
__global__ void __launch_bounds__(32 * kWarps)
    AppendKernel(const __grid_constant__ AppendParams p) {
  __shared__ SealShared<kDim> sh;
  __shared__ uint16_t bases[2], bound;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int sequence = p.sequences[blockIdx.x];
  const AppendHead& head = p.heads[blockIdx.y];
  const int length = p.lengths[sequence], n = min(p.num_tokens, length);
  const int32_t* const open_row = p.open_table + sequence * p.table_stride;
  const auto open_part = [&](int block) {
    return p.open + static_cast<uint64_t>(open_row[block]) * p.open_stride + head.open_offset;
  };
  for (int task = warp; task < 2 * n; task += kWarps) {
    const Side which = task % 2 == 0 ? Side::kK : Side::kV;
    const int position = length - n + task / 2;
    const int64_t from =
        (static_cast<int64_t>(blockIdx.x) * p.num_tokens + p.num_tokens - n + task / 2) *
            p.num_kv_heads +
        blockIdx.y;
    AppendRow<kDim>(p, head.sides[task % 2], which, task % 2 == 0 ? p.k : p.v, from * kDim,
                    position % kPageLen, open_part(position / kPageLen), lane);
  }
  const int last = (length - 1) / kPageLen;
  const int before = length - n > 0 ? (length - n - 1) / kPageLen : -1;
  const int block = last - p.recent_blocks - 1;
  if (n == 0 || last == before || block < p.sink_blocks) return;
  __syncthreads();  // without a window the block may just have been filled
  const uint8_t* const open = open_part(block);
  const int64_t slot = p.sealed_table[sequence * p.table_stride + block];
  uint8_t* const record =
      p.sealed + static_cast<uint64_t>(slot) * p.sealed_stride + head.record_offset;
  for (int s = 0; s < 2; ++s) {
    const AppendSide& side = head.sides[s];
    const Side which = s == 0 ? Side::kK : Side::kV;
    for (int t = warp; t < kPageLen; t += kWarps) CodeRow<kDim>(side, which, open, t, &sh, lane);
    __syncthreads();
    if (warp == 0) {
      uint16_t base, norm;
      StoreScales<kDim>(p, side, record, sh, lane, &base, &norm);
      if (lane == 0) bases[s] = base, bound = norm;
    }
    const int words = kDim * side.bits / 16;  // of a lane
    for (int i = threadIdx.x; i < 32 * words; i += blockDim.x) {
      *reinterpret_cast<uint32_t*>(record + side.codes + FragmentWordByte(i % 32, i / 32)) =
          PackWord<kDim>(side, sh, which, i % 32, i / 32);
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) {
    auto* const info = reinterpret_cast<RecordSideInfo*>(
        p.side_infos + static_cast<uint64_t>(slot) * p.side_stride + head.side_offset);
    info->k_base = bases[0];
    info->v_base = bases[1];
    info->v_bound = bound;
    info->flags = 1;
  }
}

__global__ void AdvanceKernel(int32_t* lengths, const int32_t* sequences, int batch, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < batch) lengths[sequences[i]] += n;
}

}  // namespace

Status LaunchAppend(int head_dim, const AppendParams& p, void* stream) {
  const dim3 grid(static_cast<unsigned>(p.batch), static_cast<unsigned>(p.num_kv_heads));
  auto* const s = static_cast<cudaStream_t>(stream);
  switch (head_dim) {
    case 64: AppendKernel<64><<<grid, 32 * kWarps, 0, s>>>(p); break;
    case 128: AppendKernel<128><<<grid, 32 * kWarps, 0, s>>>(p); break;
    default: AppendKernel<256><<<grid, 32 * kWarps, 0, s>>>(p); break;
  }
  return TQ_CUDA(cudaGetLastError());
}

Status LaunchAdvance(int32_t* lengths, const int32_t* sequences, int batch, int n, void* stream) {
  AdvanceKernel<<<(batch + 127) / 128, 128, 0, static_cast<cudaStream_t>(stream)>>>(
      lengths, sequences, batch, n);
  return TQ_CUDA(cudaGetLastError());
}

}  // namespace tq
