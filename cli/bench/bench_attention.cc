// tq bench attention: the decode attention of one layer alone, over caches of synthetic blocks.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <memory>
#include <utility>

#include "cli/bench/bench.h"
#include "cli/bench/device_attention_bench.h"
#include "cli/bench/device_prefill_bench.h"
#include "cli/bench/measure.h"
#include "cli/bench/synthetic_cache.h"
#include "cli/table.h"
#include "turboquant/attention/attention.h"
#include "turboquant/base/isa.h"
#include "turboquant/plan/devices.h"

namespace tq::cli {
namespace {

constexpr char kDefaultFormats[] =
    "f16,bf16,fp8,k8v8,k8v4,k6v5,k4v4,k4v4-group32,k3v3,k3v2,k3v2-trellis,k2v2";
constexpr char kDefaultDeviceFormats[] = "k4v4,k3v3,k3v2,k2v2";
// Layers of one cache: more memory than that is made of more sequences.
constexpr size_t kMostLayers = 32;

struct AttentionFlags {
  OutputFlags output;
  std::string device = "cpu", batches = "1";
  std::string kv, head_dims = "64,128,256", groups = "1,3,4,8", depths = "8k";
  std::string working_set = "128MiB";
  int kv_heads = 4, threads = 0, runs = 5;
  double bandwidth = 0;
  bool center = false, prefill = false;
  float v_skip = 0;
};

struct Plan {
  std::vector<HeadFormat> formats;
  std::vector<int64_t> head_dims, groups, depths, batches;
  size_t working_set = 0;
};

// Every K x V pair that the registry has.
Result<std::vector<HeadFormat>> AllFormats() {
  std::vector<HeadFormat> formats;
  for (const FormatInfo& k : RegisteredFormats()) {
    for (const FormatInfo& v : RegisteredFormats()) {
      TQ_ASSIGN_OR_RETURN(const HeadFormat format, ParsePreset(StrCat("k", k.token, "v", v.token)));
      formats.push_back(format);
    }
  }
  return formats;
}

Result<Plan> MakePlan(const AttentionFlags& flags) {
  const auto range = [](const char* flag, int value, int least, int most) -> Status {
    if (value >= least && value <= most) return OkStatus();
    return InvalidArgument(flag, " ", value, " is outside ", least, "..", most);
  };
  TQ_RETURN_IF_ERROR(CheckThreads(flags.threads));
  TQ_RETURN_IF_ERROR(range("--runs", flags.runs, 1, 1000));
  TQ_RETURN_IF_ERROR(range("--kv-heads", flags.kv_heads, 1, 1024));
  if (!(flags.bandwidth >= 0 && flags.bandwidth < 1e6)) {
    return InvalidArgument("--bandwidth ", flags.bandwidth, " GB/s is outside 0..1000000");
  }
  Plan plan;
  const bool on_device = flags.device == "cuda";
  const std::string kv = !flags.kv.empty() ? flags.kv
                         : on_device       ? kDefaultDeviceFormats
                                           : kDefaultFormats;
  if (kv == "all") {
    TQ_ASSIGN_OR_RETURN(plan.formats, AllFormats());
  } else {
    for (const std::string& name : SplitList(kv, ',')) {
      const Result<HeadFormat> format = ParsePreset(name);
      if (!format.ok()) return format.status().WithContext("--kv");
      plan.formats.push_back(*format);
    }
  }
  TQ_ASSIGN_OR_RETURN(plan.head_dims,
                      ParseCounts("--head-dim", flags.head_dims, kMinHeadDim, kMaxHeadDim));
  TQ_ASSIGN_OR_RETURN(plan.groups, ParseCounts("--group", flags.groups, 1, 128));
  TQ_ASSIGN_OR_RETURN(plan.batches, ParseCounts("--batch", flags.batches, 1, 4096));
  if (!on_device && plan.batches != std::vector<int64_t>{1}) {
    return InvalidArgument("--batch ", flags.batches,
                           " is measured with --device cuda only; leave it at 1");
  }
  if (!on_device && flags.center) {
    return InvalidArgument("--center is measured with --device cuda only; leave it out");
  }
  if (!on_device && flags.v_skip != 0) {
    return InvalidArgument("--v-skip is measured with --device cuda only; leave it out");
  }
  if (!on_device && flags.prefill) {
    return InvalidArgument("--prefill is measured with --device cuda only; leave it out");
  }
  TQ_ASSIGN_OR_RETURN(plan.depths, ParseCounts("--depth", flags.depths, 1, int64_t{1} << 24));
  const Result<size_t> size = ParseSize(flags.working_set);
  if (!size.ok()) return size.status().WithContext("--working-set");
  plan.working_set = *size;
  return plan;
}

CacheConfig ConfigOf(const HeadFormat& format, int layers, int kv_heads, int head_dim) {
  CacheConfig config;
  config.num_layers = layers;
  config.num_kv_heads = kv_heads;
  config.head_dim = head_dim;
  config.formats.assign(static_cast<size_t>(layers) * kv_heads, format);
  for (int i = 0; i < head_dim / 2; ++i) {
    config.rope.inv_freq.push_back(
        std::pow(1e4f, -2.f * static_cast<float>(i) / static_cast<float>(head_dim)));
  }
  if (format.anchors > 0) {  // any mean query will do: which tokens are kept takes no time here
    HeadTensors tensors;
    tensors.queries.means = {std::vector<float>(static_cast<size_t>(head_dim), 0.5f)};
    config.tensors.assign(config.formats.size(), tensors);
  }
  return config;
}

// Caches of one format, shape and depth, as large together as the working set.
struct Caches {
  std::unique_ptr<KvCache> cache;
  std::vector<SeqId> sequences;
  int64_t depth = 0;
  size_t layer_bytes = 0;  // read by one call
  size_t calls() const { return sequences.size() * cache->config().num_layers; }
};

Result<Caches> MakeCaches(const HeadFormat& format, int head_dim, int kv_heads, int64_t depth,
                          size_t working_set, ThreadPool& pool) {
  Caches caches;
  caches.depth = depth;
  {
    TQ_ASSIGN_OR_RETURN(const auto one, KvCache::Create(ConfigOf(format, 1, kv_heads, head_dim)));
    caches.layer_bytes = ReadBytes(*one, 0, depth);
  }
  const size_t wanted = std::max<size_t>(1, DivCeil(working_set, caches.layer_bytes));
  const size_t layers = std::min(wanted, kMostLayers);
  const CacheConfig config = ConfigOf(format, static_cast<int>(layers), kv_heads, head_dim);
  TQ_ASSIGN_OR_RETURN(const SyntheticFiller filler, SyntheticFiller::Create(config, 1, pool));
  TQ_ASSIGN_OR_RETURN(caches.cache, KvCache::Create(config));
  for (size_t i = 0; i < DivCeil(wanted, layers); ++i) {
    TQ_ASSIGN_OR_RETURN(const SeqId seq, filler.Fill(*caches.cache, depth));
    caches.sequences.push_back(seq);
  }
  return caches;
}

class AttentionBench {
 public:
  AttentionBench(const AttentionFlags& flags, Plan plan)
      : flags_(flags), plan_(std::move(plan)), pool_(flags.threads) {}

