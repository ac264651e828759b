// The instructions that CUDA C++ has no name for, one function each. Included by .cu files only.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace tq::ptx {

inline constexpr uint32_t kAllLanes = 0xffffffffu;

// 2^x; 0 for -inf and below -126.
__device__ __forceinline__ float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Of -pi .. pi, to 2^-20.
__device__ __forceinline__ void SinCos(float x, float* sine, float* cosine) {
  asm("sin.approx.ftz.f32 %0, %1;" : "=f"(*sine) : "f"(x));
  asm("cos.approx.ftz.f32 %0, %1;" : "=f"(*cosine) : "f"(x));
}

// 1 / x, to a unit in the last place; numbers below 2^-126 are 0.
__device__ __forceinline__ float Reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// The larger one, or NaN if one is.
__device__ __forceinline__ float MaxOrNaN(float a, float b) {
  float y;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}

// d = a x b + c, 16 x 8 x 32, a of int8 (rows x depth), b of int8.
__device__ __forceinline__ void MmaS8S8(int (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                        uint32_t b1, const int (&c)[4]) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%10,%11,%12,%13};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(c[0]), "r"(c[1]),
        "r"(c[2]), "r"(c[3]));
}
// The same with b of uint8.
__device__ __forceinline__ void MmaS8U8(int (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                        uint32_t b1, const int (&c)[4]) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.u8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%10,%11,%12,%13};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(c[0]), "r"(c[1]),
        "r"(c[2]), "r"(c[3]));
}
// MmaS8S8 with a of uint8.
__device__ __forceinline__ void MmaU8S8(int (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                        uint32_t b1, const int (&c)[4]) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%10,%11,%12,%13};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(c[0]), "r"(c[1]),
        "r"(c[2]), "r"(c[3]));
}
// MmaS8S8 of half the depth, 16 x 8 x 16.
__device__ __forceinline__ void MmaS8S8Half(int (&d)[4], uint32_t a0, uint32_t a1, uint32_t b,
                                            const int (&c)[4]) {
  asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, "
      "{%7,%8,%9,%10};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a0), "r"(a1), "r"(b), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3]));
}
// d += a x b, 16 x 8 x 16, of half or of bfloat16.
template <bool kBF16>
__device__ __forceinline__ void MmaFloat(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                         uint32_t b1) {
  if constexpr (kBF16) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

// Transposes an 8 x 8 matrix of 16-bit values over the warp: lane 4 r + c has [r][2 c], [r][2 c +
// 1].
__device__ __forceinline__ uint32_t Transpose8x8(uint32_t a) {
  uint32_t d;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(d) : "r"(a));
  return d;
}

// Four bytes of (low, high), picked by the nibbles of the selector. Unlike __byte_perm this does
// not mask bit 3 of a nibble, which repeats the sign of the byte.
__device__ __forceinline__ uint32_t Permute(uint32_t low, uint32_t high, uint32_t selector) {
  uint32_t d;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(d) : "r"(low), "r"(high), "r"(selector));
  return d;
}

// (a & mask) | c
__device__ __forceinline__ uint32_t AndOr(uint32_t a, uint32_t mask, uint32_t c) {
  uint32_t d;
  asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(d) : "r"(a), "r"(mask), "r"(c));
  return d;
}

// The upper half of x * y.
__device__ __forceinline__ uint32_t UpperProduct(uint32_t x, uint32_t y) {
  uint64_t d;
  asm("mul.wide.u32 %0, %1, %2;" : "=l"(d) : "r"(x), "r"(y));
  return static_cast<uint32_t>(d >> 32);
}
// x * y + z
__device__ __forceinline__ uint32_t MultiplyAdd(uint32_t x, uint32_t y, uint32_t z) {
  uint32_t d;
  asm("mad.lo.u32 %0, %1, %2, %3;" : "=r"(d) : "r"(x), "r"(y), "r"(z));
  return d;
}

__device__ __forceinline__ uint32_t SharedAddress(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// What a launch asked for of shared memory.
__device__ __forceinline__ uint8_t* DynamicShared() {
  extern __shared__ __align__(128) uint8_t dynamic_shared[];
  return dynamic_shared;
}
// A number, or a pointer to shared memory, that stays in a register: the compiler would rather make
// them anew wherever they are used, in a loop too.
__device__ __forceinline__ int KeepRegister(int x) {
  asm volatile("" : "+r"(x));
  return x;
}
__device__ __forceinline__ float KeepRegister(float x) {
  asm volatile("" : "+f"(x));
  return x;
}
template <typename T>
__device__ __forceinline__ T* KeepShared(T* p) {
  uint32_t address = SharedAddress(p);
  asm volatile("" : "+r"(address));
  return static_cast<T*>(__cvta_shared_to_generic(address));
}

// Counts from 0 to `last`, then again from 0; returns what was there. What this thread wrote or saw
// comes before it, for those who see the count.
__device__ __forceinline__ uint32_t CountArrival(uint32_t* count, uint32_t last) {
  uint32_t before;
  asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(count), "r"(last)
               : "memory");
  return before;
}

