// Products of few rows of activations with quantized weights, on the INT8 tensor cores.
//
// A thread block has tiles of 16 output rows; its warps have the chunks of 128 inputs in turn and
// ask for those ahead, also of the next tile, while one is multiplied. Codes are the operand A (16
// rows x 32 inputs, in the order of its registers in memory), unpacked by shift and mask; the
// operand B has 8 columns: 4 rows of activations x (high, low) digit of 16 bits. Sums of a block
// stay below 2^22, so a float beside 1.5 x 2^23 holds them exactly. Codes of Q4_0 are multiplied as
// they are, 0 to 15, and 8 times the sum of the activations is taken off. The warps' sums are added
// in shared memory, in their order.
//
// Weights do not depend on the kernels in front of this one: the first chunks are asked for before
// these have ended (programmatic dependent launch, from compute capability 9.0 on).
#include <cuda_runtime_api.h>

#include <algorithm>

#include "turboquant/base/device_io.cuh"
#include "turboquant/base/device_status.h"
#include "turboquant/base/ptx.cuh"
#include "turboquant/linear/product_params.h"

namespace tq {
namespace {

constexpr int kWarps = 8;
constexpr int kBlocksPerMultiprocessor = 3;
constexpr int kMagicBits = 0x4B400000;  // 1.5 x 2^23
constexpr float kMagic = 12582912.f;
constexpr float kTwo23 = 8388608.f;
constexpr float kTopDigit = 32512.f;  // 127 * 256: the high byte stays signed
using ptx::kAllLanes;

// A warp for each block of 32 inputs of a row.
__global__ void __launch_bounds__(256) QuantizeKernel(const __grid_constant__ QuantizeParams p) {
  ptx::LaunchDependents();
  ptx::WaitForDependencies();
  const int lane = threadIdx.x % 32;
  const int64_t task = static_cast<int64_t>(blockIdx.x) * (blockDim.x / 32) + threadIdx.x / 32;
  if (task >= p.num_blocks * p.rows) return;
  const int row = static_cast<int>(task / p.num_blocks);
  const int64_t block = task % p.num_blocks, input = block * 32 + lane;
  const float x = input < p.in_dim ? LoadIo(p.x, row * p.in_dim + input, p.io) : 0.f;
  // The bits of |x| order like the values, with NaN above infinity.
  uint32_t bits = __float_as_uint(x) & 0x7FFFFFFFu;
#pragma unroll
  for (int s = 16; s > 0; s /= 2) bits = max(bits, __shfl_xor_sync(kAllLanes, bits, s));
  const float largest = __uint_as_float(bits);
  const bool finite = bits < 0x7F800000u, zero = !finite || largest < 1e-30f;
  const int v = zero ? 0 : __float2int_rn(x * __fdiv_rn(kTopDigit, largest));
  const int low = static_cast<int8_t>(v & 0xff), high = (v - low) >> 8;
  int sum = v;
#pragma unroll
  for (int s = 16; s > 0; s /= 2) sum += __shfl_xor_sync(kAllLanes, sum, s);
  uint8_t* const fragment = p.digits + (block * kActivationTiles + row / 4) * 256;
  const int column = row % 4 * 2, c = lane % 16 / 4, at = lane / 16 * 4 + lane % 4;
  fragment[(column * 4 + c) * 8 + at] = static_cast<uint8_t>(high);
  fragment[((column + 1) * 4 + c) * 8 + at] = static_cast<uint8_t>(low);
  if (lane == 0) {
    const float scale = !finite ? __uint_as_float(0x7FC00000u) : zero ? 0.f : largest / kTopDigit;
    p.scales[block * kMaxProductRows + row] = {scale, scale * static_cast<float>(sum)};
  }
}

__device__ __forceinline__ uint4 LoadOnce(const uint8_t* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}
__device__ __forceinline__ float2 HalvesOf(uint32_t pair) {
  return __half22float2(*reinterpret_cast<const __half2*>(&pair));
}
// Byte i of a word as a float.
__device__ __forceinline__ float ByteOf(uint32_t word, int i) {
  return __uint_as_float(__byte_perm(word, 0x4B000000u, 0x7440u + i)) - kTwo23;
}

// A lane's part of a chunk of 16 rows x 128 inputs, and what it means.
template <WeightType kType>
struct Chunk {
  static constexpr bool kBytes = kType == WeightType::kQ8_0;
  static constexpr bool kHasMin = kType == WeightType::kQ4_1 || kType == WeightType::kQ4_K;
  static constexpr int kScaleWords = kType == WeightType::kQ4_1 ? 8 : 4;
  uint4 codes[kBytes ? 4 : 2];
  uint32_t scales[kScaleWords];
  uint2 super;

