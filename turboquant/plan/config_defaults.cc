#include "turboquant/plan/config_defaults.h"

namespace tq {
namespace {

constexpr ConfigDefault kQwen3[] = {{"num_key_value_heads", 32}, {"head_dim", 128}};
constexpr ConfigDefault kQwen3Next[] = {
    {"head_dim", 256},
    {"linear_num_key_heads", 16},
    {"linear_num_value_heads", 32},
    {"linear_key_head_dim", 128},
    {"linear_value_head_dim", 128},
    {"linear_conv_kernel_dim", 4},
    {"full_attention_interval", 4},
};
constexpr ConfigDefault kGemma2[] = {{"head_dim", 256}, {"sliding_window", 4096}};
// Its first configurations leave out nearly everything.
constexpr ConfigDefault kGemma3[] = {
    {"vocab_size", 262208},
    {"max_position_embeddings", 131072},
    {"num_attention_heads", 8},
    {"num_key_value_heads", 4},
    {"head_dim", 256},
    {"sliding_window", 4096},
    {"sliding_window_pattern", 6},
    {"rms_norm_eps", 1e-6, true},
};
constexpr ConfigDefault kGptOss[] = {{"head_dim", 64}, {"sliding_window", 128}};

constexpr struct {
  const char* model_type;
  std::span<const ConfigDefault> defaults;
} kFamilies[] = {
    {"gemma2", kGemma2},          {"gemma3", kGemma3},         {"gemma3_text", kGemma3},
    {"gpt_oss", kGptOss},         {"qwen3", kQwen3},           {"qwen3_moe", kQwen3},
    {"qwen3_5", kQwen3Next},      {"qwen3_5_moe", kQwen3Next}, {"qwen3_5_moe_text", kQwen3Next},
    {"qwen3_5_text", kQwen3Next}, {"qwen3_next", kQwen3Next},
};

}  // namespace

std::span<const ConfigDefault> ConfigDefaults(std::string_view model_type) {
  for (const auto& family : kFamilies) {
    if (model_type == family.model_type) return family.defaults;
  }
  return {};
}

}  // namespace tq
