// CUDA kernels on a CPU, for tests without a card: what CUDA C++ has beyond C++, for kernels that
// are compiled as plain C++ with include/ in front.
//
// A thread of a block is a fiber; blocks run one after another. Shuffles, votes and matrix products
// are meetings of a warp's 32 fibers (Exchange), barriers those of a block. Arithmetic is that of
// C++ without contraction, so exact where the kernels' is; tensor cores add in the order of the
// depth. There are no races to find and no speeds to learn here.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <type_traits>

#include "turboquant/base/numeric.h"

#define __device__
#define __host__
#define __global__
#define __grid_constant__
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)
#define __shared__ static  // blocks run one after another

namespace emulator {

struct Index {
  unsigned x = 1, y = 1, z = 1;
};
// Shared memory that a launch asks for.
inline constexpr size_t kSharedBytes = 227 << 10;
extern uint8_t shared[kSharedBytes];

// Runs `kernel` for every thread of every block. early: a thread sees lengths and the like as they
// were, in every other block, until it waits for the kernels in front.
void Launch(Index grid, int threads, const std::function<void()>& kernel, bool early = false);
void WaitForDependencies();
bool SeesOldNumbers();
int Lane();
void SyncBlock();
void Yield();  // lets other threads of the block go on
// What all lanes brought, [32][kLaneBytes], when all have come. Until the call after the next.
inline constexpr size_t kLaneBytes = 32;
const uint8_t* Exchange(const void* mine, size_t bytes);

template <typename T>
T FromLane(const uint8_t* all, int lane) {
  T value;
  std::memcpy(&value, all + static_cast<size_t>(lane) * kLaneBytes, sizeof(T));
  return value;
}
template <typename T>
T Shuffle(const T& mine, int from) {
  static_assert(sizeof(T) <= kLaneBytes);
  return FromLane<T>(Exchange(&mine, sizeof(T)), from);
}

}  // namespace emulator

using dim3 = emulator::Index;
extern emulator::Index threadIdx, blockIdx, blockDim, gridDim;

struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) uint2 {
  uint32_t x, y;
};
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};
struct alignas(16) int4 {
  int32_t x, y, z, w;
};
inline float2 make_float2(float x, float y) {
  return {x, y};
}
inline float4 make_float4(float x, float y, float z, float w) {
  return {x, y, z, w};
}

// ---- Threads ------------------------------------------------------------------------------------

inline void __syncthreads() {
  emulator::SyncBlock();
}
inline void __syncwarp() {
  emulator::Shuffle(0, 0);
}
inline void __threadfence() {}
template <typename T>
T __shfl_sync(uint32_t, T x, int lane) {
  return emulator::Shuffle(x, lane % 32);
}
template <typename T>
T __shfl_xor_sync(uint32_t, T x, int s) {
  return emulator::Shuffle(x, emulator::Lane() ^ s);
}
template <typename T>
T __shfl_up_sync(uint32_t, T x, int s) {
  const int lane = emulator::Lane();
  return emulator::Shuffle(x, lane >= s ? lane - s : lane);
}
inline uint32_t __ballot_sync(uint32_t, bool vote) {
  const uint8_t* all = emulator::Exchange(&vote, sizeof vote);
  uint32_t votes = 0;
  for (int i = 0; i < 32; ++i) {
    votes |= static_cast<uint32_t>(emulator::FromLane<bool>(all, i)) << i;
  }
  return votes;
}
inline bool __any_sync(uint32_t mask, bool vote) {
  return __ballot_sync(mask, vote) != 0;
}
inline bool __all_sync(uint32_t mask, bool vote) {
  return __ballot_sync(mask, vote) == ~0u;
}
template <typename T>
T atomicAdd(T* p, T x) {
  const T old = *p;
  *p += x;
  return old;
}
inline uint32_t atomicInc(uint32_t* p, uint32_t limit) {
  const uint32_t old = *p;
  *p = old >= limit ? 0 : old + 1;
  return old;
}

// ---- Memory and arithmetic ----------------------------------------------------------------------

