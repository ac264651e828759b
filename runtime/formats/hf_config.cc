#include "runtime/formats/hf_config.h"

#include <cmath>
#include <iterator>
#include <numbers>

#include "turboquant/plan/config_defaults.h"

namespace tq {
namespace {

using enum TensorChange;

// --- Tensors of a layer, by architecture --------------------------------------------------------

constexpr TensorRule kAttention[] = {
    {"self_attn.q_proj.weight", "attn_q.weight", kQuery},
    {"self_attn.k_proj.weight", "attn_k.weight", kKey},
    {"self_attn.v_proj.weight", "attn_v.weight"},
    {"self_attn.o_proj.weight", "attn_output.weight"},
    {"self_attn.q_proj.bias", "attn_q.bias", kQuery},
    {"self_attn.k_proj.bias", "attn_k.bias", kKey},
    {"self_attn.v_proj.bias", "attn_v.bias"},
    {"self_attn.o_proj.bias", "attn_output.bias"},
    {"self_attn.rotary_emb.inv_freq", "", kSkip},
    {"input_layernorm.weight", "attn_norm.weight", kNorm},
};
constexpr TensorRule kQkNorm[] = {
    {"self_attn.q_norm.weight", "attn_q_norm.weight", kNorm},
    {"self_attn.k_norm.weight", "attn_k_norm.weight", kNorm},
};
constexpr TensorRule kFfnNorm[] = {{"post_attention_layernorm.weight", "ffn_norm.weight", kNorm}};
constexpr TensorRule kFfn[] = {
    {"mlp.gate_proj.weight", "ffn_gate.weight"},
    {"mlp.up_proj.weight", "ffn_up.weight"},
    {"mlp.down_proj.weight", "ffn_down.weight"},
};
constexpr TensorRule kMixtral[] = {
    {"block_sparse_moe.gate.weight", "ffn_gate_inp.weight", kF32},
    {"block_sparse_moe.experts.*.w1.weight", "ffn_gate_exps.weight", kExpert},
    {"block_sparse_moe.experts.*.w2.weight", "ffn_down_exps.weight", kExpert},
    {"block_sparse_moe.experts.*.w3.weight", "ffn_up_exps.weight", kExpert},
};
constexpr TensorRule kQwen3Moe[] = {
    {"mlp.gate.weight", "ffn_gate_inp.weight", kF32},
    {"mlp.experts.*.gate_proj.weight", "ffn_gate_exps.weight", kExpert},
    {"mlp.experts.*.up_proj.weight", "ffn_up_exps.weight", kExpert},
    {"mlp.experts.*.down_proj.weight", "ffn_down_exps.weight", kExpert},
    {"mlp.experts.gate_up_proj", "ffn_gate_exps.weight", kUpperHalf},
    {"mlp.experts.gate_up_proj", "ffn_up_exps.weight", kLowerHalf},
    {"mlp.experts.down_proj", "ffn_down_exps.weight"},
};
constexpr TensorRule kGemmaNorms[] = {
    {"post_attention_layernorm.weight", "post_attention_norm.weight", kNorm},
    {"pre_feedforward_layernorm.weight", "ffn_norm.weight", kNorm},
    {"post_feedforward_layernorm.weight", "post_ffw_norm.weight", kNorm},
};
constexpr TensorRule kPhi3[] = {
    {"self_attn.qkv_proj.weight", "attn_qkv.weight"},
    {"self_attn.o_proj.weight", "attn_output.weight"},
    {"mlp.gate_up_proj.weight", "ffn_up.weight"},
    {"mlp.down_proj.weight", "ffn_down.weight"},
    {"input_layernorm.weight", "attn_norm.weight", kNorm},
};
constexpr TensorRule kGptOss[] = {
    {"self_attn.sinks", "attn_sinks.weight", kF32},
    {"post_attention_layernorm.weight", "post_attention_norm.weight", kNorm},
    {"mlp.router.weight", "ffn_gate_inp.weight", kF32},
    {"mlp.router.bias", "ffn_gate_inp.bias", kF32},
    {"mlp.experts.gate_up_proj", "ffn_gate_exps.weight", kEvenTransposed},
    {"mlp.experts.gate_up_proj", "ffn_up_exps.weight", kOddTransposed},
    {"mlp.experts.down_proj", "ffn_down_exps.weight", kTransposed},
    {"mlp.experts.gate_up_proj_bias", "ffn_gate_exps.bias", kEven},
    {"mlp.experts.gate_up_proj_bias", "ffn_up_exps.bias", kOdd},
    {"mlp.experts.down_proj_bias", "ffn_down_exps.bias", kF32},
};

constexpr HfArchitecture kArchitectures[] = {
    {.model_type = "llama",
     .gguf = "llama",
     .permute_rows = true,
     .tensors = {kAttention, kFfnNorm, kFfn}},
    {.model_type = "mistral",
     .gguf = "llama",
     .permute_rows = true,
     .tensors = {kAttention, kFfnNorm, kFfn}},
    {.model_type = "mixtral",
     .gguf = "llama",
     .permute_rows = true,
     .tensors = {kAttention, kFfnNorm, kMixtral}},
    {.model_type = "qwen2", .gguf = "qwen2", .tensors = {kAttention, kFfnNorm, kFfn}},
    {.model_type = "qwen3", .gguf = "qwen3", .tensors = {kAttention, kQkNorm, kFfnNorm, kFfn}},
    {.model_type = "qwen3_moe",
     .gguf = "qwen3moe",
     .tensors = {kAttention, kQkNorm, kFfnNorm, kQwen3Moe}},
    {.model_type = "gemma2",
     .gguf = "gemma2",
     .norm_plus_one = true,
     .window_period = 2,
     .activation = "gelu_pytorch_tanh",
     .tensors = {kAttention, kGemmaNorms, kFfn}},
    {.model_type = "gemma3_text",
     .gguf = "gemma3",
     .norm_plus_one = true,
     .window_period = 6,
     .activation = "gelu_pytorch_tanh",
     .tensors = {kAttention, kQkNorm, kGemmaNorms, kFfn}},
    {.model_type = "phi3", .gguf = "phi3", .tensors = {kPhi3, kFfnNorm}},
    {.model_type = "gpt_oss",
     .gguf = "gpt-oss",
     .window_period = 2,
     .tensors = {kAttention, kGptOss}},
};

// --- Keys ----------------------------------------------------------------------------------------

struct KeyRule {
  const char* gguf;  // what follows "ARCHITECTURE."
  const char* json;
  bool is_float = false, required = false;
};
constexpr KeyRule kKeys[] = {
    {"block_count", "num_hidden_layers", false, true},
    {"context_length", "max_position_embeddings", false, true},
    {"embedding_length", "hidden_size", false, true},
    {"feed_forward_length", "intermediate_size", false, true},
    {"attention.head_count", "num_attention_heads", false, true},
    {"attention.head_count_kv", "num_key_value_heads"},
    {"attention.layer_norm_rms_epsilon", "rms_norm_eps", true, true},
    {"attention.key_length", "head_dim"},
    {"attention.value_length", "head_dim"},
    {"vocab_size", "vocab_size", false, true},
    {"expert_count", "num_local_experts"},
    {"expert_count", "num_experts"},
    {"expert_used_count", "num_experts_per_tok"},
    {"expert_feed_forward_length", "moe_intermediate_size"},
    {"attn_logit_softcapping", "attn_logit_softcapping", true},
    {"final_logit_softcapping", "final_logit_softcapping", true},
};

// Settings that would change the results if they were passed over: the only value that is built.
struct FixedKey {
  const char* key;
  bool value;
};
constexpr FixedKey kFixed[] = {
    {"use_sliding_window", false},
    {"norm_topk_prob", true},
    {"is_encoder_decoder", false},
    {"use_bidirectional_attention", false},
};

// What the loader takes (runtime/model); together they bound the tables of experts.
constexpr int64_t kMaxLayers = 1024, kMaxExperts = 1024;

class ConfigReader {
 public:
  ConfigReader(const JsonObject& config, const HfArchitecture& architecture, HfConfig* out)
      : config_(config), a_(architecture), out_(*out) {}

