// The tables and the numbers of the charts; the page itself is plan_report.html.
#include "runtime/evaluate/plan_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "runtime/evaluate/page.h"
#include "runtime/evaluate/report_assets.h"
#include "turboquant/base/format_count.h"

namespace tq {
namespace {

constexpr double kMiB = 1024.0 * 1024.0;

std::string Cell(const std::string& text, const char* style = "") {
  return fmt::format("<td{}>{}</td>", *style == '\0' ? "" : fmt::format(" class=\"{}\"", style),
                     text);
}

double AsDouble(size_t bytes) {
  return static_cast<double>(bytes);
}

// Rows: context, batch and weights; columns: formats; a cell says what the plan needs.
std::string FitsMatrix(const Survey& survey) {
  const size_t formats = survey.rows.size() / survey.verdicts.size();
  std::string out = "<table><thead><tr><th>Context</th><th>Batch</th><th>Weights</th>";
  for (size_t f = 0; f < formats; ++f) {
    out += "<th>" + EscapeHtml(survey.rows[f].kv) + "</th>";
  }
  out += "</tr></thead><tbody>";
  for (size_t g = 0; g < survey.verdicts.size(); ++g) {
    const Verdict& v = survey.verdicts[g];
    out += "<tr>" + Cell(FormatCount(v.context)) + Cell(FormatCount(v.batch)) +
           Cell(EscapeHtml(v.weights));
    for (size_t f = 0; f < formats; ++f) {
      const SurveyRow& row = survey.rows[g * formats + f];
      out += Cell(fmt::format("{} {}", row.fits ? "&#10003;" : "&#10007;",
                              FormatGib(AsDouble(row.memory.total_bytes))),
                  row.fits ? "good" : "bad");
    }
    out += "</tr>";
  }
  return out + "</tbody></table>";
}

std::string Lines(const SurveyRow& row) {
  std::string out =
      "<table><thead><tr><th>Item</th><th>GiB</th><th>GB</th><th>Bytes</th><th>Note</th></tr>"
      "</thead><tbody>";
  const auto add = [&](const std::string& name, size_t bytes, const std::string& note) {
    out += "<tr>" + Cell(EscapeHtml(name)) +
           Cell(fmt::format("{:.3f}", AsDouble(bytes) / (1024 * kMiB))) +
           Cell(fmt::format("{:.3f}", AsDouble(bytes) / 1e9)) +
           Cell(FormatCount(static_cast<int64_t>(bytes))) + Cell(EscapeHtml(note)) + "</tr>";
  };
  for (const MemoryLine& l : row.memory.lines) {
    add(l.name, l.bytes, l.note + (l.uncertain ? " (estimate)" : ""));
  }
  add("total", row.memory.total_bytes, "");
  return out + "</tbody></table>";
}

std::string Formats(const Survey& survey) {
  std::string out =
      "<table><thead><tr><th>Context</th><th>Batch</th><th>Weights</th><th>Format</th>"
      "<th>Bits per<br>value</th><th>Cache<br>GiB</th><th>Ratio</th><th>Total<br>GiB</th>"
      "<th>ms per<br>token</th><th>First<br>token s</th><th>Longest<br>context</th>"
      "<th>Most<br>sequences</th></tr></thead><tbody>";
  for (const SurveyRow& r : survey.rows) {
    const auto seconds = r.first_token_seconds;
    out += fmt::format(
        "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{:.3f}</td><td>{:.2f}</td>"
        "<td>{:.2f}x</td><td>{:.2f}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
        FormatCount(r.context), FormatCount(r.batch), EscapeHtml(r.weights), EscapeHtml(r.kv),
        r.bits_per_value, AsDouble(r.memory.cache_bytes) / (1024 * kMiB), r.memory.ratio(),
        AsDouble(r.memory.total_bytes) / (1024 * kMiB),
        r.step.ms ? fmt::format("{:.2f}", *r.step.ms) : "-",
        seconds ? fmt::format("{:.2f}", *seconds) : "-",
        r.max_context == Planner::kMaxContext ? "any" : FormatCount(r.max_context),
        FormatCount(r.max_sequences));
  }
  return out + "</tbody></table>";
}

std::string Verdicts(const Survey& survey) {
  std::string out;
  for (const Verdict& v : survey.verdicts) {
    out += fmt::format("<p>{} tokens{}, {} weights: <span class=\"{}\">{}</span>.</p>",
                       FormatCount(v.context), v.batch > 1 ? fmt::format(" x {}", v.batch) : "",
                       EscapeHtml(v.weights), v.any_fits ? "good" : "bad", EscapeHtml(v.text));
  }
  return out;
}

std::string ChartData(const Survey& survey, const std::vector<Curve>& curves,
                      const std::string& main_kv) {
  nlohmann::ordered_json data;
  const auto mib = [](size_t bytes) { return AsDouble(bytes) / kMiB; };
  data["capacity_mib"] = mib(survey.machine.memory_bytes);
  data["main"] = main_kv;
  data["contexts"] = nlohmann::json::array();
  data["rows"] = nlohmann::json::array();
  data["parts"] = nlohmann::json::array();
  int index = 1;
  for (const Curve& curve : curves) {
    nlohmann::ordered_json row;
    row["name"] = curve.kv;
    row["index"] = curve.kv == "f16" ? 0 : index++;
    row["total_mib"] = nlohmann::json::array();
    row["ms"] = nlohmann::json::array();
    for (const CurvePoint& p : curve.points) {
      row["total_mib"].push_back(mib(p.total()));
      if (p.ms) row["ms"].push_back(*p.ms);
    }
    data["rows"].push_back(std::move(row));
  }
  const auto main =
      std::find_if(curves.begin(), curves.end(), [&](const Curve& c) { return c.kv == main_kv; });
  if (main != curves.end()) {
    const std::pair<const char*, size_t CurvePoint::*> parts[] = {
        {"weights", &CurvePoint::weights},
        {"codes", &CurvePoint::codes},
        {"scales", &CurvePoint::scales},
        {"open blocks", &CurvePoint::open},
        {"windows and states", &CurvePoint::windows_and_states},
        {"everything else", &CurvePoint::rest}};
    for (const CurvePoint& p : main->points) data["contexts"].push_back(p.context);
    for (const auto& [name, member] : parts) {
      nlohmann::ordered_json part;
      part["name"] = name;
      part["mib"] = nlohmann::json::array();
      for (const CurvePoint& p : main->points) part["mib"].push_back(mib(p.*member));
      data["parts"].push_back(std::move(part));
    }
  }
  return ForScript(data.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace));
}

}  // namespace