  Result<int> Run() {
    const double load = LoadAverage();
    bandwidth_ = flags_.bandwidth * 1e9;
    if (bandwidth_ == 0) {
      TQ_ASSIGN_OR_RETURN(const ReadBandwidth measured,
                          MeasureReadBandwidth(size_t{1} << 30, 5, pool_));
      bandwidth_ = measured.median;
    }
    auto counter = InstructionCounter::Open();
    if (counter.ok()) {
      counter_ = std::move(*counter);
    } else {
      no_counter_ = counter.status().message();
      PrintNote(flags_.output, "instructions are not counted: " + no_counter_);
    }
    document_ = BenchDocument(load);
    document_["read_bytes_per_second"] = bandwidth_;
    document_["read_bandwidth_measured"] = flags_.bandwidth == 0;
    document_["instructions_counted"] = counter_ != nullptr;
    if (counter_ == nullptr) document_["no_instructions_because"] = no_counter_;
    ProgressBar progress(flags_.output.quiet || flags_.output.json);
    const ProgressSink sink = progress.sink();
    const size_t all = plan_.formats.size() * plan_.head_dims.size() * plan_.depths.size();
    size_t done = 0;
    for (const int64_t head_dim : plan_.head_dims) {
      for (const int64_t depth : plan_.depths) {
        for (const HeadFormat& format : plan_.formats) {
          if (!ReportProgress(sink, done++, all, PresetName(format))) {
            return Cancelled("the measurement was stopped");
          }
          Result<Caches> caches = MakeCaches(format, static_cast<int>(head_dim), flags_.kv_heads,
                                             depth, plan_.working_set, pool_);
          if (!caches.ok()) {
            return caches.status().WithContext(
                StrCat(PresetName(format), ", head_dim ", head_dim, ", depth ", depth));
          }
          for (const int64_t group : plan_.groups) {
            TQ_RETURN_IF_ERROR(Measure(format, *caches, static_cast<int>(group)));
          }
        }
      }
    }
    progress.Clear();
    PrintOut(flags_.output.json ? document_.dump(2) + "\n" : Table());
    return kDone;
  }

