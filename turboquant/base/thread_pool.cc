#include "turboquant/base/thread_pool.h"

#include <sched.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <set>
#include <string>
#include <thread>
#include <utility>

// Debian's oneTBB is not instrumented, so the thread sanitizer is told where tasks begin and end.
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define TQ_TSAN 1
#endif
#elif defined(__SANITIZE_THREAD__)
#define TQ_TSAN 1
#endif
#ifdef TQ_TSAN
#include <sanitizer/tsan_interface.h>
#endif

namespace tq {
namespace {

void Acquire([[maybe_unused]] void* address) {
#ifdef TQ_TSAN
  __tsan_acquire(address);
#endif
}

void Release([[maybe_unused]] void* address) {
#ifdef TQ_TSAN
  __tsan_release(address);
#endif
}

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
  explicit Impl(int n) : arena(n) {}
  tbb::task_arena arena;
};

ThreadPool::ThreadPool(int num_threads)
    : num_threads_(num_threads > 0 ? num_threads : NumPhysicalCores()),
      impl_(std::make_unique<Impl>(num_threads_)) {}

ThreadPool::~ThreadPool() = default;

void ThreadPool::ParallelFor(size_t num_tasks, const std::function<void(size_t, int)>& fn) {
  if (num_threads_ == 1 || num_tasks <= 1) {
    for (size_t task = 0; task < num_tasks; ++task) fn(task, 0);
    return;
  }
  // One runner per thread that takes the next task from a counter: no allocation per task, and
  // cheap balancing when tasks differ in length.
  std::atomic<size_t> next{0};
  const int runners = static_cast<int>(std::min<size_t>(num_tasks, static_cast<size_t>(num_threads_)));
  Release(&next);
  impl_->arena.execute([&] {
    tbb::parallel_for(
        0, runners,
        [&](int runner) {
          Acquire(&next);
          for (size_t task; (task = next.fetch_add(1, std::memory_order_relaxed)) < num_tasks;) {
            fn(task, runner);
          }
          Release(&next);
        },
        tbb::static_partitioner());
  });
  Acquire(&next);
}

}  // namespace tq
