// tq info: this machine, a model, a profile or a cache file; what applies to which layer and why.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "cli/commands.h"
#include "cli/info_data.h"
#include "cli/kv_choice.h"
#include "cli/loaded_model.h"
#include "cli/table.h"
#include "runtime/evaluate/footprint.h"
#include "runtime/evaluate/profile_report.h"
#include "runtime/evaluate/results_json.h"
#include "runtime/formats/type_counts.h"
#include "runtime/model/model_profile.h"
#include "runtime/quantize/write_quantized.h"
#include "turboquant/attention/attention.h"
#include "turboquant/base/device.h"
#include "turboquant/base/file.h"
#include "turboquant/base/isa.h"
#include "turboquant/cache/snapshot.h"
#include "turboquant/calibrate/profile.h"

namespace tq::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kPresets[] = {"f16", "k8v8", "k8v4", "k4v4", "k4v2", "k3v3", "k3v2", "k2v2"};
constexpr int64_t kContexts[] = {2048, 8192, 32768, 131072};

struct InfoFlags {
  std::string subject;  // empty: this machine
  KvFlags kv;
  OutputFlags output;
  DataFlags data;
  std::string report;
  int64_t context = 0;
  int threads = 0;
  std::string model_flag;  // one that was given and needs a model: "--kv"
};

// Flags that choose a model's cache are refused where they would say nothing.
Status NeedsNoModel(const InfoFlags& flags, const std::string& what) {
  if (flags.model_flag.empty()) return OkStatus();
  return InvalidArgument(flags.model_flag, " goes with a model (tq info MODEL ", flags.model_flag,
                         " ...), not with ", what);
}

// A terminal whose user wants colours (no-color.org).
bool StdoutHasColors() {
  const char* off = std::getenv("NO_COLOR");
  return ::isatty(STDOUT_FILENO) == 1 && (off == nullptr || *off == '\0');
}

bool IsProfile(const std::string& path) {
  return std::filesystem::path(path).extension() == ".tqprofile" ||
         FileExists((std::filesystem::path(path) / "profile.json").string());
}

// By its first bytes; what else may be wrong with it, Snapshot says.
bool IsCacheFile(const std::string& path) {
  char magic[sizeof kSnapshotMagic] = {};
  std::ifstream(path, std::ios::binary).read(magic, sizeof magic);
  return std::equal(std::begin(magic), std::end(magic), std::begin(kSnapshotMagic));
}

// "NVIDIA H200, compute capability 9.0, 143771.00 MiB", or what is missing.
std::string DescribeCuda(const Result<CudaDeviceInfo>& cuda) {
  if (cuda.ok()) {
    return fmt::format("{}, compute capability {}.{}, {}", cuda->name, cuda->compute_major,
                       cuda->compute_minor, FormatMiB(cuda->memory_bytes));
  }
  const std::string why = cuda.status().message();
  return why.starts_with("cuda: ") ? why.substr(6) : why;
}

