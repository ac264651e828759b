// What the benches share: order statistics, read bandwidth, instruction counts, lists of numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "turboquant/base/status.h"
#include "turboquant/base/thread_pool.h"

namespace tq::cli {

// p in [0, 1], between neighbours by their distance; 0 of no values.
double Percentile(std::vector<double> values, double p);
inline double Median(std::vector<double> values) {
  return Percentile(std::move(values), 0.5);
}

// Bytes a second that `pool` reads from memory; a memory range that caches cannot hold is summed.
struct ReadBandwidth {
  double median = 0, lowest = 0, highest = 0;
  size_t bytes = 0;
  uint64_t checksum = 0;
};
Result<ReadBandwidth> MeasureReadBandwidth(size_t bytes, int runs, ThreadPool& pool);

// Instructions that the calling thread executes in user space.
class InstructionCounter {
 public:
  // kUnavailable says why this machine does not count.
  static Result<std::unique_ptr<InstructionCounter>> Open();
  ~InstructionCounter();
  InstructionCounter(const InstructionCounter&) = delete;
  InstructionCounter& operator=(const InstructionCounter&) = delete;
  void Start();
  uint64_t Stop();  // since Start

 private:
  explicit InstructionCounter(int fd) : fd_(fd) {}
  int fd_;
};

// Processes that ran or waited for a core, mean of the last minute; -1 where it is not known.
double LoadAverage();

// "0,1k,4096": whole numbers of least..most in the order given, k = 1,024. The error names the flag
// and the word.
Result<std::vector<int64_t>> ParseCounts(const char* flag, const std::string& list, int64_t least,
                                         int64_t most);

// {"machine": ..., "isa": ..., "load_average": ..., "results": []}
nlohmann::ordered_json BenchDocument(double load_average);

}  // namespace tq::cli
