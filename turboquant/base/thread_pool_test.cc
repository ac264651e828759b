// Each task runs once, workers never overlap, and results do not depend on the number of threads.
#include "turboquant/base/thread_pool.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <system_error>
#include <thread>
#include <vector>

namespace tq {
namespace {

TEST(ThreadPool, DefaultsToPhysicalCores) {
  EXPECT_GE(NumPhysicalCores(), 1);
  EXPECT_EQ(ThreadPool().num_threads(), NumPhysicalCores());
  EXPECT_EQ(ThreadPool(3).num_threads(), 3);
}

TEST(ThreadPool, RunsEachTaskOnce) {
  for (const int threads : {1, 2, 4, 7}) {
    ThreadPool pool(threads);
    for (const size_t num_tasks : {0, 1, 2, 3, 100, 1000}) {
      std::vector<std::atomic<int>> count(num_tasks);
      pool.ParallelFor(num_tasks, [&](size_t task, int worker) {
        EXPECT_GE(worker, 0);
        EXPECT_LT(worker, threads);
        count[task].fetch_add(1);
      });
      for (size_t task = 0; task < num_tasks; ++task) EXPECT_EQ(count[task], 1) << task;
    }
  }
}

TEST(ThreadPool, CallsOfOneWorkerNeverOverlap) {
  ThreadPool pool(4);
  std::vector<std::atomic<bool>> busy(4);
  std::atomic<int> overlaps{0};
  for (int round = 0; round < 20; ++round) {
    pool.ParallelFor(200, [&](size_t, int worker) {
      if (busy[static_cast<size_t>(worker)].exchange(true)) overlaps.fetch_add(1);
      busy[static_cast<size_t>(worker)].store(false);
    });
  }
  EXPECT_EQ(overlaps, 0);
}

TEST(ThreadPool, WritesOfTasksAreSeenAfterTheCall) {
  ThreadPool pool(3);
  std::vector<size_t> plain(5000, 0);
  pool.ParallelFor(plain.size(), [&](size_t task, int) { plain[task] = task * task; });
  for (size_t i = 0; i < plain.size(); ++i) ASSERT_EQ(plain[i], i * i);
}

TEST(ThreadPool, SleepingThreadsWakeUp) {
  ThreadPool pool(3);
  for (int round = 0; round < 20; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(3));  // longer than threads spin
    std::atomic<int> count{0};
    // As many tasks as threads, each of which waits for the others: all three must come.
    pool.ParallelFor(3, [&](size_t, int) {
      count.fetch_add(1);
      while (count.load() < 3) std::this_thread::yield();
    });
    EXPECT_EQ(count, 3);
  }
}

TEST(ThreadPool, SeveralPoolsWorkAtOnce) {
  ThreadPool outer(2);
  std::atomic<size_t> total{0};
  outer.ParallelFor(4, [&](size_t, int) {
    ThreadPool inner(2);
    inner.ParallelFor(10, [&](size_t, int) { total.fetch_add(1); });
  });
  EXPECT_EQ(total, 40u);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they need all addresses
// In a process that has addresses for the stacks of a few more threads only.
[[noreturn]] void AskForTooManyThreads() {
  size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const rlim_t bytes = pages * static_cast<size_t>(getpagesize()) + (size_t{256} << 20);
  const rlimit limit = {bytes, bytes};
  if (setrlimit(RLIMIT_AS, &limit) != 0) std::_Exit(1);
  try {
    const ThreadPool pool(500);
  } catch (const std::system_error& error) {
    std::fputs(error.what(), stderr);
    std::_Exit(7);
  }
  std::_Exit(0);
}

TEST(ThreadPool, ThreadsThatCannotBeHadAreAnException) {
  EXPECT_EXIT(AskForTooManyThreads(), testing::ExitedWithCode(7),
              "500 threads were asked for and only [0-9]+ can be had; use fewer threads");
}
#endif

}  // namespace
}  // namespace tq
