// Threads that wait for work by spinning for a moment, then sleep.
//
// A token's forward pass is some two hundred regions of 10 to 70 microseconds: oneTBB's fork and
// join (1.4 us) and the waking of its workers took 8 % of a decode step, this takes 0.2 us. A
// region never waits for a thread that has taken no task, so one that the system keeps from running
// costs nothing.
#include "turboquant/base/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <mutex>
#include <set>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "turboquant/base/status.h"

#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#endif

namespace tq {
namespace {

// Tells the core that this is a spinning loop.
void Pause() {
#if defined(__x86_64__) || defined(_M_X64)
  _mm_pause();
#endif
}

constexpr int kSpinsBeforeSleep = 4000;  // about 100 microseconds
constexpr int kSpinsBeforeYield = 2000;  // of the caller, while a task of another thread runs on

// Tasks of the region, in one word so that taking one is one atomic addition: the number of tasks
// in the upper half, the next one in the lower. Threads that find none left still count up, by at
// most one each.
constexpr uint64_t Ticket(size_t num_tasks) {
  return static_cast<uint64_t>(num_tasks) << 32;
}
constexpr size_t NextTask(uint64_t ticket) {
  return ticket & 0xFFFFFFFFu;
}
constexpr bool HasTask(uint64_t ticket) {
  return NextTask(ticket) < (ticket >> 32);
}
constexpr size_t kMaxTasks = size_t{1} << 31;

}  // namespace

int NumPhysicalCores() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) {
    return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  }
  // Two logical processors of one core share the first number of their sibling list.
  std::set<std::string> cores;
  int logical = 0;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed)) continue;
    ++logical;
    std::ifstream in("/sys/devices/system/cpu/cpu" + std::to_string(cpu) +
                     "/topology/thread_siblings_list");
    std::string siblings;
    if (std::getline(in, siblings)) cores.insert(siblings);
  }
  return std::max(1, cores.empty() ? logical : static_cast<int>(cores.size()));
}

struct ThreadPool::Impl {
  explicit Impl(int num_threads) {
    threads.reserve(static_cast<size_t>(num_threads) - 1);
    try {
      for (int worker = 1; worker < num_threads; ++worker) {
        threads.emplace_back([this, worker] { Work(worker); });
      }
    } catch (const std::system_error& error) {
      const size_t started = threads.size();
      Stop();  // a thread that is destroyed before it was joined ends the process
      throw std::system_error(error.code(), StrCat(num_threads, " threads were asked for and only ",
                                                   started + 1, " can be had; use fewer threads"));
    } catch (...) {
      Stop();
      throw;
    }
  }
  ~Impl() { Stop(); }

  void Stop() {
    stop = true;
    epoch.fetch_add(1);
    epoch.notify_all();
    for (std::thread& t : threads) t.join();
  }

  void RunTasks(int worker) {
    while (HasTask(ticket.load(std::memory_order_acquire))) {
      const uint64_t mine = ticket.fetch_add(1, std::memory_order_acq_rel);
      if (!HasTask(mine)) return;
      // `fn` stays valid: the region ends only when every task that was taken is done.
      (*fn)(NextTask(mine), worker);
      done.fetch_add(1, std::memory_order_release);
    }
  }

  void Work(int worker) {
    for (int spins = 0; !stop.load(std::memory_order_relaxed); ++spins) {
      if (HasTask(ticket.load(std::memory_order_relaxed))) {
        RunTasks(worker);
        spins = 0;
      }
      if (spins < kSpinsBeforeSleep) {
        Pause();
        continue;
      }
      // The caller publishes tasks, then looks for sleepers; this thread says that it sleeps, then
      // looks for tasks: one of the two sees the other.
      const uint32_t seen = epoch.load();
      sleepers.fetch_add(1);
      if (!HasTask(ticket.load()) && !stop) epoch.wait(seen);
      sleepers.fetch_sub(1);
      spins = 0;
    }
  }

  void Run(size_t num_tasks, const std::function<void(size_t, int)>& region) {
    const std::lock_guard<std::mutex> lock(one_caller);
    fn = &region;
    done.store(0, std::memory_order_relaxed);
    ticket.store(Ticket(num_tasks));
    if (sleepers.load() > 0) {
      epoch.fetch_add(1);
      epoch.notify_all();
    }
    RunTasks(0);
    for (int spins = 0; done.load(std::memory_order_acquire) != num_tasks; ++spins) {
      if (spins < kSpinsBeforeYield) {
        Pause();
      } else {
        std::this_thread::yield();
      }
    }
  }

  std::mutex one_caller;
  const std::function<void(size_t, int)>* fn = nullptr;
  alignas(64) std::atomic<uint64_t> ticket{0};
  alignas(64) std::atomic<size_t> done{0};
  alignas(64) std::atomic<uint32_t> epoch{0};
  std::atomic<int> sleepers{0};
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
};

ThreadPool::ThreadPool(int num_threads)
    : num_threads_(num_threads > 0 ? num_threads : NumPhysicalCores()),
      impl_(std::make_unique<Impl>(num_threads_)) {}

ThreadPool::~ThreadPool() = default;

void ThreadPool::ParallelFor(size_t num_tasks, const std::function<void(size_t, int)>& fn) {
  if (num_threads_ == 1 || num_tasks <= 1 || num_tasks >= kMaxTasks) {
    for (size_t task = 0; task < num_tasks; ++task) fn(task, 0);
    return;
  }
  impl_->Run(num_tasks, fn);
}

}  // namespace tq
