// What a calibration found, as JSON, as text and as a section of a report.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "runtime/calibrate/calibrate.h"
#include "runtime/calibrate/statistics_report.h"
#include "runtime/evaluate/results_json.h"
#include "runtime/evaluate/section.h"

namespace tq {
namespace {

struct Column {
  const char* name;  // in tables; JSON keys are its words joined
  const char* key;
  double CalibrateLayer::*value;
  const char* format;
  double CalibrateLayer::*error = nullptr;  // standard error, where the value has one
};
constexpr Column kColumns[] = {
    {"K alone, KL", "k_kld", &CalibrateLayer::k_kld, "{:.6f}", &CalibrateLayer::k_stderr},
    {"V alone, KL", "v_kld", &CalibrateLayer::v_kld, "{:.6f}", &CalibrateLayer::v_stderr},
    {"K bits", "k_bits", &CalibrateLayer::k_bits, "{:.2f}"},
    {"V bits", "v_bits", &CalibrateLayer::v_bits, "{:.2f}"},
    {"output error", "output_error", &CalibrateLayer::output_error, "{:.3f}"},
    {"output cosine", "output_cosine", &CalibrateLayer::output_cosine, "{:.4f}"},
    {"score agreement", "score_agreement", &CalibrateLayer::score_agreement, "{:.4f}"},
    {"cosine in the run", "run_cosine", &CalibrateLayer::run_cosine, "{:.4f}"},
};

// One window has no standard error: then none is shown.
std::string Cell(const Column& c, const CalibrateLayer& layer) {
  std::string out = fmt::format(fmt::runtime(c.format), layer.*c.value);
  if (c.error != nullptr && layer.*c.error > 0) {
    out += " \u00b1 " + fmt::format(fmt::runtime(c.format), layer.*c.error);
  }
  return out;
}

nlohmann::ordered_json HeldOutJson(const StreamScores& scores) {
  nlohmann::ordered_json j = SummaryJson(Summarize(scores.scores));
  j["kld_stderr_over_windows"] = OverWindows(scores).stderr_of_mean();
  j["windows"] = scores.window_means;
  return j;
}

const std::vector<std::string> kHeldOutHeader = {"held-out text", "bits",     "KL mean",
                                                 "99 %",          "same top", "ppl ratio"};

std::vector<std::string> HeldOutCells(const std::string& name, double bits,
                                      const StreamScores& scores) {
  const DivergenceSummary s = Summarize(scores.scores, scores.window_positions);
  return {name,
          fmt::format("{:.3f}", bits),
          fmt::format("{:.5f} ± {:.5f}", s.mean, s.mean_stderr),
          fmt::format("{:.4f}", s.p99),
          fmt::format("{:.2f} %", 100 * s.same_top),
          fmt::format("{:.5f}", s.ppl_ratio)};
}

std::vector<std::vector<std::string>> HeldOutRows(const CalibrateResult& r) {
  std::vector<std::vector<std::string>> rows = {
      HeldOutCells(r.kept_uniform ? r.chosen.name : "this profile", r.chosen.bits, r.held_out)};
  if (!r.uniform_name.empty() && !r.kept_uniform) {
    rows.push_back(HeldOutCells(r.uniform_name, r.uniform_bits, r.held_out_uniform));
  }
  return rows;
}

// Without sensitivities, as in a uniform profile, there is nothing to show.
std::string LayerTable(const CalibrateResult& r) {
  if (r.trials.empty()) return "";
  // Cells with a standard error are wider than the names of their columns.
  const bool errors = std::any_of(r.layers.begin(), r.layers.end(),
                                  [](const CalibrateLayer& l) { return l.k_stderr > 0; });
  const auto width = [&](const Column& c) {
    constexpr size_t kWithError = std::string_view("0.000000 + 0.000000").size();
    return std::max(std::string_view(c.name).size(), c.error != nullptr && errors ? kWithError : 0);
  };
  std::string out = "layer";
  for (const Column& c : kColumns) out += fmt::format("  {:>{}}", c.name, width(c));
  out += "\n";
  for (size_t l = 0; l < r.layers.size(); ++l) {
    out += fmt::format("{:>5}", l);
    for (const Column& c : kColumns) out += fmt::format("  {:>{}}", Cell(c, r.layers[l]), width(c));
    out += r.layers[l].raised ? "  raised\n" : "\n";
  }
  return out + "\n";
}

}  // namespace

nlohmann::ordered_json CalibrateJson(const CalibrateResult& r) {
  nlohmann::ordered_json j;
  const Profile& p = r.profile;
  j["model"] = p.model.name;
  j["bits_per_value"] = r.chosen.bits;
  j["formats"] = p.Describe();
  j["kept_uniform"] = r.kept_uniform;
  j["objective"] = p.calibration->objective;
  j["tokens"] = p.calibration->tokens;
  j["context_len"] = p.calibration->context_len;
  if (p.calibration->target_kld > 0) j["target_kld"] = p.calibration->target_kld;
  if (p.calibration->budget_bits > 0) j["budget_bits"] = p.calibration->budget_bits;
  j["passed"] = p.quality->passed;
  j["informative"] = r.not_informative.empty();
  j["held_out"] = HeldOutJson(r.held_out);
  j["floor"] = {{"kld_mean", OverWindows(r.held_out_floor).mean()}};
  if (!r.uniform_name.empty()) {
    j["uniform"] = {{"name", r.uniform_name}, {"bits_per_value", r.uniform_bits}};
    j["uniform"]["held_out"] = HeldOutJson(r.held_out_uniform);
    j["gain"] = {{"kld_mean", r.gain}, {"kld_stderr", r.gain_stderr}};
  }
  j["measured_over_predicted"] = r.scale;
  j["trials"] = nlohmann::ordered_json::array();
  for (const CalibrateTrial& t : r.trials) {
    j["trials"].push_back({{"name", t.name},
                           {"bits_per_value", t.bits},
                           {"predicted", t.predicted},
                           {"kld_mean", t.kld()}});
  }
  j["by_layer"] = nlohmann::ordered_json::array();
  for (size_t l = 0; l < r.layers.size(); ++l) {
    const CalibrateLayer& layer = r.layers[l];
    nlohmann::ordered_json row = {{"layer", l}};
    for (const Column& c : kColumns) {
      row[c.key] = layer.*c.value;
      if (c.error != nullptr) row[std::string(c.key) + "_stderr"] = layer.*c.error;
    }
    row["raised"] = layer.raised;
    const LayerAttention& a = r.statistics.attention[l];
    row["attention"] = {{"sinks", a.sinks}};
    for (size_t d = 0; d < a.beyond.size(); ++d) {
      row["attention"][fmt::format("beyond_{}", LayerAttention::kDistances[d])] = a.beyond[d];
    }
    j["by_layer"].push_back(row);
  }
  const auto heads = static_cast<size_t>(p.model.num_kv_heads);
  j["heads"] = nlohmann::ordered_json::array();
  for (size_t h = 0; h < r.statistics.heads.size(); ++h) {
    const HeadStatistics& s = r.statistics.heads[h];
    if (s.k_mean.empty()) continue;
    double mean = 0;
    for (const float m : s.k_mean) mean += double{m} * m;
    j["heads"].push_back({{"layer", h / heads},
                          {"head", h % heads},
                          {"k_bits", p.formats[h].k.bits},
                          {"v_bits", p.formats[h].v.bits},
                          {"k_rms", s.k_rms},
                          {"k_mean_norm", std::sqrt(mean)},
                          {"k_outlier_channel", s.k_outlier.channel},
                          {"k_outlier_ratio", s.k_outlier.ratio},
                          {"v_rms", s.v_rms},
                          {"v_outlier_channel", s.v_outlier.channel},
                          {"v_outlier_ratio", s.v_outlier.ratio},
                          {"q_rms", s.queries.rms}});
  }
  j["log"] = r.log;
  return j;
}

std::string CalibrateText(const CalibrateResult& r) {
  std::string out = LayerTable(r);
  const std::string observed = StatisticsText(r.statistics);
  if (!observed.empty()) out += observed + "\n";
  const auto line = [&](const std::vector<std::string>& c) {
    return fmt::format("{:<32} {:>6}  {:<19}  {:<7}  {:<8}  {}\n", c[0], c[1], c[2], c[3], c[4],
                       c[5]);
  };
  out += line(kHeldOutHeader);
  for (const auto& row : HeldOutRows(r)) out += line(row);
  if (!r.uniform_name.empty() && !r.kept_uniform) {
    out += fmt::format("the allocation lowers the KL by {:.5f} ± {:.5f} ({:.0f} %)\n", r.gain,
                       r.gain_stderr,
                       100 * r.gain / std::max(1e-12, OverWindows(r.held_out_uniform).mean()));
  }
  out +=
      fmt::format("floor (8 bits everywhere): KL {:.5f}\n", OverWindows(r.held_out_floor).mean());
  out += fmt::format("\n{}\n", r.profile.Describe());
  const ProfileQuality& q = *r.profile.quality;
  if (q.gate_kld_mean > 0) {
    out +=
        fmt::format("{}: a mean KL of {:.5f} ± {:.5f} on held-out text, {:.5f} was asked for\n",
                    q.passed ? "passed" : "NOT passed", q.kld_mean, q.kld_stderr, q.gate_kld_mean);
  }
  if (!r.not_informative.empty()) out += "held-out text: " + r.not_informative + "\n";
  return out;
}

namespace {

// The outcome in a sentence or two.
std::string Verdict(const CalibrateResult& r) {
  const ProfileQuality& q = *r.profile.quality;
  std::string out = fmt::format(
      "{:.2f} bits for each value instead of 16: {:.1f} times smaller. On text that nothing was "
      "chosen by, the mean KL is {:.5f} ± {:.5f}",
      r.chosen.bits, 16 / r.chosen.bits, q.kld_mean, q.kld_stderr);
  if (q.gate_kld_mean > 0) {
    out += fmt::format("; {:.5f} was asked for: {}", q.gate_kld_mean,
                       q.passed ? "passed" : "NOT passed");
  }
  out += ".";
  if (!r.not_informative.empty()) out += " But: " + r.not_informative + ".";
  if (r.kept_uniform) {
    out += " One format for all heads is kept: giving each its own was not better beyond chance.";
  } else if (!r.uniform_name.empty()) {
    out += fmt::format(" One format for all heads of at most as many bytes ({}) has {:.5f}.",
                       r.uniform_name, OverWindows(r.held_out_uniform).mean());
  }
  return out;
}

}  // namespace

std::string CalibrateSection(const CalibrateResult& r) {
  std::string out =
      SectionHead("Calibration") + SectionText(Verdict(r)) + SectionText(r.profile.Describe());
  out += TableCard(
      kHeldOutHeader, HeldOutRows(r), {},
      fmt::format(
          "Over {} window{} of text that nothing was chosen by. KL: how far the predictions "
          "of the next token move from those with the usual cache of 16 bits, in nats "
          "(0: not at all); 99 %: of so many positions it is below that. Same top: how "
          "often the likeliest token stays the same. ppl ratio: perplexity, times what it "
          "is with 16 bits. Floor, with 8 bits everywhere: KL {:.5f}.",
          r.held_out.window_means.size(), r.held_out.window_means.size() == 1 ? "" : "s",
          OverWindows(r.held_out_floor).mean()));
  const auto bars = [&](const char* title, const char* note, const char* unit, size_t k, size_t v) {
    Chart chart;
    chart.kind = Chart::Kind::kBars;
    chart.title = title;
    chart.note = note;
    chart.x_title = "layer";
    chart.y_title = unit;
    chart.series = {{"K", {}, true, 1}, {"V", {}, true, 2}};
    for (size_t l = 0; l < r.layers.size(); ++l) {
      chart.categories.push_back(std::to_string(l));
      const auto x = static_cast<double>(l);
      chart.series[0].points.emplace_back(x, r.layers[l].*kColumns[k].value);
      chart.series[1].points.emplace_back(x, r.layers[l].*kColumns[v].value);
    }
    return chart;
  };
  if (!r.trials.empty()) {
    const Chart charts[] = {
        bars(
            "Sensitivity",
            "Mean KL when only the keys (K), or only the values (V), of this layer have the fewest "
            "bits: what must not be saved on",
            "nats", 0, 1),
        bars("Bits", "What each layer got, mean over its KV heads: more where it is sensitive",
             "bits", 2, 3)};
    out += "<br>\n" + ChartGrid(charts) + "<br>\n";
    std::vector<std::string> header = {"layer"};
    for (const Column& c : kColumns) header.emplace_back(c.name);
    std::vector<std::vector<std::string>> rows;
    std::vector<size_t> raised;
    for (size_t l = 0; l < r.layers.size(); ++l) {
      std::vector<std::string>& row = rows.emplace_back();
      row.push_back(std::to_string(l));
      for (const Column& c : kColumns) row.push_back(Cell(c, r.layers[l]));
      if (r.layers[l].raised) raised.push_back(l);
    }
    out += TableCard(
        header, rows, raised,
        "K alone, V alone: as in the chart of sensitivity, ± the standard error over windows. "
        "Output error, output cosine: of what "
        "attention adds, with the chosen bits and nothing else changed (0 and 1 are exact). Score "
        "agreement: the share of attention that stays where it was. Cosine in the run: of "
        "attention "
        "outputs with all layers quantized. Shaded: raised because its attention was out of line.");
  }
  const std::string observed = StatisticsCards(r.statistics);
  if (!observed.empty()) out += "<br>\n" + SectionHead("What the text showed") + observed;
  if (r.log.empty()) return out;
  std::vector<std::vector<std::string>> log;
  for (const std::string& line : r.log) log.push_back({line});
  return out + "<br>\n" +
         TableCard({"what was decided, and why"}, log, {},
                   r.trials.empty()
                       ? ""
                       : "Each measured line is an allocation within the budget, run end to end on "
                         "text of its own: by layer, or by head too; with what V costs halved or "
                         "doubled (V x 0.5, V x 2). The first stays unless a later one is better "
                         "beyond chance.");
}

}  // namespace tq