  __device__ __forceinline__ void Load(const ProductParams& p, const uint8_t* tile, int chunk,
                                       int lane) {
    const uint8_t* const from =
        tile + static_cast<uint32_t>(chunk) * (kBytes ? 2048u : 1024u) + lane * 16;
#pragma unroll
    for (int i = 0; i < (kBytes ? 4 : 2); ++i) codes[i] = LoadOnce(from + i * 512);
    const uint8_t* const s = tile + p.scales_at + static_cast<uint32_t>(chunk) * 32 * kScaleWords +
                             lane / 4 * (4 * kScaleWords);
#pragma unroll
    for (int i = 0; i < kScaleWords; i += 4) {
      const uint4 v = LoadOnce(s + 4 * i);
      scales[i] = v.x, scales[i + 1] = v.y, scales[i + 2] = v.z, scales[i + 3] = v.w;
    }
    if constexpr (kType == WeightType::kQ4_K) {
      super = __ldg(reinterpret_cast<const uint2*>(tile + p.supers_at + chunk / 2 * 64) + lane / 4);
    }
  }
  // Registers of block b.
  __device__ __forceinline__ void Fragment(int b, uint32_t (&a)[4]) const {
    if constexpr (kBytes) {
      a[0] = codes[b].x, a[1] = codes[b].y, a[2] = codes[b].z, a[3] = codes[b].w;
    } else {
      const uint4& v = codes[b / 2];
      const uint32_t w0 = b % 2 == 0 ? v.x : v.z, w1 = b % 2 == 0 ? v.y : v.w;
      a[0] = w0 & 0x0f0f0f0fu, a[1] = w1 & 0x0f0f0f0fu;
      a[2] = w0 >> 4 & 0x0f0f0f0fu, a[3] = w1 >> 4 & 0x0f0f0f0fu;
    }
  }
  // Scale and minimum of row r + 8 h in block b.
  __device__ __forceinline__ void Numbers(int b, float (&scale)[2], float (&minimum)[2]) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      minimum[h] = 0;
      if constexpr (kType == WeightType::kQ4_K) {
        const float2 d = HalvesOf(h == 0 ? super.x : super.y);
        const uint32_t word = scales[2 * h + b / 2];
        scale[h] = d.x * ByteOf(word, b % 2 * 2);
        minimum[h] = -d.y * ByteOf(word, b % 2 * 2 + 1);
      } else if constexpr (kType == WeightType::kQ4_1) {
        const float2 d = HalvesOf(scales[4 * h + b]);
        scale[h] = d.x, minimum[h] = d.y;
      } else {
        const float2 d = HalvesOf(scales[2 * h + b / 2]);
        scale[h] = b % 2 == 0 ? d.x : d.y;
      }
    }
  }
};

// total += a chunk of weights x kTiles x 4 rows of activations.
template <WeightType kType, int kTiles>
__device__ __forceinline__ void MultiplyChunk(const ProductParams& p, const Chunk<kType>& weights,
                                              int chunk, int lane, float (&total)[kTiles][2]) {
  const uint8_t* const digits =
      p.digits + static_cast<uint32_t>(chunk) * (4 * kActivationTiles * 256) + lane * 8;
  const ActivationScale* const scales = p.scales + chunk * (4 * kMaxProductRows) + lane % 4;
#pragma unroll
  for (int b = 0; b < 4; ++b) {
    uint32_t a[4];
    weights.Fragment(b, a);
    float scale[2], minimum[2];
    weights.Numbers(b, scale, minimum);
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const uint2 columns =
          *reinterpret_cast<const uint2*>(digits + (b * kActivationTiles + n) * 256);
      const float2 of_x = *reinterpret_cast<const float2*>(scales + b * kMaxProductRows + 4 * n);
      const int magic[4] = {kMagicBits, kMagicBits, kMagicBits, kMagicBits};
      int s[4];
      ptx::MmaS8S8(s, a, columns.x, columns.y, magic);
      // Q4_0: scale x (x's scale x sum of codes - 8 x sum of x).
      const float offset = kType == WeightType::kQ4_0 ? -8.f * of_x.y : 0.f;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float sum =
            fmaf(__int_as_float(s[2 * h]) - kMagic, 256.f, __int_as_float(s[2 * h + 1]) - kMagic);
        if constexpr (kType == WeightType::kQ4_0) {
          total[n][h] = fmaf(scale[h], fmaf(of_x.x, sum, offset), total[n][h]);
        } else {
          total[n][h] = fmaf(scale[h] * of_x.x, sum, total[n][h]);
        }
        if constexpr (Chunk<kType>::kHasMin) {
          total[n][h] = fmaf(minimum[h], of_x.y, total[n][h]);
        }
      }
    }
  }
}

