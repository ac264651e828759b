// tq bench decode: a whole model's decode speed by depth and cache format, beside a peer's.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "cli/bench/bench.h"
#include "cli/bench/decode_run.h"
#include "cli/bench/llama_bench.h"
#include "cli/bench/measure.h"
#include "cli/bench/random_model.h"
#include "cli/loaded_model.h"
#include "cli/memory_limit.h"
#include "cli/table.h"
#include "runtime/model/llama.h"
#include "turboquant/attention/attention.h"
#include "turboquant/base/isa.h"

namespace tq::cli {
namespace {

struct DecodeFlags {
  ModelFlags model;
  OutputFlags output;
  KvFlags window;  // --recent-len and --sink-len
  std::string kv = "f16,k8v4,k4v4,k3v2", depths = "0,1k,4k,8k,16k,32k", shape;
  std::string peer, llama_bench, peer_types = "f16,q8_0,q4_0";
  int steps = 130, runs = 3, peer_steps = 32, peer_runs = 1;
  int64_t prefill_up_to = 1024;
  double peer_seconds = 300;
};

struct Plan {
  std::vector<std::string> kv, peer_types;
  std::vector<int64_t> depths;
  std::optional<RandomModelShape> shape;
  std::string llama_bench;  // empty: no peer
};

// What can be refused before a model is read.
Result<Plan> MakePlan(const DecodeFlags& flags) {
  const auto range = [](const char* flag, double value, double least, double most) -> Status {
    if (value >= least && value <= most) return OkStatus();
    return InvalidArgument(flag, " ", value, " is outside ", least, "..", most);
  };
  TQ_RETURN_IF_ERROR(flags.model.Validate());
  TQ_RETURN_IF_ERROR(range("--steps", flags.steps, 1, 100000));
  TQ_RETURN_IF_ERROR(range("--runs", flags.runs, 1, 1000));
  TQ_RETURN_IF_ERROR(range("--peer-steps", flags.peer_steps, 1, 100000));
  TQ_RETURN_IF_ERROR(range("--peer-runs", flags.peer_runs, 1, 1000));
  TQ_RETURN_IF_ERROR(range("--peer-seconds", flags.peer_seconds, 1, 1e6));
  TQ_RETURN_IF_ERROR(
      range("--prefill-up-to", static_cast<double>(flags.prefill_up_to), 0, 1 << 24));
  Plan plan;
  plan.kv = SplitList(flags.kv, ',');
  for (const std::string& kv : plan.kv) TQ_RETURN_IF_ERROR(CheckKvName(kv));
  TQ_ASSIGN_OR_RETURN(plan.depths, ParseCounts("--depth", flags.depths, 0, int64_t{1} << 24));
  if (!flags.shape.empty()) {
    if (!flags.model.model.empty()) {
      return InvalidArgument("--model and --shape exclude each other");
    }
    TQ_ASSIGN_OR_RETURN(plan.shape, RandomModelShape::Parse(flags.shape));
  }
  if (flags.peer.empty()) {
    if (!flags.llama_bench.empty()) {
      return InvalidArgument("--llama-bench goes with --peer llama.cpp");
    }
    return plan;
  }
  if (flags.peer != "llama.cpp") {
    return InvalidArgument("--peer '", flags.peer, "' is not known; supported: llama.cpp");
  }
  constexpr const char* kTypes[] = {"f32",  "f16",    "bf16", "q8_0", "q4_0",
                                    "q4_1", "iq4_nl", "q5_0", "q5_1"};
  plan.peer_types = SplitList(flags.peer_types, ',');
  for (const std::string& type : plan.peer_types) {
    if (std::find(std::begin(kTypes), std::end(kTypes), type) != std::end(kTypes)) continue;
    return InvalidArgument("--peer-types '", type, "' is no cache type of llama.cpp; it has ",
                           "f32, f16, bf16, q8_0, q4_0, q4_1, iq4_nl, q5_0, q5_1");
  }
  TQ_ASSIGN_OR_RETURN(plan.llama_bench, FindLlamaBench(flags.llama_bench));
  return plan;
}

// llama.cpp with one of its cache types, at one depth.
struct PeerRun {
  explicit PeerRun(const std::string& cache_type)
      : name("llama.cpp " + cache_type), type(cache_type) {}
  std::string name, type;  // "llama.cpp f16", "f16"
  std::string skipped;     // why there is no speed at this depth
  // Depth from which time does not suffice; kept from depth to depth.
  std::optional<int64_t> too_deep;
  std::vector<double> tokens_per_second;
};

class DecodeBench {
 public:
  DecodeBench(const DecodeFlags& flags, Plan plan)
      : flags_(flags), plan_(std::move(plan)), pool_(flags.model.threads) {}

