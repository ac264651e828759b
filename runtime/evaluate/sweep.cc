#include "runtime/evaluate/sweep.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "runtime/evaluate/footprint.h"
#include "runtime/evaluate/results_json.h"
#include "runtime/evaluate/section.h"
#include "turboquant/base/format_count.h"

namespace tq {
namespace {

using Json = nlohmann::ordered_json;

// "k4v4" of "k4v4-group32": formats of one family differ in how fine their scales are.
std::string Family(const std::string& name) {
  return name.substr(0, name.find("-group"));
}

// Both figures no larger and one smaller.
bool Dominates(double a_x, double a_kld, double b_x, double b_kld) {
  return a_x <= b_x && a_kld <= b_kld && (a_x < b_x || a_kld < b_kld);
}

std::string Finding(const SweepRow& row, const SweepRow& better) {
  return fmt::format(
      "{} spends {:.1f} % of its bytes on scales and has a KL of {:.5f} at {:.3f} bits; {} has "
      "{:.5f} "
      "at {:.3f} bits ({:.1f} % scales).",
      row.name, 100 * row.scales_share, row.all.mean, row.bits_per_value, better.name,
      better.all.mean, better.bits_per_value, 100 * better.scales_share);
}

Chart BitsChart(const SweepResult& r) {
  Chart chart;
  chart.title = "Bits against KL";
  chart.note =
      "Lower left is better. A line joins one width with ever finer scales: to the right it pays "
      "for "
      "them";
  chart.x_title = "bits per value, everything counted";
  chart.y_title = "mean KL";
  chart.y_log = true;
  std::map<std::string, ChartSeries> families;
  std::vector<std::string> order;
  for (const SweepRow& row : r.rows) {
    const std::string family = Family(row.name);
    auto [it, is_new] = families.try_emplace(family);
    if (is_new) {
      it->second.name = family;
      it->second.color = static_cast<int>(order.size()) + 1;
      order.push_back(family);
    }
    it->second.points.push_back({row.bits_per_value, row.all.mean});
  }
  for (const std::string& family : order) {
    ChartSeries& s = families[family];
    std::sort(s.points.begin(), s.points.end());
    chart.series.push_back(std::move(s));
  }
  return chart;
}

Chart TimeChart(const SweepResult& r) {
  Chart chart;
  chart.kind = Chart::Kind::kPoints;
  chart.title = "Time against KL";
  chart.note = fmt::format(
      "Median milliseconds of a step after {} tokens; filled: no other is faster and closer; one "
      "color for each width",
      r.depth);
  chart.x_title = "ms per step";
  chart.y_title = "mean KL";
  chart.y_log = true;
  std::map<std::string, int> colors;  // of the widths, as in BitsChart
  for (const SweepRow& row : r.rows) {
    const int color =
        colors.try_emplace(Family(row.name), static_cast<int>(colors.size()) + 1).first->second;
    if (!row.step_ms) continue;
    chart.series.push_back({row.name, {{*row.step_ms, row.all.mean}}, row.on_time_front, color});
  }
  return chart;
}

Chart ScalesChart(const SweepResult& r) {
  Chart chart;
  chart.kind = Chart::Kind::kBars;
  chart.title = "What the bits are spent on";
  chart.note = "Bits per value of sealed blocks: codes, and scales with all other side information";
  chart.y_title = "bits per value";
  ChartSeries codes{"codes", {}, true, 1}, scales{"scales", {}, true, 2};
  for (const SweepRow& row : r.rows) {
    const auto x = static_cast<double>(chart.categories.size());
    chart.categories.push_back(row.name);
    codes.points.push_back({x, row.bits_per_value * (1 - row.scales_share)});
    scales.points.push_back({x, row.bits_per_value * row.scales_share});
  }
  chart.series = {std::move(codes), std::move(scales)};
  return chart;
}

}  // namespace

void CompareSweepRows(SweepResult* result) {
  for (SweepRow& row : result->rows) {
    row.on_bits_front = row.on_time_front = true;
    const SweepRow* better = nullptr;
    for (const SweepRow& other : result->rows) {
      if (Dominates(other.bits_per_value, other.all.mean, row.bits_per_value, row.all.mean)) {
        row.on_bits_front = false;
      }
      if (other.step_ms && row.step_ms &&
          Dominates(*other.step_ms, other.all.mean, *row.step_ms, row.all.mean)) {
        row.on_time_front = false;
      }
      const bool clearly =
          other.all.mean + std::hypot(other.all.mean_stderr, row.all.mean_stderr) < row.all.mean;
      if (&other != &row && other.bits_per_value <= row.bits_per_value && clearly &&
          (better == nullptr || other.all.mean < better->all.mean)) {
        better = &other;
      }
    }
    if (!row.step_ms) row.on_time_front = false;
    if (better == nullptr) continue;
    row.beaten_by = better->name;
    const bool finer = row.scales_share > better->scales_share;
    if (row.name != Family(row.name) && finer) result->findings.push_back(Finding(row, *better));
  }
}

Result<SweepResult> RunSweep(const SweepOptions& options) {
  SweepResult result;
  result.model_name = options.reference.model->arch().model_name;
  result.depth = options.depth;
  const EvalWindows all = AllWindows(options.texts);
  result.tokens = all.tokens;
  result.context_len = all.context_len;
  result.windows = static_cast<int64_t>(all.windows.size());
  DivergenceOptions measure = options.measure;
  measure.keep_scores = true;
  TQ_ASSIGN_OR_RETURN(const std::vector<StreamScores> scores,
                      MeasureDivergence(options.reference, options.formats, all.windows, measure));
  if (options.step_ms) {
    TQ_ASSIGN_OR_RETURN(result.plain_step_ms, options.step_ms(options.reference));
  }
  for (size_t i = 0; i < options.formats.size(); ++i) {
    const Stream& stream = options.formats[i];
    SweepRow row;
    row.name = stream.name;
    row.config = stream.config;
    row.bits_per_value = SealedBitsPerValue(row.config);
    row.bits_all_counted = 16 / FootprintRatio(row.config, result.context_len);
    row.scales_share = ScalesShare(row.config);
    row.all = Summarize(scores[i].scores, scores[i].window_positions);
    if (options.step_ms) {
      TQ_ASSIGN_OR_RETURN(row.step_ms, options.step_ms(stream));
    }
    result.rows.push_back(std::move(row));
  }
  CompareSweepRows(&result);
  result.note = WhyNotInformative(result.rows.front().all.ppl_ref,
                                  options.reference.model->arch().vocab_size);
  result.informative = result.note.empty();
  return result;
}

Json SweepJson(const SweepResult& r) {
  Json j;
  j["model"] = r.model_name;
  j["tokens"] = r.tokens;
  j["windows"] = r.windows;
  j["context"] = r.context_len;
  j["informative"] = r.informative;
  if (!r.note.empty()) j["note"] = r.note;
  if (r.plain_step_ms) {
    j["depth"] = r.depth;
    j["plain_step_ms"] = *r.plain_step_ms;
  }
  j["rows"] = Json::array();
  for (const SweepRow& row : r.rows) {
    Json e = {{"kv", row.name},
              {"bits_per_value", row.bits_per_value},
              {"bits_all_counted", row.bits_all_counted},
              {"scales_share", row.scales_share},
              {"kld", SummaryJson(row.all)},
              {"same_top", row.all.same_top},
              {"ppl_ratio", row.all.ppl_ratio},
              {"step_ms", row.step_ms ? Json(*row.step_ms) : Json()},
              {"pareto_bits", row.on_bits_front},
              {"pareto_time", row.on_time_front}};
    e["beaten_by"] = row.beaten_by.empty() ? Json() : Json(row.beaten_by);
    j["rows"].push_back(std::move(e));
  }
  j["findings"] = r.findings;
  return j;
}

std::string SweepSection(const SweepResult& r) {
  std::string out = SectionHead("Formats and how fine their scales are");
  out += SectionText(
      fmt::format("{} of up to {} tokens through {} with each format beside the plain cache.",
                  FormatCount(r.windows, "window"), FormatCount(r.context_len), r.model_name));
  if (!r.informative) out += SectionText("Not informative: " + r.note + ".");
  for (const std::string& finding : r.findings) out += SectionText(finding);
  std::vector<std::vector<std::string>> rows;
  std::vector<size_t> front;
  for (const SweepRow& row : r.rows) {
    if (row.on_bits_front) front.push_back(rows.size());
    rows.push_back({row.name, fmt::format("{:.3f}", row.bits_per_value),
                    fmt::format("{:.1f} %", 100 * row.scales_share),
                    fmt::format("{:.5f} \u00b1 {:.5f}", row.all.mean, row.all.mean_stderr),
                    fmt::format("{:.4f}", row.all.p99),
                    fmt::format("{:.2f} %", 100 * row.all.same_top),
                    fmt::format("{:.5f}", row.all.ppl_ratio),
                    row.step_ms ? fmt::format("{:.2f}", *row.step_ms) : "-",
                    row.beaten_by.empty() ? "-" : row.beaten_by});
  }
  out +=
      TableCard({"Format", "Bits per\nvalue", "Scales", "KL mean", "99 %", "Same top",
                 "Perplexity\nratio", "ms per\nstep", "Beaten by"},
                rows, front,
                "Shaded: no other has both fewer bits and a smaller KL. Beaten by: no more bits, "
                "and a KL smaller beyond the standard errors.");
  std::vector<Chart> charts = {BitsChart(r), ScalesChart(r)};
  if (r.plain_step_ms) charts.push_back(TimeChart(r));
  return out + ChartGrid(charts);
}

}  // namespace tq
