// tq plan --traffic: a log of requests read, judged and shown.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "cli/common.h"
#include "runtime/evaluate/far_attention.h"
#include "turboquant/base/status.h"
#include "turboquant/plan/plan.h"
#include "turboquant/plan/traffic.h"

namespace tq::cli {

// `model_path`: a GGUF file or a Hugging Face folder, whose tokenizer counts texts without usage. A
// folder that cannot be opened, as one with no more than its config.json, counts none and is noted;
// so do a config.json and an empty path.
Result<Traffic> LoadTraffic(const std::string& path, const std::string& model_path);

// Runs the model over the longest text of the log, cut to `max_tokens`. kUnsupported for a log
// without texts.
Result<FarAttention> RunFarAttention(const Traffic& traffic, const ModelFlags& model,
                                     const OutputFlags& output, int64_t max_tokens);

// `far`: nullptr when the model was not run.
std::string TrafficText(const Suitability& s, const Traffic& traffic, const Planner& planner,
                        const FarAttention* far);
nlohmann::ordered_json TrafficJson(const Suitability& s, const Traffic& traffic,
                                   const FarAttention* far);

}  // namespace tq::cli