  Result<int> Run() {
    TQ_RETURN_IF_ERROR(LoadModel());
    TQ_RETURN_IF_ERROR(ChooseFormats());
    for (const std::string& type : plan_.peer_types) {
      peers_.emplace_back(type);
    }
    document_ = BenchDocument(LoadAverage());
    document_["model"] = plan_.shape ? "random Q4_0 weights, " + flags_.shape
                                     : std::filesystem::path(path_).filename().string();
    document_["weight_bytes"] = model_->weights().bytes;
    document_["trained_context"] = trained_;
    document_["peer"] = nullptr;
    ProgressBar progress(flags_.output.quiet || flags_.output.json);
    const ProgressSink sink = progress.sink();
    size_t done = 0;
    for (const int64_t depth : plan_.depths) {
      if (!ReportProgress(sink, done++, plan_.depths.size(), StrCat("depth ", depth))) {
        return Cancelled("the measurement was stopped");
      }
      TQ_RETURN_IF_ERROR(MeasureDepth(depth));
    }
    progress.Clear();
    PrintOut(flags_.output.json ? document_.dump(2) + "\n" : Table());
    return kDone;
  }

 private:
  Status LoadModel() {
    if (plan_.shape) {
      TQ_ASSIGN_OR_RETURN(TemporaryFile file, TemporaryFile::Create(".gguf"));
      file_ = std::make_unique<TemporaryFile>(std::move(file));
      path_ = file_->path();
      TQ_RETURN_IF_ERROR(WriteRandomModel(*plan_.shape, path_));
    } else {
      TQ_ASSIGN_OR_RETURN(path_, flags_.model.Path());
      if (flags_.model.model.empty()) PrintNote(flags_.output, "model: " + path_);
    }
    ProgressBar progress(flags_.output.quiet);
    TQ_ASSIGN_OR_RETURN(GgufFile gguf, GgufFile::Open(path_));
    auto model =
        LlamaModel::Create(std::make_unique<GgufFile>(std::move(gguf)),
                           MakeTimedBackend(MakeCpuBackend(pool_), &seconds_), progress.sink());
    if (!model.ok()) return model.status().WithContext(path_);
    model_ = std::move(*model);
    trained_ = model_->arch().context_len;
    return OkStatus();
  }

  Status ChooseFormats() {
    const int64_t deepest = *std::max_element(plan_.depths.begin(), plan_.depths.end());
    const Model* m = model_.get();
    const KvModel kv_model = {m->MakeCacheConfig(), path_, m->StructureHash(),
                              [m] { return WeightsHash(m->file()); }};
    choices_.reserve(plan_.kv.size());  // runs point into it
    for (const std::string& kv : plan_.kv) {
      KvFlags kv_flags = flags_.window;
      kv_flags.kv = kv;
      TQ_ASSIGN_OR_RETURN(KvChoice choice,
                          ChooseKv(kv_model, kv_flags, deepest + flags_.steps + 1));
      choices_.push_back(std::move(choice));
      runs_.emplace_back(*model_, choices_.back(), &seconds_, pool_);
    }
    return OkStatus();
  }

  Status CheckMemory(int64_t depth) const {
    size_t needed = 0;
    for (const DecodeRun& run : runs_) {
      TQ_ASSIGN_OR_RETURN(const size_t bytes, run.CacheBytes(depth, flags_.steps));
      needed += bytes;
    }
    TQ_ASSIGN_OR_RETURN(const size_t limit, MemoryLimit(""));
    if (needed <= limit) return OkStatus();
    return ResourceExhausted("depth ", depth, ": ", runs_.size(), " caches need ",
                             FormatMiB(needed), " and there are ", FormatMiB(limit),
                             "; use fewer formats or a smaller depth");
  }

