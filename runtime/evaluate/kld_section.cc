// tq eval kld as a section of a report.
#include <fmt/format.h>

#include <utility>

#include "runtime/evaluate/kld_run.h"
#include "runtime/evaluate/section.h"
#include "turboquant/base/format_count.h"

namespace tq {
namespace {

std::vector<std::string> Cells(const std::string& name, const KldRow& row, const KldStatistics& s) {
  const DivergenceSummary& a = s.all;
  return {name,
          fmt::format("{:.3f}", row.bits_per_value),
          fmt::format("{:.5f}\n\u00b1 {:.5f}", a.mean, a.mean_stderr),
          fmt::format("{:.5f}", a.median),
          fmt::format("{:.4f}", a.p99),
          fmt::format("{:.3f}", a.p999),
          fmt::format("{:.2f}", a.max),
          s.behind.positions == 0 ? "-" : fmt::format("{:.5f}", s.behind.mean),
          fmt::format("{:.2f} %", 100 * a.same_top),
          fmt::format("{:.3f}", a.ppl_q),
          fmt::format("{:.4f}\n\u00b1 {:.4f}", a.ppl_ratio, a.ppl_ratio_stderr),
          fmt::format("{:.2f} %", 100 * a.delta_p_rms),
          fmt::format("{:.4f}", a.one_minus_tvd)};
}

Chart Percentiles(const KldResult& r) {
  Chart chart;
  chart.title = "How KL is distributed";
  chart.note = "A mean hides its tail: the value that this share of positions stays below";
  chart.x_title = "share of positions";
  chart.y_title = "KL";
  chart.y_log = true;
  chart.categories = {"50 %", "90 %", "95 %", "99 %", "99.9 %", "all"};
  for (size_t i = 0; i < r.rows.size(); ++i) {
    const DivergenceSummary& s = r.rows[i].total.all;
    ChartSeries series{r.rows[i].name, {}, true, static_cast<int>(i) + 1};
    double x = 0;
    for (const double y : {s.median, s.p90, s.p95, s.p99, s.p999, s.max}) {
      series.points.push_back({x++, y});
    }
    chart.series.push_back(std::move(series));
  }
  return chart;
}

Chart ByPositionChart(const KldResult& r) {
  Chart chart;
  chart.title = "KL by position";
  chart.note = "Mean KL to the plain cache in nats, logarithmic: does it grow with depth?";
  chart.x_title = "position";
  chart.y_title = "KL";
  chart.y_log = true;
  for (size_t i = 0; i < r.rows.size(); ++i) {
    ChartSeries series{r.rows[i].name, {}, true, static_cast<int>(i) + 1};
    for (const PositionBucket& b : r.rows[i].by_position) {
      series.points.push_back({0.5 * static_cast<double>(b.first + b.end), b.kld_mean});
    }
    chart.series.push_back(std::move(series));
  }
  return chart;
}

Chart ByLayerChart(const KldResult& r) {
  Chart chart;
  chart.title = "Attention output by layer";
  chart.note =
      "1 - cosine to the plain run, mean over heads; for diagnosis only, errors of earlier layers "
      "are in it";
  chart.x_title = "layer";
  chart.y_title = "1 - cosine";
  chart.y_log = true;
  for (size_t i = 0; i < r.rows.size(); ++i) {
    ChartSeries series{r.rows[i].name, {}, true, static_cast<int>(i) + 1};
    for (size_t l = 0; l < r.rows[i].layer_cosine.size(); ++l) {
      series.points.push_back({static_cast<double>(l), 1 - r.rows[i].layer_cosine[l]});
    }
    chart.series.push_back(std::move(series));
  }
  return chart;
}

Chart BitsChart(const KldResult& r) {
  Chart chart;
  chart.kind = Chart::Kind::kPoints;
  chart.title = "Bits against KL";
  chart.note = "Lower left is better";
  chart.x_title = "bits per value, everything counted";
  chart.y_title = "mean KL";
  chart.y_log = true;
  for (size_t i = 0; i < r.rows.size(); ++i) {
    chart.series.push_back({r.rows[i].name,
                            {{r.rows[i].bits_per_value, r.rows[i].total.all.mean}},
                            true,
                            static_cast<int>(i) + 1});
  }
  return chart;
}

}  // namespace

std::string KldSection(const KldResult& r) {
  std::string out = SectionHead("KL divergence of the next token");
  out += SectionText(
      fmt::format("{} of up to {} tokens, {} tokens in all, through {} with {} and with "
                  "each of the caches below, side by side. KL 0 means the same probabilities.",
                  FormatCount(r.windows, "window"), FormatCount(r.context_len),
                  FormatCount(r.tokens), r.model_name, r.reference_name));
  for (const KldRow& row : r.rows) {
    std::string text = row.name + ": " + row.explanation + ".";
    for (const std::string& f : row.failures) text += " Below the gate: " + f + ".";
    if (const std::string seen = SeenWords(row.seen); !seen.empty()) text += " But " + seen + ".";
    out += SectionText(text);
  }
  if (!r.informative) out += SectionText("Not informative: " + r.note + ".");
  std::vector<std::vector<std::string>> rows;
  std::vector<size_t> totals;
  for (const KldRow& row : r.rows) {
    totals.push_back(rows.size());
    rows.push_back(Cells(row.name, row, row.total));
    if (row.texts.size() < 2) continue;
    for (const KldStatistics& t : row.texts) rows.push_back(Cells("on " + t.name, row, t));
  }
  out += TableCard({"Cache", "Bits per\nvalue", "KL mean", "median", "99 %", "99.9 %", "max",
                    "KL mean,\n1,024+ quan-\ntized behind", "Same top", "Perplexity", "Ratio",
                    "\u0394p RMS", "1 - TVD"},
                   rows, totals,
                   fmt::format("KL in nats. Noise floor: {} has a mean KL of {:.6f}. Perplexity of "
                               "the plain cache: {:.3f}.",
                               r.floor_name, r.floor.all.mean, r.floor.all.ppl_ref) +
                       (r.f32_floor ? " " + F32FloorWords(*r.f32_floor) : ""));
  std::vector<Chart> charts = {ByPositionChart(r), Percentiles(r)};
  if (!r.rows.empty() && !r.rows.front().layer_cosine.empty()) charts.push_back(ByLayerChart(r));
  if (r.rows.size() > 1) charts.push_back(BitsChart(r));
  return out + ChartGrid(charts);
}

}  // namespace tq