template <typename T>
T __ldg(const T* p) {
  return *p;
}
template <typename T>
T __ldcg(const T* p) {
  if constexpr (std::is_same_v<T, int32_t>) return emulator::SeesOldNumbers() ? *p - 70 : *p;
  return *p;
}
template <typename T>
void __stcg(T* p, T x) {
  *p = x;
}
inline uint32_t __float_as_uint(float x) {
  return std::bit_cast<uint32_t>(x);
}
inline int __float_as_int(float x) {
  return std::bit_cast<int>(x);
}
inline float __uint_as_float(uint32_t x) {
  return std::bit_cast<float>(x);
}
inline float __int_as_float(int x) {
  return std::bit_cast<float>(x);
}
inline float __fdividef(float a, float b) {
  return a / b;
}
inline float __fdiv_rn(float a, float b) {
  return a / b;
}
inline float __fsqrt_rn(float x) {
  return std::sqrt(x);
}
inline float rsqrtf(float x) {
  return 1.f / std::sqrt(x);
}
inline int __float2int_rn(float x) {
  return static_cast<int>(std::nearbyint(x));
}
inline int __popc(uint32_t x) {
  return std::popcount(x);
}
inline int __ffs(uint32_t x) {
  return x == 0 ? 0 : std::countr_zero(x) + 1;
}
inline int __clz(uint32_t x) {
  return std::countl_zero(x);
}
inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t selector) {
  const uint64_t bytes = static_cast<uint64_t>(b) << 32 | a;
  uint32_t out = 0;
  for (int i = 0; i < 4; ++i) {
    out |= static_cast<uint32_t>(bytes >> (8 * (selector >> (4 * i) & 7)) & 255) << (8 * i);
  }
  return out;
}
inline uint32_t __funnelshift_l(uint32_t low, uint32_t high, uint32_t shift) {
  return static_cast<uint32_t>((static_cast<uint64_t>(high) << 32 | low) << (shift % 32) >> 32);
}
inline int __dp4a(int a, int b, int sum) {
  for (int i = 0; i < 32; i += 8) sum += static_cast<int8_t>(a >> i) * static_cast<int8_t>(b >> i);
  return sum;
}
using std::isfinite;
template <typename A, typename B>
auto min(A a, B b) {
  using T = std::common_type_t<A, B>;
  return std::min<T>(static_cast<T>(a), static_cast<T>(b));
}
template <typename A, typename B>
auto max(A a, B b) {
  using T = std::common_type_t<A, B>;
  return std::max<T>(static_cast<T>(a), static_cast<T>(b));
}

// ---- 16-bit floats ------------------------------------------------------------------------------

struct __half {
  uint16_t bits;
};
struct __half2 {
  __half x, y;
};
struct __nv_bfloat16 {
  uint16_t bits;
};
struct __nv_bfloat162 {
  __nv_bfloat16 x, y;
};
inline float __half2float(__half h) {
  return tq::F32FromF16(h.bits);
}
inline __half __float2half_rn(float x) {
  return {tq::F16FromF32(x)};
}
inline __half __float2half(float x) {
  return __float2half_rn(x);
}
inline __half __ushort_as_half(uint16_t bits) {
  return {bits};
}
inline uint16_t __half_as_ushort(__half h) {
  return h.bits;
}
inline __half2 __floats2half2_rn(float x, float y) {
  return {__float2half_rn(x), __float2half_rn(y)};
}
inline __half2 __hadd2(__half2 a, __half2 b) {
  return __floats2half2_rn(__half2float(a.x) + __half2float(b.x),
                           __half2float(a.y) + __half2float(b.y));
}
inline __half2 __hgt2(__half2 a, __half2 b) {
  return __floats2half2_rn(__half2float(a.x) > __half2float(b.x),
                           __half2float(a.y) > __half2float(b.y));
}
inline float2 __half22float2(__half2 h) {
  return {__half2float(h.x), __half2float(h.y)};
}
inline float __bfloat162float(__nv_bfloat16 b) {
  return tq::F32FromBF16(b.bits);
}
inline __nv_bfloat16 __float2bfloat16_rn(float x) {
  return {tq::BF16FromF32(x)};
}
inline __nv_bfloat16 __float2bfloat16(float x) {
  return __float2bfloat16_rn(x);
}
inline uint16_t __bfloat16_as_ushort(__nv_bfloat16 b) {
  return b.bits;
}
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) {
  return {__float2bfloat16_rn(x), __float2bfloat16_rn(y)};
}
inline float2 __bfloat1622float2(__nv_bfloat162 b) {
  return {__bfloat162float(b.x), __bfloat162float(b.y)};
}
