// Needles as JSON and as a section of a report.
#include <fmt/format.h>

#include <algorithm>

#include "runtime/evaluate/page.h"
#include "runtime/evaluate/tasks/needle.h"
#include "runtime/evaluate/tasks/trial_report.h"
#include "turboquant/base/format_count.h"

namespace tq {
namespace {

bool HasDepths(const TrialsResult& result, const std::string& kind) {
  return std::any_of(result.trials.begin(), result.trials.end(),
                     [&](const Trial& t) { return t.kind == kind && t.depth >= 0; });
}

}  // namespace

using nlohmann::ordered_json;

ordered_json NeedleJson(const NeedleResult& result) {
  ordered_json j = {{"evaluation", "needle"},    {"text", result.text_name},
                    {"lengths", result.lengths}, {"depths", result.depths},
                    {"samples", result.samples}, {"seed", result.seed}};
  j.update(TrialsJson(result.trials));
  ordered_json& grid = j["grid"] = ordered_json::array();
  for (const std::string& kind : result.kinds) {
    if (!HasDepths(result.trials, kind)) continue;
    for (const int64_t length : result.lengths) {
      for (const double depth : result.depths) {
        const GroupTally group = TallyOf(result.trials, [&](const Trial& t) {
          return t.kind == kind && t.length == length && t.depth == depth;
        });
        if (group.baseline.trials == 0) continue;
        ordered_json rates = ordered_json::array();
        for (const CandidateTally& c : group.candidates) rates.push_back(c.tally.rate);
        grid.push_back({{"kind", kind},
                        {"length", length},
                        {"depth", depth},
                        {"questions", group.baseline.trials},
                        {"baseline_rate", group.baseline.rate},
                        {"candidate_rates", std::move(rates)}});
      }
    }
  }
  return j;
}

std::string NeedleSection(const NeedleResult& result) {
  std::string out = fmt::format(
      "<h2>Needles</h2>\n<p class=\"muted\">{} about facts planted in {}, {}, at "
      "temperature 0. Intervals are at 95 %.</p>\n",
      FormatCount(static_cast<int64_t>(result.trials.trials.size()), "question"),
      EscapeHtml(result.text_name),
      result.trials.form == AskForm::kPrimed ? "put as the beginning of their answer"
                                             : "put in a chat");
  out += TrialsHtml(result.trials, NeedleKinds());
  out += "<div class=\"grid\" style=\"margin-top:18px\">\n";
  for (const std::string& kind : result.kinds) {
    if (HasDepths(result.trials, kind)) {
      out += HeatMapHtml(result.trials, kind, result.lengths, result.depths);
    }
  }
  return out + "</div>\n";
}

}  // namespace tq
