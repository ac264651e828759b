#include "runtime/evaluate/profile_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <string_view>

#include "runtime/evaluate/footprint.h"
#include "runtime/evaluate/page.h"
#include "runtime/evaluate/section.h"
#include "turboquant/base/format_count.h"
#include "turboquant/cache/cache.h"

namespace tq {
namespace {

constexpr std::string_view kRamp = ".:-=+*#%@";

// How wide a value is stored, as a cell shows it: "3", "16", "f8".
std::string Bits(const Codec& c) {
  return c.is_float() && c.bits == 8 ? "f8" : std::to_string(c.bits);
}

const Codec& CodecOf(const Profile& p, int layer, int head, Side side) {
  const HeadFormat& f = p.formats[static_cast<size_t>(layer) * p.model.num_kv_heads + head];
  return side == Side::kK ? f.k : f.v;
}

// Sensitivities of one side and the logarithmic range of both.
class Costs {
 public:
  explicit Costs(const Profile& p) : profile_(p) {
    if (!p.sensitivity) return;
    for (const auto* values : {&p.sensitivity->k, &p.sensitivity->v}) {
      for (const double v : *values) {
        if (!(v > 0) || !std::isfinite(v)) continue;
        low_ = any_ ? std::min(low_, v) : v;
        high_ = any_ ? std::max(high_, v) : v;
        any_ = true;
      }
    }
    const auto layers = static_cast<size_t>(p.model.num_layers);
    columns_ = layers == 0 ? 0 : p.sensitivity->k.size() / layers;
  }
  bool any() const { return any_; }
  size_t columns() const { return columns_; }  // one a layer, or one a head
  double low() const { return low_; }
  double high() const { return high_; }
  double At(int layer, size_t column, Side side) const {
    const auto& values = side == Side::kK ? profile_.sensitivity->k : profile_.sensitivity->v;
    return values[static_cast<size_t>(layer) * columns_ + column];
  }
  // 0 for the least, 1 for the most, by their logarithms.
  double Place(double value) const {
    if (!(value > low_)) return 0;
    if (!(high_ > low_)) return 1;
    return std::min(1.0, std::log(value / low_) / std::log(high_ / low_));
  }