  Status Read() {
    out_.architecture = &a_;
    out_.metadata["general.architecture"] = std::string(a_.gguf);
    out_.metadata["general.type"] = std::string("model");
    for (const KeyRule& rule : kKeys) TQ_RETURN_IF_ERROR(Copy(rule));
    TQ_RETURN_IF_ERROR(Refuse());
    TQ_ASSIGN_OR_RETURN(out_.num_layers, Bounded("num_hidden_layers", 1, kMaxLayers, 0));
    TQ_ASSIGN_OR_RETURN(out_.num_q_heads, Bounded("num_attention_heads", 1, 1 << 20, 0));
    TQ_ASSIGN_OR_RETURN(out_.num_kv_heads,
                        Bounded("num_key_value_heads", 1, 1 << 20, out_.num_q_heads));
    TQ_ASSIGN_OR_RETURN(out_.vocab_size, Bounded("vocab_size", 1, 1 << 24, 0));
    TQ_ASSIGN_OR_RETURN(hidden_, Bounded("hidden_size", 1, 1 << 24, 0));
    TQ_ASSIGN_OR_RETURN(head_dim_, Bounded("head_dim", 1, 1 << 24, hidden_ / out_.num_q_heads));
    if (head_dim_ < 2 || head_dim_ > 1 << 16) {
      return InvalidArgument("heads of '", config_.name(), "' have ", head_dim_,
                             " values; expected 2 to 65536");
    }
    TQ_ASSIGN_OR_RETURN(const int64_t local, Bounded("num_local_experts", 0, kMaxExperts, 0));
    TQ_ASSIGN_OR_RETURN(out_.num_experts, Bounded("num_experts", 0, kMaxExperts, local));
    TQ_ASSIGN_OR_RETURN(out_.tied_embeddings, config_.Bool("tie_word_embeddings"));
    if (Is("gpt-oss")) {
      TQ_ASSIGN_OR_RETURN(const int64_t ffn, Bounded("intermediate_size", 1, 1 << 24, 0));
      Set("expert_feed_forward_length", static_cast<uint64_t>(ffn));
    }
    TQ_RETURN_IF_ERROR(ReadWindow());
    TQ_RETURN_IF_ERROR(ReadScale());
    return ReadRope();
  }

