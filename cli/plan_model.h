// From what the user names, a GGUF file, a Hugging Face folder, a config.json or plain numbers, to
// what the planner knows of a model. Nothing is loaded: headers only.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

#include "runtime/formats/gguf.h"
#include "turboquant/base/status.h"
#include "turboquant/plan/model_spec.h"

namespace tq::cli {

// A model as numbers.
struct ShapeFlags {
  int64_t layers = 0, kv_heads = 0, head_dim = 0, q_heads = 0, hidden_dim = 0, ffn_dim = 0;
  int64_t vocab = 0, sliding_window = 0, full_every = 0, latent_dim = 0, rope_dim = 0;
  int64_t trained = 0;
  double params = 0;
  std::string state_bytes;
  void Add(CLI::App* app);
  bool given() const { return layers != 0; }
};

Result<ModelSpec> SpecFromShape(const ShapeFlags& flags);
// `context`: the longest that is asked for (0 = as trained), which decides whether a window cuts.
Result<ModelSpec> SpecFromGguf(const GgufFile& file, int64_t context = 0);
// By what is at the path: a folder with config.json, a .json file, else a GGUF file.
Result<ModelSpec> SpecFromPath(const std::string& path, int64_t context = 0);

}  // namespace tq::cli
