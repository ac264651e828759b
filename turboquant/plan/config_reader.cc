// From config.json to ModelFields, family by family. A family's rule says which layers look how
// far, which defaults its classes have, and where its experts are.
#include "turboquant/plan/config_reader.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "turboquant/base/json_object.h"
#include "turboquant/plan/config_defaults.h"

namespace tq {
namespace {

using Json = nlohmann::json;

// A value as a message shows it. Containers are named only: they may be deep.
std::string Show(const Json& value) {
  return value.is_structured() ? std::string(value.type_name()) : value.dump().substr(0, 40);
}

// Typed access to an object; the first error sticks and names the field.
class Reader {
 public:
  Reader(const Json& json, ModelFields* fields) : json_(json), fields_(fields) {}

  const Status& status() const { return status_; }
  void Fail(Status status) {
    if (status_.ok()) status_ = std::move(status);
  }
  bool Has(const char* key) const { return json_.contains(key) && !json_[key].is_null(); }

  int64_t Int(const char* key) {
    if (!Has(key)) {
      Fail(InvalidArgument("field '", key, "' is missing"));
      return 0;
    }
    const Json& v = json_[key];
    if (!v.is_number_integer() || (v.is_number_unsigned() && v.get<uint64_t>() > (1ull << 40))) {
      Fail(InvalidArgument("field '", key, "' is ", Show(v), "; a whole number was expected"));
      return 0;
    }
    const int64_t value = v.get<int64_t>();
    if (value < 0) Fail(InvalidArgument("field '", key, "' = ", value, " is negative"));
    return value;
  }
  // Absent is `value`, silently: for fields whose absence means that there is no such thing.
  int64_t IntOr(const char* key, int64_t value) { return Has(key) ? Int(key) : value; }
  // Absent is the family's default, with a note; an error where it has none.
  int64_t IntDefault(const char* key) {
    if (Has(key)) return Int(key);
    const std::span<const ConfigDefault> all = ConfigDefaults(fields_->family);
    const auto it = std::find_if(all.begin(), all.end(), [&](const ConfigDefault& d) {
      return d.key == std::string_view(key);
    });
    if (it == all.end()) return Int(key);
    const auto value = static_cast<int64_t>(it->value);
    fields_->notes.push_back(
        StrCat("config.json has no ", key, ": ", value, ", the default of ", fields_->family));
    return value;
  }
  bool BoolOr(const char* key, bool value) {
    if (!Has(key)) return value;
    if (!json_[key].is_boolean()) {
      Fail(InvalidArgument("field '", key, "' is ", Show(json_[key]),
                           "; true or false was expected"));
      return value;
    }
    return json_[key].get<bool>();
  }
  std::string TextOr(const char* key, const std::string& value) {
    if (!Has(key)) return value;
    if (!json_[key].is_string()) {
      Fail(InvalidArgument("field '", key, "' is ", Show(json_[key]), "; a string was expected"));
      return value;
    }
    return json_[key].get<std::string>();
  }
  const Json& at(const char* key) const { return json_[key]; }

