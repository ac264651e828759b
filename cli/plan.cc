// tq plan: what a model needs, what fits, how fast it can be, whether it is worth it.
#include <fmt/format.h>

#include <charconv>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "cli/commands.h"
#include "cli/memory_limit.h"
#include "cli/plan_model.h"
#include "cli/plan_output.h"
#include "cli/plan_traffic.h"
#include "runtime/evaluate/plan_report.h"
#include "runtime/model/model_profile.h"
#include "turboquant/base/file.h"
#include "turboquant/base/thread_pool.h"
#include "turboquant/plan/survey.h"

namespace tq::cli {
namespace {

struct PlanFlags {
  ModelFlags model;
  ShapeFlags shape;
  OutputFlags output;
  std::string contexts, batches = "1", kv, weights = "file";
  std::string device = "host", memory_limit, bandwidth, solve, report, traffic;
  int devices = 1, chunk = 0, recent_len = 256, sink_len = 4;
  int64_t shared_prefix = 0;
  bool require_fit = false, attention = false;
};

// "4096,131072" or "32k": whole numbers, k = 1,024.
Result<std::vector<int64_t>> ParseNumbers(const char* flag, const std::string& list, int64_t most) {
  std::vector<int64_t> out;
  for (std::string word : SplitList(list, ',')) {
    int64_t factor = 1;
    if (!word.empty() && (word.back() == 'k' || word.back() == 'K')) {
      factor = 1024;
      word.pop_back();
    }
    int64_t value = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    if (error != std::errc() || end != word.data() + word.size() || word.empty()) {
      return InvalidArgument(flag, " '", list, "': '", word, "' is no whole number");
    }
    if (value < 1 || value > most / factor) {
      return InvalidArgument(flag, " ", value * (value > most ? 1 : factor), " is outside 1..",
                             most);
    }
    out.push_back(value * factor);
  }
  return out;
}

Result<Machine> ChooseMachine(const PlanFlags& flags) {
  if (flags.device == "host") return HostMachine(flags.memory_limit);
  if (!flags.memory_limit.empty()) {
    return InvalidArgument("--memory-limit goes with --device host; write --device SIZE instead");
  }
  Result<Machine> named = FindDevice(flags.device);
  if (named.ok()) return named;
  const Result<size_t> size = ParseSize(flags.device);
  if (!size.ok()) return named.status();
  Machine m;
  m.name = flags.device;
  m.title = "an accelerator";
  m.memory_bytes = *size;
  return m;
}

// Without --kv.
constexpr char kDefaultFormats[] = "f16,k8v4,k4v4,k3v2";

// The profile that a run of the model would find by itself, as a format to plan with; says so.
// Empty: there is none, or it is of another model.
Result<std::optional<CacheFormat>> FoundFormat(const std::string& path, const ModelSpec& spec,
                                               const CacheWindow& window,
                                               const OutputFlags& output) {
  TQ_ASSIGN_OR_RETURN(const std::optional<ModelProfile> found, FindModelProfile(path));
  if (!found) return std::optional<CacheFormat>();
  CacheFormat format = PlanFormat(found->profile, found->name, window);
  const std::string where = fmt::format("kv: {} ({})", found->name, found->place);
  if (const Status fits = CachePlan::Create(spec, format).status(); !fits.ok()) {
    PrintNote(output, where + " is not planned with: " + fits.message());
    return std::optional<CacheFormat>();
  }
  PrintNote(output, where + ": " + found->profile.Describe());
  return std::optional<CacheFormat>(std::move(format));
}

// A number in GB/s, or the file that tq bench bandwidth --json wrote.
Status ApplyBandwidth(const std::string& text, Machine* machine) {
  if (text.empty()) return OkStatus();
  double gb = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), gb);
  if (error == std::errc() && end == text.data() + text.size()) {
    if (!(gb > 0 && gb < 1e6)) {
      return InvalidArgument("--bandwidth ", text, " GB/s is outside 0..1000000");
    }
    machine->read_bytes_per_second = gb * 1e9;
    machine->source += std::string(machine->source.empty() ? "" : "; ") + "bandwidth: --bandwidth";
    return OkStatus();
  }
  TQ_ASSIGN_OR_RETURN(const std::string json, ReadFile(text));
  const nlohmann::json j = nlohmann::json::parse(json, nullptr, false);
  const bool good = j.is_object() && j.contains("results") && j["results"].is_array() &&
                    !j["results"].empty() && j["results"][0].is_object() &&
                    j["results"][0].contains("bytes_per_second") &&
                    j["results"][0]["bytes_per_second"].is_number();
  if (!good) {
    return DataLoss("--bandwidth '", text,
                    "' is neither a number of GB/s nor a result of tq bench "
                    "bandwidth --json");
  }
  machine->read_bytes_per_second = j["results"][0]["bytes_per_second"].get<double>();
  machine->source +=
      std::string(machine->source.empty() ? "" : "; ") + "bandwidth measured: " + text;
  return OkStatus();
}