std::string RenderPlanReport(const Survey& survey, const std::vector<Curve>& curves,
                             const std::string& main_kv, const PlanProvenance& provenance) {
  const Machine& m = survey.machine;
  // The first row of that format at the longest context.
  const SurveyRow* longest = &survey.rows.front();
  for (const SurveyRow& r : survey.rows) {
    const bool better = longest->kv != main_kv || r.context > longest->context;
    if (r.kv == main_kv && better) longest = &r;
  }
  const SurveyRow& row = *longest;
  const bool times = m.read_bytes_per_second > 0;
  std::string facts;
  const auto fact = [&](const char* name, const std::string& value) {
    facts += fmt::format("<dt>{}</dt><dd>{}</dd>", name, EscapeHtml(value));
  };
  fact("Model", survey.spec.name + " (" + survey.spec.family + ")");
  fact("Layers", survey.spec.DescribeLayers());
  if (survey.spec.params() > 0) {
    fact("Weights", fmt::format("{:.3f} G, {:.3f} G read for a token", survey.spec.params() / 1e9,
                                survey.spec.active_params() / 1e9));
  }
  fact("Machine",
       fmt::format("{}{}, {}{}",
                   survey.num_devices > 1 ? fmt::format("{} x ", survey.num_devices) : "", m.title,
                   FormatBoth(AsDouble(m.memory_bytes)),
                   times ? fmt::format(", {:.1f} GB/s", m.read_bytes_per_second / 1e9)
                         : ", bandwidth not known"));
  if (!m.source.empty()) fact("Figures", m.source);
  for (const std::string& note : survey.spec.notes) fact("Note", note);
  fact("Version", "tq " + provenance.version);
  if (!provenance.command.empty()) {
    facts += "<dt>Command</dt><dd><code>" + EscapeHtml(provenance.command) + "</code></dd>";
  }
  const std::string name = EscapeHtml(survey.spec.name);
  return FillPage(
      kPlanTemplate,
      {{"title", "Plan: " + name},
       {"subtitle",
        fmt::format("{}{}", survey.num_devices > 1 ? "per device, " : "", EscapeHtml(m.title))},
       {"verdicts", Verdicts(survey)},
       {"main", EscapeHtml(row.kv)},
       {"matrix", FitsMatrix(survey)},
       {"lines_title",
        fmt::format("{} cache, {} weights, {} tokens x {}", EscapeHtml(row.kv),
                    EscapeHtml(row.weights), FormatCount(row.context), FormatCount(row.batch))},
       {"lines", Lines(row)},
       {"formats", Formats(survey)},
       {"break_even",
        EscapeHtml(row.break_even.context
                       ? fmt::format("{} pays from {} tokens on: {}.", row.kv,
                                     FormatCount(*row.break_even.context), row.break_even.reason)
                       : fmt::format("{}: {}.", row.kv, row.break_even.reason))},
       {"times_hidden", times ? "" : " hidden"},
       {"provenance", facts},
       {"data", ChartData(survey, curves, main_kv)}});
}

}  // namespace tq