 private:
  const Profile& profile_;
  double low_ = 0, high_ = 0;
  bool any_ = false;
  size_t columns_ = 0;
};

// From light to dark with the number of bits: colours of a terminal's cube of 256.
std::string Colored(const std::string& cell, int bits) {
  static constexpr std::array<std::pair<int, int>, 7> kShades = {
      {{2, 195}, {3, 153}, {4, 111}, {5, 75}, {6, 68}, {8, 25}, {16, 17}}};
  int shade = 17;
  for (const auto& [most, color] : kShades) {
    if (bits > most) continue;
    shade = color;
    break;
  }
  return fmt::format("\x1b[48;5;{};38;5;{}m{}\x1b[0m", shade, bits > 6 ? 231 : 16, cell);
}

std::string Percent(double share) {
  return fmt::format("{:.2f} %", 100 * share);
}

// Cells of a row of the map in HTML.
std::string BitsCell(const Codec& c, bool begins) {
  // 2 bits are the lightest, 16 the darkest.
  const double dark = std::log2(std::clamp(c.bits, 2, 16)) - 1;  // 0..3
  return fmt::format("<td{} style=\"background:hsl(212 65% {:.0f}%);color:{}\">{}</td>",
                     begins ? " class=\"begin\"" : "", 93 - 20 * dark,
                     dark > 1.6 ? "#fff" : "#12161c", Bits(c));
}

std::string CostCell(double cost, double place, bool begins) {
  // In millionths: without exponents, and few digits.
  const double shown = 1e6 * cost;
  return fmt::format(
      "<td{} style=\"background:hsl({:.0f} 80% {:.0f}%);color:#12161c\">{:.{}f}</td>",
      begins ? " class=\"begin\"" : "", 52 - 36 * place, 94 - 26 * place, shown,
      shown < 9.95 ? 1 : 0);
}

std::string MapHtml(const Profile& p) {
  const Costs costs(p);
  const int heads = p.model.num_kv_heads;
  std::string groups = "<tr><th></th>", names = "<tr><th>layer</th>";
  const auto group = [&](const char* title, size_t columns, const char* one) {
    groups += fmt::format("<th colspan=\"{}\" style=\"text-align:center\">{}</th>", columns, title);
    for (size_t c = 0; c < columns; ++c) {
      names += one != nullptr && columns == 1 ? fmt::format("<th>{}</th>", one)
                                              : fmt::format("<th>h{}</th>", c);
    }
  };
  group("K, bits", static_cast<size_t>(heads), nullptr);
  group("V, bits", static_cast<size_t>(heads), nullptr);
  if (costs.any()) {
    group("K alone, KL in millionths", costs.columns(), "all heads");
    group("V alone, KL in millionths", costs.columns(), "all heads");
  }
  std::string rows;
  for (int l = 0; l < p.model.num_layers; ++l) {
    rows += fmt::format("<tr><td>{}</td>", l);
    for (const Side side : {Side::kK, Side::kV}) {
      for (int h = 0; h < heads; ++h) rows += BitsCell(CodecOf(p, l, h, side), h == 0);
    }
    for (const Side side : {Side::kK, Side::kV}) {
      for (size_t c = 0; costs.any() && c < costs.columns(); ++c) {
        const double cost = costs.At(l, c, side);
        rows += CostCell(cost, costs.Place(cost), c == 0);
      }
    }
    rows += "</tr>\n";
  }
  std::string note = "Bits of each layer (down) and KV head (across, h0, h1...); darker is more.";
  if (costs.any()) {
    note += fmt::format(
        " At the right, what they were chosen by: how far the model's predictions move (mean KL) "
        "when only the keys, or only the values, of this head have {} bits; more orange is more. "
        "What moves them most should have the most bits.",
        p.sensitivity->bits);
  }
  return "<div class=\"card\"><h3>Layers and heads</h3>\n<p class=\"note\">" + note +
         "</p>\n<div class=\"scroll\"><table class=\"map\">" + groups + "</tr>\n" + names +
         "</tr>\n" + rows +
         "</table></div></div>\n<style>.map td,.map th{padding:2px 7px;text-align:center;"
         "font-size:12.5px;border:1px solid var(--card)}.map "
         ".begin{border-left-width:12px}</style>\n";
}

// How often each format occurs, for a bar chart.
Chart FormatChart(const Profile& p) {
  std::vector<std::pair<std::string, int>> counts;
  for (const HeadFormat& f : p.formats) {
    const std::string name = PresetName(f);
    auto at =
        std::find_if(counts.begin(), counts.end(), [&](const auto& c) { return c.first == name; });
    if (at == counts.end()) at = counts.insert(at, {name, 0});
    ++at->second;
  }
  std::stable_sort(counts.begin(), counts.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  Chart chart;
  chart.kind = Chart::Kind::kBars;
  chart.title = "Formats";
  chart.note = "KV heads of all layers by their format; k3v2: keys of 3 bits, values of 2";
  chart.y_title = "heads";
  ChartSeries series;
  series.name = "heads";
  series.color = 1;
  for (const auto& [name, count] : counts) {
    series.points.emplace_back(static_cast<double>(chart.categories.size()), count);
    chart.categories.push_back(name);
  }
  chart.series.push_back(std::move(series));
  return chart;
}

std::string CalibrationWords(const ProfileCalibration& c) {
  std::string out = fmt::format("{} tokens of {}, at a context of {}", FormatCount(c.tokens),
                                FormatCount(c.sequences, "text or request", "texts or requests"),
                                FormatCount(c.context_len));
  if (!c.objective.empty()) out += ", objective " + c.objective;
  if (c.budget_bits > 0) out += fmt::format(", budget {:g} bits", c.budget_bits);
  if (c.target_kld > 0) out += fmt::format(", target KL {:g}", c.target_kld);
  if (!c.date.empty()) out += ", " + c.date;
  if (c.corpus_hash) out += fmt::format("; data {:016x}", *c.corpus_hash);
  return out;
}

std::string QualityWords(const ProfileQuality& q) {
  std::string out = fmt::format("on {} tokens of held-out text", FormatCount(q.held_out_tokens));
  if (q.windows > 0) out += " in " + FormatCount(q.windows, "window");
  out += fmt::format(": KL to the 16-bit cache {:.5f}", q.kld_mean);
  if (q.kld_stderr > 0) out += fmt::format(" ± {:.5f}", q.kld_stderr);
  if (q.kld_p99 > 0) out += fmt::format(" (99 of 100 tokens below {:.4f})", q.kld_p99);
  if (q.floor_kld_mean > 0) out += fmt::format("; 8 bits everywhere {:.5f}", q.floor_kld_mean);
  out += "; the same likeliest next token at " + Percent(q.same_top);
  if (q.ppl_ratio > 0) out += fmt::format("; perplexity times {:.4f}", q.ppl_ratio);
  if (!q.device.empty()) out += "; measured on " + q.device;
  return out;
}

std::string GateWords(const ProfileQuality& q) {
  std::string out = q.passed ? "passed" : "not passed";
  if (q.gate_kld_mean > 0)
    out += fmt::format(": a KL of at most {:g} was asked for", q.gate_kld_mean);
  return out;
}

CacheConfig ConfigOf(const Profile& p) {
  CacheConfig config;
  config.num_layers = p.model.num_layers;
  config.num_kv_heads = p.model.num_kv_heads;
  config.head_dim = p.model.head_dim;
  config.recent_len = p.recent_len;
  config.sink_len = p.sink_len;
  config.recent = p.recent;
  config.formats = p.formats;
  return config;
}

}  // namespace

std::vector<std::pair<std::string, std::string>> ProfileFacts(const Profile& p) {
  std::vector<std::pair<std::string, std::string>> facts;
  if (!p.model.name.empty())
    facts.emplace_back("model", p.model.name + ", " + p.model.architecture);
  facts.emplace_back("formats", p.Describe());
  const CacheConfig config = ConfigOf(p);
  facts.emplace_back(
      "size", fmt::format("{:.3f} bits per value; {:.2f}x smaller than f16 at 131,072 tokens",
                          SealedBitsPerValue(config), FootprintRatio(config, 131072)));
  std::vector<std::pair<int64_t, double>> counted = p.bits_all_counted;
  std::sort(counted.begin(), counted.end());
  for (const auto& [context, bits] : counted) {
    facts.back().second +=
        fmt::format("{} {:.3f} at {} tokens",
                    context == counted.front().first ? "; with the window of recent tokens" : ",",
                    bits, FormatCount(context));
  }
  facts.emplace_back("calibrated",
                     p.calibration ? CalibrationWords(*p.calibration) : "nothing is said of it");
  facts.emplace_back("quality",
                     p.quality ? QualityWords(*p.quality) : "not verified on held-out text");
  if (p.quality) facts.emplace_back("gate", GateWords(*p.quality));
  return facts;
}

std::string ProfileMapText(const Profile& p, bool color) {
  const Costs costs(p);
  const int heads = p.model.num_kv_heads;
  const auto width = [](size_t cells) { return std::max<size_t>(3 * cells, 10); };
  std::string out = fmt::format("{:>5}  {:<{}}{:<{}}", "layer", "K bits", width(heads) + 2,
                                "V bits", width(heads) + 2);
  if (costs.any()) {
    out += fmt::format("{:<{}}{}", "K alone", std::max<size_t>(costs.columns(), 7) + 2, "V alone");
  }
  while (out.ends_with(' ')) out.pop_back();
  out += "\n";
  for (int l = 0; l < p.model.num_layers; ++l) {
    std::string line = fmt::format("{:>5}  ", l);
    for (const Side side : {Side::kK, Side::kV}) {
      for (int h = 0; h < heads; ++h) {
        const Codec& c = CodecOf(p, l, h, side);
        const std::string cell = fmt::format("{:>2} ", Bits(c));
        line += color ? Colored(cell, c.bits) : cell;
      }
      line.append(width(heads) + 2 - 3 * static_cast<size_t>(heads), ' ');
    }
    for (const Side side : {Side::kK, Side::kV}) {
      if (!costs.any()) continue;
      for (size_t c = 0; c < costs.columns(); ++c) {
        const double place = costs.Place(costs.At(l, c, side));
        line += kRamp[std::min(kRamp.size() - 1,
                               static_cast<size_t>(place * static_cast<double>(kRamp.size())))];
      }
      line.append(std::max<size_t>(costs.columns(), 7) + 2 - costs.columns(), ' ');
    }
    while (line.ends_with(' ')) line.pop_back();
    out += line + "\n";
  }
  if (costs.any()) {
    out += fmt::format(
        "alone: mean KL when only this K or V has {} bits, from {:.2g} ({}) to {:.2g} ({})\n",
        p.sensitivity->bits, costs.low(), kRamp.front(), costs.high(), kRamp.back());
  }
  return out;
}

std::string ProfileSection(const Profile& p) {
  const std::array charts = {FormatChart(p)};
  return SectionHead("Profile") +
         SectionText(
             "While it reads and writes, a model keeps a key (K) and a value (V) of every token in "
             "each layer and KV head: the KV cache. This profile says with how many bits each of "
             "them is stored. KL (divergence of the next-token distributions, in nats) says how "
             "far "
             "the predictions move from those with the usual cache of 16 bits: 0 is no change.") +
         ListCard(ProfileFacts(p)) + "<br>\n" + MapHtml(p) + "<br>\n" + ChartGrid(charts);
}

std::string ProfilePage(const Profile& p, const std::string& path) {
  const std::string section = ProfileSection(p);
  return SectionsPage(p.model.name.empty() ? path : p.model.name + ": profile of its cache", path,
                      {&section, 1});
}

}  // namespace tq