Result<ModelSpec> ChooseSpec(const PlanFlags& flags, const std::vector<int64_t>& contexts) {
  if (flags.shape.given()) {
    if (!flags.model.model.empty()) {
      return InvalidArgument("a model and --layers exclude each other");
    }
    return SpecFromShape(flags.shape);
  }
  TQ_ASSIGN_OR_RETURN(const std::string path, flags.model.Path());
  return SpecFromPath(path,
                      contexts.empty() ? 0 : *std::max_element(contexts.begin(), contexts.end()));
}

void PrintJson(const nlohmann::ordered_json& j) {
  PrintOut(j.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
}

// A short, a middle and the trained context.
std::vector<int64_t> DefaultContexts(const ModelSpec& spec) {
  const int64_t longest = spec.context_len > 0 ? spec.context_len : 131072;
  std::vector<int64_t> out;
  for (const int64_t divisor : {16, 4, 1}) {
    if (longest / divisor >= 1) out.push_back(longest / divisor);
  }
  return out;
}

// What makes the same plan again; numbers of a shape are told by the report itself.
std::string CommandLine(const PlanFlags& flags) {
  std::string out = "tq plan";
  if (!flags.model.model.empty()) out += " " + flags.model.model;
  if (flags.shape.given()) {
    out += fmt::format(" --layers {} --kv-heads {} --head-dim {} --params {:g}", flags.shape.layers,
                       flags.shape.kv_heads, flags.shape.head_dim, flags.shape.params);
  }
  if (!flags.contexts.empty()) out += " --context " + flags.contexts;
  out += fmt::format(" --batch {} --kv {} --weights {} --device {}", flags.batches,
                     flags.kv.empty() ? kDefaultFormats : flags.kv, flags.weights, flags.device);
  if (flags.devices > 1) out += fmt::format(" --devices {}", flags.devices);
  return out;
}

// The log against the quantized format that was asked for, the model's profile, or the last of the
// default list.
Result<int> RunTraffic(const PlanFlags& flags, const ModelSpec& spec, const SurveyGrid& grid,
                       const CacheFormat& format, PlanOptions options) {
  options.weights = grid.weights.front();
  TQ_ASSIGN_OR_RETURN(const Planner planner, Planner::Create(spec, format, options));
  std::string model;
  if (!flags.shape.given()) {
    TQ_ASSIGN_OR_RETURN(model, flags.model.Path());
  }
  TQ_ASSIGN_OR_RETURN(const Traffic traffic, LoadTraffic(flags.traffic, model));
  TQ_ASSIGN_OR_RETURN(const Suitability suited, JudgeTraffic(traffic, planner));
  std::optional<FarAttention> far;
  if (flags.attention) {
    const int64_t most = flags.contexts.empty() ? 0 : grid.contexts.front();
    TQ_ASSIGN_OR_RETURN(far, RunFarAttention(traffic, flags.model, flags.output, most));
  }
  const FarAttention* measured = far ? &*far : nullptr;
  if (flags.output.json) {
    PrintJson(TrafficJson(suited, traffic, measured));
  } else {
    PrintOut(TrafficText(suited, traffic, planner, measured));
  }
  return kDone;
}

Result<int> RunPlan(const PlanFlags& flags) {
  constexpr int64_t kMostBatch = Planner::kMaxBatch;
  TQ_RETURN_IF_ERROR(flags.model.Validate());
  if (flags.attention && (flags.traffic.empty() || flags.shape.given())) {
    return InvalidArgument("--attention goes with --traffic and a GGUF model that runs here");
  }
  if (!flags.solve.empty() && flags.solve != "context" && flags.solve != "batch" &&
      flags.solve != "bits") {
    return InvalidArgument("--solve '", flags.solve, "' is not context, batch or bits");
  }
  if (!flags.report.empty()) TQ_RETURN_IF_ERROR(CheckWritable(flags.report));
  SurveyGrid grid;
  TQ_ASSIGN_OR_RETURN(grid.batches, ParseNumbers("--batch", flags.batches, kMostBatch));
  if (!flags.contexts.empty()) {
    TQ_ASSIGN_OR_RETURN(grid.contexts,
                        ParseNumbers("--context", flags.contexts, Planner::kMaxContext));
  }
  for (const std::string& name : SplitList(flags.weights, ',')) {
    TQ_ASSIGN_OR_RETURN(const WeightChoice weights, ParseWeightChoice(name));
    grid.weights.push_back(weights);
  }
  constexpr int kMostWindow = 1 << 24;
  if (flags.recent_len < 0 || flags.recent_len > kMostWindow) {
    return InvalidArgument("--recent-len ", flags.recent_len, " is outside 0..", kMostWindow);
  }
  if (flags.sink_len < 0 || flags.sink_len > kMostWindow) {
    return InvalidArgument("--sink-len ", flags.sink_len, " is outside 0..", kMostWindow);
  }
  CacheWindow window;
  window.recent_len = flags.recent_len;
  window.sink_len = flags.sink_len;
  for (const std::string& name : SplitList(flags.kv.empty() ? kDefaultFormats : flags.kv, ',')) {
    TQ_ASSIGN_OR_RETURN(CacheFormat format, PlanFormat(name, window));
    grid.formats.push_back(std::move(format));
  }
  PlanOptions options;
  TQ_ASSIGN_OR_RETURN(options.machine, ChooseMachine(flags));
  TQ_RETURN_IF_ERROR(ApplyBandwidth(flags.bandwidth, &options.machine));
  options.threads = flags.model.threads > 0 ? flags.model.threads : NumPhysicalCores();
  options.num_devices = flags.devices;
  options.chunk_len = flags.chunk;
  options.shared_prefix = flags.shared_prefix;
  TQ_ASSIGN_OR_RETURN(const ModelSpec spec, ChooseSpec(flags, grid.contexts));
  if (grid.contexts.empty()) grid.contexts = DefaultContexts(spec);
  std::optional<CacheFormat> found;
  if (flags.kv.empty() && !flags.shape.given()) {
    TQ_ASSIGN_OR_RETURN(const std::string path, flags.model.Path());
    TQ_ASSIGN_OR_RETURN(found, FoundFormat(path, spec, window, flags.output));
    if (found) grid.formats.insert(grid.formats.begin() + 1, *found);  // behind f16
  }
  if (!flags.traffic.empty()) {
    return RunTraffic(flags, spec, grid, found ? *found : grid.formats.back(), options);
  }
  TQ_ASSIGN_OR_RETURN(const Survey survey, MakeSurvey(spec, grid, options));
  if (!flags.report.empty()) {
    TQ_ASSIGN_OR_RETURN(const std::vector<Curve> curves, MakeCurves(spec, grid, options));
    TQ_RETURN_IF_ERROR(WriteFileAtomic(
        flags.report,
        RenderPlanReport(survey, curves, MainRow(survey).kv, {Version(), CommandLine(flags)})));
  }

  if (flags.output.json) {
    PrintJson(PlanJson(survey));
  } else {
    PrintOut(flags.solve.empty() ? PlanText(survey) : SolveText(survey, flags.solve));
  }
  return flags.require_fit && !survey.all_fit() ? kCheckFailed : kDone;
}

}  // namespace

