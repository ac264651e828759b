// The families that are built, and every number of a file checked against its neighbours.
#include "runtime/model/architecture.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>
#include <utility>
#include <variant>

#include "turboquant/codec/record_layout.h"

namespace tq {
namespace {

using Experts = ArchitectureTraits::Experts;

constexpr ArchitectureTraits kArchitectures[] = {
    {.name = "gemma2",
     .post_norms = true,
     .scaled_embedding = true,
     .activation = Activation::kGelu,
     .window_period = 2,
     .default_window = 4096,
     .attention_softcap = 50,
     .logit_softcap = 30,
     .wide_layers = 46},
    {.name = "gemma3",
     .qk_norm = true,
     .post_norms = true,
     .scaled_embedding = true,
     .activation = Activation::kGelu,
     .window_period = 6,
     .window_rope_base = 10000,
     .wide_layers = 62},
    {.name = "gpt-oss",
     .sinks = true,
     .ffn_norm = "post_attention_norm",
     .activation = Activation::kClampedSilu,
     .experts = Experts::kAlways,
     .window_period = 2,
     .yarn_rounds = false},
    {.name = "llama", .pairs_side_by_side = true, .experts = Experts::kIfCounted},
    {.name = "phi3", .fused_rows = true},
    {.name = "qwen2"},
    {.name = "qwen3", .qk_norm = true},
    {.name = "qwen3moe", .qk_norm = true, .experts = Experts::kAlways},
};

// Limits that no real model comes near; they keep every product of two within int64.
constexpr int64_t kMaxLayers = 1024, kMaxHeads = 1024, kMaxExperts = 1024;
constexpr int64_t kMaxDim = 1 << 17, kMaxFfn = 1 << 20, kMaxVocab = 1 << 22;
constexpr int64_t kMaxContext = 1 << 30;

// The metadata of one architecture: keys without their prefix.
class Keys {
 public:
  Keys(const GgufFile& file, const std::string& arch) : file_(file), prefix_(arch + ".") {}

  std::string Full(const char* key) const { return prefix_ + key; }
  bool Has(const char* key) const { return file_.Has(Full(key)); }

  // A number, or one a layer that is the same for all layers.
  Result<int> Int(const char* key, int64_t low, int64_t high) const {
    TQ_ASSIGN_OR_RETURN(const int64_t v, SameInt(key));
    if (v < low || v > high) {
      return InvalidArgument(Full(key), " = ", v, ": expected ", low, " to ", high);
    }
    return static_cast<int>(v);
  }
  Result<int> IntOr(const char* key, int64_t low, int64_t high, int fallback) const {
    return Has(key) ? Int(key, low, high) : Result<int>(fallback);
  }
  Result<float> Float(const char* key, double low, double high) const {
    TQ_ASSIGN_OR_RETURN(const double v, file_.GetFloat(Full(key)));
    // Written so that NaN is refused too.
    if (!(v >= low && v <= high)) {
      return InvalidArgument(Full(key), " = ", v, ": expected ", low, " to ", high);
    }
    return static_cast<float>(v);
  }
  Result<float> FloatOr(const char* key, double low, double high, float fallback) const {
    return Has(key) ? Float(key, low, high) : Result<float>(fallback);
  }
  Result<std::string> Text(const char* key) const { return file_.GetString(Full(key)); }
  Result<bool> Bool(const char* key) const { return file_.GetBool(Full(key)); }
  const GgufFile& file() const { return file_; }

