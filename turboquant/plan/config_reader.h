// The planner's numbers of a Hugging Face config.json.
#pragma once

#include <string>
#include <string_view>

#include "turboquant/base/status.h"
#include "turboquant/plan/model_spec.h"

namespace tq {

// Reads the language model of a configuration (inside "text_config" where there is one). kDataLoss:
// not JSON; kInvalidArgument: a field is missing, of the wrong type or absurd, by name;
// kUnsupported: a model_type that is not listed by SupportedModelTypes. What a family leaves out
// because its classes have a default is taken from there and said in ModelSpec::notes.
Result<ModelSpec> ReadModelConfig(std::string_view json, const std::string& name);

std::string SupportedModelTypes();  // "deepseek_v2, deepseek_v3, gemma2, ..."

}  // namespace tq
