// A plan as one self-contained HTML file: memory by context, time by context, what fits.
#pragma once

#include <string>
#include <vector>

#include "turboquant/plan/survey.h"

namespace tq {

struct PlanProvenance {
  std::string version;  // of this program
  std::string command;  // that makes the report again
};

// Everything is inlined; text from outside is escaped. `curves` are MakeCurves of the same grid,
// `main_kv` is the format whose parts are shown.
std::string RenderPlanReport(const Survey& survey, const std::vector<Curve>& curves,
                             const std::string& main_kv, const PlanProvenance& provenance);

}  // namespace tq