 private:
  Result<int64_t> SameInt(const char* key) const {
    const auto it = file_.metadata().find(Full(key));
    const auto* list =
        it == file_.metadata().end() ? nullptr : std::get_if<std::vector<int64_t>>(&it->second);
    if (list == nullptr || list->empty()) return file_.GetInt(Full(key));
    const auto other =
        std::find_if(list->begin(), list->end(), [&](int64_t v) { return v != list->front(); });
    if (other == list->end()) return list->front();
    return Unsupported(Full(key), " differs from layer to layer (", list->front(), " and ", *other,
                       "); supported: layers of one shape");
  }
  const GgufFile& file_;
  const std::string prefix_;
};

// Features that would change the results if they were ignored.
Status RefuseWhatIsNotBuilt(const Keys& keys, const ArchitectureTraits& traits) {
  struct Feature {
    const char* key;
    const char* what;
    double harmless = 0;
  };
  static constexpr Feature kFeatures[] = {
      {"logit_scale", "logit scale"},
      {"embedding_scale", "embedding scale"},
      {"residual_scale", "residual scale"},
      {"router_logit_softcapping", "soft capping of the router"},
      {"expert_shared_count", "shared experts"},
      {"expert_group_count", "groups of experts", 1},
      {"expert_weights_scale", "scale of the experts' weights", 1},
      {"rope.scaling.yarn_log_multiplier", "YaRN with a multiplier"},
      {"rope.scaling.alpha", "dynamic RoPE scaling"},
      {"attention.max_alibi_bias", "ALiBi"},
      {"attention.clamp_kqv", "clamped q, k and v"},
  };
  const auto refuse = [&](const Feature& f) -> Status {
    if (!keys.Has(f.key)) return OkStatus();
    TQ_ASSIGN_OR_RETURN(const double value, keys.file().GetFloat(keys.Full(f.key)));
    if (value == 0 || value == f.harmless) return OkStatus();
    return Unsupported(f.what, " (", keys.Full(f.key), " = ", value,
                       ") is not built for the architecture '", traits.name, "'");
  };
  for (const Feature& f : kFeatures) TQ_RETURN_IF_ERROR(refuse(f));
  if (traits.experts == Experts::kNever) {
    TQ_RETURN_IF_ERROR(refuse({"expert_count", "mixture of experts"}));
  }
  struct Flag {
    const char* key;
    bool good;
    const char* what;
  };
  for (const Flag& f :
       {Flag{"attention.causal", true, "only causal models run here"},
        Flag{"expert_weights_norm", true, "only weights of experts that sum to 1 are supported"}}) {
    if (!keys.Has(f.key)) continue;
    TQ_ASSIGN_OR_RETURN(const bool value, keys.Bool(f.key));
    if (value != f.good) {
      return Unsupported(keys.Full(f.key), " = ", value ? "true" : "false", ": ", f.what);
    }
  }
  return OkStatus();
}

RopeFrequencies PlainRope(int rope_dim, double base, double divisor = 1) {
  RopeFrequencies rope;
  for (int i = 0; i < rope_dim / 2; ++i) {
    rope.inv_freq.push_back(static_cast<float>(std::pow(base, -2.0 * i / rope_dim) / divisor));
  }
  return rope;
}

// YaRN, arXiv 2309.00071: channels that turn often within the trained context keep their
// frequency, those that turn less than once get it divided, a ramp lies between; cos and sin grow
// by 0.1 ln(factor) + 1.
Result<RopeFrequencies> YarnRope(const Keys& keys, const ArchitectureTraits& traits, int rope_dim,
                                 double base) {
  TQ_ASSIGN_OR_RETURN(const float factor, keys.Float("rope.scaling.factor", 1e-3, 1e6));
  TQ_ASSIGN_OR_RETURN(const int trained,
                      keys.Int("rope.scaling.original_context_length", 1, kMaxContext));
  TQ_ASSIGN_OR_RETURN(const float fast, keys.FloatOr("rope.scaling.yarn_beta_fast", 1e-3, 1e6, 32));
  TQ_ASSIGN_OR_RETURN(const float slow, keys.FloatOr("rope.scaling.yarn_beta_slow", 1e-3, 1e6, 1));
  TQ_ASSIGN_OR_RETURN(const float mix, keys.FloatOr("rope.scaling.yarn_ext_factor", -1, 1, 1));
  if (mix >= 0 && mix < 1) {
    return Unsupported(keys.Full("rope.scaling.yarn_ext_factor"), " = ", mix, ": expected 1");
  }
  const float grown = factor > 1 ? 0.1f * std::log(factor) + 1 : 1.f;
  RopeFrequencies rope = PlainRope(rope_dim, base);
  TQ_ASSIGN_OR_RETURN(rope.attention_scale,
                      keys.FloatOr("rope.scaling.yarn_attn_factor", 1e-3, 1e3, grown));
  // The channel pair that turns so often within the trained context.
  const auto pair_of = [&](double turns) {
    return rope_dim * std::log(trained / (turns * 2 * std::numbers::pi)) / (2 * std::log(base));
  };
  double low = pair_of(fast), high = pair_of(slow);
  if (traits.yarn_rounds) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0);
  high = std::min(high, rope_dim - 1.0);
  if (low == high) high += 0.001;
  for (int i = 0; i < rope_dim / 2; ++i) {
    const double divided = std::clamp((i - low) / (high - low), 0.0, 1.0);
    float& f = rope.inv_freq[static_cast<size_t>(i)];
    f = static_cast<float>(f / factor * divided + f * (1 - divided));
  }
  return rope;
}

// Divides the frequencies by the factors of a tensor.
Status ApplyFactors(const GgufFile& file, const char* name, RopeFrequencies* rope) {
  const auto half = static_cast<int64_t>(rope->inv_freq.size());
  const GgufTensor* factors = file.FindTensor(name);
  if (factors == nullptr) return InvalidArgument("tensor '", name, "' is missing");
  if (factors->type != GgmlType::kF32 || factors->num_elements() != half) {
    return InvalidArgument(name, ": expected ", half, " values of F32, found ",
                           factors->num_elements(), " of ", GgmlTypeName(factors->type));
  }
  const TensorData data = file.Data(*factors);
  for (int64_t i = 0; i < half; ++i) {
    float factor;
    std::memcpy(&factor, data.bytes().data() + 4 * i, sizeof factor);
    if (!(factor >= 1e-3f && factor <= 1e6f)) {
      return InvalidArgument(name, "[", i, "] = ", factor, ": expected 0.001 to 1000000");
    }
    rope->inv_freq[static_cast<size_t>(i)] /= factor;
  }
  return OkStatus();
}

// Angles per position with the scaling of the file: none, linear, YaRN, LongRoPE, or the factors of
// Llama 3's rope_freqs tensor.
Result<RopeFrequencies> ReadRope(const Keys& keys, const ArchitectureTraits& traits, int rope_dim,
                                 float base, int64_t context) {
  RopeFrequencies rope = PlainRope(rope_dim, base);
  std::string type = "none";
  if (keys.Has("rope.scaling.type")) {
    TQ_ASSIGN_OR_RETURN(type, keys.Text("rope.scaling.type"));
  } else if (keys.Has("rope.scale_linear")) {  // the key of older files
    TQ_ASSIGN_OR_RETURN(const float divisor, keys.Float("rope.scale_linear", 1e-3, 1e6));
    rope = PlainRope(rope_dim, base, divisor);
  }
  const GgufFile& file = keys.file();
  // Files of LongRoPE models may have the factors without naming the type.
  const bool has_long = file.FindTensor("rope_factors_long.weight") != nullptr;
  if (type == "linear") {
    TQ_ASSIGN_OR_RETURN(const float divisor, keys.Float("rope.scaling.factor", 1e-3, 1e6));
    rope = PlainRope(rope_dim, base, divisor);
  } else if (type == "yarn") {
    TQ_ASSIGN_OR_RETURN(rope, YarnRope(keys, traits, rope_dim, base));
  } else if (type == "longrope" || (type == "none" && has_long)) {
    TQ_ASSIGN_OR_RETURN(const int trained,
                        keys.Int("rope.scaling.original_context_length", 1, kMaxContext));
    TQ_RETURN_IF_ERROR(ApplyFactors(
        file, context > trained ? "rope_factors_long.weight" : "rope_factors_short.weight", &rope));
  } else if (type != "none") {
    return Unsupported(keys.Full("rope.scaling.type"), " = '", type,
                       "' is not supported; supported: none, linear, yarn, longrope, and the "
                       "factors of a rope_freqs tensor");
  }
  if (file.FindTensor("rope_freqs.weight") != nullptr) {
    TQ_RETURN_IF_ERROR(ApplyFactors(file, "rope_freqs.weight", &rope));
  }
  TQ_ASSIGN_OR_RETURN(const float scale, keys.FloatOr("rope.scaling.attn_factor", 1e-3, 1e3, 1));
  rope.attention_scale *= scale;
  return rope;
}

Status ReadHeads(const Keys& keys, Architecture* a) {
  TQ_ASSIGN_OR_RETURN(a->num_q_heads, keys.Int("attention.head_count", 1, kMaxHeads));
  TQ_ASSIGN_OR_RETURN(a->num_kv_heads,
                      keys.IntOr("attention.head_count_kv", 1, kMaxHeads, a->num_q_heads));
  if (a->num_q_heads % a->num_kv_heads != 0) {
    return InvalidArgument(keys.Full("attention.head_count"), " = ", a->num_q_heads,
                           " is not a multiple of ", keys.Full("attention.head_count_kv"), " = ",
                           a->num_kv_heads);
  }
  if (keys.Has("attention.key_length")) {
    TQ_ASSIGN_OR_RETURN(a->head_dim, keys.Int("attention.key_length", kMinHeadDim, kMaxHeadDim));
  } else {
    if (a->hidden_dim % a->num_q_heads != 0) {
      return InvalidArgument(keys.Full("embedding_length"), " = ", a->hidden_dim,
                             " is not a multiple of ", keys.Full("attention.head_count"), " = ",
                             a->num_q_heads, ", and there is no ",
                             keys.Full("attention.key_length"));
    }
    a->head_dim = a->hidden_dim / a->num_q_heads;
  }
  if (a->head_dim < kMinHeadDim || a->head_dim > kMaxHeadDim || a->head_dim % 2 != 0) {
    return InvalidArgument("head_dim = ", a->head_dim, ": expected an even number of ", kMinHeadDim,
                           " to ", kMaxHeadDim);
  }
  TQ_ASSIGN_OR_RETURN(const int value_dim,
                      keys.IntOr("attention.value_length", 1, kMaxDim, a->head_dim));
  if (value_dim != a->head_dim) {
    return Unsupported(keys.Full("attention.value_length"), " = ", value_dim,
                       " differs from the key's ", a->head_dim,
                       ": only equal lengths are supported");
  }
  // Scores: the file's own scale, that of the family's largest model, or the usual one.
  TQ_ASSIGN_OR_RETURN(a->attention_scale, keys.FloatOr("attention.scale", 0, 1e3, 0));
  if (a->attention_scale == 0 && a->num_layers == a->traits->wide_layers) {
    a->attention_scale =
        std::sqrt(static_cast<float>(a->num_q_heads) / static_cast<float>(a->hidden_dim));
  }
  TQ_ASSIGN_OR_RETURN(a->attention_softcap,
                      keys.FloatOr("attn_logit_softcapping", 0, 1e6, a->traits->attention_softcap));
  TQ_ASSIGN_OR_RETURN(a->logit_softcap,
                      keys.FloatOr("final_logit_softcapping", 0, 1e6, a->traits->logit_softcap));
  return OkStatus();
}

Status ReadPositions(const Keys& keys, int64_t context, Architecture* a) {
  TQ_ASSIGN_OR_RETURN(const int rope_dim,
                      keys.IntOr("rope.dimension_count", 1, kMaxDim, a->head_dim));
  if (rope_dim > a->head_dim || rope_dim % 2 != 0) {
    return InvalidArgument(keys.Full("rope.dimension_count"), " = ", rope_dim,
                           ": expected an even number up to head_dim = ", a->head_dim);
  }
  if (rope_dim != a->head_dim && a->traits->pairs_side_by_side) {
    return Unsupported(keys.Full("rope.dimension_count"), " = ", rope_dim,
                       " differs from head_dim = ", a->head_dim,
                       ": partial rotary embeddings are not built for the architecture '",
                       a->traits->name, "'");
  }
  TQ_ASSIGN_OR_RETURN(a->rope_base, keys.FloatOr("rope.freq_base", 1, 1e12, 10000));
  TQ_ASSIGN_OR_RETURN(a->windows, ReadWindows(keys.file(), a->name, a->num_layers, context));
  if (context == 0) context = a->context_len;
  TQ_ASSIGN_OR_RETURN(a->rope, ReadRope(keys, *a->traits, rope_dim, a->rope_base, context));

  if (a->num_window_layers() == 0) {
    a->windows.clear();
    return OkStatus();
  }
  const float usual = a->traits->window_rope_base;
  TQ_ASSIGN_OR_RETURN(const float base, keys.FloatOr("rope.freq_base_swa", 1, 1e12,
                                                     usual > 0 ? usual : a->rope_base));
  if (usual > 0) {
    a->window_rope = PlainRope(rope_dim, base);
  } else if (base != a->rope_base) {
    TQ_ASSIGN_OR_RETURN(a->window_rope, ReadRope(keys, *a->traits, rope_dim, base, context));
  }
  return OkStatus();
}

Status ReadExperts(const Keys& keys, Architecture* a) {
  const Experts experts = a->traits->experts;
  if (experts != Experts::kNever) {
    const bool must = experts == Experts::kAlways;
    TQ_ASSIGN_OR_RETURN(a->num_experts, must ? keys.Int("expert_count", 1, kMaxExperts)
                                             : keys.IntOr("expert_count", 0, kMaxExperts, 0));
  }
  if (a->num_experts == 0) {
    TQ_ASSIGN_OR_RETURN(a->ffn_dim, keys.Int("feed_forward_length", 1, kMaxFfn));
    return OkStatus();
  }
  TQ_ASSIGN_OR_RETURN(a->num_experts_used, keys.Int("expert_used_count", 1, a->num_experts));
  TQ_ASSIGN_OR_RETURN(a->expert_ffn_dim,
                      keys.Int(keys.Has("expert_feed_forward_length") ? "expert_feed_forward_length"
                                                                      : "feed_forward_length",
                               1, kMaxFfn));
  return OkStatus();
}

}  // namespace

