// What every model shares: the cache it needs and the hash a profile must match.
#include "runtime/model/model.h"

#include <limits>
#include <string_view>
#include <variant>

#include "turboquant/base/numeric.h"

namespace tq {

Status Model::ForwardFrom(int, std::span<const float>, KvCache&, const ForwardItem&,
                          std::vector<float>*) {
  return Unsupported(arch_.model_name, ": this model cannot begin at a layer");
}

Result<int> Model::ReplaceMatrix(const std::string&, WeightType, std::span<const std::byte>) {
  return Unsupported(arch_.model_name, ": weights of this model cannot be replaced");
}

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

namespace {

uint64_t HashOf(const GgufFile& file, const Architecture& arch) {
  uint64_t hash = 0;
  const auto add = [&hash](const void* p, size_t n) { hash = Hash64(p, n, hash); };
  const auto add_int = [&add](int64_t v) { add(&v, sizeof v); };
  const auto add_string = [&](std::string_view s) {
    add_int(static_cast<int64_t>(s.size()));
    add(s.data(), s.size());
  };
  add_string(arch.name);
  for (const int v : {arch.num_layers, arch.hidden_dim, arch.ffn_dim, arch.vocab_size,
                      arch.num_q_heads, arch.num_kv_heads, arch.head_dim}) {
    add_int(v);
  }
  add(arch.rope.inv_freq.data(), arch.rope.inv_freq.size() * sizeof(float));
  add(&arch.rope.attention_scale, sizeof(float));
  if (!arch.windows.empty()) {
    add(arch.windows.data(), arch.windows.size() * sizeof(int));
    add(arch.window_rope.inv_freq.data(), arch.window_rope.inv_freq.size() * sizeof(float));
  }
  if (arch.num_experts > 0) {
    for (const int v : {arch.num_experts, arch.num_experts_used, arch.expert_ffn_dim}) add_int(v);
  }
  // The vocabulary decides what a position means: two models that differ only there are not alike.
  for (const char* key : {"tokenizer.ggml.model", "tokenizer.ggml.pre"}) {
    const auto text = file.GetString(key);
    add_string(text.ok() ? std::string_view(*text) : std::string_view());
  }
  if (const auto it = file.metadata().find("tokenizer.ggml.tokens"); it != file.metadata().end()) {
    if (const auto* tokens = std::get_if<std::vector<std::string>>(&it->second)) {
      for (const std::string& token : *tokens) add_string(token);
    }
  }
  return hash;
}

// The hash with another context; 0 where the file cannot be used with it, as it lacks the factors.
uint64_t HashAt(const GgufFile& file, int64_t context) {
  const Result<Architecture> arch = Architecture::FromGguf(file, context);
  return arch.ok() ? HashOf(file, *arch) : 0;
}

constexpr int64_t kShortest = 1, kTrained = 0, kLongest = std::numeric_limits<int64_t>::max();

}  // namespace

uint64_t StructureHashOf(const GgufFile& file) {
  const uint64_t short_hash = HashAt(file, kShortest), long_hash = HashAt(file, kLongest);
  return short_hash == long_hash ? short_hash : Hash64(&long_hash, sizeof long_hash, short_hash);
}

uint64_t Model::StructureHash() const {
  return StructureHashOf(*file_);
}

uint64_t Model::CacheHash() const {
  return HashOf(*file_, arch_);
}

bool Model::IsCacheHashOfAnotherContext(uint64_t hash) const {
  if (hash == 0 || hash == CacheHash()) return false;
  for (const int64_t context : {kShortest, kTrained, kLongest}) {
    if (hash == HashAt(*file_, context)) return true;
  }
  return false;
}

}  // namespace tq