// kTiles x 4 rows of activations.
template <WeightType kType, int kTiles>
__global__ void __launch_bounds__(32 * kWarps, kBlocksPerMultiprocessor)
    ProductKernel(const __grid_constant__ ProductParams p) {
  using Weights = Chunk<kType>;
  constexpr int kAhead = 2;  // chunks in registers: one comes while another is multiplied
  __shared__ float sums[2][kWarps][16][4 * kTiles + 1];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, r = lane / 4, c = lane % 4;
  const auto tiles = static_cast<int>((p.out_dim + kProductTileRows - 1) / kProductTileRows);
  const int step = static_cast<int>(gridDim.x);
  // A warp has every kWarps-th chunk of a tile, in rounds of kAhead, so that a round's chunks are
  // always in the same registers; those behind the end are left out.
  constexpr int kRound = kWarps * kAhead;
  ptx::LaunchDependents();
  Weights ahead[kAhead];
  const uint8_t* tile_at = p.weights + static_cast<int64_t>(blockIdx.x) * p.tile_bytes;
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    if (warp + i * kWarps < p.chunks) ahead[i].Load(p, tile_at, warp + i * kWarps, lane);
  }
  ptx::WaitForDependencies();
  int buffer = 0;
  for (int tile = static_cast<int>(blockIdx.x); tile < tiles; tile += step, buffer ^= 1) {
    const uint8_t* const next_at = tile_at + static_cast<int64_t>(step) * p.tile_bytes;
    float total[kTiles][2] = {};
    for (int first = warp; first < p.chunks; first += kRound) {
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const int chunk = first + i * kWarps;
        if (chunk < p.chunks) MultiplyChunk<kType, kTiles>(p, ahead[i], chunk, lane, total);
        // The same place of the next round, or of the next tile's first.
        if (first + kRound < p.chunks) {
          if (chunk + kRound < p.chunks) ahead[i].Load(p, tile_at, chunk + kRound, lane);
        } else if (tile + step < tiles && warp + i * kWarps < p.chunks) {
          ahead[i].Load(p, next_at, warp + i * kWarps, lane);
        }
      }
    }
    tile_at = next_at;
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      sums[buffer][warp][r][4 * n + c] = total[n][0];
      sums[buffer][warp][r + 8][4 * n + c] = total[n][1];
    }
    __syncthreads();  // the other buffer is read until the next one
    for (int i = threadIdx.x; i < 16 * p.rows; i += blockDim.x) {
      const int in_tile = i % 16, row = i / 16;
      const int64_t out = tile * kProductTileRows + in_tile;
      float y = 0;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) y += sums[buffer][w][in_tile][row];
      if (out < p.out_dim) StoreIo(p.y, row * p.out_dim + out, y, p.io);
    }
  }
}

// ---- Launchers ----------------------------------------------------------------------------------

template <typename Params>
Status Launch(void (*kernel)(Params), int64_t blocks, const Params& params, void* stream) {
  ptx::LaunchEarly(kernel, dim3(static_cast<unsigned>(blocks)), 32 * kWarps, 0, stream, params);
  return TQ_CUDA(cudaGetLastError());
}

template <WeightType kType>
Status LaunchOfType(const ProductParams& p, void* stream) {
  int device = 0, multiprocessors = 0;
  TQ_RETURN_IF_ERROR(TQ_CUDA(cudaGetDevice(&device)));
  TQ_RETURN_IF_ERROR(
      TQ_CUDA(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device)));
  const int64_t tiles = (p.out_dim + kProductTileRows - 1) / kProductTileRows;
  // Of many rows, a tile takes so long that blocks of one each are faster.
  const int64_t blocks =
      p.rows > 4 ? tiles : std::min<int64_t>(tiles, kBlocksPerMultiprocessor * multiprocessors);
  return p.rows <= 4   ? Launch(ProductKernel<kType, 1>, blocks, p, stream)
         : p.rows <= 8 ? Launch(ProductKernel<kType, 2>, blocks, p, stream)
                       : Launch(ProductKernel<kType, 4>, blocks, p, stream);
}

}  // namespace

Status LaunchQuantize(const QuantizeParams& p, void* stream) {
  return Launch(QuantizeKernel, (p.num_blocks * p.rows + kWarps - 1) / kWarps, p, stream);
}

Status LaunchProduct(WeightType type, const ProductParams& p, void* stream) {
  switch (type) {
    case WeightType::kQ4_1: return LaunchOfType<WeightType::kQ4_1>(p, stream);
    case WeightType::kQ4_K: return LaunchOfType<WeightType::kQ4_K>(p, stream);
    case WeightType::kQ8_0: return LaunchOfType<WeightType::kQ8_0>(p, stream);
    default: return LaunchOfType<WeightType::kQ4_0>(p, stream);
  }
}

}  // namespace tq