const ArchitectureTraits* FindArchitecture(std::string_view name) {
  const auto* found = std::find_if(std::begin(kArchitectures), std::end(kArchitectures),
                                   [&](const ArchitectureTraits& t) { return name == t.name; });
  return found == std::end(kArchitectures) ? nullptr : found;
}

std::string SupportedArchitectures() {
  std::string out;
  for (const ArchitectureTraits& t : kArchitectures)
    out += (out.empty() ? "" : ", ") + StrCat(t.name);
  return out;
}

Result<std::vector<int>> ReadWindows(const GgufFile& file, const std::string& arch, int num_layers,
                                     int64_t context) {
  const Keys keys(file, arch);
  const ArchitectureTraits* traits = FindArchitecture(arch);
  TQ_ASSIGN_OR_RETURN(const int window, keys.IntOr("attention.sliding_window", 0, kMaxContext,
                                                   traits == nullptr ? 0 : traits->default_window));
  TQ_ASSIGN_OR_RETURN(const int trained, keys.IntOr("context_length", 0, kMaxContext, 0));
  std::vector<int> windows(static_cast<size_t>(num_layers));
  if (window == 0 || (trained > 0 && window >= std::max<int64_t>(trained, context))) return windows;

  constexpr const char* kPattern = "attention.sliding_window_pattern";
  int64_t period = traits == nullptr ? 0 : traits->window_period;
  std::vector<int64_t> pattern;  // one a layer: 1 = window
  if (keys.Has(kPattern)) {
    const GgufValue& value = file.metadata().at(keys.Full(kPattern));
    if (const auto* list = std::get_if<std::vector<int64_t>>(&value)) {
      pattern = *list;
      if (pattern.size() != windows.size()) {
        return InvalidArgument(keys.Full(kPattern), " names ", pattern.size(),
                               " layers; there are ", num_layers);
      }
    } else {
      TQ_ASSIGN_OR_RETURN(period, keys.Int(kPattern, 0, kMaxLayers));
    }
  }
  for (int i = 0; i < num_layers; ++i) {
    const bool windowed = !pattern.empty() ? pattern[static_cast<size_t>(i)] != 0
                                           : period == 0 || (i + 1) % period != 0;
    if (windowed) windows[static_cast<size_t>(i)] = window;
  }
  return windows;
}

