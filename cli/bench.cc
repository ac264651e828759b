// tq bench: speeds of this machine, one subcommand each. BenchCommands lists them.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "cli/commands.h"
#include "turboquant/base/aligned.h"
#include "turboquant/base/isa.h"
#include "turboquant/base/thread_pool.h"
#include "turboquant/plan/devices.h"

namespace tq::cli {
namespace {

// --- tq bench bandwidth -----------------------------------------------------------------------

struct BandwidthFlags {
  OutputFlags output;
  std::string size = "1GiB";
  int threads = 0, runs = 7;
};

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

Result<int> RunBandwidth(const BandwidthFlags& flags) {
  if (flags.threads < 0 || flags.threads > 1024) {
    return InvalidArgument("--threads ", flags.threads, " is outside 0..1024");
  }
  if (flags.runs < 1 || flags.runs > 1000) {
    return InvalidArgument("--runs ", flags.runs, " is outside 1..1000");
  }
  Result<size_t> bytes = ParseSize(flags.size);
  if (!bytes.ok()) return bytes.status().WithContext("--size");
  constexpr size_t kLeast = size_t{1} << 20;
  if (*bytes < kLeast) {
    return InvalidArgument("--size ", flags.size, " is below 1MiB: caches would be measured");
  }
  ThreadPool pool(flags.threads);
  const size_t num_words = *bytes / sizeof(uint64_t);
  std::unique_ptr<uint64_t[]> words(new (std::nothrow) uint64_t[num_words]);
  if (words == nullptr) {
    return ResourceExhausted("no memory for --size ", flags.size, "; use less");
  }
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
  std::vector<double> rates;
  for (int run = -1; run < flags.runs; ++run) {  // the first is not counted
    if (InterruptFlag().load()) return Cancelled("the measurement was stopped");
    const auto start = std::chrono::steady_clock::now();
    pool.ParallelFor(parts, [&](size_t part, int) {
      const auto [first, end] = range(part);
      sums[part] = SumWords(words.get() + first, end - first);
    });
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    if (run >= 0) {
      rates.push_back(static_cast<double>(num_words * sizeof(uint64_t)) / took.count());
    }
  }
  uint64_t sum = 0;
  for (const uint64_t s : sums) sum += s;
  std::sort(rates.begin(), rates.end());
  const double median = rates[rates.size() / 2];
  if (flags.output.json) {
    nlohmann::ordered_json j;
    j["machine"] = MachineName();
    nlohmann::ordered_json result;
    result["name"] = "bandwidth";
    result["peer"] = nullptr;
    result["settings"] = {{"bytes", num_words * sizeof(uint64_t)},
                          {"threads", pool.num_threads()},
                          {"runs", flags.runs}};
    result["bytes_per_second"] = median;
    result["lowest_bytes_per_second"] = rates.front();
    result["highest_bytes_per_second"] = rates.back();
    result["checksum"] = sum;
    j["results"] = {result};
    PrintOut(j.dump(2) + "\n");
  } else {
    PrintOut(
        fmt::format("read bandwidth: {:.2f} GB/s (median of {} runs, {:.2f} to {:.2f}), {} with "
                    "{} threads on {}\n",
                    median / 1e9, flags.runs, rates.front() / 1e9, rates.back() / 1e9, flags.size,
                    pool.num_threads(), MachineName()));
  }
  return kDone;
}

Command AddBandwidth(CLI::App& app) {
  CLI::App* command = AddCommand(app, "bandwidth", "What this machine reads from memory a second",
                                 "tq bench bandwidth --json > machine.json");
  auto flags = std::make_shared<BandwidthFlags>();
  command->add_option("--size", flags->size, "Memory to read; more than all caches hold");
  command->add_option("--threads", flags->threads, "Threads; 0 = one per physical core");
  command->add_option("--runs", flags->runs, "Times to read it; the median counts");
  flags->output.Add(command);
  return {"bandwidth", [flags] { return RunBandwidth(*flags); }};
}

// One line for each subcommand.
std::vector<Command> BenchCommands(CLI::App& app) {
  return {AddBandwidth(app)};
}

}  // namespace

Command AddBench(CLI::App& app) {
  CLI::App* command = AddCommand(app, "bench", "Measure this machine", "tq bench bandwidth");
  command->require_subcommand(1);
  const auto commands = std::make_shared<std::vector<Command>>(BenchCommands(*command));
  return {"bench", [command, commands]() -> Result<int> {
            for (const Command& one : *commands) {
              if (command->got_subcommand(one.name)) return one.run();
            }
            return InvalidArgument("tq bench needs a subcommand");
          }};
}

}  // namespace tq::cli
