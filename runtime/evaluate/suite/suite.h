// The job of tq eval suite: several evaluations one after the other, each judged by the gate as
// soon as it ends, and all of them on one page.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "runtime/evaluate/suite/gate.h"
#include "turboquant/base/status.h"

namespace tq {

struct EvaluationReport {
  nlohmann::ordered_json document;  // XJson
  std::string section;              // XSection
};

struct SuiteStep {
  std::string name;  // "kld": as the gate names it
  // Empty `run`: left out, for the reason in `skipped`.
  std::function<Result<EvaluationReport>()> run = {};
  std::string skipped = {};
};

struct SuiteResult {
  std::string title;  // "SmolLM2, k4v4 against f16"
  Gate gate;
  struct Step {
    EvaluationOutcome outcome;
    std::string section;
    double seconds = 0;
  };
  std::vector<Step> steps;
  std::vector<GateCheck> checks;  // one for each bound
  GateCount count;
  bool passed() const { return count.failed == 0; }
};

// The first error ends it, with the name of its evaluation: a run that failed, a bound on a number
// that the evaluation does not have.
Result<SuiteResult> RunSuite(const std::string& title, const Gate& gate,
                             const std::vector<SuiteStep>& steps);

// "verdict", "passed", "failed", "skipped", "checks[]", and each evaluation's document by its name.
nlohmann::ordered_json SuiteJson(const SuiteResult& result);
std::string SuiteJUnit(const SuiteResult& result);
// The sections of a report: the verdict in words, what was checked, every evaluation's own.
std::string SuiteSection(const SuiteResult& result);
// For the terminal: a line for each check, the verdict last.
std::string SuiteText(const SuiteResult& result);

}  // namespace tq
