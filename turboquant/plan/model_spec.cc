// Counts of layers and weights from the numbers of a configuration.
#include "turboquant/plan/model_spec.h"

#include <algorithm>

#include "turboquant/codec/record_layout.h"

namespace tq {
namespace {

// Limits that no model comes near: they keep every product of three within a double's integers.
constexpr int64_t kMaxLayers = 4096, kMaxHeads = 4096, kMaxDim = 1 << 20;
// 16 times the plain keys and values of the largest models: with it, no size below overflows.
constexpr int64_t kMaxValuesPerToken = 1 << 26;
constexpr int64_t kMaxVocab = 1 << 24, kMaxContext = int64_t{1} << 30, kMaxExperts = 1 << 16;

Status InRange(const char* field, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return OkStatus();
  if (value == 0) return InvalidArgument("field '", field, "' is missing");
  return InvalidArgument("field '", field, "' = ", value, "; expected ", low, " to ", high);
}

Status CheckFields(const ModelFields& f) {
  TQ_RETURN_IF_ERROR(InRange("num_hidden_layers", f.num_layers, 1, kMaxLayers));
  TQ_RETURN_IF_ERROR(InRange("hidden_size", f.hidden_dim, 1, kMaxDim));
  TQ_RETURN_IF_ERROR(InRange("vocab_size", f.vocab_size, 1, kMaxVocab));
  TQ_RETURN_IF_ERROR(InRange("num_attention_heads", f.num_q_heads, 1, kMaxHeads));
  if (f.context_len != 0) {
    TQ_RETURN_IF_ERROR(InRange("max_position_embeddings", f.context_len, 1, kMaxContext));
  }
  const auto layers = static_cast<size_t>(f.num_layers);
  if (f.kinds.size() != layers) {
    return InvalidArgument("field 'layer_types' names ", f.kinds.size(),
                           " layers; num_hidden_layers is ", f.num_layers);
  }
  const auto has = [&](LayerKind kind) {
    return std::find(f.kinds.begin(), f.kinds.end(), kind) != f.kinds.end();
  };
  const bool heads = has(LayerKind::kFull) || has(LayerKind::kWindow);
  if (heads) {
    if (f.num_kv_heads.size() != 1 && f.num_kv_heads.size() != layers) {
      return InvalidArgument("field 'num_key_value_heads' has ", f.num_kv_heads.size(),
                             " entries for ", layers, " layers");
    }
    for (size_t i = 0; i < f.num_kv_heads.size(); ++i) {
      const bool stateless = f.num_kv_heads.size() == layers && f.kinds[i] == LayerKind::kState;
      if (stateless && f.num_kv_heads[i] == 0) continue;
      TQ_RETURN_IF_ERROR(InRange("num_key_value_heads", f.num_kv_heads[i], 1, kMaxHeads));
    }
    TQ_RETURN_IF_ERROR(InRange("head_dim", f.head_dim, kMinHeadDim, kMaxHeadDim));
  }
  if (has(LayerKind::kWindow)) {
    TQ_RETURN_IF_ERROR(InRange("sliding_window", f.window, 1, kMaxContext));
  }
  if (has(LayerKind::kLatent)) {
    TQ_RETURN_IF_ERROR(InRange("kv_lora_rank", f.kv_lora_rank, 1, kMaxDim));
    TQ_RETURN_IF_ERROR(InRange("qk_rope_head_dim", f.qk_rope_dim, 1, kMaxDim));
    TQ_RETURN_IF_ERROR(InRange("qk_nope_head_dim", f.qk_nope_dim, 1, kMaxDim));
    TQ_RETURN_IF_ERROR(InRange("v_head_dim", f.v_head_dim, 1, kMaxDim));
  }
  if (has(LayerKind::kState)) {
    TQ_RETURN_IF_ERROR(InRange("linear_num_key_heads", f.linear_k_heads, 1, kMaxHeads));
    TQ_RETURN_IF_ERROR(InRange("linear_num_value_heads", f.linear_v_heads, 1, kMaxHeads));
    TQ_RETURN_IF_ERROR(InRange("linear_key_head_dim", f.linear_k_dim, 1, kMaxDim));
    TQ_RETURN_IF_ERROR(InRange("linear_value_head_dim", f.linear_v_dim, 1, kMaxDim));
    TQ_RETURN_IF_ERROR(InRange("linear_conv_kernel_dim", f.conv_kernel, 1, 1024));
  }
  if (f.num_experts > 0) {
    TQ_RETURN_IF_ERROR(InRange("number of experts", f.num_experts, 1, kMaxExperts));
    TQ_RETURN_IF_ERROR(InRange("experts per token", f.experts_per_token, 1, f.num_experts));
    TQ_RETURN_IF_ERROR(InRange("moe_intermediate_size", f.expert_ffn_dim, 1, kMaxDim));
    if (f.shared_ffn_dim != 0) {
      TQ_RETURN_IF_ERROR(InRange("width of shared experts", f.shared_ffn_dim, 1, kMaxDim * 4096));
    }
  }
  const bool all_moe =
      f.num_experts > 0 && std::find(f.is_moe.begin(), f.is_moe.end(), false) == f.is_moe.end();
  if (!all_moe) {
    if (f.ffn_dim.size() != 1 && f.ffn_dim.size() != layers) {
      return f.ffn_dim.empty() ? InvalidArgument("field 'intermediate_size' is missing")
                               : InvalidArgument("field 'intermediate_size' has ", f.ffn_dim.size(),
                                                 " entries for ", layers, " layers");
    }
    for (const int64_t n : f.ffn_dim) {
      TQ_RETURN_IF_ERROR(InRange("intermediate_size", n, 1, kMaxDim));
    }
  }
  return OkStatus();
}

// Matrices of the attention of one layer.
double AttentionParams(const ModelFields& f, const LayerSpec& layer) {
  const auto h = static_cast<double>(f.hidden_dim);
  const auto q_heads = static_cast<double>(f.num_q_heads);
  switch (layer.kind) {
    case LayerKind::kFull:
    case LayerKind::kWindow: {
      const double q = q_heads * layer.head_dim, kv = 1.0 * layer.num_kv_heads * layer.head_dim;
      return h * (q * (f.gated_q ? 2 : 1) + 2 * kv) + q * h;
    }
    case LayerKind::kLatent: {
      const auto nope = static_cast<double>(f.qk_nope_dim),
                 rope = static_cast<double>(f.qk_rope_dim);
      const auto rank = static_cast<double>(f.kv_lora_rank), v = static_cast<double>(f.v_head_dim);
      const auto q_rank = static_cast<double>(f.q_lora_rank);
      const double q_dim = q_heads * (nope + rope);
      const double q = q_rank > 0 ? h * q_rank + q_rank * q_dim : h * q_dim;
      return q + h * (rank + rope) + rank * q_heads * (nope + v) + q_heads * v * h;
    }
    case LayerKind::kState: {
      const auto k = static_cast<double>(f.linear_k_heads * f.linear_k_dim);
      const auto v = static_cast<double>(f.linear_v_heads * f.linear_v_dim);
      // q, k, v and the gate z; b and a per value head; the convolution; the output.
      return h * (2 * k + 2 * v) + h * 2.0 * static_cast<double>(f.linear_v_heads) +
             (2 * k + v) * static_cast<double>(f.conv_kernel) + v * h;
    }
  }
  return 0;
}

double NormParams(const ModelFields& f, const LayerSpec& layer) {
  double n = static_cast<double>(f.hidden_dim) * (f.four_norms ? 4 : 2);
  switch (layer.kind) {
    case LayerKind::kFull:
    case LayerKind::kWindow:
      if (f.qk_norm) n += 2.0 * layer.head_dim;
      if (f.qkv_bias) {
        n += (static_cast<double>(f.num_q_heads) + 2.0 * layer.num_kv_heads) * layer.head_dim;
      }
      if (f.o_bias) n += static_cast<double>(f.hidden_dim);
      break;
    case LayerKind::kLatent: n += static_cast<double>(f.kv_lora_rank + f.q_lora_rank); break;
    case LayerKind::kState:
      n += 2.0 * static_cast<double>(f.linear_v_heads) + static_cast<double>(f.linear_v_dim);
      break;
  }
  return n;
}

LayerSpec MakeLayer(const ModelFields& f, size_t i) {
  LayerSpec layer;
  layer.kind = f.kinds[i];
  switch (layer.kind) {
    case LayerKind::kWindow: layer.window = static_cast<int>(f.window); [[fallthrough]];
    case LayerKind::kFull:
      layer.num_kv_heads =
          static_cast<int>(f.num_kv_heads.size() == 1 ? f.num_kv_heads[0] : f.num_kv_heads[i]);
      layer.head_dim = static_cast<int>(f.head_dim);
      break;
    case LayerKind::kLatent:
      layer.latent_dim = static_cast<int>(f.kv_lora_rank);
      layer.rope_dim = static_cast<int>(f.qk_rope_dim);
      break;
    case LayerKind::kState: {
      const int64_t state =
          f.linear_v_heads * f.linear_k_dim * f.linear_v_dim * f.state_value_bytes;
      const int64_t channels =
          2 * f.linear_k_heads * f.linear_k_dim + f.linear_v_heads * f.linear_v_dim;
      layer.state_bytes =
          static_cast<size_t>(state + channels * (f.conv_kernel - 1) * f.conv_value_bytes);
      break;
    }
  }
  return layer;
}

}  // namespace

const char* LayerKindName(LayerKind kind) {
  switch (kind) {
    case LayerKind::kFull: return "full";
    case LayerKind::kWindow: return "window";
    case LayerKind::kLatent: return "latent";
    case LayerKind::kState: return "state";
  }
  return "?";
}

double ModelSpec::params() const {
  double sum = 0;
  for (const WeightGroup& g : weights) sum += g.params;
  return sum;
}

double ModelSpec::active_params() const {
  double sum = 0;
  for (const WeightGroup& g : weights) sum += g.active;
  return sum;
}

int64_t ModelSpec::values_per_token() const {
  int64_t sum = 0;
  for (const LayerSpec& l : layers) {
    if (l.kind == LayerKind::kFull) sum += int64_t{2} * l.num_kv_heads * l.head_dim;
    if (l.kind == LayerKind::kLatent) sum += int64_t{l.latent_dim} + l.rope_dim;
  }
  return sum;
}

std::string ModelSpec::DescribeLayers() const {
  std::vector<std::pair<std::string, int>> counts;
  for (const LayerSpec& l : layers) {
    std::string what = LayerKindName(l.kind);
    switch (l.kind) {
      case LayerKind::kWindow: what += StrCat("(", l.window, ")"); [[fallthrough]];
      case LayerKind::kFull: what += StrCat(" ", l.num_kv_heads, " x ", l.head_dim); break;
      case LayerKind::kLatent: what += StrCat(" ", l.latent_dim, " + ", l.rope_dim); break;
      case LayerKind::kState: what += StrCat(" ", l.state_bytes, " B"); break;
    }
    const auto same =
        std::find_if(counts.begin(), counts.end(), [&](const auto& c) { return c.first == what; });
    if (same == counts.end()) {
      counts.emplace_back(what, 1);
    } else {
      ++same->second;
    }
  }
  std::string out;
  for (const auto& [what, count] : counts) {
    out += StrCat(out.empty() ? "" : ", ", count, " ", what);
  }
  return out;
}

Status ModelSpec::Validate() const {
  TQ_RETURN_IF_ERROR(InRange("num_layers", num_layers(), 1, kMaxLayers));
  for (const LayerSpec& l : layers) {
    switch (l.kind) {
      case LayerKind::kWindow:
        TQ_RETURN_IF_ERROR(InRange("sliding_window", l.window, 1, kMaxContext));
        [[fallthrough]];
      case LayerKind::kFull:
        TQ_RETURN_IF_ERROR(InRange("num_kv_heads", l.num_kv_heads, 1, kMaxHeads));
        TQ_RETURN_IF_ERROR(InRange("head_dim", l.head_dim, kMinHeadDim, kMaxHeadDim));
        break;
      case LayerKind::kLatent:
        TQ_RETURN_IF_ERROR(InRange("latent_dim", l.latent_dim, 1, kMaxDim));
        TQ_RETURN_IF_ERROR(InRange("rope_dim", l.rope_dim, 0, kMaxDim));
        break;
      case LayerKind::kState:
        TQ_RETURN_IF_ERROR(
            InRange("state_bytes", static_cast<int64_t>(l.state_bytes), 1, int64_t{1} << 40));
        break;
    }
  }
  int64_t kept = values_per_token();
  for (const LayerSpec& l : layers) {
    if (l.kind == LayerKind::kWindow) kept += int64_t{2} * l.num_kv_heads * l.head_dim;
  }
  if (kept > kMaxValuesPerToken) {
    return InvalidArgument("num_layers = ", num_layers(), ": all layers together keep ", kept,
                           " values a token; expected up to ", kMaxValuesPerToken);
  }
  for (const WeightGroup& g : weights) {
    // Written so that NaN is refused too.
    if (!(g.params >= 0 && g.params <= 1e15)) {
      return InvalidArgument("weights '", g.name, "' = ", g.params, " values; expected 0 to 1e15");
    }
  }
  return OkStatus();
}

Result<ModelSpec> BuildSpec(const ModelFields& f) {
  const Status checked = CheckFields(f);
  if (!checked.ok()) return checked.WithContext(f.family);
  ModelSpec spec;
  spec.name = f.name;
  spec.family = f.family;
  spec.hidden_dim = f.hidden_dim;
  spec.vocab_size = f.vocab_size;
  spec.num_q_heads = static_cast<int>(f.num_q_heads);
  spec.q_head_dim =
      static_cast<int>(f.kv_lora_rank > 0 ? f.qk_nope_dim + f.qk_rope_dim : f.head_dim);
  spec.context_len = f.context_len;
  spec.num_experts = static_cast<int>(f.num_experts);
  spec.experts_per_token = static_cast<int>(f.experts_per_token);
  spec.num_center_freq = f.k_bias_center ? static_cast<int>(f.head_dim / 2) : 0;
  spec.notes = f.notes;

  WeightGroup embedding{.name = "embedding"}, head{.name = "output head"};
  WeightGroup attention{.name = "attention"}, ffn{.name = "feed forward"};
  WeightGroup experts{.name = "experts", .is_expert = true}, norms{.name = "norms and biases"};
  norms.is_matrix = false;
  const auto h = static_cast<double>(f.hidden_dim);
  embedding.params = static_cast<double>(f.vocab_size) * h;
  // A tied table is read whole as the output head.
  (f.tied_embeddings ? embedding : head).active = embedding.params;
  if (!f.tied_embeddings) head.params = embedding.params;
  norms.params = h;
  for (size_t i = 0; i < f.kinds.size(); ++i) {
    const LayerSpec layer = MakeLayer(f, i);
    attention.params += AttentionParams(f, layer);
    norms.params += NormParams(f, layer);
    const bool moe = f.num_experts > 0 && (f.is_moe.empty() || f.is_moe[i]);
    const auto matrices = static_cast<double>(f.ffn_matrices);
    if (moe) {
      const double one = matrices * h * static_cast<double>(f.expert_ffn_dim);
      experts.params += one * static_cast<double>(f.num_experts);
      experts.active += one * static_cast<double>(f.experts_per_token);
      // The router, and experts that every token uses.
      ffn.params += h * static_cast<double>(f.num_experts) +
                    matrices * h * static_cast<double>(f.shared_ffn_dim);
      spec.ffn_dim =
          std::max(spec.ffn_dim, f.expert_ffn_dim * f.experts_per_token + f.shared_ffn_dim);
    } else {
      const int64_t dim = f.ffn_dim.size() == 1 ? f.ffn_dim[0] : f.ffn_dim[i];
      ffn.params += matrices * h * static_cast<double>(dim);
      spec.ffn_dim = std::max(spec.ffn_dim, dim);
    }
    spec.layers.push_back(layer);
  }
  attention.active = attention.params;
  ffn.active = ffn.params;
  norms.active = norms.params;
  for (WeightGroup* g : {&embedding, &attention, &ffn, &experts, &norms, &head}) {
    if (g->params > 0) spec.weights.push_back(*g);
  }
  TQ_RETURN_IF_ERROR(spec.Validate());
  return spec;
}

}  // namespace tq