 private:
  bool Is(std::string_view gguf) const { return gguf == a_.gguf; }
  void Set(const std::string& key, GgufValue value) {
    out_.metadata[std::string(a_.gguf) + "." + key] = std::move(value);
  }

  Status Copy(const KeyRule& rule) {
    if (rule.required && config_.Find(rule.json) == nullptr) {
      return config_.Wrong(rule.json, rule.is_float ? "a number" : "an integer");
    }
    if (rule.is_float) {
      TQ_ASSIGN_OR_RETURN(const std::optional<double> value, config_.Number(rule.json));
      if (value) Set(rule.gguf, *value);
      if (config_.IsNull(rule.json)) Set(rule.gguf, 0.0);  // off; absence is a default of GGUF
      return OkStatus();
    }
    TQ_ASSIGN_OR_RETURN(const std::optional<int64_t> value, config_.Int(rule.json));
    if (!value) return OkStatus();
    if (*value < 0) {
      return InvalidArgument("'", rule.json, "' of '", config_.name(), "' is ", *value,
                             "; expected 0 or more");
    }
    Set(rule.gguf, static_cast<uint64_t>(*value));
    return OkStatus();
  }

  Result<int64_t> Bounded(const char* key, int64_t low, int64_t high, int64_t fallback) const {
    TQ_ASSIGN_OR_RETURN(const std::optional<int64_t> value, config_.Int(key));
    if (!value) return fallback;
    if (*value < low || *value > high) {
      return InvalidArgument("'", key, "' of '", config_.name(), "' is ", *value, "; expected ",
                             low, " to ", high);
    }
    return *value;
  }