Result<int> MachineInfo(const InfoFlags& flags) {
  TQ_RETURN_IF_ERROR(NeedsNoModel(flags, "this machine"));
  const Result<CudaDeviceInfo> cuda = GetCudaDeviceInfo();
  const ThreadPool pool(flags.threads);
  Json j;
  j["version"] = Version();
  j["machine"] = MachineName();
  j["threads"] = pool.num_threads();
  j["physical_cores"] = NumPhysicalCores();
  j["isa"] = CurrentIsa();
  j["isas"] = AvailableIsas();
  if (cuda.ok()) {
    j["cuda"] = {
        {"device", cuda->name},
        {"compute_capability", fmt::format("{}.{}", cuda->compute_major, cuda->compute_minor)},
        {"memory_bytes", cuda->memory_bytes}};
  } else {
    j["cuda"] = {{"device", nullptr}, {"why", DescribeCuda(cuda)}};
  }
  j["formats"] = Json::array();
  TextTable formats({"--kv", "bits", "name", "code books", "arithmetic"}, {0, 2, 3, 4});
  for (const FormatInfo& info : RegisteredFormats()) {
    std::vector<std::string> books;
    for (const Codebook book : info.codebooks) books.emplace_back(Name(book));
    formats.Add({info.token, std::to_string(info.bits), info.name,
                 fmt::format("{}", fmt::join(books, ", ")), info.arithmetic});
    j["formats"].push_back({{"token", info.token},
                            {"bits", info.bits},
                            {"name", info.name},
                            {"codebooks", books},
                            {"arithmetic", info.arithmetic}});
  }
  TextTable presets({"preset", "bits per value\nhead_dim 64", "\nhead_dim 128", "kernel"}, {0, 3});
  j["presets"] = Json::array();
  for (const char* name : kPresets) {
    TQ_ASSIGN_OR_RETURN(const HeadFormat f, ParsePreset(name));
    presets.Add({name, fmt::format("{:.3f}", BitsPerValue(f, 64)),
                 fmt::format("{:.3f}", BitsPerValue(f, 128)), DescribeKernel(f)});
    j["presets"].push_back({{"name", name},
                            {"bits_per_value_64", BitsPerValue(f, 64)},
                            {"bits_per_value_128", BitsPerValue(f, 128)},
                            {"kernel", DescribeKernel(f)}});
  }
  const std::string folder = DataFolder();
  j["data_folder"] = folder;
  if (flags.output.json) {
    PrintOut(j.dump(2) + "\n");
    return kDone;
  }
  PrintOut(fmt::format("tq {} on {}\n", Version(), MachineName()));
  PrintOut(fmt::format("threads:          {} (physical cores: {})\n", pool.num_threads(),
                       NumPhysicalCores()));
  PrintOut(fmt::format("instruction sets: {} in use; available: {} (TQ_ISA forces one)\n",
                       CurrentIsa(), fmt::join(AvailableIsas(), ", ")));
  PrintOut(fmt::format("cuda:             {}\n", DescribeCuda(cuda)));
  PrintOut(fmt::format("data folder:      {}\n\n",
                       folder.empty() ? "none; ./quickstart makes one" : folder));
  PrintOut("Formats of K and V, in any pair k<a>v<b>:\n" + formats.ToString());
  PrintOut("\nPresets for --kv (everything counted but the recent window):\n" + presets.ToString());
  return kDone;
}

std::string WeightTypes(const GgufFile& file, size_t* bytes) {
  std::map<std::string, int> counts;
  for (const GgufTensor& t : file.tensors()) {
    ++counts[GgmlTypeName(t.type)];
    *bytes += t.num_bytes();
  }
  return TypeCountsText(counts);
}

int WindowOf(const Architecture& a) {
  return a.windows.empty() ? 0 : *std::max_element(a.windows.begin(), a.windows.end());
}

// "all with full attention", "5 with full attention, 21 with a window of 512 tokens", ...
std::string DescribeAttention(const Architecture& a) {
  const int windows = a.num_window_layers(), full = a.num_layers - windows;
  std::string out;
  if (windows == 0) {
    out = "all with full attention";
  } else if (full == 0) {
    out = fmt::format("all with a window of {} tokens", FormatCount(WindowOf(a)));
  } else {
    out = fmt::format("{} with full attention, {} with a window of {} tokens", full, windows,
                      FormatCount(WindowOf(a)));
  }
  if (a.attention_softcap > 0) out += fmt::format(", scores capped at {}", a.attention_softcap);
  if (a.traits->sinks) out += ", a sink per head";
  return out;
}

std::string DescribeFfn(const Architecture& a) {
  if (a.num_experts == 0) return fmt::format("feed-forward {}", a.ffn_dim);
  return fmt::format("{} of {} experts of {} a token", a.num_experts_used, a.num_experts,
                     a.expert_ffn_dim);
}

