// Measurements to JSON and back, for the journal: numbers survive exactly.
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "runtime/calibrate/attention_error.h"
#include "runtime/calibrate/observe.h"

namespace tq {

nlohmann::json StatisticsToJson(const ModelStatistics& s);
// kDataLoss: not what StatisticsToJson makes.
Result<ModelStatistics> StatisticsFromJson(const nlohmann::json& j);

nlohmann::json ErrorsToJson(const std::vector<std::vector<AttentionError>>& errors);
Result<std::vector<std::vector<AttentionError>>> ErrorsFromJson(const nlohmann::json& j);

Result<std::vector<double>> NumbersFromJson(const nlohmann::json& j);

}  // namespace tq