  Status Refuse() const {
    for (const FixedKey& fixed : kFixed) {
      TQ_ASSIGN_OR_RETURN(const std::optional<bool> value, config_.Bool(fixed.key));
      if (value && *value != fixed.value) {
        return Unsupported("'", fixed.key, "' of '", config_.name(), "' is ",
                           *value ? "true" : "false", "; only ", fixed.value ? "true" : "false",
                           " is supported");
      }
    }
    if (Is("qwen3moe") && config_.Find("norm_topk_prob") == nullptr) {
      return Unsupported("'norm_topk_prob' of '", config_.name(),
                         "' is missing, which means false; ", "only true is supported");
    }
    // Gemma's older configurations name the exact function under hidden_act and compute the other.
    const char* key = config_.Find("hidden_activation") != nullptr || a_.norm_plus_one
                          ? "hidden_activation"
                          : "hidden_act";
    TQ_ASSIGN_OR_RETURN(const std::optional<std::string> activation, config_.Text(key));
    if (activation && *activation != a_.activation) {
      return Unsupported("'", key, "' of '", config_.name(), "' is '", *activation,
                         "'; supported: ", a_.activation);
    }
    TQ_ASSIGN_OR_RETURN(const std::optional<double> limit, config_.Number("swiglu_limit"));
    if (limit && *limit != 7.0) {
      return Unsupported("'swiglu_limit' of '", config_.name(), "' is ", *limit, "; supported: 7");
    }
    TQ_ASSIGN_OR_RETURN(const int64_t step, Bounded("decoder_sparse_step", 0, 1 << 20, 1));
    const nlohmann::json* dense = config_.Find("mlp_only_layers");
    if (step != 1 || (dense != nullptr && !dense->empty())) {
      return Unsupported("'", config_.name(),
                         "' mixes layers with and without experts "
                         "(decoder_sparse_step, mlp_only_layers); supported: experts in all");
    }
    return OkStatus();
  }

  // The window, and which layers have it where that is not the rule of the architecture.
  Status ReadWindow() {
    TQ_ASSIGN_OR_RETURN(const int64_t window, Bounded("sliding_window", 0, INT32_MAX, 0));
    // Qwen configurations carry a window that is switched off.
    const bool off = Is("qwen2") || Is("qwen3") || Is("qwen3moe");
    const bool is_there =
        config_.Find("sliding_window") != nullptr || config_.IsNull("sliding_window");
    if (off || (!is_there && !Is("phi3"))) return OkStatus();
    Set("attention.sliding_window", static_cast<uint64_t>(window));
    if (window == 0) return OkStatus();
    const int64_t period = a_.window_period;
    if (const nlohmann::json* types = config_.Find("layer_types"); types != nullptr) {
      if (!types->is_array() || types->size() != static_cast<size_t>(out_.num_layers)) {
        return InvalidArgument("'layer_types' of '", config_.name(), "' is not a list of ",
                               out_.num_layers, " layers");
      }
      std::vector<int64_t> windowed;
      bool is_rule = true;
      for (const nlohmann::json& type : *types) {
        if (type != "sliding_attention" && type != "full_attention") {
          return Unsupported("'layer_types' of '", config_.name(),
                             "' names a layer that is neither ",
                             "sliding_attention nor full_attention");
        }
        const auto layer = static_cast<int64_t>(windowed.size());
        windowed.push_back(type == "sliding_attention");
        is_rule &= windowed.back() == (period == 1 || layer % period < period - 1);
      }
      if (!is_rule) Set("attention.sliding_window_pattern", windowed);
      return OkStatus();
    }
    TQ_ASSIGN_OR_RETURN(const int64_t plain,
                        Bounded("sliding_window_pattern", 1, kMaxLayers, period));
    TQ_ASSIGN_OR_RETURN(const int64_t other,
                        Bounded("_sliding_window_pattern", 1, kMaxLayers, plain));
    if (other != period) Set("attention.sliding_window_pattern", static_cast<uint64_t>(other));
    return OkStatus();
  }