 private:
  const Json& json_;
  ModelFields* fields_;
  Status status_;
};

// Layer kinds by the names of transformers' "layer_types".
bool ReadLayerTypes(Reader& r, ModelFields* f) {
  if (!r.Has("layer_types")) return false;
  const Json& types = r.at("layer_types");
  if (!types.is_array()) {
    r.Fail(InvalidArgument("field 'layer_types' is no array"));
    return true;
  }
  for (const Json& type : types) {
    const std::string name = type.is_string() ? type.get<std::string>() : Show(type);
    if (name == "full_attention") {
      f->kinds.push_back(LayerKind::kFull);
    } else if (name == "sliding_attention") {
      f->kinds.push_back(LayerKind::kWindow);
    } else if (name == "linear_attention") {
      f->kinds.push_back(LayerKind::kState);
    } else {
      r.Fail(Unsupported("field 'layer_types' has '", name,
                         "'; supported: full_attention, sliding_attention, linear_attention"));
      return true;
    }
  }
  return true;
}

// Every `period`-th layer (counted from 1) is full, the others are `other`.
void EveryNthFull(int64_t period, LayerKind other, ModelFields* f) {
  for (int64_t i = 0; i < std::min<int64_t>(f->num_layers, 4096); ++i) {
    f->kinds.push_back((i + 1) % period == 0 ? LayerKind::kFull : other);
  }
}

void AllLayers(LayerKind kind, ModelFields* f) {
  f->kinds.assign(static_cast<size_t>(std::clamp<int64_t>(f->num_layers, 0, 4096)), kind);
}

void ReadCommon(Reader& r, ModelFields* f) {
  f->num_layers = r.Int("num_hidden_layers");
  f->hidden_dim = r.Int("hidden_size");
  f->vocab_size = r.Int("vocab_size");
  f->context_len = r.IntOr("max_position_embeddings", 0);
  f->num_q_heads = r.Int("num_attention_heads");
}

void ReadFfn(Reader& r, ModelFields* f) {
  if (r.Has("intermediate_size")) f->ffn_dim = {r.Int("intermediate_size")};
}

// num_key_value_heads and head_dim with the rules of Llama: absent = one KV head a query head, and
// hidden_size / num_attention_heads.
void ReadHeads(Reader& r, ModelFields* f) {
  f->num_kv_heads = {r.IntOr("num_key_value_heads", f->num_q_heads)};
  if (r.Has("head_dim")) {
    f->head_dim = r.Int("head_dim");
  } else if (f->num_q_heads > 0 && f->hidden_dim % f->num_q_heads == 0) {
    f->head_dim = f->hidden_dim / f->num_q_heads;
  } else {
    r.Fail(InvalidArgument("field 'head_dim' is missing and hidden_size = ", f->hidden_dim,
                           " is not a multiple of num_attention_heads = ", f->num_q_heads));
  }
  if (f->num_kv_heads[0] > 0 && f->num_q_heads % f->num_kv_heads[0] != 0) {
    r.Fail(InvalidArgument("field 'num_attention_heads' = ", f->num_q_heads,
                           " is not a multiple of num_key_value_heads = ", f->num_kv_heads[0]));
  }
}

// One window for all layers, or none.
void ReadGlobalWindow(Reader& r, ModelFields* f) {
  f->window = r.IntOr("sliding_window", 0);
  AllLayers(f->window > 0 ? LayerKind::kWindow : LayerKind::kFull, f);
}

void ReadLlama(Reader& r, ModelFields* f) {
  ReadHeads(r, f);
  ReadFfn(r, f);
  f->tied_embeddings = r.BoolOr("tie_word_embeddings", false);
  f->qkv_bias = f->o_bias = r.BoolOr("attention_bias", false);
  f->k_bias_center = f->qkv_bias;
  AllLayers(LayerKind::kFull, f);
}

void ReadMistral(Reader& r, ModelFields* f) {
  ReadHeads(r, f);
  ReadFfn(r, f);
  f->tied_embeddings = r.BoolOr("tie_word_embeddings", false);
  if (!ReadLayerTypes(r, f)) ReadGlobalWindow(r, f);
}

void ReadMixtral(Reader& r, ModelFields* f) {
  ReadMistral(r, f);
  f->num_experts = r.Int("num_local_experts");
  f->experts_per_token = r.Int("num_experts_per_tok");
  if (!f->ffn_dim.empty()) f->expert_ffn_dim = f->ffn_dim[0];
}

// qwen2 and qwen3 share the rule of their window: off unless use_sliding_window, and then on the
// layers from max_window_layers on.
void ReadQwenWindow(Reader& r, ModelFields* f) {
  f->window = r.IntOr("sliding_window", 0);
  if (ReadLayerTypes(r, f)) return;
  AllLayers(LayerKind::kFull, f);
  if (!r.BoolOr("use_sliding_window", false)) return;
  const int64_t full = r.Int("max_window_layers");
  for (size_t i = 0; i < f->kinds.size(); ++i) {
    if (static_cast<int64_t>(i) >= full) f->kinds[i] = LayerKind::kWindow;
  }
}

void ReadQwen2(Reader& r, ModelFields* f) {
  ReadHeads(r, f);
  ReadFfn(r, f);
  f->tied_embeddings = r.BoolOr("tie_word_embeddings", false);
  f->qkv_bias = f->k_bias_center = true;
  ReadQwenWindow(r, f);
}

void ReadQwen3(Reader& r, ModelFields* f) {
  f->num_kv_heads = {r.IntDefault("num_key_value_heads")};
  f->head_dim = r.IntDefault("head_dim");
  ReadFfn(r, f);
  f->tied_embeddings = r.BoolOr("tie_word_embeddings", false);
  f->qk_norm = true;
  f->qkv_bias = f->o_bias = f->k_bias_center = r.BoolOr("attention_bias", false);
  ReadQwenWindow(r, f);
}

// Dense layers by decoder_sparse_step and mlp_only_layers.
void ReadQwenExperts(Reader& r, ModelFields* f) {
  f->num_experts = r.Int("num_experts");
  f->experts_per_token = r.Int("num_experts_per_tok");
  f->expert_ffn_dim = r.Int("moe_intermediate_size");
  f->shared_ffn_dim = r.IntOr("shared_expert_intermediate_size", 0);
  const int64_t step = std::max<int64_t>(1, r.IntOr("decoder_sparse_step", 1));
  for (int64_t i = 0; i < static_cast<int64_t>(f->kinds.size()); ++i) {
    f->is_moe.push_back((i + 1) % step == 0);
  }
  if (!r.Has("mlp_only_layers")) return;
  const Json& dense = r.at("mlp_only_layers");
  for (const Json& layer : dense.is_array() ? dense : Json::array()) {
    if (layer.is_number_unsigned() && layer.get<size_t>() < f->is_moe.size()) {
      f->is_moe[layer.get<size_t>()] = false;
    } else {
      r.Fail(InvalidArgument("field 'mlp_only_layers' has ", Show(layer), "; expected 0 to ",
                             f->is_moe.size()));
    }
  }
}

void ReadQwen3Moe(Reader& r, ModelFields* f) {
  ReadQwen3(r, f);
  ReadQwenExperts(r, f);
}

// Gated delta net on most layers, full attention with an output gate on every fourth.
void ReadQwen3Next(Reader& r, ModelFields* f) {
  f->num_kv_heads = {r.Int("num_key_value_heads")};
  f->head_dim = r.IntDefault("head_dim");
  ReadFfn(r, f);
  f->tied_embeddings = r.BoolOr("tie_word_embeddings", false);
  f->qk_norm = f->gated_q = true;
  f->linear_k_heads = r.IntDefault("linear_num_key_heads");
  f->linear_v_heads = r.IntDefault("linear_num_value_heads");
  f->linear_k_dim = r.IntDefault("linear_key_head_dim");
  f->linear_v_dim = r.IntDefault("linear_value_head_dim");
  f->conv_kernel = r.IntDefault("linear_conv_kernel_dim");
  const std::string state = r.TextOr("mamba_ssm_dtype", "");
  if (state.empty()) {
    f->notes.push_back("config.json has no mamba_ssm_dtype: recurrent states counted in float32");
  } else if (state == "bfloat16" || state == "float16") {
    f->state_value_bytes = 2;
  } else if (state != "float32") {
    r.Fail(Unsupported("field 'mamba_ssm_dtype' = '", state,
                       "'; supported: float32, bfloat16, float16"));
  }
  if (!ReadLayerTypes(r, f)) {
    const int64_t interval = r.IntDefault("full_attention_interval");
    if (interval < 1) {
      return r.Fail(
          InvalidArgument("field 'full_attention_interval' = ", interval, "; expected 1 or more"));
    }
    EveryNthFull(interval, LayerKind::kState, f);
  }
  if (r.Has("num_experts") && r.Int("num_experts") > 0) ReadQwenExperts(r, f);
}

void ReadGemma2(Reader& r, ModelFields* f) {
  f->num_kv_heads = {r.Int("num_key_value_heads")};
  f->head_dim = r.IntDefault("head_dim");
  ReadFfn(r, f);
  f->tied_embeddings = r.BoolOr("tie_word_embeddings", true);
  f->four_norms = true;
  f->window = r.IntDefault("sliding_window");
  if (!ReadLayerTypes(r, f)) EveryNthFull(2, LayerKind::kWindow, f);
}

void ReadGemma3(Reader& r, ModelFields* f) {
  f->num_kv_heads = {r.IntDefault("num_key_value_heads")};
  f->head_dim = r.IntDefault("head_dim");
  ReadFfn(r, f);
  f->tied_embeddings = r.BoolOr("tie_word_embeddings", true);
  f->four_norms = f->qk_norm = true;
  f->window = r.IntDefault("sliding_window");
  if (ReadLayerTypes(r, f)) return;
  const char* key =
      r.Has("_sliding_window_pattern") ? "_sliding_window_pattern" : "sliding_window_pattern";
  const int64_t period = r.IntDefault(key);
  if (period < 1) {
    return r.Fail(InvalidArgument("field '", key, "' = ", period, "; expected 1 or more"));
  }
  EveryNthFull(period, LayerKind::kWindow, f);
}

void ReadGptOss(Reader& r, ModelFields* f) {
  f->num_kv_heads = {r.Int("num_key_value_heads")};
  f->head_dim = r.IntDefault("head_dim");
  f->tied_embeddings = r.BoolOr("tie_word_embeddings", false);
  f->qkv_bias = f->o_bias = f->k_bias_center = r.BoolOr("attention_bias", true);
  f->window = r.IntDefault("sliding_window");
  f->num_experts = r.Int("num_local_experts");
  f->experts_per_token =
      r.Has("num_experts_per_tok") ? r.Int("num_experts_per_tok") : r.Int("experts_per_token");
  f->expert_ffn_dim = r.Int("intermediate_size");
  if (!ReadLayerTypes(r, f)) EveryNthFull(2, LayerKind::kWindow, f);
}

void ReadDeepseek(Reader& r, ModelFields* f) {
  f->kv_lora_rank = r.Int("kv_lora_rank");
  f->q_lora_rank = r.IntOr("q_lora_rank", 0);
  f->qk_nope_dim = r.Int("qk_nope_head_dim");
  f->qk_rope_dim = r.Int("qk_rope_head_dim");
  f->v_head_dim = r.Int("v_head_dim");
  ReadFfn(r, f);
  f->tied_embeddings = r.BoolOr("tie_word_embeddings", false);
  AllLayers(LayerKind::kLatent, f);
  if (!r.Has("n_routed_experts")) return;
  f->num_experts = r.Int("n_routed_experts");
  f->experts_per_token = r.Int("num_experts_per_tok");
  f->expert_ffn_dim = r.Int("moe_intermediate_size");
  const int64_t shared = r.IntOr("n_shared_experts", 0);
  if (shared > 4096) {
    return r.Fail(InvalidArgument("field 'n_shared_experts' = ", shared, "; expected 0 to 4096"));
  }
  if (r.status().ok()) f->shared_ffn_dim = shared * f->expert_ffn_dim;
  const int64_t dense = r.IntOr("first_k_dense_replace", 0);
  const int64_t step = std::max<int64_t>(1, r.IntOr("moe_layer_freq", 1));
  for (int64_t i = 0; i < static_cast<int64_t>(f->kinds.size()); ++i) {
    f->is_moe.push_back(i >= dense && i % step == 0);
  }
}

struct Family {
  const char* model_type;
  void (*read)(Reader&, ModelFields*);
};
constexpr Family kFamilies[] = {
    {"deepseek_v2", ReadDeepseek},
    {"deepseek_v3", ReadDeepseek},
    {"gemma2", ReadGemma2},
    {"gemma3", ReadGemma3},
    {"gemma3_text", ReadGemma3},
    {"gpt_oss", ReadGptOss},
    {"llama", ReadLlama},
    {"mistral", ReadMistral},
    {"mixtral", ReadMixtral},
    {"phi3", ReadMistral},
    {"qwen2", ReadQwen2},
    {"qwen3", ReadQwen3},
    {"qwen3_5", ReadQwen3Next},
    {"qwen3_5_moe", ReadQwen3Next},
    {"qwen3_5_moe_text", ReadQwen3Next},
    {"qwen3_5_text", ReadQwen3Next},
    {"qwen3_moe", ReadQwen3Moe},
    {"qwen3_next", ReadQwen3Next},
};

// Gemma 3's first configurations leave out what equals the defaults of its classes.
void ReadGemma3Common(Reader& r, ModelFields* f) {
  f->num_layers = r.Int("num_hidden_layers");
  f->hidden_dim = r.Int("hidden_size");
  f->vocab_size = r.IntDefault("vocab_size");
  f->context_len = r.IntDefault("max_position_embeddings");
  f->num_q_heads = r.IntDefault("num_attention_heads");
}

}  // namespace

std::string SupportedModelTypes() {
  std::string out;
  for (const Family& f : kFamilies) out += (out.empty() ? "" : ", ") + std::string(f.model_type);
  return out;
}

Result<ModelSpec> ReadModelConfig(std::string_view text, const std::string& name, int64_t context) {
  TQ_ASSIGN_OR_RETURN(const Json root, ParseJsonObject(text, name));
  const bool nested = root.contains("text_config") && root["text_config"].is_object();
  const Json& json = nested ? root["text_config"] : root;
  ModelFields fields;
  fields.name = name;
  Reader outer(root, &fields);
  Reader reader(json, &fields);
  fields.family = reader.TextOr("model_type", outer.TextOr("model_type", ""));
  TQ_RETURN_IF_ERROR(reader.status().WithContext(name));
  if (fields.family.empty()) return InvalidArgument(name, ": field 'model_type' is missing");
  const auto* family = std::find_if(std::begin(kFamilies), std::end(kFamilies),
                                    [&](const Family& f) { return fields.family == f.model_type; });
  if (family == std::end(kFamilies)) {
    return Unsupported(name, ": field 'model_type' = '", fields.family,
                       "' is not a family the planner knows; supported: ", SupportedModelTypes(),
                       "; or give the numbers: --layers, --kv-heads, --head-dim, --params");
  }
  if (fields.family.rfind("gemma3", 0) == 0) {
    ReadGemma3Common(reader, &fields);
  } else {
    ReadCommon(reader, &fields);
  }
  if (reader.status().ok()) family->read(reader, &fields);
  if (fields.context_len > 0 && fields.window >= std::max(fields.context_len, context)) {
    std::replace(fields.kinds.begin(), fields.kinds.end(), LayerKind::kWindow, LayerKind::kFull);
  }
  // Only the outer part of a composed configuration may say that embeddings are tied.
  if (nested && !reader.Has("tie_word_embeddings") && outer.Has("tie_word_embeddings")) {
    fields.tied_embeddings = outer.BoolOr("tie_word_embeddings", fields.tied_embeddings);
  }
  TQ_RETURN_IF_ERROR(reader.status().WithContext(name));
  TQ_RETURN_IF_ERROR(outer.status().WithContext(name));
  if (nested) {
    fields.notes.push_back("the language model only: vision or audio towers are not counted");
  }
  Result<ModelSpec> spec = BuildSpec(fields);
  if (!spec.ok()) return spec.status().WithContext(name);
  return spec;
}

}  // namespace tq
