// A replay as JSON and as a section of a report.
#include <fmt/format.h>

#include <algorithm>

#include "runtime/evaluate/page.h"
#include "runtime/evaluate/section.h"
#include "runtime/evaluate/tasks/replay.h"
#include "runtime/evaluate/tasks/trial_report.h"
#include "runtime/tokenizer/utf8.h"
#include "turboquant/base/format_count.h"

namespace tq {
namespace {

using nlohmann::ordered_json;

constexpr size_t kMostCaseBytes = 1500;  // of a text in JSON and HTML

ordered_json SideJson(const ReplaySide& s) {
  return {{"exact_rate", s.exact_rate},
          {"different_rate", s.different_rate},
          {"structural_rate", s.structural_rate},
          {"similarity", s.similarity},
          {"median_first_difference", s.median_first_difference},
          {"json", s.json},
          {"json_broken", s.json_broken},
          {"json_shape_differs", s.shape_differs},
          {"tool_calls", s.tool_calls},
          {"tool_names_differ", s.tool_names_differ},
          {"tool_calls_differ", s.tool_calls_differ},
          {"finish_differs", s.finish_differs},
          {"length_ratio", s.length_ratio},
          {"repetition", s.repetition}};
}

std::string Cut(const std::string& text) {
  if (text.size() <= kMostCaseBytes) return text;
  std::string cut = text.substr(0, kMostCaseBytes);
  cut.resize(ValidUtf8Prefix(cut));
  return cut + "...";
}

// What an answer says, its tool calls included.
std::string Said(const Reply& reply) {
  std::string said = reply.text;
  if (!reply.tool_calls.empty()) {
    if (!said.empty()) said += "\n";
    said += reply.tool_calls.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
  }
  return said;
}

std::vector<std::string> Reasons(const AnswerDifference& d) {
  std::vector<std::string> reasons;
  if (d.json_broken) reasons.emplace_back("the JSON is broken");
  if (d.shape_differs) reasons.emplace_back("other JSON keys or types");
  if (d.tool_names_differ) {
    reasons.emplace_back("other tools are called");
  } else if (d.tool_calls_differ) {
    reasons.emplace_back("tools are called with other arguments");
  }
  if (d.finish_differs) reasons.emplace_back("ends for another reason");
  if (!d.exact && reasons.empty()) reasons.emplace_back("other words");
  return reasons;
}

std::string Joined(const std::vector<std::string>& list) {
  std::string out;
  for (const std::string& one : list) out += (out.empty() ? "" : ", ") + one;
  return out;
}

ordered_json CaseJson(const ReplayCase& c) {
  return {{"name", c.name},
          {"request", Cut(c.request)},
          {"baseline", Cut(Said(c.baseline))},
          {"candidate", Cut(Said(c.candidate))},
          {"baseline_finish_reason", c.baseline.finish_reason},
          {"candidate_finish_reason", c.candidate.finish_reason},
          {"similarity", c.difference.similarity},
          {"first_difference", c.difference.first_difference},
          {"unit", c.difference.in_tokens ? "token" : "word"},
          {"reasons", Reasons(c.difference)}};
}

// The cases that differ, the worst first.
std::vector<const ReplayCase*> Worst(const ReplayCandidate& candidate, int most) {
  std::vector<const ReplayCase*> worst;
  for (const ReplayCase& c : candidate.cases) {
    if (static_cast<int>(worst.size()) < most && !c.difference.exact) worst.push_back(&c);
  }
  return worst;
}

ordered_json CandidateJson(const ReplayResult& result, const ReplayCandidate& c) {
  ordered_json j = {
      {"candidate", c.name},
      {"answered", c.requests},
      {"answered_share", c.answered_share},
      {"difference_rate", c.difference_rate},
      {"difference_interval", {c.difference_interval.low, c.difference_interval.high}},
      {"similarity_loss", c.similarity_loss},
      {"similarity_loss_interval",
       {c.similarity_loss_interval.low, c.similarity_loss_interval.high}},
      {"answers", SideJson(c.side)},
      {"passed", c.passed()}};
  if (!c.passed()) j["failure"] = c.failure;
  j["worst"] = ordered_json::array();
  for (const ReplayCase* worst : Worst(c, result.num_worst)) j["worst"].push_back(CaseJson(*worst));
  return j;
}

// The texts with what they share at the beginning in grey.
std::pair<std::string, std::string> MarkedHtml(const std::string& a, const std::string& b) {
  size_t same = static_cast<size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
  while (same > 0 && same < a.size() && (static_cast<unsigned char>(a[same]) & 0xC0) == 0x80)
    --same;
  const auto mark = [&](const std::string& text) {
    return "<span class=\"muted\">" + EscapeHtml(text.substr(0, same)) + "</span>" +
           EscapeHtml(text.substr(std::min(same, text.size())));
  };
  return {mark(a), mark(b)};
}

// The question often stands at the end.
std::string BeginAndEnd(const std::string& text) {
  constexpr size_t kBegin = 100, kEnd = 200;
  if (text.size() <= kBegin + kEnd) return Excerpt(text, kBegin + kEnd);
  size_t end = text.size() - kEnd;
  while (end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) ++end;
  return Excerpt(text, kBegin) + " " + Excerpt(text.substr(end), kEnd);
}

std::string WorstHtml(const ReplayResult& result, const ReplayCandidate& c) {
  const std::vector<const ReplayCase*> worst = Worst(c, result.num_worst);
  if (worst.empty()) {
    return "<p class=\"note\">" + EscapeHtml(c.name) + ": every answer is the same.</p>\n";
  }
  std::string out = fmt::format(
      "<h3>{}: {}</h3>\n<p class=\"note\">Grey: what both answers begin "
      "with.</p>\n<div class=\"scroll\"><table class=\"answers\" style=\"table-layout:fixed\">"
      "<colgroup><col style=\"width:16%\"><col style=\"width:22%\"><col style=\"width:31%\">"
      "<col style=\"width:31%\"></colgroup>"
      "<tr><th>request</th><th style=\"text-align:left\">asked</th><th "
      "style=\"text-align:left\">{}</th><th style=\"text-align:left\">{}</th></tr>\n",
      EscapeHtml(c.name),
      worst.size() == 1 ? "the most different answer"
                        : fmt::format("the {} most different answers", worst.size()),
      EscapeHtml(result.baseline), EscapeHtml(c.name));
  for (const ReplayCase* w : worst) {
    const auto [before, now] = MarkedHtml(Cut(Said(w->baseline)), Cut(Said(w->candidate)));
    out += fmt::format(
        "<tr><td style=\"white-space:normal\">{}<br><span class=\"note\">{}; similarity {:.2f}; "
        "ends: {}, {}</span></td><td style=\"white-space:pre-wrap\">{}</td><td>{}</td><td>{}</td>"
        "</tr>\n",
        EscapeHtml(w->name), EscapeHtml(Joined(Reasons(w->difference))), w->difference.similarity,
        EscapeHtml(w->baseline.finish_reason), EscapeHtml(w->candidate.finish_reason),
        EscapeHtml(BeginAndEnd(w->request)), before, now);
  }
  return out + "</table></div>\n";
}

std::string Rate(double rate) {
  return fmt::format("{:.1f} %", 100 * rate);
}

}  // namespace

ordered_json ReplayJson(const ReplayResult& result) {
  ordered_json j = {{"evaluation", "replay"},
                    {"baseline", result.baseline},
                    {"requests", result.requests},
                    {"seed", result.seed},
                    {"temperature", nullptr},
                    {"same_from", result.same_from},
                    {"similarity_by", result.similarity_name},
                    {"informative", result.informative},
                    {"note", result.note},
                    {"floor", SideJson(result.floor)}};
  if (result.temperature) j["temperature"] = *result.temperature;
  j["floor"]["exact"] = result.floor_is_exact;
  j["baseline_repetition"] = result.baseline_repetition;
  ordered_json& skipped = j["skipped"] = ordered_json::array();
  for (const ReplayResult::Skipped& s : result.skipped) {
    skipped.push_back({{"reason", s.reason}, {"count", s.count}, {"example", s.example}});
  }
  j["unconstrained"] = result.unconstrained;
  if (result.max_difference) j["max_difference"] = *result.max_difference;
  if (result.candidates.size() == 1) {
    j.update(CandidateJson(result, result.candidates.front()));
    return j;
  }
  j["rows"] = ordered_json::array();
  for (const ReplayCandidate& c : result.candidates) j["rows"].push_back(CandidateJson(result, c));
  return j;
}

std::string ReplaySection(const ReplayResult& result) {
  std::string out = SectionHead("Replay of recorded requests");
  out += SectionText(fmt::format(
      "{}, each answered by {} and by {}. The difference rate is how often answers "
      "differ, "
      "minus how often {} differs from itself{}. Intervals are at 95 %, by bootstrap over "
      "requests.",
      FormatCount(result.requests, "request"), result.baseline,
      result.candidates.size() == 1 ? result.candidates.front().name : "each candidate",
      result.baseline,
      result.floor_is_exact ? ", which is never: the same request gives the same answer" : ""));
  const auto row = [](const std::string& name, int64_t requests, const ReplaySide& s,
                      const std::string& rate, const std::string& interval) {
    return std::vector<std::string>{
        name,
        FormatCount(requests),
        Rate(s.exact_rate),
        Rate(s.different_rate),
        rate,
        interval,
        fmt::format("{:.3f}", s.similarity),
        s.median_first_difference < 0 ? "-" : fmt::format("{:.0f}", s.median_first_difference)};
  };
  const auto structure_row = [](const std::string& name, const ReplaySide& s) {
    return std::vector<std::string>{name,
                                    fmt::format("{} of {}", s.json_broken, s.json),
                                    fmt::format("{} of {}", s.shape_differs, s.json),
                                    fmt::format("{} of {}", s.tool_names_differ, s.tool_calls),
                                    fmt::format("{} of {}", s.tool_calls_differ, s.tool_calls),
                                    FormatCount(s.finish_differs),
                                    fmt::format("{:.2f}x", s.length_ratio),
                                    Rate(s.repetition)};
  };
  const std::string again = ColumnName(result.baseline, "baseline") + " again";
  std::vector<std::vector<std::string>> rows = {
      row(again, result.requests, result.floor, "-", "-")};
  std::vector<std::vector<std::string>> structure = {structure_row(again, result.floor)};
  for (const ReplayCandidate& c : result.candidates) {
    const std::string name = ColumnName(c.name, "candidate");
    rows.push_back(
        row(name, c.requests, c.side, Rate(c.difference_rate),
            Rate(c.difference_interval.low) + " to " + Rate(c.difference_interval.high)));
    structure.push_back(structure_row(name, c.side));
  }
  std::string note = fmt::format("Similarity: {}.", result.similarity_name);
  if (!result.informative) note += " Not informative: " + result.note + ".";
  for (const ReplayResult::Skipped& s : result.skipped) {
    note += fmt::format(" Left out: {} ({}; {}).", s.count, Excerpt(s.reason, 200), s.example);
  }
  if (result.unconstrained > 0) {
    note += fmt::format(" response_format was left out of {}: a local model is not held to it.",
                        FormatCount(result.unconstrained, "request"));
  }
  for (const ReplayCandidate& c : result.candidates) {
    if (!c.passed()) {
      note += fmt::format(" {}: FAILED, {}.", c.name, c.failure);
    } else if (result.max_difference) {
      note += fmt::format(" {}: passed the gate of {}.", c.name, Rate(*result.max_difference));
    }
  }
  out += TableCard({"answers of", "answered", "same\ntext", "different", "difference\nrate",
                    "95 % interval", "similarity", "first different\npiece, median"},
                   rows, {}, note);
  out += SectionText("What a program would notice:");
  out += TableCard({"answers of", "JSON\nbroken", "other JSON\nkeys or types", "other\ntools",
                    "other tool\narguments", "other reason\nto end", "length", "repetition"},
                   structure, {}, "");
  for (const ReplayCandidate& c : result.candidates) {
    out += "<div class=\"card\" style=\"margin-top:18px\">" + WorstHtml(result, c) + "</div>\n";
  }
  return out;
}

}  // namespace tq