  // Scores are divided by the root of head_dim, except in the 27B models of Gemma, which readers of
  // GGUF know by their number of layers.
  Status ReadScale() {
    TQ_ASSIGN_OR_RETURN(const std::optional<double> scalar,
                        config_.Number("query_pre_attn_scalar"));
    if (!scalar || *scalar == static_cast<double>(head_dim_)) return OkStatus();
    const bool is_known =
        (Is("gemma2") && out_.num_layers == 46) || (Is("gemma3") && out_.num_layers == 62);
    if (is_known && *scalar == static_cast<double>(hidden_ / out_.num_q_heads)) return OkStatus();
    if (!(*scalar > 0)) {
      return InvalidArgument("'query_pre_attn_scalar' of '", config_.name(), "' is ", *scalar,
                             "; expected more than 0");
    }
    Set("attention.scale", 1 / std::sqrt(*scalar));
    return OkStatus();
  }

  Status ReadRope() {
    const JsonObject old = config_.Object("rope_scaling"),
                     fresh = config_.Object("rope_parameters");
    const JsonObject all = fresh.empty() ? old : fresh;
    const JsonObject by_layer = all.Object("full_attention");
    const JsonObject p = by_layer.empty() ? all : by_layer;
    TQ_ASSIGN_OR_RETURN(std::optional<double> theta, p.Number("rope_theta"));
    if (!theta) {
      TQ_ASSIGN_OR_RETURN(theta, config_.Number("rope_theta"));
    }
    const double base = theta.value_or(Is("gemma3") ? 1e6 : Is("gpt-oss") ? 150000 : 10000);
    Set("rope.freq_base", base);
    if (Is("gemma3")) {
      TQ_ASSIGN_OR_RETURN(std::optional<double> local,
                          all.Object("sliding_attention").Number("rope_theta"));
      if (!local) {
        TQ_ASSIGN_OR_RETURN(local, config_.Number("rope_local_base_freq"));
      }
      Set("rope.freq_base_swa", local.value_or(10000));
    }
    TQ_ASSIGN_OR_RETURN(std::optional<double> partial, p.Number("partial_rotary_factor"));
    if (!partial) {
      TQ_ASSIGN_OR_RETURN(partial, config_.Number("partial_rotary_factor"));
    }
    if (partial && !(*partial > 0 && *partial <= 1)) {
      return InvalidArgument("'partial_rotary_factor' of '", config_.name(), "' is ", *partial,
                             "; expected more than 0 to 1");
    }
    const auto dim = static_cast<int64_t>(partial.value_or(1) * static_cast<double>(head_dim_));
    if (Is("llama") || Is("phi3")) Set("rope.dimension_count", static_cast<uint64_t>(dim));
    if (!Is("phi3") && dim != head_dim_) {
      return Unsupported("'partial_rotary_factor' of '", config_.name(), "' is ", *partial,
                         "; supported: 1, or any in phi3");
    }
    return ReadScaling(p, base, dim);
  }

