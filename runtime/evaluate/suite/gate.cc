#include "runtime/evaluate/suite/gate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "runtime/evaluate/report_assets.h"
#include "turboquant/base/json_object.h"

namespace tq {
namespace {

using nlohmann::ordered_json;

std::string Listed(const std::vector<std::string>& names) {
  std::string out;
  for (const std::string& name : names) out += (out.empty() ? "" : ", ") + name;
  return out;
}

// A number as short as it can be read.
std::string Short(double x) {
  return fmt::format("{:.6g}", x);
}

Result<std::optional<double>> Bound(const ordered_json& json, const char* key,
                                    const std::string& where) {
  const auto it = json.find(key);
  if (it == json.end()) return std::optional<double>();
  if (!it->is_number() || !std::isfinite(it->get<double>())) {
    return InvalidArgument("'", key, "' of ", where, " is ", it->dump(), "; a number was expected");
  }
  return std::optional<double>(it->get<double>());
}

Result<GateBound> ParseBound(const std::string& evaluation, const std::string& path,
                             const ordered_json& json) {
  GateBound bound{evaluation, path, {}, {}, {}};
  const std::string where = StrCat("'", evaluation, "' > '", path, "'");
  if (!json.is_object() || json.empty()) {
    return InvalidArgument(where, " is ", json.dump(), R"(; {"min": number}, {"max": number} or )",
                           "both were expected");
  }
  for (const auto& [key, value] : json.items()) {
    if (key == "min" || key == "max") continue;
    if (key == "note" && value.is_string()) continue;
    return InvalidArgument("'", key, "' of ", where,
                           " is not known; min, max and note (a text) are");
  }
  TQ_ASSIGN_OR_RETURN(bound.min, Bound(json, "min", where));
  TQ_ASSIGN_OR_RETURN(bound.max, Bound(json, "max", where));
  if (!bound.min && !bound.max) return InvalidArgument(where, " has neither min nor max");
  if (bound.min && bound.max && *bound.min > *bound.max) {
    return InvalidArgument("min ", Short(*bound.min), " of ", where, " is above its max ",
                           Short(*bound.max));
  }
  bound.why = json.value("note", "");
  return bound;
}

// Where a dotted path leads, or the null that it meets on its way; nullptr: nowhere. Keys may hold
// dots themselves, so the longest key that fits is taken.
const ordered_json* Find(const ordered_json& json, std::string_view path) {
  if (path.empty() || json.is_null()) return &json;
  if (json.is_array()) {
    const std::string index(path.substr(0, path.find('.')));
    if (index.empty() || index.size() > 6 ||
        index.find_first_not_of("0123456789") != std::string::npos ||
        std::stoul(index) >= json.size()) {
      return nullptr;
    }
    path.remove_prefix(std::min(path.size(), index.size() + 1));
    return Find(json[std::stoul(index)], path);
  }
  if (!json.is_object()) return nullptr;
  for (size_t end = path.size();; end = path.rfind('.', end - 1)) {
    const auto it = json.find(std::string(path.substr(0, end)));
    if (it != json.end()) {
      const std::string_view rest = path.substr(std::min(path.size(), end + 1));
      if (const ordered_json* found = Find(*it, rest)) return found;
    }
    if (end == 0 || path.rfind('.', end - 1) == std::string_view::npos) return nullptr;
  }
}

void AddPaths(const ordered_json& json, const std::string& prefix, std::vector<std::string>* out) {
  constexpr size_t kMostEntries = 4;
  if (json.is_number()) {
    out->push_back(prefix);
  } else if (json.is_object()) {
    for (const auto& [key, value] : json.items()) {
      AddPaths(value, prefix.empty() ? key : prefix + "." + key, out);
    }
  } else if (json.is_array() && json.size() <= kMostEntries) {
    for (size_t i = 0; i < json.size(); ++i) {
      AddPaths(json[i], prefix + "." + std::to_string(i), out);
    }
  }
}

std::string Allowed(const GateBound& bound) {
  if (bound.min && bound.max) {
    return fmt::format("{} to {} is allowed", Short(*bound.min), Short(*bound.max));
  }
  return bound.max ? fmt::format("at most {} is allowed", Short(*bound.max))
                   : fmt::format("at least {} is asked for", Short(*bound.min));
}

Result<GateCheck> Check(const GateBound& bound, const EvaluationOutcome& outcome) {
  GateCheck check{bound, CheckState::kSkipped, {}, {}};
  if (outcome.document.is_null()) {
    check.text = "not run: " + outcome.skipped;
    return check;
  }
  const ordered_json* found = Find(outcome.document, bound.path);
  if (found != nullptr && found->is_null()) {
    check.text = bound.path + " could not be measured";
    return check;
  }
  if (found == nullptr || !found->is_number()) {
    return InvalidArgument(
        "the gate asks for '", bound.path, "' of ", bound.evaluation,
        ", which has no such number; there are: ", Listed(NumberPaths(outcome.document)));
  }
  check.value = found->get<double>();
  if (!outcome.document.value("informative", true)) {
    const std::string note =
        outcome.document.value("note", std::string("the plain model fails too"));
    check.text = note.starts_with("not informative") ? note : "not informative: " + note;
    return check;
  }
  const double x = *check.value;
  // Written so that what is no number fails.
  const bool passed = (!bound.min || x >= *bound.min) && (!bound.max || x <= *bound.max);
  check.state = passed ? CheckState::kPassed : CheckState::kFailed;
  check.text = fmt::format("{} is {}; {}", bound.path, Short(x), Allowed(bound));
  return check;
}

std::string EscapeXml(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      case '\n': out += "&#10;"; break;
      default: out += static_cast<unsigned char>(c) < 0x20 ? '?' : c;
    }
  }
  return out;
}

}  // namespace