Command AddPlan(CLI::App& app) {
  CLI::App* command =
      AddCommand(app, "plan", "What a model needs, what fits, how fast it can be",
                 "tq plan --layers 32 --kv-heads 32 --head-dim 128 --params 8e9 --context 131072 "
                 "--device h200");
  auto flags = std::make_shared<PlanFlags>();
  command
      ->add_option("model,--model", flags->model.model,
                   "A GGUF file, a Hugging Face folder or a config.json")
      ->type_name("PATH");
  command->add_option("--context", flags->contexts,
                      "Tokens of a sequence, one or several: 8192,32k (default: the trained one)");
  command->add_option("--batch", flags->batches, "Sequences at a time, one or several");
  command->add_option(
      "--kv", flags->kv,
      "Cache formats: presets or profile folders (default: f16, the model's profile "
      "if there is one, k8v4, k4v4, k3v2)");
  command->add_option("--weights", flags->weights,
                      "Weight formats: file, bf16, fp8, q8_0, q4_0, ... or bits a weight");
  command->add_option("--device", flags->device,
                      "host, a name such as h200 or rtx4090, or a size such as 24GiB");
  command->add_option("--devices", flags->devices, "Devices that share heads and weights");
  command->add_option("--threads", flags->model.threads,
                      "Threads of the host; 0 = one per physical core");
  command->add_option("--memory-limit", flags->memory_limit,
                      "With --device host: memory instead of what is available");
  command->add_option("--bandwidth", flags->bandwidth,
                      "Read bandwidth in GB/s, or the file of tq bench bandwidth --json");
  command->add_option("--solve", flags->solve,
                      "Print only the longest context, the most sequences (batch) or bits");
  command->add_flag("--require-fit", flags->require_fit,
                    "Exit with 1 when a context and batch fits with no format");
  command
      ->add_option("--traffic", flags->traffic,
                   "A log of requests, a JSON object a line: is this workload suited?")
      ->type_name("FILE");
  command->add_flag("--attention", flags->attention,
                    "With --traffic: also the attention to far tokens, by running the model over "
                    "the longest text, cut to --context");
  command->add_option("--report", flags->report, "Write a self-contained HTML report there")
      ->type_name("FILE");
  command->add_option("--shared-prefix", flags->shared_prefix,
                      "First tokens that all sequences have in common, held once");
  command->add_option("--chunk", flags->chunk,
                      "Tokens of a prefill step; 0 = 128 on the host, 2048 on a device");
  command->add_option("--recent-len", flags->recent_len, "Recent tokens kept at 8 bit");
  command->add_option("--sink-len", flags->sink_len, "First tokens kept at 8 bit");
  flags->shape.Add(command);
  flags->output.Add(command);
  return {"plan", [flags] { return RunPlan(*flags); }};
}

}  // namespace tq::cli
