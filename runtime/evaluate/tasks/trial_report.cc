#include "runtime/evaluate/tasks/trial_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "runtime/evaluate/page.h"
#include "runtime/evaluate/section.h"
#include "runtime/tokenizer/utf8.h"
#include "turboquant/base/format_count.h"

namespace tq {
namespace {

using nlohmann::ordered_json;

constexpr size_t kMostExamples = 40;  // in JSON
constexpr size_t kMostShown = 8;      // in HTML
constexpr size_t kExcerptBytes = 200;

ordered_json IntervalJson(const Interval& interval) {
  return {interval.low, interval.high};
}

ordered_json TallyJson(const Tally& tally) {
  return {{"right", tally.right},
          {"rate", tally.rate},
          {"interval", IntervalJson(tally.interval)},
          {"mean_share", tally.mean_share}};
}

// Trials where one was right and the other was not: lost ones first.
std::vector<size_t> Parted(const TrialsResult& result, size_t candidate) {
  std::vector<size_t> lost, gained;
  for (size_t i = 0; i < result.trials.size(); ++i) {
    const bool before = result.baseline_outcomes[i].right();
    const bool now = result.candidate_outcomes[candidate][i].right();
    if (before != now) (before ? lost : gained).push_back(i);
  }
  lost.insert(lost.end(), gained.begin(), gained.end());
  return lost;
}

std::string Expected(const Trial& trial) {
  std::string out;
  for (const std::string& one : trial.expected) out += (out.empty() ? "" : ", ") + one;
  return out;
}

ordered_json CandidateJson(const TrialsResult& result, size_t c) {
  const GroupTally all = TallyOfInformative(result);
  ordered_json j = {{"candidate", result.candidates[c]}};
  j.update(GroupJson(all, c));
  j.erase("informative");
  ordered_json& kinds = j["by_kind"] = ordered_json::object();
  for (const std::string& kind : KindsOf(result)) {
    kinds[kind] = GroupJson(TallyOfKind(result, kind), c);
  }
  ordered_json& parted = j["parted"] = ordered_json::array();
  for (const size_t i : Parted(result, c)) {
    if (parted.size() == kMostExamples) break;
    const Trial& t = result.trials[i];
    ordered_json one = {{"kind", t.kind}, {"length", t.length}};
    if (t.depth >= 0) one["depth"] = t.depth;
    one["asked"] = Excerpt(result.form == AskForm::kPrimed ? t.primer : t.question, kExcerptBytes);
    one["expected"] = Excerpt(Expected(t), kExcerptBytes);
    one["baseline_answer"] = Excerpt(result.baseline_outcomes[i].answer, kExcerptBytes);
    one["candidate_answer"] = Excerpt(result.candidate_outcomes[c][i].answer, kExcerptBytes);
    parted.push_back(std::move(one));
  }
  return j;
}

std::string Cell(const std::string& text) {
  return "<td>" + EscapeHtml(text) + "</td>";
}

// A number with its interval below it, so that several candidates fit a page.
std::string RangeCell(const char* style, const std::string& text, const std::string& range) {
  return fmt::format("<td{}>{}<br><span class=\"note\">{}</span></td>", style, text, range);
}

std::string TallyCell(const Tally& t) {
  return RangeCell("", fmt::format("{}/{}", t.right, t.trials), PercentRange(t.interval));
}

std::string DifferenceCell(const CandidateTally& c, bool informative) {
  if (!informative) return "<td class=\"muted\">not informative</td>";
  const PairedDifference& d = c.difference;
  // Marked only where the interval leaves out 0.
  const char* mark = d.interval.high < 0  ? " class=\"bad\""
                     : d.interval.low > 0 ? " class=\"good\""
                                          : "";
  return RangeCell(mark, SignedPoints(d.difference),
                   SignedPoints(d.interval.low) + " to " + SignedPoints(d.interval.high));
}

std::string GroupRow(const std::string& name, const std::string& what, const GroupTally& group) {
  std::string row = "<tr><td>" + EscapeHtml(name);
  if (!what.empty()) row += "<br><span class=\"note\">" + EscapeHtml(what) + "</span>";
  row += "</td>" + TallyCell(group.baseline);
  for (const CandidateTally& c : group.candidates) {
    row += TallyCell(c.tally) + DifferenceCell(c, group.informative);
  }
  return row + "</tr>\n";
}

std::string PartedHtml(const TrialsResult& result, size_t c) {
  const std::vector<size_t> parted = Parted(result, c);
  const std::string& name = result.candidates[c];
  if (parted.empty()) {
    return "<p class=\"note\">" + EscapeHtml(name) + ": no question that only one of " +
           EscapeHtml(result.baseline) + " and " + EscapeHtml(name) + " gets right.</p>\n";
  }
  std::string out = fmt::format(
      "<h3>{}: {} that only one gets right{}</h3>\n<div class=\"scroll\"><table "
      "class=\"answers\"><tr><th>kind</th><th>tokens</th><th>asked</th><th>right</th><th>{}</th>"
      "<th>{}</th></tr>\n",
      EscapeHtml(name), FormatCount(static_cast<int64_t>(parted.size()), "question"),
      parted.size() > kMostShown ? fmt::format(", the first {}", kMostShown) : "",
      EscapeHtml(result.baseline), EscapeHtml(name));
  for (size_t n = 0; n < std::min(parted.size(), kMostShown); ++n) {
    const Trial& t = result.trials[parted[n]];
    const auto answer = [&](const Outcome& o) {
      return fmt::format("<td class=\"{}\">{}</td>", o.right() ? "good" : "bad",
                         EscapeHtml(Excerpt(o.answer, kExcerptBytes)));
    };
    out += "<tr>" + Cell(t.kind) + Cell(FormatCount(t.length)) +
           Cell(Excerpt(result.form == AskForm::kPrimed ? t.primer : t.question, kExcerptBytes)) +
           Cell(Excerpt(Expected(t), kExcerptBytes)) + answer(result.baseline_outcomes[parted[n]]) +
           answer(result.candidate_outcomes[c][parted[n]]) + "</tr>\n";
  }
  return out + "</table></div>\n";
}

}  // namespace

std::string Percent(double share) {
  return fmt::format("{:.0f} %", 100 * share);
}

std::string PercentRange(const Interval& interval) {
  return fmt::format("{:.0f} to {:.0f} %", 100 * interval.low, 100 * interval.high);
}

std::string SignedPoints(double difference) {
  const double points = std::round(1000 * difference) / 10;
  return points == 0 ? "0.0" : fmt::format("{:+.1f}", points);
}

std::string ColumnName(const std::string& name, const std::string& role) {
  constexpr size_t kMost = 24;
  return name.size() <= kMost ? name : role;
}

std::string Excerpt(const std::string& text, size_t most) {
  std::string line;
  for (const char c : text) {
    if (c == '\n') {
      line += "\\n";
    } else {
      line += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  if (line.size() > most) {
    line.resize(most);
    line.resize(ValidUtf8Prefix(line));
    line += "...";
  }
  return line;
}

ordered_json GroupJson(const GroupTally& group, size_t candidate) {
  const CandidateTally& c = group.candidates[candidate];
  return {{"questions", group.baseline.trials},
          {"informative", group.informative},
          {"baseline_score", TallyJson(group.baseline)},
          {"candidate_score", TallyJson(c.tally)},
          {"gained", c.gained},
          {"lost", c.lost},
          {"difference", c.difference.difference},
          {"difference_interval", IntervalJson(c.difference.interval)}};
}

std::string TrialsNote(const TrialsResult& result) {
  std::string weak;
  for (const std::string& kind : KindsOf(result)) {
    const GroupTally group = TallyOfKind(result, kind);
    if (group.informative) continue;
    weak += fmt::format("{}{} ({} of {})", weak.empty() ? "" : ", ", kind, group.baseline.right,
                        group.baseline.trials);
  }
  if (weak.empty()) return "";
  return "not informative, because " + result.baseline + " itself fails there: " + weak;
}

ordered_json TrialsJson(const TrialsResult& result) {
  ordered_json j = {{"form", result.form == AskForm::kPrimed ? "primed" : "chat"},
                    {"baseline", result.baseline},
                    {"questions", result.trials.size()},
                    {"informative", TallyOfInformative(result).informative},
                    {"note", TrialsNote(result)}};
  if (result.candidates.size() == 1) {
    ordered_json one = CandidateJson(result, 0);
    one.erase("questions");
    j["informative_questions"] = TallyOfInformative(result).baseline.trials;
    j.update(one);
    return j;
  }
  j["rows"] = ordered_json::array();
  for (size_t c = 0; c < result.candidates.size(); ++c)
    j["rows"].push_back(CandidateJson(result, c));
  return j;
}

std::string TrialsVerdict(const TrialsResult& result) {
  const GroupTally all = TallyOfInformative(result);
  if (!all.informative) {
    return "Not informative: " + result.baseline + " itself fails at every kind of question.";
  }
  std::string out;
  for (size_t c = 0; c < result.candidates.size(); ++c) {
    const CandidateTally& t = all.candidates[c];
    const Interval& range = t.difference.interval;
    const char* meaning = range.high < 0  ? "worse, beyond chance"
                          : range.low > 0 ? "better, beyond chance"
                                          : "no difference that chance could not make";
    out += fmt::format(
        "{}{} gets {} of {} questions right where {} gets {}: {} points ({} to {}), {}.",
        out.empty() ? "" : " ", result.candidates[c], t.tally.right, t.tally.trials,
        result.baseline, all.baseline.right, SignedPoints(t.difference.difference),
        SignedPoints(range.low), SignedPoints(range.high), meaning);
  }
  return out;
}

std::string TrialsHtml(const TrialsResult& result, std::span<const TrialKind> kinds) {
  std::string out = SectionText(TrialsVerdict(result)) +
                    "<div class=\"card\"><div class=\"scroll\"><table><tr><th>kind</th>";
  const auto head = [&](const std::string& name, bool is_candidate) {
    out += "<th>" + EscapeHtml(name) + "<br>right</th>";
    if (is_candidate) out += "<th>difference<br>in points</th>";
  };
  head(ColumnName(result.baseline, "baseline"), false);
  for (const std::string& name : result.candidates) head(ColumnName(name, "candidate"), true);
  out += "</tr>\n";
  for (const std::string& kind : KindsOf(result)) {
    const auto known = std::find_if(kinds.begin(), kinds.end(),
                                    [&](const TrialKind& k) { return k.name == kind; });
    out += GroupRow(kind, known == kinds.end() ? "" : known->what, TallyOfKind(result, kind));
  }
  const GroupTally all = TallyOfInformative(result);
  if (all.informative) out += GroupRow("all informative kinds", "", all);
  out += "</table></div>\n<p class=\"note\">Below each number its 95 % interval.</p>\n";
  const std::string note = TrialsNote(result);
  if (!note.empty()) out += "<p class=\"note\">" + EscapeHtml(note) + ".</p>\n";
  for (size_t c = 0; c < result.candidates.size(); ++c) out += PartedHtml(result, c);
  return out + "</div>\n";
}

std::string HeatMapHtml(const TrialsResult& result, const std::string& kind,
                        const std::vector<int64_t>& lengths, const std::vector<double>& depths) {
  // One table: the responders side by side, a column for each length.
  std::string head = "<tr><th></th>", names = "<tr><th>depth</th>";
  std::vector<std::string> responders = {ColumnName(result.baseline, "baseline")};
  for (const std::string& name : result.candidates) {
    responders.push_back(ColumnName(name, "candidate"));
  }
  for (const std::string& name : responders) {
    head += fmt::format("<th colspan=\"{}\" style=\"text-align:center\">{}</th>", lengths.size(),
                        EscapeHtml(name));
    for (const int64_t length : lengths) names += "<th>" + FormatCount(length) + "</th>";
  }
  std::string rows;
  for (const double depth : depths) {
    std::vector<std::string> cells(responders.size());
    for (const int64_t length : lengths) {
      const GroupTally group = TallyOf(result, [&](const Trial& t) {
        return t.kind == kind && t.length == length && t.depth == depth;
      });
      for (size_t r = 0; r < responders.size(); ++r) {
        const Tally& t = r == 0 ? group.baseline : group.candidates[r - 1].tally;
        // From red over yellow to green; text stays readable on each. Where the baseline fails
        // there is nothing that the candidate could have lost.
        const std::string color =
            group.informative ? fmt::format("hsl({:.0f} 65% 72%)", 130 * t.rate) : "#c4cad3";
        cells[r] += t.trials == 0
                        ? "<td></td>"
                        : fmt::format("<td style=\"background:{};color:#12161c\">{}/{}</td>", color,
                                      t.right, t.trials);
      }
    }
    rows += "<tr><td>" + Percent(depth) + "</td>";
    for (const std::string& cell : cells) rows += cell;
    rows += "</tr>\n";
  }
  return "<div class=\"card\"><h3>" + EscapeHtml(kind) +
         "</h3>\n<p class=\"note\">Right answers by depth of the fact (down) and tokens (across); "
         "grey: not informative, " +
         EscapeHtml(result.baseline) + " itself fails there</p>\n<div class=\"scroll\"><table>" +
         head + "</tr>\n" + names + "</tr>\n" + rows + "</table></div></div>\n";
}

}  // namespace tq
