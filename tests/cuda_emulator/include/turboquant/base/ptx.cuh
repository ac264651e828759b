// What turboquant/base/ptx.cuh has, for the emulator: as PTX defines it, by plain loops.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "tests/cuda_emulator/emulator.h"

namespace tq::ptx {

inline constexpr uint32_t kAllLanes = 0xffffffffu;

inline float Exp2(float x) {
  return x < -126.f ? 0.f : std::exp2(x);
}

inline void SinCos(float x, float* sine, float* cosine) {
  *sine = std::sin(x), *cosine = std::cos(x);
}

inline float Reciprocal(float x) {
  return 1.f / x;
}

inline float MaxOrNaN(float a, float b) {
  return a != a ? a : b != b ? b : std::fmax(a, b);
}

struct MmaOperands {
  uint32_t a[4], b[2];
};

// d = a x b + c of 16 x 8 x kDepth. A row r of A, depth k, lies in lane 4 (r % 8) + k % (4 n) / n,
// register r / 8 + 2 (k / (4 n)), with n values a register; a column of B as a row of A.
template <int kDepth, int kEach, typename Sum, typename A, typename B>
void Mma(Sum (&d)[4], const MmaOperands& mine, const Sum (&c)[4], const A& a_of, const B& b_of) {
  const int lane = emulator::Lane();
  const uint8_t* const all = emulator::Exchange(&mine, sizeof mine);
  Sum out[4];
  for (int i = 0; i < 4; ++i) {
    const int row = lane / 4 + 8 * (i / 2), column = 2 * (lane % 4) + i % 2;
    Sum sum = 0;
    for (int k = 0; k < kDepth; ++k) {
      const int from = k % (4 * kEach) / kEach, reg = k / (4 * kEach), at = k % kEach;
      const auto a = emulator::FromLane<MmaOperands>(all, row % 8 * 4 + from);
      const auto b = emulator::FromLane<MmaOperands>(all, column * 4 + from);
      sum +=
          a_of(a.a[row / 8 + 2 * reg] >> (32 / kEach * at)) * b_of(b.b[reg] >> (32 / kEach * at));
    }
    out[i] = c[i] + sum;
  }
  std::copy_n(out, 4, d);
}

inline int SignedByte(uint32_t x) {
  return static_cast<int8_t>(x);
}
inline int UnsignedByte(uint32_t x) {
  return static_cast<uint8_t>(x);
}
inline void MmaS8S8(int (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                    const int (&c)[4]) {
  Mma<32, 4>(d, {{a[0], a[1], a[2], a[3]}, {b0, b1}}, c, SignedByte, SignedByte);
}
inline void MmaS8U8(int (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                    const int (&c)[4]) {
  Mma<32, 4>(d, {{a[0], a[1], a[2], a[3]}, {b0, b1}}, c, SignedByte, UnsignedByte);
}
inline void MmaU8S8(int (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                    const int (&c)[4]) {
  Mma<32, 4>(d, {{a[0], a[1], a[2], a[3]}, {b0, b1}}, c, UnsignedByte, SignedByte);
}
inline void MmaS8S8Half(int (&d)[4], uint32_t a0, uint32_t a1, uint32_t b, const int (&c)[4]) {
  Mma<16, 4>(d, {{a0, a1, 0, 0}, {b, 0}}, c, SignedByte, SignedByte);
}
template <bool kBF16>
void MmaFloat(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  const auto value = [](uint32_t x) {
    const auto bits = static_cast<uint16_t>(x);
    return kBF16 ? F32FromBF16(bits) : F32FromF16(bits);
  };
  Mma<16, 2>(d, {{a[0], a[1], a[2], a[3]}, {b0, b1}}, d, value, value);
}

inline uint32_t Transpose8x8(uint32_t mine) {
  const int lane = emulator::Lane(), r = lane / 4, c = lane % 4;
  const uint8_t* const all = emulator::Exchange(&mine, sizeof mine);
  uint32_t out = 0;
  for (int b = 0; b < 2; ++b) {
    const auto row = emulator::FromLane<uint32_t>(all, 4 * (2 * c + b) + r / 2);
    out |= (row >> (16 * (r % 2)) & 0xffffu) << (16 * b);
  }
  return out;
}

inline uint32_t Permute(uint32_t low, uint32_t high, uint32_t selector) {
  const uint64_t bytes = static_cast<uint64_t>(high) << 32 | low;
  uint32_t out = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t pick = selector >> (4 * i) & 15;
    auto byte = static_cast<uint32_t>(bytes >> (8 * (pick & 7)) & 255);
    if ((pick & 8) != 0) byte = (byte & 0x80u) != 0 ? 0xff : 0;
    out |= byte << (8 * i);
  }
  return out;
}

inline uint32_t AndOr(uint32_t a, uint32_t mask, uint32_t c) {
  return (a & mask) | c;
}

inline uint32_t UpperProduct(uint32_t x, uint32_t y) {
  return static_cast<uint32_t>(static_cast<uint64_t>(x) * y >> 32);
}
inline uint32_t MultiplyAdd(uint32_t x, uint32_t y, uint32_t z) {
  return x * y + z;
}

inline uint8_t* DynamicShared() {
  return emulator::shared;
}
inline uint32_t SharedAddress(const void* p) {
  return static_cast<uint32_t>(static_cast<const uint8_t*>(p) - emulator::shared);
}

inline int KeepRegister(int x) {
  return x;
}
inline float KeepRegister(float x) {
  return x;
}
template <typename T>
T* KeepShared(T* p) {
  return p;
}

inline constexpr uint64_t kReadOncePolicy = 0, kReadAgainPolicy = 0;
inline void CopyAsync16(uint32_t to, const void* from) {
  std::memcpy(emulator::shared + to, from, 16);
}
inline void CopyAsync4(uint32_t to, const void* from) {
  std::memcpy(emulator::shared + to, from, 4);
}
inline void CopyAsyncCommit() {}
// Copies are done at once, but the warp's other lanes may not have come to theirs.
template <int kPending>
void CopyAsyncWait() {
  __syncwarp();
}
// Bulk copies are done when a barrier is waited for, so that data which nobody waited for is
// missed; or, with TQ_EMULATOR_EAGER in the environment, at once, so that data which is still
// needed is.
#ifdef TQ_EMULATE_BULK_COPIES
inline constexpr bool kHasBulkCopy = true;
struct BulkBarrier {  // of one arrival a phase
  uint16_t phase, armed;
  uint32_t bytes;  // still to come
};
struct PendingCopy {
  uint32_t to, bytes, barrier;
  const void* from;
};
inline std::vector<PendingCopy> pending_copies;
inline void Require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "emulated bulk copies: %s\n", what);
  std::abort();
}
inline BulkBarrier& BarrierAt(uint32_t at) {
  return *reinterpret_cast<BulkBarrier*>(emulator::shared + at);
}
inline void BarrierInit(uint32_t at, uint32_t count) {
  Require(count == 1, "barriers are those of one arrival");
  Require(pending_copies.empty(), "a thread block ended before its copies");
  BarrierAt(at) = {};
}
inline void BarrierExpect(uint32_t at, uint32_t bytes) {
  BulkBarrier& b = BarrierAt(at);
  Require(b.armed == 0, "a second arrival within a phase");
  b.armed = 1, b.bytes += bytes;
}
inline void BulkCopy(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier, uint64_t) {
  Require(bytes % 16 == 0 && to % 16 == 0 && reinterpret_cast<uintptr_t>(from) % 16 == 0,
          "alignment to 16 bytes");
  static const bool eager = std::getenv("TQ_EMULATOR_EAGER") != nullptr;
  if (eager) std::memcpy(emulator::shared + to, from, bytes);
  pending_copies.push_back({to, eager ? 0 : bytes, barrier, from});
  if (eager) BarrierAt(barrier).bytes -= bytes;
}
inline void BarrierWait(uint32_t at, uint32_t parity) {
  BulkBarrier& b = BarrierAt(at);
  for (int tries = 0; (b.phase & 1u) == parity; ++tries) {
    Require(tries < 1 << 20, "nobody ends the phase that is waited for");
    if (b.armed == 0) {
      emulator::Yield();
      continue;
    }
    std::erase_if(pending_copies, [&](const PendingCopy& c) {
      if (c.barrier != at) return false;
      std::memcpy(emulator::shared + c.to, c.from, c.bytes);
      b.bytes -= c.bytes;
      return true;
    });
    Require(b.bytes == 0, "bytes that are expected and not copied");
    ++b.phase, b.armed = 0;
  }
}
#else
inline constexpr bool kHasBulkCopy = false;
inline void BarrierInit(uint32_t, uint32_t) {}
inline void BarrierExpect(uint32_t, uint32_t) {}
inline void BarrierWait(uint32_t, uint32_t) {}
inline void BulkCopy(uint32_t, const void*, uint32_t, uint32_t, uint64_t) {}
#endif
inline void BulkCopyPair(uint32_t barrier, uint32_t to, const void* from, uint32_t bytes,
                         uint32_t second_to, const void* second_from, uint32_t second_bytes) {
  if (threadIdx.x % 32 != 0) return;
  BarrierExpect(barrier, bytes + second_bytes);
  BulkCopy(to, from, bytes, barrier, kReadOncePolicy);
  BulkCopy(second_to, second_from, second_bytes, barrier, kReadAgainPolicy);
}
inline uint32_t CountArrival(uint32_t* count, uint32_t last) {
  return atomicInc(count, last);
}
inline void FenceBulkCopy() {}
inline void WaitForDependencies() {
  emulator::WaitForDependencies();
}
inline void LaunchDependents() {}

// `kernel` on a grid of blocks.
template <typename... P, typename... A>
void Launch(void (*kernel)(P...), dim3 grid, int threads, size_t, void*, const A&... arguments) {
  emulator::Launch(grid, threads, [&] { kernel(arguments...); });
}
template <typename... P, typename... A>
void LaunchEarly(void (*kernel)(P...), dim3 grid, int threads, size_t, void*,
                 const A&... arguments) {
  emulator::Launch(
      grid, threads, [&] { kernel(arguments...); }, true);
}

}  // namespace tq::ptx