  Status ReadScaling(const JsonObject& p, double base, int64_t dim) {
    TQ_ASSIGN_OR_RETURN(std::optional<std::string> type, p.Text("rope_type"));
    if (!type) {
      TQ_ASSIGN_OR_RETURN(type, p.Text("type"));
    }
    TQ_ASSIGN_OR_RETURN(const std::optional<double> factor, p.Number("factor"));
    TQ_ASSIGN_OR_RETURN(std::optional<int64_t> original, p.Int("original_max_position_embeddings"));
    if (!original) {
      TQ_ASSIGN_OR_RETURN(original, config_.Int("original_max_position_embeddings"));
    }
    TQ_ASSIGN_OR_RETURN(const int64_t context, Bounded("max_position_embeddings", 1, INT32_MAX, 1));
    const int64_t old_context = original.value_or(context);
    if (old_context < 1) {
      return InvalidArgument("'original_max_position_embeddings' of '", config_.name(), "' is ",
                             old_context, "; expected 1 or more");
    }
    if (Is("phi3")) {
      Set("rope.scaling.original_context_length", static_cast<uint64_t>(old_context));
    }
    if (!type || *type == "default" || *type == "none") return OkStatus();
    if (*type == "linear" || *type == "yarn") {
      if (!factor) return p.Wrong("factor", "a number");
      Set("rope.scaling.type", *type);
      Set("rope.scaling.factor", *factor);
      return *type == "yarn" ? ReadYarn(p, old_context) : OkStatus();
    }
    if (*type == "llama3" && Is("llama")) return MakeLlama3Factors(p, base, dim, old_context);
    if ((*type == "longrope" || *type == "su") && Is("phi3")) {
      return ReadLongFactors(p, dim, context, old_context);
    }
    return Unsupported("rope scaling '", *type, "' of '", config_.name(), "' is not supported for ",
                       a_.model_type,
                       "; supported: default, linear, yarn, llama3 (llama), longrope (phi3)");
  }

  Status ReadYarn(const JsonObject& p, int64_t old_context) {
    Set("rope.scaling.original_context_length", static_cast<uint64_t>(old_context));
    constexpr std::pair<const char*, const char*> kYarn[] = {
        {"extrapolation_factor", "yarn_ext_factor"},
        {"attn_factor", "yarn_attn_factor"},
        {"attention_factor", "yarn_attn_factor"},
        {"beta_fast", "yarn_beta_fast"},
        {"beta_slow", "yarn_beta_slow"},
    };
    for (const auto& [json, gguf] : kYarn) {
      TQ_ASSIGN_OR_RETURN(const std::optional<double> value, p.Number(json));
      if (value) Set(std::string("rope.scaling.") + gguf, *value);
    }
    return OkStatus();
  }

  // Llama 3.1: long wavelengths are stretched, short ones not, and those between in part.
  Status MakeLlama3Factors(const JsonObject& p, double base, int64_t dim, int64_t old_context) {
    double values[3];
    constexpr std::pair<const char*, double> kNames[] = {
        {"factor", 8}, {"low_freq_factor", 1}, {"high_freq_factor", 4}};
    for (size_t i = 0; i < std::size(kNames); ++i) {
      TQ_ASSIGN_OR_RETURN(const std::optional<double> value, p.Number(kNames[i].first));
      values[i] = value.value_or(kNames[i].second);
      if (!(values[i] > 0)) {
        return InvalidArgument("'", kNames[i].first, "' of '", p.name(), "' is ", values[i],
                               "; expected more than 0");
      }
    }
    const auto [factor, low, high] = values;
    if (high == low) {
      return InvalidArgument("'low_freq_factor' and 'high_freq_factor' of '", p.name(),
                             "' are both ", low);
    }
    std::vector<float> factors;
    const auto length = static_cast<double>(old_context);
    for (int64_t i = 0; i < dim / 2; ++i) {
      const double angle = std::pow(base, -2.0 * static_cast<double>(i) / static_cast<double>(dim));
      const double wave = 2 * std::numbers::pi / angle;
      const double smooth = (length / wave - low) / (high - low);
      const double stretched = 1 / ((1 - smooth) / factor + smooth);
      factors.push_back(static_cast<float>(wave < length / high  ? 1
                                           : wave > length / low ? factor
                                                                 : stretched));
    }
    out_.made_tensors.emplace_back("rope_freqs.weight", std::move(factors));
    return OkStatus();
  }

