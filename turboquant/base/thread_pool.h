// The threading seam: one call. Results must not depend on the number of threads, so work is cut
// into tasks by the caller, by position, never by thread.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

namespace tq {

class ThreadPool {
 public:
  // 0 = one per physical core that is allowed. std::system_error: so many threads cannot be had.
  explicit ThreadPool(int num_threads = 0);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return num_threads_; }

  // Calls fn(task, worker) once for each task in [0, num_tasks); returns when all are done.
  // worker is in [0, num_threads()): no two calls with one worker overlap, so it may index
  // scratch memory. Tasks may run in any order and must not call ParallelFor themselves.
  void ParallelFor(size_t num_tasks, const std::function<void(size_t task, int worker)>& fn);

 private:
  struct Impl;
  int num_threads_;
  std::unique_ptr<Impl> impl_;
};

int NumPhysicalCores();

}  // namespace tq
