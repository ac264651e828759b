#include "tests/cuda_emulator/emulator.h"

#include <memory>
#include <vector>

emulator::Index threadIdx, blockIdx, blockDim, gridDim;

// Saves the registers that calls keep, leaves its stack pointer in *save and goes on from `to`.
extern "C" void EmulatorSwitch(void** save, void* to);
asm(R"(
.text
.globl EmulatorSwitch
.type EmulatorSwitch,@function
EmulatorSwitch:
  push %rbp
  push %rbx
  push %r12
  push %r13
  push %r14
  push %r15
  mov %rsp, (%rdi)
  mov %rsi, %rsp
  pop %r15
  pop %r14
  pop %r13
  pop %r12
  pop %rbx
  pop %rbp
  ret
.size EmulatorSwitch,.-EmulatorSwitch
)");

namespace emulator {

alignas(128) uint8_t shared[kSharedBytes];

namespace {

constexpr size_t kStackBytes = 256 << 10;

struct Fiber {
  std::unique_ptr<std::byte[]> stack{new std::byte[kStackBytes]};
  void* at = nullptr;
  bool done = true;
  bool early = false;  // has not waited for the kernels in front
};
struct Warp {
  alignas(64) uint8_t brought[2][32 * kLaneBytes];
  int arrived = 0;
  unsigned meetings = 0;
};
std::vector<Fiber> fibers;
std::vector<Warp> warps;
int current = 0, num_threads = 0, alive = 0, arrived = 0;
unsigned barriers = 0;
void* caller = nullptr;
const std::function<void()>* body = nullptr;

void SwitchTo(int fiber, void** save) {
  current = fiber;
  threadIdx = {static_cast<unsigned>(fiber), 0, 0};
  EmulatorSwitch(save, fibers[static_cast<size_t>(fiber)].at);
}

int NextAlive() {
  int next = current;
  do {
    next = next + 1 == num_threads ? 0 : next + 1;
  } while (fibers[static_cast<size_t>(next)].done && next != current);
  return next;
}

void Enter() {
  (*body)();
  fibers[static_cast<size_t>(current)].done = true;
  void* ignored;
  if (--alive == 0) EmulatorSwitch(&ignored, caller);
  SwitchTo(NextAlive(), &ignored);
}

}  // namespace

void Yield() {
  const int me = current, next = NextAlive();
  if (next != me) SwitchTo(next, &fibers[static_cast<size_t>(me)].at);
}

void WaitForDependencies() {
  fibers[static_cast<size_t>(current)].early = false;
}

bool SeesOldNumbers() {
  return fibers[static_cast<size_t>(current)].early && (blockIdx.x + blockIdx.y) % 2 == 1;
}

int Lane() {
  return current % 32;
}

void SyncBlock() {
  const unsigned mine = barriers;
  if (++arrived == alive) {
    arrived = 0;
    ++barriers;
  }
  while (barriers == mine) Yield();
}

const uint8_t* Exchange(const void* mine, size_t bytes) {
  Warp& w = warps[static_cast<size_t>(current / 32)];
  const unsigned meeting = w.meetings;
  uint8_t* const all = w.brought[meeting % 2];
  std::memcpy(all + static_cast<size_t>(Lane()) * kLaneBytes, mine, bytes);
  if (++w.arrived == 32) {
    w.arrived = 0;
    ++w.meetings;
  }
  while (w.meetings == meeting) Yield();
  return all;
}

void Launch(Index grid, int threads, const std::function<void()>& kernel, bool early) {
  if (static_cast<int>(fibers.size()) < threads) fibers.resize(static_cast<size_t>(threads));
  gridDim = grid;
  blockDim = {static_cast<unsigned>(threads), 1, 1};
  num_threads = threads;
  body = &kernel;
  for (unsigned y = 0; y < grid.y; ++y) {
    for (unsigned x = 0; x < grid.x; ++x) {
      blockIdx = {x, y, 0};
      std::memset(shared, 0xa5, sizeof shared);  // nothing may rely on what was there
      warps.assign(static_cast<size_t>(threads + 31) / 32, {});
      alive = threads;
      arrived = 0;
      for (Fiber& f : fibers) {
        // Six registers, then where to go; the stack is aligned as it is behind a call.
        auto top = reinterpret_cast<uintptr_t>(f.stack.get() + kStackBytes) / 64 * 64 - 8;
        auto** at = reinterpret_cast<void**>(top);
        *--at = reinterpret_cast<void*>(Enter);
        for (int i = 0; i < 6; ++i) *--at = nullptr;
        f.at = at;
        f.done = &f - fibers.data() >= threads;
        f.early = early;
      }
      SwitchTo(0, &caller);
    }
  }
}

}  // namespace emulator