  Status MeasureDepth(int64_t depth) {
    TQ_RETURN_IF_ERROR(CheckMemory(depth));
    const bool beyond = trained_ > 0 && depth + flags_.steps + 1 > trained_;
    if (beyond) {
      PrintNote(flags_.output,
                fmt::format("depth {}: beyond the {} tokens that the model was trained for; the "
                            "speed counts, what it would say does not",
                            FormatCount(depth), FormatCount(trained_)));
    }
    for (DecodeRun& run : runs_) TQ_RETURN_IF_ERROR(run.Start(depth, flags_.prefill_up_to));
    for (PeerRun& peer : peers_) {
      peer.tokens_per_second.clear();
      peer.skipped.clear();
    }
    for (int r = 0; r < std::max(flags_.runs, peers_.empty() ? 0 : flags_.peer_runs); ++r) {
      if (r < flags_.runs) {
        for (DecodeRun& run : runs_) TQ_RETURN_IF_ERROR(run.Steps(flags_.steps));
      }
      if (r < flags_.peer_runs) {
        for (PeerRun& peer : peers_) TQ_RETURN_IF_ERROR(RunPeer(depth, &peer));
      }
    }
    AddResults(depth, beyond);
    return OkStatus();
  }

  Status RunPeer(int64_t depth, PeerRun* peer) {
    if (!peer->skipped.empty()) return OkStatus();
    if (peer->too_deep && depth >= *peer->too_deep) {
      peer->skipped = fmt::format("depth {} took too long already", FormatCount(*peer->too_deep));
    } else {
      const Result<PeerSpeed> speed = RunLlamaBench({.program = plan_.llama_bench,
                                                     .model = path_,
                                                     .cache_type = peer->type,
                                                     .threads = pool_.num_threads(),
                                                     .tokens = flags_.peer_steps,
                                                     .runs = 1,
                                                     .depth = depth,
                                                     .most_seconds = flags_.peer_seconds});
      if (speed.ok()) {
        peer->tokens_per_second.push_back(speed->tokens_per_second);
        document_["peer"] = {
            {"name", "llama.cpp"},
            {"build", speed->build},
            {"flags", fmt::format("-t {} -fa 1 -n {}", pool_.num_threads(), flags_.peer_steps)}};
        return OkStatus();
      }
      if (speed.status().code() != StatusCode::kUnavailable) {
        return speed.status().WithContext(StrCat(peer->name, " at depth ", depth));
      }
      peer->too_deep = depth;
      peer->skipped = speed.status().message();
    }
    PrintNote(flags_.output, fmt::format("{} at depth {}: skipped: {}", peer->name,
                                         FormatCount(depth), peer->skipped));
    return OkStatus();
  }

  // Bytes that a step reads of the weights: of an embedding that is not the head too, one row.
  size_t WeightBytes() const {
    size_t bytes = model_->weights().bytes;
    const GgufTensor* table = model_->file().FindTensor("token_embd.weight");
    if (!model_->arch().tied_embeddings && table != nullptr) {
      bytes -= std::min(bytes, table->num_bytes());
    }
    return bytes;
  }