// Of data that is read once: it leaves the L2 cache before anything else does. The value that
// createpolicy.fractional.L2::evict_first gives for 1.0; as an instruction it was made again at
// each use, at times from a register that had changed.
inline constexpr uint64_t kReadOncePolicy = 0x12F0000000000000ull;
// Of data whose sectors others read too: evict_last.
inline constexpr uint64_t kReadAgainPolicy = 0x14F0000000000000ull;
// Copies to shared memory that complete in groups.
__device__ __forceinline__ void CopyAsync16(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
__device__ __forceinline__ void CopyAsync4(uint32_t to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}
__device__ __forceinline__ void CopyAsyncCommit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void CopyAsyncWait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Copies of any multiple of 16 bytes by one thread, which a barrier in shared memory waits for:
// compute capability 9.0.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
inline constexpr bool kHasBulkCopy = true;
#define TQ_SM90_ASM(...) asm volatile(__VA_ARGS__ : "memory")
#else
inline constexpr bool kHasBulkCopy = false;
#define TQ_SM90_ASM(...)
#endif
// For `count` arrivals of a phase.
__device__ __forceinline__ void BarrierInit([[maybe_unused]] uint32_t barrier,
                                            [[maybe_unused]] uint32_t count) {
  TQ_SM90_ASM("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count));
}
// Arrives; the phase ends when `bytes` have been copied too.
__device__ __forceinline__ void BarrierExpect([[maybe_unused]] uint32_t barrier,
                                              [[maybe_unused]] uint32_t bytes) {
  TQ_SM90_ASM("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes));
}
// Until the phase with this parity has ended.
__device__ __forceinline__ void BarrierWait([[maybe_unused]] uint32_t barrier,
                                            [[maybe_unused]] uint32_t parity) {
  TQ_SM90_ASM(
      "{\n"
      ".reg .pred p;\n"
      "wait:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
      "@!p bra wait;\n"
      "}" ::"r"(barrier),
      "r"(parity));
}
__device__ __forceinline__ void BulkCopy([[maybe_unused]] uint32_t to,
                                         [[maybe_unused]] const void* from,
                                         [[maybe_unused]] uint32_t bytes,
                                         [[maybe_unused]] uint32_t barrier,
                                         [[maybe_unused]] uint64_t policy) {
  TQ_SM90_ASM(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
      "[%1], "
      "%2, [%3], %4;" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier), "l"(policy));
}
// One lane of the whole warp arrives at the barrier and copies two pieces, the first of data that
// is read once, the second of data that others read too. What a lane does for a warp in a branch of
// its own takes the compiler twice as many instructions.
__device__ __forceinline__ void BulkCopyPair([[maybe_unused]] uint32_t barrier,
                                             [[maybe_unused]] uint32_t to,
                                             [[maybe_unused]] const void* from,
                                             [[maybe_unused]] uint32_t bytes,
                                             [[maybe_unused]] uint32_t second_to,
                                             [[maybe_unused]] const void* second_from,
                                             [[maybe_unused]] uint32_t second_bytes) {
  TQ_SM90_ASM(
      "{\n"
      ".reg .pred p;\n"
      ".reg .b32 bytes;\n"
      "add.u32 bytes, %3, %6;\n"
      "elect.sync _|p, 0xffffffff;\n"
      "@p mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], bytes;\n"
      "@p cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%1], "
      "[%2], %3, [%0], %7;\n"
      "@p cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%4], "
      "[%5], %6, [%0], %8;\n"
      "}" ::"r"(barrier),
      "r"(to), "l"(from), "r"(bytes), "r"(second_to), "l"(second_from), "r"(second_bytes),
      "l"(kReadOncePolicy), "l"(kReadAgainPolicy));
}
// Makes this thread's accesses of shared memory come before copies that are started later.
__device__ __forceinline__ void FenceBulkCopy() {
  TQ_SM90_ASM("fence.proxy.async.shared::cta;" ::);
}

// Of a launch that began before the kernels in front of it had ended: waits for them, and lets the
// next one begin. Nothing they read is written before the wait, and of what they write nothing is
// read that is not looked at again behind it (cache/sequence_at.cuh).
__device__ __forceinline__ void WaitForDependencies() {
  TQ_SM90_ASM("griddepcontrol.wait;" ::);
}
__device__ __forceinline__ void LaunchDependents() {
  TQ_SM90_ASM("griddepcontrol.launch_dependents;" ::);
}
#undef TQ_SM90_ASM

// `kernel` on a grid of blocks of so many threads; stream: a cudaStream_t. Errors are the caller's
// to ask for.
template <typename... P, typename... A>
void Launch(void (*kernel)(P...), dim3 grid, int threads, size_t shared_bytes, void* stream,
            const A&... arguments) {
  kernel<<<grid, threads, shared_bytes, static_cast<cudaStream_t>(stream)>>>(arguments...);
}
// The same; the kernel may begin before the one in front of it has ended (WaitForDependencies).
template <typename... P, typename... A>
void LaunchEarly(void (*kernel)(P...), dim3 grid, int threads, size_t shared_bytes, void* stream,
                 const A&... arguments) {
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared_bytes;
  config.stream = static_cast<cudaStream_t>(stream);
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = 1;
  cudaLaunchKernelEx(&config, kernel, arguments...);
}

}  // namespace tq::ptx
