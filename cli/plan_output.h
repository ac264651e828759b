// A plan as text for the terminal and as JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "turboquant/plan/survey.h"

namespace tq::cli {

// The row that stands for the whole where one is asked for: of the longest context, the first that
// is not plain f16.
const SurveyRow& MainRow(const Survey& survey);

std::string PlanText(const Survey& survey);
// --solve context, batch or bits: the answer for every format.
std::string SolveText(const Survey& survey, const std::string& what);
// The keys that the command line promises at the top, all rows below them.
nlohmann::ordered_json PlanJson(const Survey& survey);

}  // namespace tq::cli
