#include "cli/bench/measure.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "cli/common.h"
#include "turboquant/base/isa.h"

#ifdef __linux__
#include <linux/perf_event.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace tq::cli {
namespace {

// Sums the words of a range in eight chains, so that loads and not additions are waited for.
uint64_t SumWords(const uint64_t* words, size_t count) {
  uint64_t sums[8] = {};
  size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    for (size_t k = 0; k < 8; ++k) sums[k] += words[i + k];
  }
  for (; i < count; ++i) sums[0] += words[i];
  return sums[0] + sums[1] + sums[2] + sums[3] + sums[4] + sums[5] + sums[6] + sums[7];
}

}  // namespace

double Percentile(std::vector<double> values, double p) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const double at = std::clamp(p, 0.0, 1.0) * static_cast<double>(values.size() - 1);
  const auto below = static_cast<size_t>(at);
  const size_t above = std::min(below + 1, values.size() - 1);
  return std::lerp(values[below], values[above], at - static_cast<double>(below));
}

Result<ReadBandwidth> MeasureReadBandwidth(size_t bytes, int runs, ThreadPool& pool) {
  const size_t num_words = bytes / sizeof(uint64_t);
  const std::unique_ptr<uint64_t[]> words(new (std::nothrow) uint64_t[num_words]);
  if (words == nullptr) return ResourceExhausted("no memory for ", bytes, " bytes; use less");
  const auto parts = static_cast<size_t>(pool.num_threads());
  const auto range = [&](size_t part) {
    return std::pair(num_words * part / parts, num_words * (part + 1) / parts);
  };
  std::vector<uint64_t> sums(parts);
  // The thread that reads a part writes it first, so that its memory is near.
  pool.ParallelFor(parts, [&](size_t part, int) {
    const auto [first, end] = range(part);
    for (size_t i = first; i < end; ++i) words[i] = i;
  });
  ReadBandwidth result;
  result.bytes = num_words * sizeof(uint64_t);
  std::vector<double> rates;
  for (int run = -1; run < runs; ++run) {  // the first is not counted
    if (InterruptFlag().load()) return Cancelled("the measurement was stopped");
    const auto start = std::chrono::steady_clock::now();
    pool.ParallelFor(parts, [&](size_t part, int) {
      const auto [first, end] = range(part);
      sums[part] = SumWords(words.get() + first, end - first);
    });
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    if (run >= 0) rates.push_back(static_cast<double>(result.bytes) / took.count());
  }
  for (const uint64_t s : sums) result.checksum += s;
  result.median = Median(rates);
  result.lowest = *std::min_element(rates.begin(), rates.end());
  result.highest = *std::max_element(rates.begin(), rates.end());
  return result;
}

#ifdef __linux__

Result<std::unique_ptr<InstructionCounter>> InstructionCounter::Open() {
  perf_event_attr attributes{};
  attributes.size = sizeof attributes;
  attributes.type = PERF_TYPE_HARDWARE;
  attributes.config = PERF_COUNT_HW_INSTRUCTIONS;
  attributes.disabled = 1;
  attributes.exclude_kernel = 1;
  attributes.exclude_hv = 1;
  const long fd = ::syscall(SYS_perf_event_open, &attributes, 0, -1, -1, 0);
  if (fd < 0) return Unavailable("perf_event_open: ", std::strerror(errno));
  return std::unique_ptr<InstructionCounter>(new InstructionCounter(static_cast<int>(fd)));
}

InstructionCounter::~InstructionCounter() {
  ::close(fd_);
}

void InstructionCounter::Start() {
  ::ioctl(fd_, PERF_EVENT_IOC_RESET, 0);
  ::ioctl(fd_, PERF_EVENT_IOC_ENABLE, 0);
}

uint64_t InstructionCounter::Stop() {
  ::ioctl(fd_, PERF_EVENT_IOC_DISABLE, 0);
  uint64_t count = 0;
  return ::read(fd_, &count, sizeof count) == sizeof count ? count : 0;
}

#else

Result<std::unique_ptr<InstructionCounter>> InstructionCounter::Open() {
  return Unavailable("this system has no perf_event_open");
}
InstructionCounter::~InstructionCounter() = default;
void InstructionCounter::Start() {}
uint64_t InstructionCounter::Stop() {
  return 0;
}

#endif

double LoadAverage() {
  double load = -1;
  return ::getloadavg(&load, 1) == 1 ? load : -1;
}

Result<std::vector<int64_t>> ParseCounts(const char* flag, const std::string& list, int64_t least,
                                         int64_t most) {
  std::vector<int64_t> out;
  for (const std::string& word : SplitList(list, ',')) {
    const bool thousands = !word.empty() && (word.back() == 'k' || word.back() == 'K');
    const int64_t factor = thousands ? 1024 : 1;
    const char* const end = word.data() + word.size() - (thousands ? 1 : 0);
    int64_t value = 0;
    const auto [stop, error] = std::from_chars(word.data(), end, value);
    if (error != std::errc() || stop != end || word.empty()) {
      return InvalidArgument(flag, " '", list, "': '", word, "' is no whole number");
    }
    if (value < 0 || value > most / factor || value * factor < least) {
      return InvalidArgument(flag, " '", list, "': ", word, " is outside ", least, "..", most);
    }
    out.push_back(value * factor);
  }
  return out;
}

nlohmann::ordered_json BenchDocument(double load_average) {
  nlohmann::ordered_json j;
  j["machine"] = MachineName();
  j["isa"] = CurrentIsa();
  j["load_average"] = load_average;
  j["results"] = nlohmann::ordered_json::array();
  return j;
}

}  // namespace tq::cli
