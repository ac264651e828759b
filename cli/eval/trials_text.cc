#include "cli/eval/trials_text.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/common.h"
#include "cli/table.h"
#include "runtime/evaluate/tasks/trial_report.h"

namespace tq::cli {
namespace {

// Darker for more right answers; the counts stand beside it.
const char* Shade(double rate) {
  constexpr const char* kShades[] = {"\u00b7", "\u2591", "\u2592", "\u2593", "\u2588"};
  return kShades[static_cast<size_t>(rate * 4 + 1e-9)];
}

}  // namespace

std::string Sides(const TrialsResult& result) {
  return fmt::format("{} beside {}", fmt::join(result.candidates, ", "), result.baseline);
}

std::string TrialsText(const TrialsResult& result) {
  std::vector<std::string> header = {
      "kind", "questions", ColumnName(result.baseline, "baseline") + "\nright", "95 %\ninterval"};
  for (const std::string& name : result.candidates) {
    header.insert(header.end(), {ColumnName(name, "candidate") + "\nright", "95 %\ninterval",
                                 "difference\nin points", "95 %\ninterval"});
  }
  TextTable table(header);
  const auto add = [&](const std::string& name, const GroupTally& group) {
    const auto tally = [](const Tally& t) {
      return std::pair(Percent(t.rate), PercentRange(t.interval));
    };
    const auto [rate, range] = tally(group.baseline);
    std::vector<std::string> row = {name, std::to_string(group.baseline.trials), rate, range};
    for (const CandidateTally& c : group.candidates) {
      const auto [own_rate, own_range] = tally(c.tally);
      row.insert(row.end(), {own_rate, own_range});
      if (!group.informative) {
        row.insert(row.end(), {"not informative", ""});
        continue;
      }
      const Interval& i = c.difference.interval;
      row.insert(row.end(), {SignedPoints(c.difference.difference),
                             SignedPoints(i.low) + " to " + SignedPoints(i.high)});
    }
    table.Add(std::move(row));
  };
  for (const std::string& kind : KindsOf(result)) add(kind, TallyOfKind(result, kind));
  const GroupTally all = TallyOfInformative(result);
  if (all.informative && KindsOf(result).size() > 1) add("all informative", all);
  std::string out = result.baseline + " and";
  for (const std::string& name : result.candidates) out += " " + name;
  out += "\n\n" + table.ToString();
  if (const std::string note = TrialsNote(result); !note.empty()) out += "\n" + note + "\n";
  return out + "\n" + TrialsVerdict(result) + "\n";
}

std::string HeatMapText(const TrialsResult& result, const std::string& kind,
                        const std::vector<int64_t>& lengths, const std::vector<double>& depths) {
  if (std::none_of(result.trials.begin(), result.trials.end(),
                   [&](const Trial& t) { return t.kind == kind && t.depth >= 0; })) {
    return "";
  }
  std::vector<std::string> header = {"depth"};
  std::vector<std::string> names = {ColumnName(result.baseline, "baseline")};
  for (const std::string& name : result.candidates) names.push_back(ColumnName(name, "candidate"));
  for (const std::string& name : names) {
    for (const int64_t length : lengths) header.push_back(name + "\n" + FormatCount(length));
  }
  TextTable table(header);
  for (const double depth : depths) {
    std::vector<std::vector<std::string>> cells(names.size());
    for (const int64_t length : lengths) {
      const GroupTally group = TallyOf(result, [&](const Trial& t) {
        return t.kind == kind && t.length == length && t.depth == depth;
      });
      for (size_t r = 0; r < names.size(); ++r) {
        const Tally& t = r == 0 ? group.baseline : group.candidates[r - 1].tally;
        cells[r].push_back(
            t.trials == 0 ? "" : fmt::format("{} {}/{}", Shade(t.rate), t.right, t.trials));
      }
    }
    std::vector<std::string> row = {Percent(depth)};
    for (const auto& some : cells) row.insert(row.end(), some.begin(), some.end());
    table.Add(std::move(row));
  }
  return "\n" + kind + ": right answers by depth of the fact and tokens of the text\n" +
         table.ToString();
}

}  // namespace tq::cli