Result<int> ModelInfo(const InfoFlags& flags) {
  TQ_RETURN_IF_ERROR(CheckKvName(flags.kv.kv));
  TQ_RETURN_IF_ERROR(flags.kv.ValidateWindow());
  ModelFlags model_flags;
  model_flags.model = flags.subject;
  model_flags.threads = flags.threads;
  OutputFlags silent = flags.output;
  silent.quiet = true;
  TQ_ASSIGN_OR_RETURN(const LoadedModel loaded, LoadModel(model_flags, silent, flags.context));
  const Architecture& a = loaded.model->arch();
  size_t weight_bytes = 0;
  const std::string types = WeightTypes(loaded.model->file(), &weight_bytes);
  TQ_ASSIGN_OR_RETURN(const int64_t context,
                      ContextLen(flags.context, a.context_len, flags.output));
  const KvModel model = loaded.ForKv();
  TQ_ASSIGN_OR_RETURN(const KvChoice choice, ChooseKv(model, flags.kv, context));
  const bool has_bias = !loaded.model->KBias().empty();

  Json j;
  j["path"] = loaded.path;
  j["model"] = a.model_name;
  j["architecture"] = a.name;
  j["num_layers"] = a.num_layers;
  j["hidden_dim"] = a.hidden_dim;
  j["ffn_dim"] = a.ffn_dim;
  j["vocab_size"] = a.vocab_size;
  j["num_q_heads"] = a.num_q_heads;
  j["num_kv_heads"] = a.num_kv_heads;
  j["window_layers"] = a.num_window_layers();
  j["window"] = WindowOf(a);
  if (a.num_experts > 0) {
    j["num_experts"] = a.num_experts;
    j["experts_per_token"] = a.num_experts_used;
    j["expert_ffn_dim"] = a.expert_ffn_dim;
  }
  j["head_dim"] = a.head_dim;
  j["context_len"] = a.context_len;
  j["rope_base"] = a.rope_base;
  j["weights_bytes"] = weight_bytes;
  j["weight_types"] = types;
  const auto made = QuantizeProvenance(loaded.model->file());
  if (!made.empty()) j["quantize"] = Json(made);
  j["tokenizer"] = loaded.tokenizer->Describe();
  j["chat_template"] = !loaded.tokenizer->chat_template().empty();
  j["k_bias"] = has_bias;
  if (flags.output.json) {  // it reads all weights
    j["weights_xxh3"] = fmt::format("{:016x}", WeightsHash(loaded.model->file()));
  }
  j["structure_xxh3"] = fmt::format("{:016x}", model.structure_hash);
  j["kv"] = choice.name;
  j["quantized_layers"] = NumQuantizedLayers(choice.config);
  j["notes"] = choice.notes;
  j["layers"] = Json::array();
  for (size_t i = 0; i < choice.config.formats.size(); ++i) {
    const HeadFormat& f = choice.config.formats[i];
    j["layers"].push_back({{"layer", i / a.num_kv_heads},
                           {"head", i % a.num_kv_heads},
                           {"kv", PresetName(f)},
                           {"window", a.window(static_cast<int>(i) / a.num_kv_heads)},
                           {"bits_per_value", HeadBitsPerValue(choice.config, i)},
                           {"kernel", DescribeKernel(f)},
                           {"why", choice.reasons[i]}});
  }

  std::vector<std::string> header = {"--kv", "bits per\nvalue"};
  for (const int64_t n : kContexts) header.push_back(FormatCount(n) + "\ntokens");
  header.push_back("ratio at\n131,072");
  TextTable sizes(header);
  j["cache"] = Json::array();
  const auto add = [&](const std::string& name, const CacheConfig& config) {
    std::vector<std::string> row = {name, fmt::format("{:.3f}", SealedBitsPerValue(config))};
    Json contexts = Json::array();
    for (const int64_t n : kContexts) {
      const CacheBytes bytes = CacheFootprint(config, n);
      row.push_back(FormatMiB(bytes.total()));
      contexts.push_back({{"tokens", n}, {"bytes", bytes.total()}});
    }
    row.push_back(FormatRatio(FootprintRatio(config, 131072)));
    sizes.Add(std::move(row));
    j["cache"].push_back({{"kv", name},
                          {"bits_per_value", SealedBitsPerValue(config)},
                          {"ratio_at_131072", FootprintRatio(config, 131072)},
                          {"contexts", std::move(contexts)}});
  };
  bool is_preset = false;
  for (const char* preset : kPresets) {
    TQ_ASSIGN_OR_RETURN(const KvChoice uniform, UniformKv(model, preset, flags.kv));
    add(preset, uniform.config);
    is_preset |= choice.name == preset;
  }
  if (!is_preset) add(choice.name, choice.config);

  if (flags.output.json) {
    PrintOut(j.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
    return kDone;
  }
  PrintOut(fmt::format("{}: {}, {}\n", loaded.path, a.model_name, a.name));
  PrintOut(fmt::format("layers:    {}, {}; {} query heads on {} KV heads of {}\n", a.num_layers,
                       DescribeAttention(a), a.num_q_heads, a.num_kv_heads, a.head_dim));
  PrintOut(fmt::format("width:     {}, {}, vocabulary {}\n", a.hidden_dim, DescribeFfn(a),
                       FormatCount(a.vocab_size)));
  PrintOut(fmt::format("trained:   contexts of {} tokens, RoPE base {:.0f}\n",
                       FormatCount(a.context_len), a.rope_base));
  PrintOut(fmt::format("weights:   {} in {}\n", FormatMiB(weight_bytes), types));
  for (const auto& [name, text] : made) {
    PrintOut(fmt::format("quantized: {}: {}\n", name, text));
  }
  PrintOut(fmt::format("tokenizer: {}; chat template: {}\n", loaded.tokenizer->Describe(),
                       loaded.tokenizer->chat_template().empty() ? "none" : "yes"));
  PrintOut(fmt::format("k bias:    {}\n", has_bias ? "yes: keys are centred by it" : "none"));
  PrintOut(fmt::format("\nCache of {} at a context of {}:\n", choice.name, FormatCount(context)));
  for (const std::string& note : choice.notes) PrintOut("  " + note + "\n");
  PrintOut(ExplainKv(choice));
  PrintOut(fmt::format(
      "\nCache of one sequence, everything counted (window {} recent and {} first tokens):\n",
      choice.config.recent_len, choice.config.sink_len));
  PrintOut(sizes.ToString());
  return kDone;
}

Result<int> ProfileInfo(const InfoFlags& flags) {
  TQ_RETURN_IF_ERROR(NeedsNoModel(flags, "a profile"));
  TQ_ASSIGN_OR_RETURN(const Profile profile, Profile::Load(flags.subject));
  if (!flags.report.empty()) {
    TQ_RETURN_IF_ERROR(WriteFileAtomic(flags.report, ProfilePage(profile, flags.subject)));
  }
  KvChoice choice;
  CacheConfig& config = choice.config;
  config.num_layers = profile.model.num_layers;
  config.num_kv_heads = profile.model.num_kv_heads;
  config.head_dim = profile.model.head_dim;
  config.recent_len = profile.recent_len;
  config.sink_len = profile.sink_len;
  config.recent = profile.recent;
  config.formats = profile.formats;
  choice.reasons.assign(config.formats.size(), "profile");
  if (flags.output.json) {
    Json j;
    j["path"] = flags.subject;
    j["describe"] = profile.Describe();
    j["bits_per_value"] = SealedBitsPerValue(config);
    j["ratio_at_131072"] = FootprintRatio(config, 131072);
    j["notes"] = profile.notes;
    j["profile"] = Json::parse(profile.ToJson(), nullptr, false);
    PrintOut(j.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
    return kDone;
  }
  PrintOut(flags.subject + "\n");
  for (const auto& [name, words] : ProfileFacts(profile)) {
    PrintOut(fmt::format("{:<12}{}\n", name + ":", words));
  }
  for (const std::string& note : profile.notes) PrintOut("note:       " + note + "\n");
  PrintOut("\n" + ProfileMapText(profile, StdoutHasColors()));
  PrintOut("\n" + ExplainKv(choice));
  return kDone;
}

// The report of the profile that a model has, beside it or inside.
Status ReportOfModel(const std::string& model, const std::string& report) {
  TQ_ASSIGN_OR_RETURN(const std::optional<ModelProfile> found, FindModelProfile(model));
  if (!found) {
    return InvalidArgument(
        "--report goes with a profile (tq info NAME.tqprofile), or a model that ", "has one; ",
        model.empty() ? "nothing was named" : "'" + model + "' has none");
  }
  return WriteFileAtomic(report, ProfilePage(found->profile, found->name));
}

Result<int> CacheFileInfo(const InfoFlags& flags) {
  TQ_RETURN_IF_ERROR(NeedsNoModel(flags, "a cache file"));
  TQ_ASSIGN_OR_RETURN(const Snapshot snapshot, Snapshot::Open(flags.subject));
  const SnapshotMeta& meta = snapshot.meta();
  const std::string structure = fmt::format("{:016x}", meta.structure_hash);
  std::vector<std::string> formats;
  for (const std::string& line : SplitList(snapshot.formats(), '\n')) {
    if (!line.empty()) formats.push_back(line);
  }
  if (flags.output.json) {
    Json j;
    j["path"] = flags.subject;
    j["version"] = kSnapshotVersion;
    j["model"] = meta.model;
    j["structure_xxh3"] = structure;
    j["kv"] = meta.kv;
    j["tokens"] = snapshot.length();
    j["logits"] = meta.logits.size();
    j["file_bytes"] = snapshot.file_bytes();
    j["cache_bytes"] = snapshot.slot_bytes();
    j["open_blocks"] = snapshot.num_open();
    j["sealed_blocks"] = snapshot.num_sealed();
    j["exact"] = snapshot.exact();
    j["formats"] = formats;
    PrintOut(j.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
    return kDone;
  }
  PrintOut(fmt::format("{}: a cache of {} tokens ({}), saved by '{}' of structure {}\n",
                       flags.subject, FormatCount(snapshot.length()), meta.kv, meta.model,
                       structure));
  PrintOut(fmt::format("file:   version {}, {}; all sums are right\n", kSnapshotVersion,
                       FormatMiB(snapshot.file_bytes())));
  PrintOut(fmt::format("blocks: {} open, {} sealed{}\n", snapshot.num_open(), snapshot.num_sealed(),
                       snapshot.exact() ? "" : "; some were re-opened from their codes"));
  for (const std::string& line : formats) PrintOut("  " + line + "\n");
  return kDone;
}

}  // namespace

Command AddInfo(CLI::App& app) {
  CLI::App* command = AddCommand(
      app, "info", "What there is: this machine, a model, a profile, a cache file, your data",
      "tq info .cache/SmolLM2-135M-Instruct.Q4_1.gguf --kv k3v2 --pin \"1,10=k8v4\"");
  auto flags = std::make_shared<InfoFlags>();
  command
      ->add_option("model,--model", flags->subject,
                   "A GGUF file, a Hugging Face folder, a .tqprofile folder or a saved cache; "
                   "nothing: this machine")
      ->type_name("FILE");
  flags->kv.Add(command);
  command->add_option(
      "--context", flags->context,
      "The context that --kv auto decides for, and the windows of --data; 0 = what the "
      "model was trained for");
  command->add_option("--threads", flags->threads, "Threads; 0 = one per physical core");
  command
      ->add_option("--report", flags->report,
                   "Of a profile, or of the one that a model has: write an HTML report there")
      ->type_name("FILE");
  flags->data.Add(command);
  flags->output.Add(command);
  return {"info", [flags, command]() -> Result<int> {
            for (const char* name : {"--kv", "--pin", "--recent-len", "--sink-len"}) {
              if (flags->model_flag.empty() && command->count(name) > 0) flags->model_flag = name;
            }
            const bool is_profile = !flags->subject.empty() && IsProfile(flags->subject);
            if (!flags->report.empty() && !is_profile) {
              TQ_RETURN_IF_ERROR(ReportOfModel(flags->subject, flags->report));
            }
            TQ_RETURN_IF_ERROR(CheckThreads(flags->threads));
            if (!flags->data.data.empty()) {
              TQ_RETURN_IF_ERROR(NeedsNoModel(*flags, "--data"));
              return DataInfo(flags->subject, flags->data, flags->context, flags->output);
            }
            if (flags->subject.empty()) return MachineInfo(*flags);
            if (is_profile) return ProfileInfo(*flags);
            if (IsCacheFile(flags->subject)) return CacheFileInfo(*flags);
            return ModelInfo(*flags);
          }};
}

}  // namespace tq::cli
