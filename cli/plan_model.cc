#include "cli/plan_model.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <utility>

#include "runtime/formats/hf_folder.h"
#include "runtime/formats/type_counts.h"
#include "runtime/model/architecture.h"
#include "turboquant/base/file.h"
#include "turboquant/base/safetensors.h"
#include "turboquant/linear/weight.h"
#include "turboquant/plan/config_reader.h"
#include "turboquant/plan/devices.h"

namespace tq::cli {
namespace {

namespace fs = std::filesystem;

// Values and bytes of the tensors of one weight group.
struct Stored {
  double params = 0;
  size_t bytes = 0;
};
using StoredGroups = std::map<std::string, Stored>;

bool Contains(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

// What a tensor takes once it is loaded here: matrices are packed, and some types grow by it.
size_t LoadedBytes(const GgufTensor& t) {
  const Result<WeightType> type = WeightTypeOf(GgmlTypeName(t.type));
  if (!type.ok() || t.shape.size() < 2) return t.num_bytes();
  size_t matrices = 1;  // of experts
  for (size_t d = 2; d < t.shape.size(); ++d) matrices *= static_cast<size_t>(t.shape[d]);
  return matrices * PackedMatrixBytes(*type, t.shape[1], t.shape[0]);
}

// The group of a tensor by its name, in the spelling of GGUF or of transformers.
std::string GroupOf(const std::string& name, size_t dimensions) {
  if (Contains(name, "visual") || Contains(name, "vision") || name.rfind("mtp", 0) == 0) {
    return "other towers";
  }
  if (dimensions < 2 || Contains(name, "norm") || Contains(name, ".bias")) {
    return "norms and biases";
  }
  if (Contains(name, "token_embd") || Contains(name, "embed_tokens")) return "embedding";
  if (name == "output.weight" || Contains(name, "lm_head")) return "output head";
  if (Contains(name, "_exps") || Contains(name, ".experts.")) return "experts";
  if (Contains(name, "attn") || Contains(name, "ssm")) return "attention";
  return "feed forward";
}

// Puts what the file has in place of what the configuration promises.
void UseStored(const StoredGroups& stored, ModelSpec* spec) {
  for (const auto& [name, s] : stored) {
    const std::string& group = name;
    const auto at = std::find_if(spec->weights.begin(), spec->weights.end(),
                                 [&](const WeightGroup& g) { return g.name == group; });
    if (at == spec->weights.end()) {
      WeightGroup g{.name = name, .params = s.params, .active = 0, .stored_bytes = s.bytes};
      g.is_matrix = name != "norms and biases";
      spec->weights.push_back(g);
      continue;
    }
    if (at->params > 0) at->active *= s.params / at->params;
    at->params = s.params;
    at->stored_bytes = s.bytes;
  }
  // What the file does not have is not there.
  std::erase_if(spec->weights,
                [&](const WeightGroup& g) { return stored.find(g.name) == stored.end(); });
}

// Keys of one architecture; the first error sticks and names the key.
class GgufKeys {
 public:
  GgufKeys(const GgufFile& file, std::string prefix) : file_(file), prefix_(std::move(prefix)) {}
  const Status& status() const { return status_; }
  bool Has(const std::string& key) const { return file_.Has(prefix_ + key); }
  int64_t Int(const std::string& key) { return Take(file_.GetInt(prefix_ + key), key); }
  int64_t IntOr(const std::string& key, int64_t value) { return Has(key) ? Int(key) : value; }
  // A number, or one a layer.
  std::vector<int64_t> Ints(const std::string& key) {
    const auto& value = file_.metadata().find(prefix_ + key);
    if (value != file_.metadata().end() &&
        std::holds_alternative<std::vector<int64_t>>(value->second)) {
      return std::get<std::vector<int64_t>>(value->second);
    }
    return {Int(key)};
  }

 private:
  int64_t Take(const Result<int64_t>& value, const std::string& key) {
    if (value.ok() && *value >= 0) return *value;
    if (status_.ok()) {
      status_ = value.ok() ? InvalidArgument(prefix_, key, " = ", *value, " is negative")
                           : value.status();
    }
    return 0;
  }
  const GgufFile& file_;
  std::string prefix_;
  Status status_;
};

// What the planner must know of a GGUF architecture beyond its keys.
struct GgufFamily {
  const char* name;
  bool latent = false, hybrid = false;
};
// Planned, but not built in runtime/model; those that are built (FindArchitecture) are planned too.
constexpr GgufFamily kOtherFamilies[] = {
    {"deepseek2", true},
    {"granite"},
    {"mistral3"},
    {"qwen2moe"},
    {"qwen35", false, true},
    {"qwen35moe", false, true},
    {"qwen3next", false, true},
    {"smollm3"},
};

Result<GgufFamily> FamilyOf(const std::string& arch) {
  if (const ArchitectureTraits* built = FindArchitecture(arch)) return GgufFamily{built->name};
  std::string names = SupportedArchitectures();
  for (const GgufFamily& family : kOtherFamilies) {
    if (arch == family.name) return family;
    names += StrCat(", ", family.name);
  }
  return Unsupported("general.architecture = '", arch,
                     "' is not a family the planner knows; supported: ", names,
                     "; or give the numbers: --layers, --kv-heads, --head-dim, --params");
}

void ReadLatent(GgufKeys& k, ModelFields* f) {
  f->kv_lora_rank = k.Int("attention.kv_lora_rank");
  f->q_lora_rank = k.IntOr("attention.q_lora_rank", 0);
  f->qk_rope_dim = k.Int("rope.dimension_count");
  // Newer files keep the lengths of the heads beside those of the shared latent.
  const bool mla = k.Has("attention.key_length_mla");
  f->qk_nope_dim =
      k.Int(mla ? "attention.key_length_mla" : "attention.key_length") - f->qk_rope_dim;
  f->v_head_dim = k.Int(mla ? "attention.value_length_mla" : "attention.value_length");
  f->kinds.assign(static_cast<size_t>(f->num_layers), LayerKind::kLatent);
}

void ReadHybrid(GgufKeys& k, ModelFields* f) {
  f->gated_q = true;
  f->conv_kernel = k.Int("ssm.conv_kernel");
  f->linear_k_heads = k.Int("ssm.group_count");
  f->linear_v_heads = k.Int("ssm.time_step_rank");
  f->linear_k_dim = k.Int("ssm.state_size");
  const int64_t inner = k.Int("ssm.inner_size");
  f->linear_v_dim = f->linear_v_heads > 0 ? inner / f->linear_v_heads : 0;
  const int64_t interval = std::max<int64_t>(1, k.IntOr("full_attention_interval", 4));
  for (int64_t i = 0; i < f->num_layers; ++i) {
    f->kinds.push_back((i + 1) % interval == 0 ? LayerKind::kFull : LayerKind::kState);
  }
}

}  // namespace

Result<ModelSpec> SpecFromGguf(const GgufFile& file, int64_t context) {
  TQ_ASSIGN_OR_RETURN(const std::string arch, file.GetString("general.architecture"));
  TQ_ASSIGN_OR_RETURN(const GgufFamily family, FamilyOf(arch));
  GgufKeys k(file, arch + ".");
  ModelFields f;
  f.family = arch;
  const Result<std::string> name = file.GetString("general.name");
  f.name = name.ok() ? *name : fs::path(file.path()).filename().string();
  f.num_layers = k.Int("block_count");
  if (f.num_layers < 1 || f.num_layers > 4096) {
    TQ_RETURN_IF_ERROR(k.status());
    return InvalidArgument(arch, ".block_count = ", f.num_layers, "; expected 1 to 4096");
  }
  f.hidden_dim = k.Int("embedding_length");
  f.context_len = k.IntOr("context_length", 0);
  const std::vector<int64_t> q_heads = k.Ints("attention.head_count");
  f.num_q_heads = q_heads.empty() ? 0 : *std::max_element(q_heads.begin(), q_heads.end());
  f.num_kv_heads = k.Has("attention.head_count_kv") ? k.Ints("attention.head_count_kv") : q_heads;
  if (k.Has("feed_forward_length")) f.ffn_dim = k.Ints("feed_forward_length");
  if (k.Has("attention.key_length")) {
    f.head_dim = k.Int("attention.key_length");
  } else if (f.num_q_heads > 0) {
    f.head_dim = f.hidden_dim / f.num_q_heads;
  }
  const GgufTensor* embedding = file.FindTensor("token_embd.weight");
  if (embedding != nullptr && embedding->shape.size() == 2) f.vocab_size = embedding->shape[1];
  f.tied_embeddings = file.FindTensor("output.weight") == nullptr;
  f.k_bias_center = file.FindTensor("blk.0.attn_k.bias") != nullptr;
  f.num_experts = k.IntOr("expert_count", 0);
  if (f.num_experts > 0) {
    f.experts_per_token = k.Int("expert_used_count");
    f.expert_ffn_dim = k.Has("expert_feed_forward_length") ? k.Int("expert_feed_forward_length")
                       : f.ffn_dim.empty()                 ? 0
                                                           : f.ffn_dim[0];
    const int64_t shared = k.IntOr("expert_shared_count", 0);
    if (shared > 4096 || f.expert_ffn_dim > 1 << 20) {
      return InvalidArgument(arch, ".expert_shared_count = ", shared, " of width ",
                             f.expert_ffn_dim, "; expected up to 4096 of ", 1 << 20);
    }
    f.shared_ffn_dim = k.IntOr("expert_shared_feed_forward_length", shared * f.expert_ffn_dim);
    const int64_t dense = k.IntOr("leading_dense_block_count", 0);
    for (int64_t i = 0; i < f.num_layers; ++i) f.is_moe.push_back(i >= dense);
  }
  if (family.latent) {
    ReadLatent(k, &f);
  } else if (family.hybrid) {
    ReadHybrid(k, &f);
  } else {
    // As the runtime classifies them.
    TQ_ASSIGN_OR_RETURN(const std::vector<int> windows,
                        ReadWindows(file, arch, static_cast<int>(f.num_layers), context));
    for (const int window : windows) {
      f.kinds.push_back(window > 0 ? LayerKind::kWindow : LayerKind::kFull);
      f.window = std::max<int64_t>(f.window, window);
    }
    const int64_t value_dim = k.IntOr("attention.value_length", f.head_dim);
    if (value_dim != f.head_dim) {
      return Unsupported(arch, ".attention.value_length = ", value_dim, " differs from the key's ",
                         f.head_dim, ": only equal lengths are planned");
    }
  }
  TQ_RETURN_IF_ERROR(k.status());
  TQ_ASSIGN_OR_RETURN(ModelSpec spec, BuildSpec(f));

  StoredGroups stored;
  std::map<std::string, int> types;
  for (const GgufTensor& t : file.tensors()) {
    Stored& s = stored[GroupOf(t.name, t.shape.size())];
    s.params += static_cast<double>(t.num_elements());
    s.bytes += LoadedBytes(t);
    ++types[GgmlTypeName(t.type)];
  }
  UseStored(stored, &spec);
  spec.file_types = TypeCountsText(types);
  return spec;
}

namespace {

Result<ModelSpec> SpecFromFolder(const std::string& folder, int64_t context) {
  const std::string config = (fs::path(folder) / "config.json").string();
  if (!FileExists(config)) {
    return NotFound("'", folder,
                    "' has no config.json; name a GGUF file, a folder with one, or a "
                    "config.json");
  }
  TQ_ASSIGN_OR_RETURN(const std::string text, ReadFile(config));
  TQ_ASSIGN_OR_RETURN(ModelSpec spec, ReadModelConfig(text, config, context));
  const auto from_config = [&spec](const Status& why) {
    spec.notes.push_back(
        StrCat("weights are counted as bf16 from config.json, since they cannot be read: ",
               why.message()));
    return spec;
  };
  const Result<std::vector<std::string>> files = HuggingFaceWeightFiles(folder);
  if (files.status().code() == StatusCode::kNotFound) return spec;  // a folder without weights
  if (!files.ok()) return from_config(files.status());
  StoredGroups stored;
  std::map<std::string, int> types;
  for (const std::string& path : *files) {
    const Result<SafetensorsFile> file = SafetensorsFile::Open(path);
    if (!file.ok()) return from_config(file.status());
    for (const SafetensorsTensor& t : file->tensors()) {
      Stored& s = stored[GroupOf(t.name, t.shape.size())];
      s.params += static_cast<double>(t.num_elements());
      s.bytes += t.data.size();
      ++types[SafetensorsTypeName(t.type)];
    }
  }
  UseStored(stored, &spec);
  spec.file_types = TypeCountsText(types);
  return spec;
}

}  // namespace

Result<ModelSpec> SpecFromPath(const std::string& path, int64_t context) {
  if (IsDirectory(path)) return SpecFromFolder(path, context);
  if (fs::path(path).extension() == ".json") {
    TQ_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
    return ReadModelConfig(text, path, context);
  }
  TQ_ASSIGN_OR_RETURN(const GgufFile file, GgufFile::Open(path));
  Result<ModelSpec> spec = SpecFromGguf(file, context);
  if (!spec.ok()) return spec.status().WithContext(path);
  return spec;
}

void ShapeFlags::Add(CLI::App* app) {
  const char* group = "Model as numbers, instead of a file";
  const auto add = [&](const char* name, auto& value, const char* what) {
    app->add_option(name, value, what)->group(group)->default_str("");
  };
  add("--layers", layers, "Number of layers; the others below go with it");
  add("--kv-heads", kv_heads, "KV heads of a layer");
  add("--head-dim", head_dim, "Values of a head");
  add("--params", params, "Number of weights, e.g. 8e9");
  add("--q-heads", q_heads, "Query heads; default: as many as KV heads");
  add("--hidden-dim", hidden_dim, "Width of the residual stream, for activations");
  add("--ffn-dim", ffn_dim, "Width of the feed-forward part, for activations");
  add("--vocab", vocab, "Size of the vocabulary, for logits");
  add("--sliding-window", sliding_window, "Tokens that a windowed layer sees");
  add("--full-every", full_every, "Every n-th layer is full, the others windowed or states");
  add("--latent-dim", latent_dim, "MLA: values of the latent of a token (instead of --kv-heads)");
  add("--rope-dim", rope_dim, "MLA: values of its rotary part");
  add("--state-bytes", state_bytes, "Linear layers: state of a sequence and layer, e.g. 2MiB");
  add("--trained-context", trained, "Tokens the model was trained for");
}

Result<ModelSpec> SpecFromShape(const ShapeFlags& flags) {
  const struct {
    const char* flag;
    int64_t value, most;
  } ranges[] = {{"--layers", flags.layers, 4096},
                {"--kv-heads", flags.kv_heads, 4096},
                {"--head-dim", flags.head_dim, 512},
                {"--q-heads", flags.q_heads, 4096},
                {"--hidden-dim", flags.hidden_dim, 1 << 20},
                {"--ffn-dim", flags.ffn_dim, 1 << 20},
                {"--vocab", flags.vocab, 1 << 24},
                {"--sliding-window", flags.sliding_window, 1 << 30},
                {"--full-every", flags.full_every, 4096},
                {"--latent-dim", flags.latent_dim, 1 << 20},
                {"--rope-dim", flags.rope_dim, 1 << 20},
                {"--trained-context", flags.trained, 1 << 30}};
  for (const auto& r : ranges) {
    if (r.value < 0 || r.value > r.most) {
      return InvalidArgument(r.flag, " ", r.value, " is outside 1..", r.most);
    }
  }
  if (!(flags.params >= 0 && flags.params <= 1e15)) {
    return InvalidArgument("--params ", flags.params, " is outside 0..1e15");
  }
  ModelSpec spec;
  spec.name = "numbers";
  spec.family = "numbers";
  const bool latent = flags.latent_dim > 0;
  if (!latent && (flags.kv_heads == 0 || flags.head_dim == 0)) {
    return InvalidArgument(flags.kv_heads == 0 ? "--kv-heads" : "--head-dim",
                           " is missing: --layers needs --kv-heads and --head-dim, or --latent-dim "
                           "for MLA");
  }
  size_t state = 0;
  if (!flags.state_bytes.empty()) {
    TQ_ASSIGN_OR_RETURN(state, ParseSize(flags.state_bytes));
  }
  if ((flags.sliding_window > 0 || state > 0) && flags.full_every == 0) {
    return InvalidArgument("--full-every is missing: which layers see everything");
  }
  for (int64_t i = 0; i < flags.layers; ++i) {
    LayerSpec layer;
    const bool full = flags.full_every == 0 || (i + 1) % flags.full_every == 0;
    if (!full && state > 0) {
      layer.kind = LayerKind::kState;
      layer.state_bytes = state;
    } else if (latent) {
      layer.kind = LayerKind::kLatent;
      layer.latent_dim = static_cast<int>(flags.latent_dim);
      layer.rope_dim = static_cast<int>(flags.rope_dim);
    } else {
      layer.kind = full ? LayerKind::kFull : LayerKind::kWindow;
      layer.num_kv_heads = static_cast<int>(flags.kv_heads);
      layer.head_dim = static_cast<int>(flags.head_dim);
      if (!full) layer.window = static_cast<int>(flags.sliding_window);
    }
    spec.layers.push_back(layer);
  }
  spec.num_q_heads = static_cast<int>(flags.q_heads > 0 ? flags.q_heads : flags.kv_heads);
  spec.q_head_dim = static_cast<int>(flags.head_dim);
  spec.hidden_dim = flags.hidden_dim;
  spec.ffn_dim = flags.ffn_dim;
  spec.vocab_size = flags.vocab;
  spec.context_len = flags.trained;
  if (flags.params > 0) {
    spec.weights.push_back({.name = "all", .params = flags.params, .active = flags.params});
  } else {
    spec.notes.push_back("no --params: weights are not counted");
  }
  TQ_RETURN_IF_ERROR(spec.Validate());
  return spec;
}

}  // namespace tq::cli
