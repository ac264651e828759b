// What the planner knows of a model: what each layer keeps of a sequence, and its weights.
//
// ModelFields are the numbers as configurations spell them; BuildSpec turns them into a ModelSpec.
// config_reader.h fills them from a config.json; other readers (GGUF, flags) fill them too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "turboquant/base/status.h"

namespace tq {

// The kinds of memory that a layer keeps of a sequence.
enum class LayerKind : uint8_t {
  kFull,    // K and V of every token, per KV head
  kWindow,  // K and V of the last `window` tokens
  kLatent,  // MLA: one latent vector and one rotary part of every token, for all heads
  kState,   // linear or recurrent: a state of fixed size
};
const char* LayerKindName(LayerKind kind);

struct LayerSpec {
  LayerKind kind = LayerKind::kFull;
  int num_kv_heads = 0, head_dim = 0;  // kFull, kWindow
  int window = 0;                      // kWindow: tokens that a query sees, itself included
  int latent_dim = 0, rope_dim = 0;    // kLatent: values a token
  size_t state_bytes = 0;              // kState: of one sequence, as the configuration types it
  friend bool operator==(const LayerSpec&, const LayerSpec&) = default;
};

// Weights that are read alike. A token reads `active` of `params` values: fewer for experts, none
// for an embedding table that is only looked up.
struct WeightGroup {
  std::string name;
  double params = 0, active = 0;
  size_t stored_bytes = 0;  // as loaded from a file; 0 = no file was read
  bool is_matrix = true;    // false: norms and biases, which no weight format shrinks
  bool is_expert = false;   // `active` grows with the batch
};

struct ModelSpec {
  std::string name, family;
  std::vector<LayerSpec> layers;
  std::vector<WeightGroup> weights;
  int64_t hidden_dim = 0, ffn_dim = 0, vocab_size = 0;  // 0 = not known
  int num_q_heads = 0, q_head_dim = 0;
  int64_t context_len = 0;  // trained; 0 = not known
  int num_experts = 0, experts_per_token = 0;
  int num_center_freq = 0;         // RoPE frequencies of keys that have a bias to centre; 0 = none
  std::string file_types;          // "Q4_1 (210), F32 (61)" or "BF16 (290)"; empty = no file
  std::vector<std::string> notes;  // what was taken from a family's defaults or left out

  double params() const;
  double active_params() const;  // of one token
  int num_layers() const { return static_cast<int>(layers.size()); }
  // Values that a token adds to layers that keep every token.
  int64_t values_per_token() const;
  // "12 full, 40 window(1024)"; "61 latent(512+64)".
  std::string DescribeLayers() const;
  // kInvalidArgument names the field that is missing or absurd.
  Status Validate() const;
};

// The numbers of a configuration. Zero and empty mean "not there".
struct ModelFields {
  std::string name, family;
  int64_t num_layers = 0, hidden_dim = 0, vocab_size = 0, context_len = 0;
  int64_t num_q_heads = 0, head_dim = 0;
  std::vector<int64_t> num_kv_heads;  // one for all layers, or one a layer
  std::vector<int64_t> ffn_dim;       // the same
  std::vector<LayerKind> kinds;       // one a layer
  int64_t window = 0;
  bool tied_embeddings = false, qkv_bias = false, o_bias = false, qk_norm = false;
  bool gated_q = false;      // q_proj makes a gate of the same size
  bool four_norms = false;   // norms behind attention and feed-forward too
  int64_t ffn_matrices = 3;  // gate, up, down
  // MLA.
  int64_t kv_lora_rank = 0, q_lora_rank = 0, qk_nope_dim = 0, qk_rope_dim = 0, v_head_dim = 0;
  // Experts.
  int64_t num_experts = 0, experts_per_token = 0, expert_ffn_dim = 0, shared_ffn_dim = 0;
  std::vector<bool> is_moe;  // one a layer; empty: all, where there are experts
  // Linear attention (gated delta net).
  int64_t linear_k_heads = 0, linear_v_heads = 0, linear_k_dim = 0, linear_v_dim = 0;
  int64_t conv_kernel = 0;
  int state_value_bytes = 4, conv_value_bytes = 2;
  bool k_bias_center = false;
  std::vector<std::string> notes;
};

// Layers and weight counts. Every field that the family needs must be there and sane.
Result<ModelSpec> BuildSpec(const ModelFields& fields);

}  // namespace tq
