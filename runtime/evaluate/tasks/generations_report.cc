// tq eval generate as JSON and as a section of a report.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "runtime/evaluate/page.h"
#include "runtime/evaluate/section.h"
#include "runtime/evaluate/tasks/generations.h"
#include "turboquant/base/format_count.h"

namespace tq {
namespace {

using nlohmann::ordered_json;

template <typename T>
ordered_json ComparisonJson(const T& c, const char* second_name, double second) {
  if (c.prompts == 0) return nullptr;
  ordered_json j = {{"candidate", c.candidate}, {second_name, second}, {"difference", c.difference},
                    {"low", nullptr},           {"high", nullptr},     {"prompts", c.prompts}};
  if (c.interval) {
    j["low"] = c.interval->low;
    j["high"] = c.interval->high;
  }
  return j;
}
ordered_json Json(const Contrast& c) {
  return ComparisonJson(c, "floor", c.floor);
}
ordered_json Json(const Versus& c) {
  return ComparisonJson(c, "baseline", c.baseline);
}

ordered_json Json(const GenerationsGroup& g) {
  ordered_json j;
  j["prompts"] = g.prompts;
  j["similarity"] = Json(g.similarity);
  j["facts"] = Json(g.facts);
  j["same_answers"] = g.same_answers;
  // Where the plain model is never right, nothing can be lost: a gate skips what is null.
  j["right"] = g.right.baseline > 0 ? Json(g.right) : ordered_json(nullptr);
  j["repetition"] = Json(g.repetition);
  j["words"] = Json(g.words);
  j["drift"] = Json(g.drift);
  j["by_quarter"] = ordered_json::array();
  for (const Contrast& quarter : g.by_quarter) {
    if (quarter.prompts > 0) j["by_quarter"].push_back(Json(quarter));
  }
  return j;
}

std::string Signed(double x) {
  return fmt::format("{:+.3f}", x);
}

template <typename T>
std::string WithInterval(const T& c) {
  if (c.prompts == 0) return "-";
  if (!c.interval) return Signed(c.difference);
  return fmt::format("{}\n{} to {}", Signed(c.difference), Signed(c.interval->low),
                     Signed(c.interval->high));
}

std::string Share(const Versus& v) {
  if (v.prompts == 0) return "-";
  return fmt::format("{:.0f} / {:.0f} %", 100 * v.baseline, 100 * v.candidate);
}

std::vector<std::string> Row(const char* title, const GenerationsGroup& g) {
  return {title,
          FormatCount(g.prompts),
          fmt::format("{:.3f}", g.similarity.floor),
          fmt::format("{:.3f}", g.similarity.candidate),
          WithInterval(g.similarity),
          WithInterval(g.facts),
          fmt::format("{:.0f} %", 100 * g.same_answers),
          Share(g.right),
          Share(g.repetition),
          g.drift.prompts == 0
              ? "-"
              : fmt::format("{:.2f} / {:.2f}", g.drift.baseline, g.drift.candidate)};
}

std::string Answers(const std::string& name, const std::vector<std::string>& answers) {
  std::string out = "<div><h4>" + EscapeHtml(name) + "</h4>\n";
  for (const std::string& answer : answers) {
    out += "<blockquote>" + (answer.empty() ? "<i>(nothing)</i>" : EscapeHtml(answer)) +
           "</blockquote>\n";
  }
  return out + "</div>\n";
}

std::string FactsLine(const char* what, const std::vector<std::string>& facts) {
  constexpr size_t kShown = 12;
  if (facts.empty()) return "";
  std::string list;
  for (size_t i = 0; i < std::min(facts.size(), kShown); ++i) {
    list += (i > 0 ? ", " : "") + EscapeHtml(facts[i]);
  }
  if (facts.size() > kShown) list += fmt::format(" and {} more", facts.size() - kShown);
  return std::string("<p class=\"note\">") + what + ": " + list + "</p>\n";
}

std::string CaseCard(const GenerationsResult& r, const GenerationsCase& c, bool open) {
  std::string out = fmt::format("<details class=\"card\"{}><summary>", open ? " open" : "");
  const std::string begin = EscapeHtml(c.prompt.question);
  out += fmt::format("<b>{}</b> {}</summary>\n", EscapeHtml(c.prompt.name),
                     c.error.empty() ? fmt::format("similarity {:.2f}, plain with itself {:.2f}",
                                                   c.similarity, c.floor)
                                     : "not answered");
  out += "<p class=\"asked\">" + begin + "</p>\n";
  if (!c.error.empty()) return out + "<p class=\"bad\">" + EscapeHtml(c.error) + "</p></details>\n";
  if (!c.prompt.expected.empty()) {
    out += "<p class=\"note\">A right answer holds: " + EscapeHtml(c.prompt.expected) + "</p>\n";
  }
  out += FactsLine("Numbers, names and quotes that only the baseline's answers have", c.lost);
  out += FactsLine("Only the candidate's answers have", c.added);
  out += "<div class=\"sides\">" + Answers(r.baseline_name, c.baseline) +
         Answers(r.candidate_name, c.candidate) + "</div></details>\n";
  return out;
}

std::string Verdict(const GenerationsResult& r) {
  const Contrast& s = r.all.similarity;
  if (!r.informative) return "Not informative: " + r.note + ".";
  if (s.interval && s.interval->high < 0) {
    return fmt::format(
        "{} answers differently: its answers are less like the plain model's ({:.3f}) than those "
        "are like each other ({:.3f}).",
        r.candidate_name, s.candidate, s.floor);
  }
  return fmt::format(
      "No difference in meaning was found: answers of {} are as much like the plain model's "
      "({:.3f}) as those are like each other ({:.3f}), within what {} can show.",
      r.candidate_name, s.candidate, s.floor, FormatCount(s.prompts, "prompt"));
}

Chart QuartersChart(const GenerationsGroup& g) {
  Chart chart;
  chart.kind = Chart::Kind::kLine;
  chart.title = "Long answers, quarter by quarter";
  chart.note =
      "Similarity of the same quarter of two answers: errors that add up pull the lines apart";
  chart.x_title = "quarter of the answer";
  chart.y_title = "similarity";
  chart.categories = {"first", "second", "third", "fourth"};
  ChartSeries floor{"plain with itself", {}, false, 0},
      candidate{"candidate with plain", {}, true, 1};
  for (size_t q = 0; q < 4; ++q) {
    floor.points.push_back({static_cast<double>(q), g.by_quarter[q].floor});
    candidate.points.push_back({static_cast<double>(q), g.by_quarter[q].candidate});
  }
  chart.series = {std::move(floor), std::move(candidate)};
  return chart;
}

}  // namespace

nlohmann::ordered_json GenerationsJson(const GenerationsResult& r) {
  ordered_json j;
  j["baseline"] = r.baseline_name;
  j["candidate"] = r.candidate_name;
  j["embeddings"] = r.embeddings_name;
  j["generations"] = r.generations;
  j["temperature"] = r.temperature;
  j["seed"] = r.seed;
  j["informative"] = r.informative;
  if (!r.informative) j["note"] = r.note;
  j.update(Json(r.all));
  j["unrelated"] = r.unrelated;
  j["failed"] = r.failed;
  j["answered_share"] = r.answered_share;
  for (int g = 0; g < kNumPromptGroups; ++g) {
    if (r.groups[g].prompts == 0) continue;
    j["groups"][PromptGroupName(static_cast<PromptGroup>(g))] = Json(r.groups[g]);
  }
  j["cases"] = ordered_json::array();
  for (const GenerationsCase& c : r.cases) {
    ordered_json one = {{"name", c.prompt.name},
                        {"group", PromptGroupName(c.prompt.group)},
                        {"question", c.prompt.question}};
    if (!c.error.empty()) {
      one["error"] = c.error;
    } else {
      if (!c.prompt.expected.empty()) one["expected"] = c.prompt.expected;
      one.update({{"similarity", c.similarity},
                  {"floor", c.floor},
                  {"facts_lost", c.lost},
                  {"facts_added", c.added},
                  {"baseline", c.baseline},
                  {"candidate", c.candidate}});
    }
    j["cases"].push_back(std::move(one));
  }
  return j;
}

std::string GenerationsSection(const GenerationsResult& r) {
  std::string out = SectionHead("Answers, compared in meaning and in detail");
  out += SectionText(Verdict(r));
  std::vector<std::vector<std::string>> rows = {Row("All", r.all)};
  for (int g = 0; g < kNumPromptGroups; ++g) {
    if (r.groups[g].prompts > 0) {
      rows.push_back(Row(PromptGroupTitle(static_cast<PromptGroup>(g)), r.groups[g]));
    }
  }
  out += TableCard(
      {"Prompts", "Number", "Plain with\nitself", "Candidate\nwith plain",
       "Difference in\nmeaning (95 %)", "Difference in\nfacts (95 %)", "Same\nanswers",
       "Right,\nplain / cand.", "Repetition,\nplain / cand.", "Drift,\nplain / cand."},
      rows, {0},
      fmt::format(
          "{} answers to each prompt from {} and from {}, temperature {}. Similarity is the cosine "
          "of embeddings ({}): 1 is the same meaning, answers to different prompts have {:.2f} "
          "here. A difference below 0 means that the candidate is further from the plain model "
          "than "
          "the plain model is from itself. Facts are numbers, names and quoted strings, compared "
          "exactly. Repetition: runs of four words that stood there before. Drift: how far the "
          "last quarter of a long answer is from the first.",
          r.generations, r.baseline_name, r.candidate_name, r.temperature, r.embeddings_name,
          r.unrelated));
  const GenerationsGroup& long_answers = r.groups[static_cast<int>(PromptGroup::kLongAnswer)];
  if (long_answers.by_quarter[0].prompts > 0) out += ChartCard(QuartersChart(long_answers));

  out += "<h3 class=\"cases\">What was asked, and what each model said</h3>\n";
  std::vector<size_t> order(r.cases.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return r.cases[a].similarity - r.cases[a].floor < r.cases[b].similarity - r.cases[b].floor;
  });
  constexpr size_t kOpen = 3;
  for (size_t i = 0; i < order.size(); ++i) out += CaseCard(r, r.cases[order[i]], i < kOpen);
  return out;
}

}  // namespace tq
