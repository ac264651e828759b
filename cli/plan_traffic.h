// tq plan --traffic: a log of requests read, judged and shown.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "turboquant/base/status.h"
#include "turboquant/plan/plan.h"
#include "turboquant/plan/traffic.h"

namespace tq::cli {

// `model_path`: a GGUF file whose tokenizer counts texts without usage; other models cannot.
Result<Traffic> LoadTraffic(const std::string& path, const std::string& model_path);

std::string TrafficText(const Suitability& s, const Traffic& traffic, const Planner& planner);
nlohmann::ordered_json TrafficJson(const Suitability& s, const Traffic& traffic);

}  // namespace tq::cli
