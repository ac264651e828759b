// What a Hugging Face config.json leaves out because it equals the default of its class: the one
// table, for the planner and for the runtime's reader of folders.
#pragma once

#include <span>
#include <string_view>

namespace tq {

struct ConfigDefault {
  const char* key;
  double value;
  bool is_float = false;
};

// Those of a model_type; empty: its configurations must say everything.
std::span<const ConfigDefault> ConfigDefaults(std::string_view model_type);

}  // namespace tq