int Architecture::num_window_layers() const {
  return static_cast<int>(
      std::count_if(windows.begin(), windows.end(), [](int w) { return w > 0; }));
}

Result<Architecture> Architecture::FromGguf(const GgufFile& file, int64_t context) {
  Architecture a;
  TQ_ASSIGN_OR_RETURN(a.name, file.GetString("general.architecture"));
  a.traits = FindArchitecture(a.name);
  if (a.traits == nullptr) {
    return Unsupported("architecture '", a.name,
                       "' is not supported; supported: ", SupportedArchitectures());
  }
  if (file.Has("general.type")) {
    TQ_ASSIGN_OR_RETURN(const std::string type, file.GetString("general.type"));
    if (type != "model") {
      return Unsupported("general.type = '", type, "': a file of that kind holds no whole model");
    }
  }
  if (file.Has("general.name")) {
    TQ_ASSIGN_OR_RETURN(a.model_name, file.GetString("general.name"));
  }
  const Keys keys(file, a.name);
  TQ_RETURN_IF_ERROR(RefuseWhatIsNotBuilt(keys, *a.traits));

  TQ_ASSIGN_OR_RETURN(a.num_layers, keys.Int("block_count", 1, kMaxLayers));
  TQ_ASSIGN_OR_RETURN(a.hidden_dim, keys.Int("embedding_length", 1, kMaxDim));
  TQ_RETURN_IF_ERROR(ReadExperts(keys, &a));
  TQ_ASSIGN_OR_RETURN(a.context_len, keys.Int("context_length", 1, kMaxContext));
  TQ_RETURN_IF_ERROR(ReadHeads(keys, &a));
  TQ_ASSIGN_OR_RETURN(a.norm_eps, keys.Float("attention.layer_norm_rms_epsilon", 0, 0.1));
  TQ_RETURN_IF_ERROR(ReadPositions(keys, context, &a));

  const GgufTensor* embedding = file.FindTensor("token_embd.weight");
  if (embedding == nullptr) return InvalidArgument("tensor 'token_embd.weight' is missing");
  if (embedding->shape.size() != 2 || embedding->shape[1] < 1 || embedding->shape[1] > kMaxVocab) {
    return InvalidArgument("token_embd.weight: expected [", a.hidden_dim, ", 1 to ", kMaxVocab,
                           "] values");
  }
  a.vocab_size = static_cast<int>(embedding->shape[1]);
  TQ_ASSIGN_OR_RETURN(const int vocab, keys.IntOr("vocab_size", 1, kMaxVocab, a.vocab_size));
  if (vocab != a.vocab_size) {
    return InvalidArgument(keys.Full("vocab_size"), " = ", vocab, ", but token_embd.weight has ",
                           a.vocab_size, " rows");
  }
  a.tied_embeddings = file.FindTensor("output.weight") == nullptr;
  return a;
}

}  // namespace tq