 private:
  Status Pass(const Caches& caches, const AttentionParams& params, const std::vector<float>& q,
              std::vector<float>* out, ThreadPool& pool) {
    for (const SeqId seq : caches.sequences) {
      const AttentionItem item = {seq, caches.depth - 1, 1, q.data(), out->data()};
      for (int layer = 0; layer < caches.cache->config().num_layers; ++layer) {
        TQ_RETURN_IF_ERROR(Attend(*caches.cache, layer, params, {&item, 1}, pool));
      }
    }
    return OkStatus();
  }

  Status Measure(const HeadFormat& format, const Caches& caches, int group) {
    const CacheConfig& config = caches.cache->config();
    const AttentionParams params = {.num_q_heads = config.num_kv_heads * group};
    std::vector<float> q(static_cast<size_t>(params.num_q_heads) * config.head_dim), out(q.size());
    uint64_t state = 2;
    for (float& x : q) x = static_cast<float>(SplitMix64(state) >> 40) * 0x1p-22f - 2;  // [-2, 2)
    std::vector<double> us;
    for (int run = -1; run < flags_.runs; ++run) {  // the first is not counted
      if (InterruptFlag().load()) return Cancelled("the measurement was stopped");
      const auto start = std::chrono::steady_clock::now();
      TQ_RETURN_IF_ERROR(Pass(caches, params, q, &out, pool_));
      const std::chrono::duration<double, std::micro> took =
          std::chrono::steady_clock::now() - start;
      if (run >= 0) us.push_back(took.count() / static_cast<double>(caches.calls()));
    }
    uint64_t instructions = 0;
    if (counter_ != nullptr) {  // by one thread: waiting threads would count too
      ThreadPool alone(1);
      TQ_RETURN_IF_ERROR(Pass(caches, params, q, &out, alone));
      counter_->Start();
      TQ_RETURN_IF_ERROR(Pass(caches, params, q, &out, alone));
      instructions = counter_->Stop() / caches.calls();
    }
    AddResult(format, caches, group, us, instructions);
    return OkStatus();
  }

  void AddResult(const HeadFormat& format, const Caches& caches, int group,
                 const std::vector<double>& us, uint64_t instructions) {
    const CacheConfig& config = caches.cache->config();
    const double median = Median(us);
    const double rate = static_cast<double>(caches.layer_bytes) / median * 1e6;
    const std::string name = PresetName(format);
    nlohmann::ordered_json r;
    r["name"] = name;
    r["peer"] = nullptr;
    r["settings"] = {{"head_dim", config.head_dim},
                     {"kv_heads", config.num_kv_heads},
                     {"group", group},
                     {"depth", caches.depth},
                     {"threads", pool_.num_threads()},
                     {"runs", flags_.runs},
                     {"layers", config.num_layers},
                     {"sequences", caches.sequences.size()},
                     {"filled_by", "synthetic blocks"}};
    r["kernel"] = DescribeKernel(format);
    r["us_per_layer"] = median;
    r["lowest_us_per_layer"] = Percentile(us, 0);
    r["highest_us_per_layer"] = Percentile(us, 1);
    r["bytes_per_layer"] = caches.layer_bytes;
    r["bytes_per_second"] = rate;
    r["share_of_bandwidth"] = rate / bandwidth_;
    // Calls of a run and of the one that was not counted: what a profiler of all calls sees.
    r["calls"] = caches.calls() * static_cast<size_t>(flags_.runs + 1);
    r["instructions_per_layer"] = nullptr;
    r["instructions_per_cached_token"] = nullptr;
    if (counter_ != nullptr) {
      r["instructions_per_layer"] = instructions;
      r["instructions_per_cached_token"] =
          static_cast<double>(instructions) / static_cast<double>(caches.depth);
    }
    const std::string shape = StrCat(config.head_dim, " ", caches.depth, " ", group);
    if (name == "f16") f16_us_[shape] = median;
    if (const auto base = f16_us_.find(shape); base != f16_us_.end()) {
      r["ratio_to"] = {{"f16", base->second / median}};
    } else {
      r["ratio_to"] = nlohmann::ordered_json::object();
    }
    document_["results"].push_back(std::move(r));
  }