  void AddResults(int64_t depth, bool beyond) {
    // All speeds of this depth, so that each can be compared with the others.
    std::vector<std::pair<std::string, double>> speeds;
    for (const DecodeRun& run : runs_) {
      speeds.emplace_back(run.choice().name, Median(run.tokens_per_second()));
    }
    for (const PeerRun& peer : peers_) {
      speeds.emplace_back(peer.name, Median(peer.tokens_per_second));
    }
    const auto ratios = [&](double speed) {
      nlohmann::ordered_json j = nlohmann::ordered_json::object();
      for (const auto& [name, other] : speeds) {
        if (other > 0 && (name == "f16" || name.starts_with("llama.cpp"))) j[name] = speed / other;
      }
      return j;
    };
    const Architecture& a = model_->arch();
    const double weights = static_cast<double>(WeightBytes());
    const double f16 =
        4.0 * a.num_layers * a.num_kv_heads * a.head_dim * static_cast<double>(depth + 1);
    for (const DecodeRun& run : runs_) {
      const double speed = Median(run.tokens_per_second());
      nlohmann::ordered_json r = Row(run.choice().name, nullptr, depth, flags_.steps, flags_.runs);
      r["filled_by"] = FillingName(run.filling());
      r["beyond_trained_context"] = beyond;
      AddSpeeds(run.tokens_per_second(), &r);
      r["step_ms"] = {{"p50", Median(run.step_ms())},
                      {"p99", Percentile(run.step_ms(), 0.99)},
                      {"max", Percentile(run.step_ms(), 1)}};
      r["attention_ms"] = Median(run.attention_ms());
      r["append_ms"] = {{"p50", Median(run.append_ms())},
                        {"p99", Percentile(run.append_ms(), 0.99)}};
      const auto cache = static_cast<double>(run.read_bytes());
      r["read_bytes"] = {{"weights", WeightBytes()}, {"cache", run.read_bytes()}};
      // Speed to that of an f16 cache if only bytes counted.
      r["ratio_by_bytes"] = (weights + f16) / (weights + cache);
      r["bits_per_value"] = run.bits_per_value();
      r["kernel"] = DescribeKernel(run.choice().config.formats.front());
      r["ratio_to"] = ratios(speed);
      document_["results"].push_back(std::move(r));
    }
    for (const PeerRun& peer : peers_) {
      nlohmann::ordered_json r = Row(peer.name, "llama.cpp", depth, flags_.peer_steps,
                                     static_cast<int>(peer.tokens_per_second.size()));
      r["filled_by"] = FillingName(depth == 0 ? Filling::kNothing : Filling::kPrefill);
      r["beyond_trained_context"] = beyond;
      if (peer.tokens_per_second.empty()) {
        r["skipped"] = peer.skipped;
      } else {
        AddSpeeds(peer.tokens_per_second, &r);
        r["ratio_to"] = ratios(Median(peer.tokens_per_second));
      }
      document_["results"].push_back(std::move(r));
    }
  }

  nlohmann::ordered_json Row(const std::string& name, const char* peer, int64_t depth, int steps,
                             int runs) const {
    nlohmann::ordered_json r;
    r["name"] = name;
    if (peer == nullptr) {
      r["peer"] = nullptr;
    } else {
      r["peer"] = peer;
    }
    r["settings"] = {
        {"depth", depth}, {"threads", pool_.num_threads()}, {"steps", steps}, {"runs", runs}};
    return r;
  }

  static void AddSpeeds(const std::vector<double>& speeds, nlohmann::ordered_json* r) {
    (*r)["tokens_per_second"] = Median(speeds);
    (*r)["lowest_tokens_per_second"] = Percentile(speeds, 0);
    (*r)["highest_tokens_per_second"] = Percentile(speeds, 1);
  }

