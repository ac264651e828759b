// Scores of exactly scored questions as text for the terminal.
#pragma once

#include <string>
#include <vector>

#include "runtime/evaluate/tasks/trial.h"

namespace tq::cli {

// "k4v4, k3v2 beside f16": for titles.
std::string Sides(const TrialsResult& result);
// A row for each kind: right answers of each side with intervals, and differences.
std::string TrialsText(const TrialsResult& result);
// Depth by length, the responders side by side; empty for a kind whose facts have no one place.
std::string HeatMapText(const TrialsResult& result, const std::string& kind,
                        const std::vector<int64_t>& lengths, const std::vector<double>& depths);

}  // namespace tq::cli
