// The planner's numbers of a Hugging Face config.json.
#pragma once

#include <string>
#include <string_view>

#include "turboquant/base/status.h"
#include "turboquant/plan/model_spec.h"

namespace tq {

// Reads the language model of a configuration (inside "text_config" where there is one). kDataLoss:
// not JSON, or nests too deeply; kInvalidArgument: a field is missing, of the wrong type or absurd,
// by name; kUnsupported: a model_type that is not listed by SupportedModelTypes. What a family
// leaves out because its classes have a default is taken from there and said in ModelSpec::notes. A
// window as long as the trained context, and as `context` where that is more (0 = as trained), cuts
// nothing: the runtime's rule.
Result<ModelSpec> ReadModelConfig(std::string_view json, const std::string& name,
                                  int64_t context = 0);

std::string SupportedModelTypes();  // "deepseek_v2, deepseek_v3, gemma2, ..."

}  // namespace tq