bool Gate::names(const std::string& evaluation) const {
  return std::find(evaluations.begin(), evaluations.end(), evaluation) != evaluations.end();
}

Result<Gate> ParseGate(const std::string& text, const std::string& name,
                       const std::vector<std::string>& known) {
  // Once for its limits, once for the order of the keys.
  TQ_RETURN_IF_ERROR(ParseJsonObject(text, name).status());
  const ordered_json json = ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  Gate gate{.name = name};
  for (const auto& [evaluation, bounds] : json.items()) {
    if (evaluation == "note") continue;
    if (std::find(known.begin(), known.end(), evaluation) == known.end()) {
      return InvalidArgument("'", name, "' has bounds for '", evaluation,
                             "'; there are: ", Listed(known));
    }
    if (!bounds.is_object()) {
      return InvalidArgument("'", evaluation, "' of '", name, "' is ", bounds.type_name(),
                             "; an object of paths was expected");
    }
    gate.evaluations.push_back(evaluation);
    for (const auto& [path, bound] : bounds.items()) {
      Result<GateBound> parsed = ParseBound(evaluation, path, bound);
      if (!parsed.ok()) return parsed.status().WithContext(name);
      gate.bounds.push_back(*std::move(parsed));
    }
  }
  if (gate.bounds.empty()) {
    return InvalidArgument("'", name,
                           "' has no bounds; tq eval suite --print-gate shows an example");
  }
  return gate;
}

std::string_view DefaultGateText() {
  return kDefaultGate;
}

std::vector<std::string> NumberPaths(const ordered_json& document) {
  std::vector<std::string> paths;
  AddPaths(document, "", &paths);
  return paths;
}

Result<std::vector<GateCheck>> CheckGate(const Gate& gate,
                                         const std::vector<EvaluationOutcome>& outcomes) {
  std::vector<GateCheck> checks;
  for (const GateBound& bound : gate.bounds) {
    const auto it = std::find_if(outcomes.begin(), outcomes.end(), [&](const auto& outcome) {
      return outcome.name == bound.evaluation;
    });
    if (it == outcomes.end()) {
      checks.push_back({bound, CheckState::kSkipped, {}, "not run"});
      continue;
    }
    TQ_ASSIGN_OR_RETURN(GateCheck check, Check(bound, *it));
    checks.push_back(std::move(check));
  }
  return checks;
}

const char* GateCount::verdict() const {
  if (failed > 0) return "failed";
  return passed > 0 ? "passed" : "nothing was checked";
}

GateCount CountChecks(const std::vector<GateCheck>& checks) {
  GateCount count;
  for (const GateCheck& check : checks) {
    ++(check.state == CheckState::kPassed   ? count.passed
       : check.state == CheckState::kFailed ? count.failed
                                            : count.skipped);
  }
  return count;
}

std::string JUnitXml(const std::string& name, const std::vector<GateCheck>& checks,
                     const std::map<std::string, double>& seconds) {
  std::vector<std::string> evaluations;
  for (const GateCheck& check : checks) {
    if (std::find(evaluations.begin(), evaluations.end(), check.bound.evaluation) ==
        evaluations.end()) {
      evaluations.push_back(check.bound.evaluation);
    }
  }
  const auto totals = [](const std::vector<GateCheck>& some, double time) {
    const GateCount count = CountChecks(some);
    return fmt::format("tests=\"{}\" failures=\"{}\" errors=\"0\" skipped=\"{}\" time=\"{:.3f}\"",
                       some.size(), count.failed, count.skipped, time);
  };
  double all_seconds = 0;
  for (const auto& [evaluation, time] : seconds) all_seconds += time;
  std::string out = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n";
  out += fmt::format("<testsuites name=\"{}\" {}>\n", EscapeXml(name), totals(checks, all_seconds));
  for (const std::string& evaluation : evaluations) {
    std::vector<GateCheck> of_it;
    for (const GateCheck& check : checks) {
      if (check.bound.evaluation == evaluation) of_it.push_back(check);
    }
    const auto time = seconds.find(evaluation);
    const double spent = time == seconds.end() ? 0 : time->second;
    out +=
        fmt::format("  <testsuite name=\"{}\" {}>\n", EscapeXml(evaluation), totals(of_it, spent));
    for (const GateCheck& check : of_it) {
      out += fmt::format("    <testcase classname=\"tq.{}\" name=\"{}\" time=\"{:.3f}\"",
                         EscapeXml(evaluation), EscapeXml(check.bound.path),
                         spent / static_cast<double>(of_it.size()));
      const std::string text = EscapeXml(check.text);
      switch (check.state) {
        case CheckState::kPassed: out += "/>\n"; break;
        case CheckState::kFailed:
          out += fmt::format(">\n      <failure message=\"{}\"/>\n    </testcase>\n", text);
          break;
        case CheckState::kSkipped:
          out += fmt::format(">\n      <skipped message=\"{}\"/>\n    </testcase>\n", text);
          break;
      }
    }
    out += "  </testsuite>\n";
  }
  return out + "</testsuites>\n";
}

}  // namespace tq
