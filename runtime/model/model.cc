// What every model shares: the cache it needs and the hash a profile must match.
#include "runtime/model/model.h"

#include <string_view>
#include <variant>

#include "turboquant/base/numeric.h"

namespace tq {

CacheConfig Model::MakeCacheConfig() const {
  CacheConfig config;
  config.num_layers = arch_.num_layers;
  config.num_kv_heads = arch_.num_kv_heads;
  config.head_dim = arch_.head_dim;
  config.rope = arch_.rope;
  const auto f16 = ParsePreset("f16");
  TQ_CHECK(f16.ok());
  config.formats.assign(static_cast<size_t>(arch_.num_layers) * arch_.num_kv_heads, *f16);
  config.windows = arch_.windows;
  for (const std::vector<float>& mean : KBias()) {
    // Rows of 16 bits need no centre.
    const auto layer = static_cast<int>(config.centers.size()) / arch_.num_kv_heads;
    config.centers.push_back(arch_.window(layer) > 0 ? HeadCenter{}
                                                     : MakeHeadCenter(mean, arch_.rope));
  }
  return config;
}

uint64_t Model::StructureHash() const {
  uint64_t hash = 0;
  const auto add = [&hash](const void* p, size_t n) { hash = Hash64(p, n, hash); };
  const auto add_int = [&add](int64_t v) { add(&v, sizeof v); };
  const auto add_string = [&](std::string_view s) {
    add_int(static_cast<int64_t>(s.size()));
    add(s.data(), s.size());
  };
  add_string(arch_.name);
  for (const int v : {arch_.num_layers, arch_.hidden_dim, arch_.ffn_dim, arch_.vocab_size,
                      arch_.num_q_heads, arch_.num_kv_heads, arch_.head_dim}) {
    add_int(v);
  }
  add(arch_.rope.inv_freq.data(), arch_.rope.inv_freq.size() * sizeof(float));
  add(&arch_.rope.attention_scale, sizeof(float));
  if (!arch_.windows.empty()) {
    add(arch_.windows.data(), arch_.windows.size() * sizeof(int));
    add(arch_.window_rope.inv_freq.data(), arch_.window_rope.inv_freq.size() * sizeof(float));
  }
  if (arch_.num_experts > 0) {
    for (const int v : {arch_.num_experts, arch_.num_experts_used, arch_.expert_ffn_dim})
      add_int(v);
  }
  // The vocabulary decides what a position means: two models that differ only there are not alike.
  for (const char* key : {"tokenizer.ggml.model", "tokenizer.ggml.pre"}) {
    const auto text = file_->GetString(key);
    add_string(text.ok() ? std::string_view(*text) : std::string_view());
  }
  if (const auto it = file_->metadata().find("tokenizer.ggml.tokens");
      it != file_->metadata().end()) {
    if (const auto* tokens = std::get_if<std::vector<std::string>>(&it->second)) {
      for (const std::string& token : *tokens) add_string(token);
    }
  }
  return hash;
}

}  // namespace tq
