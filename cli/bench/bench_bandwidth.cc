// tq bench bandwidth: what this machine reads from memory a second.
#include <fmt/format.h>

#include <memory>

#include "cli/bench/bench.h"
#include "cli/bench/measure.h"
#include "turboquant/plan/devices.h"

namespace tq::cli {
namespace {

struct BandwidthFlags {
  OutputFlags output;
  std::string size = "1GiB";
  int threads = 0, runs = 7;
};

Result<int> RunBandwidth(const BandwidthFlags& flags) {
  TQ_RETURN_IF_ERROR(CheckThreads(flags.threads));
  if (flags.runs < 1 || flags.runs > 1000) {
    return InvalidArgument("--runs ", flags.runs, " is outside 1..1000");
  }
  const Result<size_t> bytes = ParseSize(flags.size);
  if (!bytes.ok()) return bytes.status().WithContext("--size");
  constexpr size_t kLeast = size_t{1} << 20;
  if (*bytes < kLeast) {
    return InvalidArgument("--size ", flags.size, " is below 1MiB: caches would be measured");
  }
  const double load = LoadAverage();
  ThreadPool pool(flags.threads);
  const Result<ReadBandwidth> measured = MeasureReadBandwidth(*bytes, flags.runs, pool);
  if (!measured.ok()) return measured.status().WithContext("--size " + flags.size);
  if (flags.output.json) {
    nlohmann::ordered_json j = BenchDocument(load);
    nlohmann::ordered_json result;
    result["name"] = "bandwidth";
    result["peer"] = nullptr;
    result["settings"] = {
        {"bytes", measured->bytes}, {"threads", pool.num_threads()}, {"runs", flags.runs}};
    result["bytes_per_second"] = measured->median;
    result["lowest_bytes_per_second"] = measured->lowest;
    result["highest_bytes_per_second"] = measured->highest;
    result["checksum"] = measured->checksum;
    j["results"].push_back(std::move(result));
    PrintOut(j.dump(2) + "\n");
  } else {
    PrintOut(
        fmt::format("read bandwidth: {:.2f} GB/s (median of {} runs, {:.2f} to {:.2f}), {} with "
                    "{} threads on {}\n",
                    measured->median / 1e9, flags.runs, measured->lowest / 1e9,
                    measured->highest / 1e9, flags.size, pool.num_threads(), MachineName()));
  }
  return kDone;
}

}  // namespace

Command AddBenchBandwidth(CLI::App& app) {
  CLI::App* command = AddCommand(app, "bandwidth", "What this machine reads from memory a second",
                                 "tq bench bandwidth --json > machine.json");
  auto flags = std::make_shared<BandwidthFlags>();
  command->add_option("--size", flags->size, "Memory to read; more than all caches hold");
  command->add_option("--threads", flags->threads, "Threads; 0 = one per physical core");
  command->add_option("--runs", flags->runs, "Times to read it; the median counts");
  flags->output.Add(command);
  return {"bandwidth", [flags] { return RunBandwidth(*flags); }};
}

}  // namespace tq::cli
