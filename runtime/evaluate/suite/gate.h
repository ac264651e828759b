// A gate: bounds on numbers of evaluations' JSON documents, and what a run makes of them.
//
//   {"kld": {"kld.mean": {"max": 0.005}}, "generate": {"similarity.difference_high": {"min": 0}}}
//
// First the evaluation, then a dotted path into its document ("rows.0.kld.mean" reads a list), then
// "min", "max" or both, inclusive.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "turboquant/base/status.h"

namespace tq {

struct GateBound {
  std::string evaluation;  // "kld"
  std::string path;        // "kld.mean"
  std::optional<double> min, max;
  std::string why;  // "note" of the bound, shown beside it; may be empty
};

struct Gate {
  std::string name;                           // of the file, for reports
  std::vector<std::string> evaluations = {};  // that it names, in its order; "kld": {} asks nothing
  std::vector<GateBound> bounds = {};
  bool names(const std::string& evaluation) const;
};

// kInvalidArgument, kDataLoss: says which key is wrong and what was expected. `known`: names of
// evaluations; another one is an error that lists them.
Result<Gate> ParseGate(const std::string& text, const std::string& name,
                       const std::vector<std::string>& known);
// The one that ships (default_gate.json).
std::string_view DefaultGateText();

enum class CheckState { kPassed, kFailed, kSkipped };

struct GateCheck {
  GateBound bound;
  CheckState state = CheckState::kSkipped;
  std::optional<double> value;  // what was measured
  std::string text;             // one sentence: "kld.mean is 0.0092, at most 0.005 is allowed"
};

// What an evaluation brought: its document, or why there is none.
struct EvaluationOutcome {
  std::string name;
  nlohmann::ordered_json document;  // null: it did not run
  std::string skipped;              // why not: "no --log was given"
};

// One check for each bound, in order. Evaluations that did not run, and those that say
// "informative": false, neither pass nor fail: skipped, with the reason. So is a number that is
// null in the document. A path that leads to no number is kInvalidArgument and lists the numbers
// there are.
Result<std::vector<GateCheck>> CheckGate(const Gate& gate,
                                         const std::vector<EvaluationOutcome>& outcomes);

struct GateCount {
  int passed = 0, failed = 0, skipped = 0;
  // "passed", "failed", or "nothing was checked" when all was skipped.
  const char* verdict() const;
};
GateCount CountChecks(const std::vector<GateCheck>& checks);

// Dotted paths of all numbers of a document, lists of more than a few entries left out.
std::vector<std::string> NumberPaths(const nlohmann::ordered_json& document);

// Of a JUnit file: a suite for each evaluation, a case for each bound. `seconds` by evaluation.
std::string JUnitXml(const std::string& name, const std::vector<GateCheck>& checks,
                     const std::map<std::string, double>& seconds);

}  // namespace tq