  std::string Table() const {
    std::vector<std::string> header = {
        "kv", "head_dim", "group", "depth", "us per\nlayer", "GB/s", "of read\nbandwidth"};
    if (!f16_us_.empty()) header.emplace_back("speed to\nf16");
    if (counter_ != nullptr) header.emplace_back("instructions per\ncached token");
    TextTable table(header);
    for (const auto& r : document_["results"]) {
      const auto& s = r["settings"];
      std::vector<std::string> row = {
          r["name"].get<std::string>(),
          FormatCount(s["head_dim"]),
          FormatCount(s["group"]),
          FormatCount(s["depth"]),
          fmt::format("{:.1f}", r["us_per_layer"].get<double>()),
          fmt::format("{:.2f}", r["bytes_per_second"].get<double>() / 1e9),
          fmt::format("{:.0f} %", 100 * r["share_of_bandwidth"].get<double>())};
      if (!f16_us_.empty()) {
        row.push_back(
            r["ratio_to"].contains("f16") ? FormatRatio(r["ratio_to"]["f16"].get<double>()) : "-");
      }
      if (counter_ != nullptr) {
        row.push_back(fmt::format("{:.0f}", r["instructions_per_cached_token"].get<double>()));
      }
      table.Add(std::move(row));
    }
    std::string out = table.ToString();
    out += fmt::format(
        "\n{} KV heads, {} threads, {}, median of {} runs, caches of synthetic blocks; read "
        "bandwidth {:.2f} GB/s ({}); load {:.2f}\n",
        flags_.kv_heads, pool_.num_threads(), CurrentIsa(), flags_.runs, bandwidth_ / 1e9,
        flags_.bandwidth == 0 ? "measured" : "--bandwidth",
        document_["load_average"].get<double>());
    return out;
  }

  const AttentionFlags& flags_;
  Plan plan_;
  ThreadPool pool_;
  double bandwidth_ = 0;
  std::unique_ptr<InstructionCounter> counter_;
  std::string no_counter_;
  nlohmann::ordered_json document_;
  std::map<std::string, double> f16_us_;  // by shape
};

}  // namespace

Command AddBenchAttention(CLI::App& app) {
  CLI::App* command =
      AddCommand(app, "attention", "The decode attention of one layer alone, by format and shape",
                 "tq bench attention --kv f16,k4v4,k3v2 --head-dim 64 --group 3 --depth 1k,8k");
  auto flags = std::make_shared<AttentionFlags>();
  command->add_option("--device", flags->device, "cpu or cuda")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  command->add_option("--batch", flags->batches, "Sequences of one call, a list; cuda only");
  command->add_flag("--center", flags->center, "Keys with a centre of 16 pairs a head; cuda only");
  command->add_option("--v-skip", flags->v_skip,
                      "Skip V of blocks with less than this share of the window's mass; cuda only");
  command->add_flag("--prefill", flags->prefill,
                    "Whole prompts of --depth tokens, and what appending and sealing them takes; "
                    "cuda only");
  command->add_option("--kv", flags->kv, "Presets, or all: every registered pair of K and V");
  command->add_option("--head-dim", flags->head_dims, "Channels of a head, a list");
  command->add_option("--group", flags->groups, "Query heads per KV head, a list");
  command->add_option("--depth", flags->depths, "Tokens in the cache, a list; 8k = 8192");
  command->add_option("--kv-heads", flags->kv_heads, "KV heads of the layer");
  command->add_option("--working-set", flags->working_set,
                      "Memory that a run reads at least, so that caches do not hold it");
  command->add_option("--bandwidth", flags->bandwidth,
                      "Read bandwidth in GB/s to compare with; 0 = measure it");
  command->add_option("--threads", flags->threads, "Threads; 0 = one per physical core");
  command->add_option("--runs", flags->runs, "Times to run it; the median counts");
  flags->output.Add(command);
  return {"attention", [flags, command]() -> Result<int> {
            TQ_ASSIGN_OR_RETURN(Plan plan, MakePlan(*flags));
            if (flags->device == "cuda") {
              for (const char* host_only : {"--threads", "--working-set", "--bandwidth"}) {
                if (command->count(host_only) > 0) {
                  return InvalidArgument(host_only, " has no meaning with --device cuda");
                }
              }
              if (flags->prefill) {
                for (const char* decode_only : {"--batch", "--center", "--v-skip"}) {
                  if (command->count(decode_only) > 0) {
                    return InvalidArgument(decode_only, " has no meaning with --prefill");
                  }
                }
                return RunDevicePrefillBench({plan.formats, plan.head_dims, plan.groups,
                                              plan.depths, flags->kv_heads, flags->runs},
                                             flags->output);
              }
              return RunDeviceAttentionBench(
                  {plan.formats, plan.head_dims, plan.groups, plan.depths, plan.batches,
                   flags->kv_heads, flags->runs, flags->center, flags->v_skip},
                  flags->output);
            }
            return AttentionBench(*flags, std::move(plan)).Run();
          }};
}

}  // namespace tq::cli