  Status ReadLongFactors(const JsonObject& p, int64_t dim, int64_t context, int64_t old_context) {
    for (const char* kind : {"long", "short"}) {
      const std::string key = std::string(kind) + "_factor";
      const nlohmann::json* list = p.Find(key.c_str());
      std::vector<float> factors;
      if (list != nullptr && list->is_array()) {
        for (const nlohmann::json& value : *list) {
          if (value.is_number()) factors.push_back(value.get<float>());
        }
      }
      if (list == nullptr || factors.size() != list->size() ||
          factors.size() != static_cast<size_t>(dim / 2)) {
        return InvalidArgument("'", key, "' of '", p.name(), "' is not a list of ", dim / 2,
                               " numbers");
      }
      out_.made_tensors.emplace_back(StrCat("rope_factors_", kind, ".weight"), std::move(factors));
    }
    const double scale = static_cast<double>(context) / static_cast<double>(old_context);
    const double more = std::log(scale) / std::log(static_cast<double>(old_context));
    Set("rope.scaling.attn_factor", scale > 1 ? std::sqrt(1 + more) : 1.0);
    return OkStatus();
  }

  const JsonObject& config_;
  const HfArchitecture& a_;
  HfConfig& out_;
  int64_t hidden_ = 0, head_dim_ = 0;
};

Status RefuseQuantized(const JsonObject& config) {
  if (config.Find("quantization_config") == nullptr) return OkStatus();
  const JsonObject q = config.Object("quantization_config");
  TQ_ASSIGN_OR_RETURN(const std::optional<std::string> method, q.Text("quant_method"));
  // How an engine keeps its cache, over weights that are not quantized.
  if (method == "modelopt" && q.Find("kv_cache_quant_algo") != nullptr &&
      q.Find("quant_algo") == nullptr && q.Find("config_groups") == nullptr) {
    return OkStatus();
  }
  return Unsupported("the weights of '", config.name(), "' are quantized (quantization_config, ",
                     "method '", method.value_or("unknown"),
                     "'), and that format is not read; take a 16-bit checkpoint of the model, and ",
                     "'tq quantize FOLDER --to int4 --out FILE.gguf' makes its weights small; or "
                     "take a GGUF file of it");
}

}  // namespace

Result<HfConfig> ReadHfConfig(const nlohmann::json& config, const std::string& name) {
  const JsonObject outer(config, name);
  TQ_ASSIGN_OR_RETURN(const std::optional<std::string> outer_type, outer.Text("model_type"));
  if (!outer_type) return outer.Wrong("model_type", "the name of an architecture");
  TQ_RETURN_IF_ERROR(RefuseQuantized(outer));
  // Gemma 3 with pictures: its language model is a part of its own.
  const bool nested = *outer_type == "gemma3" && outer.Find("text_config") != nullptr;
  const JsonObject inner = nested ? outer.Object("text_config") : outer;
  const std::string type = nested ? "gemma3_text" : *outer_type;
  std::string supported;
  for (const HfArchitecture& architecture : kArchitectures) {
    supported += StrCat(supported.empty() ? "" : ", ", architecture.model_type);
    if (type != architecture.model_type) continue;
    HfConfig out;
    nlohmann::json whole = inner.empty() ? nlohmann::json::object() : inner.json();
    for (const ConfigDefault& d : ConfigDefaults(architecture.model_type)) {
      if (whole.contains(d.key)) continue;
      if (d.is_float) {
        whole[d.key] = d.value;
      } else {
        whole[d.key] = static_cast<int64_t>(d.value);
      }
    }
    const JsonObject complete(whole, inner.name());
    TQ_RETURN_IF_ERROR(ConfigReader(complete, architecture, &out).Read());
    return out;
  }
  return Unsupported("model_type '", *outer_type, "' of '", name,
                     "' is not supported; supported: ", supported);
}

}  // namespace tq
