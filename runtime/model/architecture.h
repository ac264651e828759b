// What a model file says about the shape of its model, and what its family is known to do.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/formats/gguf.h"
#include "runtime/model/ops.h"
#include "turboquant/base/status.h"
#include "turboquant/codec/center.h"

namespace tq {

// What a family does that its files do not say. Everything else comes from the file.
struct ArchitectureTraits {
  enum class Experts : uint8_t { kNever, kIfCounted, kAlways };

  const char* name;  // general.architecture
  // Rows of q and k in the file: RoPE pairs side by side (2 i, 2 i + 1), or halves (i, i + half).
  bool pairs_side_by_side = false;
  bool qk_norm = false;           // RMS norm of every head of q and k, before RoPE
  bool fused_rows = false;        // attn_qkv is q, k and v; ffn_up is gate and up
  bool post_norms = false;        // norms behind attention and feed-forward too
  bool sinks = false;             // a logit per head that takes weight and gives no value
  bool scaled_embedding = false;  // by sqrt(hidden_dim)
  const char* ffn_norm = "ffn_norm";
  Activation activation = Activation::kSilu;
  Experts experts = Experts::kNever;
  // Sliding windows, where the file has a window and no pattern: the last of every `window_period`
  // layers sees everything; 0 = no layer does.
  int window_period = 0;
  int default_window = 0;      // where the file has none
  float window_rope_base = 0;  // of window layers, which then have no scaling; 0 = as the others
  float attention_softcap = 0, logit_softcap = 0;  // where the file has none
  int wide_layers = 0;      // models of so many layers scale scores by (hidden_dim / heads)^-1/2
  bool yarn_rounds = true;  // bounds of the YaRN ramp are whole channels
};

// nullptr: not built here.
const ArchitectureTraits* FindArchitecture(std::string_view name);
std::string SupportedArchitectures();  // "gemma2, gemma3, ..."

// Tokens that a query of each layer sees, itself included; 0 = all. The one classification of the
// layers of a GGUF file: the runtime's cache and the planner follow it. A window as long as the
// trained context, and as `context` where that is more (0 = as trained), cuts nothing.
Result<std::vector<int>> ReadWindows(const GgufFile& file, const std::string& arch, int num_layers,
                                     int64_t context);

struct Architecture {
  const ArchitectureTraits* traits = nullptr;
  std::string name;        // general.architecture: "llama"
  std::string model_name;  // general.name
  int num_layers = 0, hidden_dim = 0, vocab_size = 0;
  int ffn_dim = 0;  // 0: all layers have experts
  int num_q_heads = 0, num_kv_heads = 0, head_dim = 0;
  int context_len = 0;  // trained
  float norm_eps = 0;
  float rope_base = 0;
  RopeFrequencies rope;         // all scaling included
  RopeFrequencies window_rope;  // of window layers; empty: the same
  std::vector<int> windows;     // [num_layers], 0 = full attention; empty: all full
  float attention_scale = 0;    // of scores; 0 = 1 / sqrt(head_dim)
  float attention_softcap = 0, logit_softcap = 0;  // 0 = none
  int num_experts = 0, num_experts_used = 0, expert_ffn_dim = 0;
  bool tied_embeddings = false;

  int window(int layer) const { return windows.empty() ? 0 : windows[static_cast<size_t>(layer)]; }
  int num_window_layers() const;
  const RopeFrequencies& rope_of(int layer) const {
    return window(layer) > 0 && !window_rope.inv_freq.empty() ? window_rope : rope;
  }

  // Every number checked against its neighbours and against sane limits; kUnsupported for other
  // architectures and for features that are not built, by name. `context`: tokens that will be read
  // at most (0 = as trained), which decides between the short and long factors of LongRoPE, and
  // whether a window as long as the trained context cuts anything.
  static Result<Architecture> FromGguf(const GgufFile& file, int64_t context = 0);
};

}  // namespace tq
