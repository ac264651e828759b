#include "runtime/evaluate/suite/suite.h"

#include <fmt/format.h>

#include <chrono>
#include <map>

#include "runtime/evaluate/page.h"
#include "runtime/evaluate/section.h"

namespace tq {
namespace {

using nlohmann::ordered_json;

struct StateWords {
  const char* word;
  const char* style;  // of report.css
};
StateWords WordsOf(CheckState state) {
  switch (state) {
    case CheckState::kPassed: return {"passed", "good"};
    case CheckState::kFailed: return {"failed", "bad"};
    default: return {"skipped", "muted"};
  }
}

std::string Verdict(const SuiteResult& r) {
  const GateCount& c = r.count;
  std::string out = c.failed > 0
                        ? fmt::format("{} of {} checks failed", c.failed, c.passed + c.failed)
                    : c.passed > 0 ? fmt::format("All {} checks passed", c.passed)
                                   : "Nothing was checked";
  if (c.skipped > 0) out += fmt::format("; {} skipped", c.skipped);
  return out;
}

// "It took 312 s: generate 120 s, needle 192 s."
std::string Times(const SuiteResult& r) {
  double total = 0;
  std::string parts;
  for (const SuiteResult::Step& step : r.steps) {
    if (step.outcome.document.is_null()) continue;
    total += step.seconds;
    parts +=
        fmt::format("{}{} {:.0f} s", parts.empty() ? "" : ", ", step.outcome.name, step.seconds);
  }
  return parts.empty() ? "" : fmt::format("It took {:.0f} s: {}.", total, parts);
}

// What to look at when something failed, beside the check itself.
std::string VerdictSection(const SuiteResult& r) {
  std::string out = fmt::format("<p class=\"verdict {}\">{}</p>\n",
                                r.count.failed > 0   ? "bad"
                                : r.count.passed > 0 ? "good"
                                                     : "muted",
                                EscapeHtml(Verdict(r) + "."));
  out +=
      "<div class=\"card\"><div class=\"scroll\"><table class=\"checks\"><thead><tr>"
      "<th>What is asked</th><th>Result</th><th>What was found</th></tr></thead><tbody>\n";
  for (const GateCheck& check : r.checks) {
    const StateWords words = WordsOf(check.state);
    const std::string key = check.bound.evaluation + ": " + check.bound.path;
    const bool has_words = !check.bound.why.empty();
    out += fmt::format("<tr><td>{}{}</td><td class=\"{}\">{}</td><td>{}</td></tr>\n",
                       EscapeHtml(has_words ? check.bound.why : key),
                       has_words ? "<br><span class=\"note\">" + EscapeHtml(key) + "</span>" : "",
                       words.style, words.word, EscapeHtml(check.text));
  }
  out +=
      "</tbody></table></div><p class=\"note\">A check is skipped where the plain model itself "
      "fails, or where the evaluation was left out: it says nothing about the "
      "candidate.</p></div>\n";
  if (const std::string times = Times(r); !times.empty()) out += SectionText(times);
  for (const SuiteResult::Step& step : r.steps) {
    if (step.outcome.document.is_null()) {
      out += SectionText(step.outcome.name + " was left out: " + step.outcome.skipped + ".");
    }
  }
  return out;
}

}  // namespace

Result<SuiteResult> RunSuite(const std::string& title, const Gate& gate,
                             const std::vector<SuiteStep>& steps) {
  using Clock = std::chrono::steady_clock;
  SuiteResult result;
  result.title = title;
  result.gate = gate;
  std::vector<EvaluationOutcome> outcomes;
  for (const SuiteStep& step : steps) {
    SuiteResult::Step done;
    done.outcome = {step.name, nullptr, step.skipped};
    if (step.run) {
      const Clock::time_point begin = Clock::now();
      Result<EvaluationReport> report = step.run();
      if (!report.ok()) return report.status().WithContext(step.name);
      done.outcome.document = std::move(report->document);
      done.section = std::move(report->section);
      done.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
      // A wrong key ends the suite now, not after the evaluations that follow.
      Gate own{.name = gate.name};
      for (const GateBound& bound : gate.bounds) {
        if (bound.evaluation == step.name) own.bounds.push_back(bound);
      }
      TQ_RETURN_IF_ERROR(CheckGate(own, {done.outcome}).status());
    }
    outcomes.push_back(done.outcome);
    result.steps.push_back(std::move(done));
  }
  TQ_ASSIGN_OR_RETURN(result.checks, CheckGate(gate, outcomes));
  result.count = CountChecks(result.checks);
  return result;
}

ordered_json SuiteJson(const SuiteResult& r) {
  ordered_json j;
  j["title"] = r.title;
  j["verdict"] = r.count.verdict();
  j["passed"] = r.count.passed;
  j["failed"] = r.count.failed;
  j["skipped"] = r.count.skipped;
  j["gate"] = r.gate.name;
  j["checks"] = ordered_json::array();
  for (const GateCheck& check : r.checks) {
    ordered_json one = {{"evaluation", check.bound.evaluation},
                        {"path", check.bound.path},
                        {"state", WordsOf(check.state).word},
                        {"text", check.text}};
    one["value"] = check.value ? ordered_json(*check.value) : ordered_json(nullptr);
    if (check.bound.min) one["min"] = *check.bound.min;
    if (check.bound.max) one["max"] = *check.bound.max;
    j["checks"].push_back(std::move(one));
  }
  for (const SuiteResult::Step& step : r.steps) {
    j["seconds"][step.outcome.name] = step.seconds;
    j[step.outcome.name] = step.outcome.document;
    if (step.outcome.document.is_null()) j["left_out"][step.outcome.name] = step.outcome.skipped;
  }
  return j;
}

std::string SuiteJUnit(const SuiteResult& r) {
  std::map<std::string, double> seconds;
  for (const SuiteResult::Step& step : r.steps) seconds[step.outcome.name] = step.seconds;
  return JUnitXml("tq eval suite: " + r.title, r.checks, seconds);
}

std::string SuiteSection(const SuiteResult& r) {
  std::string out = VerdictSection(r);
  for (const SuiteResult::Step& step : r.steps) out += step.section;
  return out;
}

std::string SuiteText(const SuiteResult& r) {
  std::string out;
  for (const GateCheck& check : r.checks) {
    out +=
        fmt::format("{:8}{}: {}\n", WordsOf(check.state).word, check.bound.evaluation, check.text);
  }
  const std::string times = Times(r);
  return out + "\n" + Verdict(r) + ".\n" + times + (times.empty() ? "" : "\n");
}

}  // namespace tq
