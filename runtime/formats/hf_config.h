// config.json as GGUF metadata: one table of architectures, one of keys.
#pragma once

#include <array>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/formats/gguf.h"
#include "turboquant/base/json_object.h"

namespace tq {

// How a tensor of the folder becomes one of GGUF (hf_tensors.cc).
enum class TensorChange {
  kNone,
  kSkip,  // GGUF does without it
  kQuery,
  kKey,             // rows of a head in RoPE pairs, where the architecture keeps them so
  kNorm,            // float32, plus 1 where the architecture's norms leave it out
  kF32,             // as float32
  kExpert,          // one of many that are stacked; the name has the expert for '*'
  kUpperHalf,       // [expert][2 n][in]: rows 0 .. n
  kLowerHalf,       // rows n .. 2 n
  kTransposed,      // [expert][in][n] to [expert][n][in]
  kEvenTransposed,  // [expert][in][2 n]: columns 0, 2, 4 ...
  kOddTransposed,
  kEven,
  kOdd,  // [expert][2 n], as float32
};
struct TensorRule {
  const char* hugging_face;  // what follows "model.layers.N."
  const char* gguf;          // what follows "blk.N."
  TensorChange change = TensorChange::kNone;
};

struct HfArchitecture {
  const char* model_type;      // of config.json
  const char* gguf;            // general.architecture
  bool permute_rows = false;   // GGUF has the rows of q and k in pairs (2 i, 2 i + 1)
  bool norm_plus_one = false;  // the checkpoint's norm weights lack 1
  int window_period = 1;       // every n-th layer has no window; 1: all have it, if there is one
  const char* activation = "silu";
  std::array<std::span<const TensorRule>, 4> tensors;  // tables, some may be empty
};

struct HfConfig {
  const HfArchitecture* architecture = nullptr;
  int64_t num_layers = 0, num_q_heads = 0, num_kv_heads = 0, num_experts = 0, vocab_size = 0;
  std::optional<bool> tied_embeddings;
  std::map<std::string, GgufValue> metadata;
  // Tensors that GGUF has and the checkpoint only implies: RoPE factors.
  std::vector<std::pair<std::string, std::vector<float>>> made_tensors;
};

// kUnsupported: a model_type, a quantization_config or a feature, by name; kInvalidArgument: a key.
Result<HfConfig> ReadHfConfig(const nlohmann::json& config, const std::string& name);

}  // namespace tq
