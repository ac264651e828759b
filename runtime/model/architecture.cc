// What a GGUF file says about its model, every number checked against its neighbours.
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "runtime/model/model.h"
#include "turboquant/codec/record_layout.h"

namespace tq {
namespace {

// Limits that no real model comes near; they keep every product of two within int64.
constexpr int64_t kMaxLayers = 1024, kMaxHeads = 1024;
constexpr int64_t kMaxDim = 1 << 17, kMaxFfn = 1 << 20, kMaxVocab = 1 << 22;
constexpr int64_t kMaxContext = 1 << 30;

Result<int> BoundedInt(const GgufFile& file, const std::string& key, int64_t low, int64_t high) {
  TQ_ASSIGN_OR_RETURN(const int64_t v, file.GetInt(key));
  if (v < low || v > high) {
    return InvalidArgument(key, " = ", v, ": expected ", low, " to ", high);
  }
  return static_cast<int>(v);
}

Result<int> BoundedIntOr(const GgufFile& file, const std::string& key, int64_t low, int64_t high,
                         int fallback) {
  return file.Has(key) ? BoundedInt(file, key, low, high) : Result<int>(fallback);
}

Result<float> BoundedFloat(const GgufFile& file, const std::string& key, double low, double high) {
  TQ_ASSIGN_OR_RETURN(const double v, file.GetFloat(key));
  // Written so that NaN is refused too.
  if (!(v >= low && v <= high)) {
    return InvalidArgument(key, " = ", v, ": expected ", low, " to ", high);
  }
  return static_cast<float>(v);
}

// Features of llama-type files that would change the results if they were ignored.
Status RefuseWhatIsNotBuilt(const GgufFile& file) {
  struct Feature {
    const char* key;
    const char* what;
  };
  static constexpr Feature kFeatures[] = {
      {"llama.expert_count", "mixture of experts"},
      {"llama.attention.sliding_window", "sliding-window attention"},
      {"llama.attn_logit_softcapping", "attention soft capping"},
      {"llama.final_logit_softcapping", "logit soft capping"},
      {"llama.logit_scale", "logit scale"},
      {"llama.embedding_scale", "embedding scale"},
      {"llama.residual_scale", "residual scale"},
      {"llama.attention.scale", "attention scale"},
  };
  for (const Feature& f : kFeatures) {
    if (!file.Has(f.key)) continue;
    TQ_ASSIGN_OR_RETURN(const double value, file.GetFloat(f.key));
    if (value != 0) {
      return Unsupported(f.what, " (", f.key, " = ", value,
                         ") is not supported; supported: dense llama models with full attention");
    }
  }
  if (file.Has("llama.attention.causal")) {
    TQ_ASSIGN_OR_RETURN(const bool causal, file.GetBool("llama.attention.causal"));
    if (!causal) return Unsupported("llama.attention.causal = false: only causal models run here");
  }
  return OkStatus();
}

// Angles per position, with linear scaling or the factors of Llama 3's rope_freqs tensor.
Result<RopeFrequencies> ReadRope(const GgufFile& file, int head_dim, float base) {
  double divisor = 1;
  if (file.Has("llama.rope.scaling.type")) {
    TQ_ASSIGN_OR_RETURN(const std::string type, file.GetString("llama.rope.scaling.type"));
    if (type == "linear") {
      TQ_ASSIGN_OR_RETURN(divisor, BoundedFloat(file, "llama.rope.scaling.factor", 1e-3, 1e6));
    } else if (type != "none") {
      return Unsupported("llama.rope.scaling.type = '", type,
                         "' is not supported; supported: none, linear, and the factors of a "
                         "rope_freqs tensor");
    }
  } else if (file.Has("llama.rope.scale_linear")) {  // the key of older files
    TQ_ASSIGN_OR_RETURN(divisor, BoundedFloat(file, "llama.rope.scale_linear", 1e-3, 1e6));
  }
  RopeFrequencies rope;
  const int half = head_dim / 2;
  rope.inv_freq.resize(static_cast<size_t>(half));
  for (int i = 0; i < half; ++i) {
    rope.inv_freq[static_cast<size_t>(i)] =
        static_cast<float>(std::pow(static_cast<double>(base), -2.0 * i / head_dim) / divisor);
  }
  const GgufTensor* factors = file.FindTensor("rope_freqs.weight");
  if (factors == nullptr) return rope;
  if (factors->type != GgmlType::kF32 || factors->num_elements() != half) {
    return InvalidArgument("rope_freqs.weight: expected ", half, " values of F32, found ",
                           factors->num_elements(), " of ", GgmlTypeName(factors->type));
  }
  const TensorData factor_data = file.Data(*factors);
  for (int i = 0; i < half; ++i) {
    float factor;
    std::memcpy(&factor, factor_data.bytes().data() + 4 * i, sizeof factor);
    if (!(factor >= 1e-3f && factor <= 1e6f)) {
      return InvalidArgument("rope_freqs.weight[", i, "] = ", factor,
                             ": expected 0.001 to 1000000");
    }
    rope.inv_freq[static_cast<size_t>(i)] /= factor;
  }
  return rope;
}

}  // namespace

Result<Architecture> Architecture::FromGguf(const GgufFile& file) {
  Architecture a;
  TQ_ASSIGN_OR_RETURN(a.name, file.GetString("general.architecture"));
  if (a.name != "llama") {
    return Unsupported("architecture '", a.name, "' is not supported; supported: llama");
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
  TQ_RETURN_IF_ERROR(RefuseWhatIsNotBuilt(file));

  TQ_ASSIGN_OR_RETURN(a.num_layers, BoundedInt(file, "llama.block_count", 1, kMaxLayers));
  TQ_ASSIGN_OR_RETURN(a.hidden_dim, BoundedInt(file, "llama.embedding_length", 1, kMaxDim));
  TQ_ASSIGN_OR_RETURN(a.ffn_dim, BoundedInt(file, "llama.feed_forward_length", 1, kMaxFfn));
  TQ_ASSIGN_OR_RETURN(a.context_len, BoundedInt(file, "llama.context_length", 1, kMaxContext));
  TQ_ASSIGN_OR_RETURN(a.num_q_heads, BoundedInt(file, "llama.attention.head_count", 1, kMaxHeads));
  TQ_ASSIGN_OR_RETURN(a.num_kv_heads, BoundedIntOr(file, "llama.attention.head_count_kv", 1,
                                                   kMaxHeads, a.num_q_heads));
  if (a.num_q_heads % a.num_kv_heads != 0) {
    return InvalidArgument(
        "llama.attention.head_count = ", a.num_q_heads,
        " is not a multiple of llama.attention.head_count_kv = ", a.num_kv_heads);
  }
  if (file.Has("llama.attention.key_length")) {
    TQ_ASSIGN_OR_RETURN(a.head_dim,
                        BoundedInt(file, "llama.attention.key_length", kMinHeadDim, kMaxHeadDim));
  } else {
    if (a.hidden_dim % a.num_q_heads != 0) {
      return InvalidArgument("llama.embedding_length = ", a.hidden_dim,
                             " is not a multiple of llama.attention.head_count = ", a.num_q_heads,
                             ", and there is no llama.attention.key_length");
    }
    a.head_dim = a.hidden_dim / a.num_q_heads;
  }
  if (a.head_dim < kMinHeadDim || a.head_dim > kMaxHeadDim || a.head_dim % 2 != 0) {
    return InvalidArgument("head_dim = ", a.head_dim, ": expected an even number of ", kMinHeadDim,
                           " to ", kMaxHeadDim);
  }
  TQ_ASSIGN_OR_RETURN(const int value_dim,
                      BoundedIntOr(file, "llama.attention.value_length", 1, kMaxDim, a.head_dim));
  if (value_dim != a.head_dim) {
    return Unsupported("llama.attention.value_length = ", value_dim, " differs from the key's ",
                       a.head_dim, ": only equal lengths are supported");
  }
  TQ_ASSIGN_OR_RETURN(const int rope_dim,
                      BoundedIntOr(file, "llama.rope.dimension_count", 1, kMaxDim, a.head_dim));
  if (rope_dim != a.head_dim) {
    return Unsupported("llama.rope.dimension_count = ", rope_dim,
                       " differs from head_dim = ", a.head_dim,
                       ": partial rotary embeddings are not supported");
  }
  TQ_ASSIGN_OR_RETURN(a.norm_eps,
                      BoundedFloat(file, "llama.attention.layer_norm_rms_epsilon", 0, 0.1));
  a.rope_base = 10000;
  if (file.Has("llama.rope.freq_base")) {
    TQ_ASSIGN_OR_RETURN(a.rope_base, BoundedFloat(file, "llama.rope.freq_base", 1, 1e12));
  }
  TQ_ASSIGN_OR_RETURN(a.rope, ReadRope(file, a.head_dim, a.rope_base));

  const GgufTensor* embedding = file.FindTensor("token_embd.weight");
  if (embedding == nullptr) return InvalidArgument("tensor 'token_embd.weight' is missing");
  if (embedding->shape.size() != 2 || embedding->shape[1] < 1 || embedding->shape[1] > kMaxVocab) {
    return InvalidArgument("token_embd.weight: expected [", a.hidden_dim, ", 1 to ", kMaxVocab,
                           "] values");
  }
  a.vocab_size = static_cast<int>(embedding->shape[1]);
  TQ_ASSIGN_OR_RETURN(const int vocab,
                      BoundedIntOr(file, "llama.vocab_size", 1, kMaxVocab, a.vocab_size));
  if (vocab != a.vocab_size) {
    return InvalidArgument("llama.vocab_size = ", vocab, ", but token_embd.weight has ",
                           a.vocab_size, " rows");
  }
  a.tied_embeddings = file.FindTensor("output.weight") == nullptr;
  return a;
}

}  // namespace tq