  std::string Table() const {
    // What the others are compared with.
    std::string base = runs_.front().choice().name;
    for (const DecodeRun& run : runs_) base = run.choice().name == "f16" ? "f16" : base;
    for (const PeerRun& peer : peers_) base = peer.type == "f16" ? peer.name : base;
    std::map<int64_t, double> base_speed;
    for (const auto& r : document_["results"]) {
      if (r["name"] == base && r.contains("tokens_per_second")) {
        base_speed[r["settings"]["depth"]] = r["tokens_per_second"];
      }
    }
    TextTable table({"cache", "depth", "tokens/s", "speed to\n" + base, "step ms\np50",
                     "step ms\np99", "attention\nms", "writing\nms", "filled by"},
                    {0, 8});
    bool any_beyond = false;
    for (const auto& r : document_["results"]) {
      const int64_t depth = r["settings"]["depth"];
      const bool beyond = r["beyond_trained_context"];
      any_beyond |= beyond;
      std::vector<std::string> row = {r["name"].get<std::string>(),
                                      FormatCount(depth) + (beyond ? "*" : "")};
      const auto ms = [](const nlohmann::ordered_json& n) {
        return fmt::format("{:.2f}", n.get<double>());
      };
      if (r.contains("skipped")) {
        row.insert(row.end(),
                   {"-", "-", "-", "-", "-", "-", "skipped: " + r["skipped"].get<std::string>()});
      } else {
        const double speed = r["tokens_per_second"];
        row.push_back(fmt::format("{:.1f}", speed));
        row.push_back(base_speed.count(depth) != 0 ? FormatRatio(speed / base_speed[depth]) : "-");
        if (r.contains("step_ms")) {
          row.insert(row.end(), {ms(r["step_ms"]["p50"]), ms(r["step_ms"]["p99"]),
                                 ms(r["attention_ms"]), ms(r["append_ms"]["p50"])});
        } else {
          row.insert(row.end(), {"-", "-", "-", "-"});
        }
        row.push_back(r["filled_by"].get<std::string>());
      }
      table.Add(std::move(row));
    }
    std::string out = table.ToString() + "\n";
    if (any_beyond) {
      out += fmt::format("* beyond the {} tokens that the model was trained for: speed only.\n",
                         FormatCount(trained_));
    }
    out += fmt::format("{}; {} threads, {}; {} steps, median of {} runs; load {:.2f}\n",
                       document_["model"].get<std::string>(), pool_.num_threads(), CurrentIsa(),
                       flags_.steps, flags_.runs, document_["load_average"].get<double>());
    if (!document_["peer"].is_null()) {
      out +=
          fmt::format("llama.cpp {}: {}, {} runs\n", document_["peer"]["build"].get<std::string>(),
                      document_["peer"]["flags"].get<std::string>(), flags_.peer_runs);
    }
    return out;
  }

  const DecodeFlags& flags_;
  Plan plan_;
  ThreadPool pool_;
  StepSeconds seconds_;
  std::unique_ptr<TemporaryFile> file_;  // of a random model
  std::string path_;
  std::unique_ptr<Model> model_;
  int64_t trained_ = 0;
  std::vector<KvChoice> choices_;
  std::vector<DecodeRun> runs_;
  std::vector<PeerRun> peers_;
  nlohmann::ordered_json document_;
};

}  // namespace

Command AddBenchDecode(CLI::App& app) {
  CLI::App* command =
      AddCommand(app, "decode", "A model's decode speed by depth and cache format",
                 "tq bench decode --kv f16,k4v4,k3v2 --depth 0,1k,8k --peer llama.cpp");
  auto flags = std::make_shared<DecodeFlags>();
  flags->model.Add(command);
  command
      ->add_option("--shape", flags->shape,
                   "Instead of a model: a llama with random Q4_0 weights, "
                   "LAYERS,HIDDEN,FFN,Q_HEADS,KV_HEADS,HEAD_DIM,VOCAB")
      ->capture_default_str();
  command->add_option("--kv", flags->kv, "Presets or profile folders, a list");
  flags->window.AddWindow(command);
  command->add_option("--depth", flags->depths, "Tokens in front of the first step, a list");
  command->add_option("--steps", flags->steps, "Tokens of a run; 130 see two blocks sealed");
  command->add_option("--runs", flags->runs, "Runs at each depth, formats alternating");
  command->add_option("--prefill-up-to", flags->prefill_up_to,
                      "Depths up to this are reached by reading random tokens, deeper ones by "
                      "synthetic blocks");
  AddPeerFlags(command, &flags->peer, &flags->llama_bench);
  command->add_option("--peer-types", flags->peer_types, "Its cache types, a list");
  command->add_option("--peer-steps", flags->peer_steps, "Tokens of its runs");
  command->add_option("--peer-runs", flags->peer_runs,
                      "Its runs at each depth: each reads the whole depth first");
  command->add_option("--peer-seconds", flags->peer_seconds,
                      "Longest run of it; deeper ones are skipped, and said so");
  flags->output.Add(command);
  return {"decode", [flags]() -> Result<int> {
            TQ_ASSIGN_OR_RETURN(Plan plan, MakePlan(*flags));
            return DecodeBench(*flags, std::move(plan)).Run();
          }};
}

}  // namespace tq::cli
