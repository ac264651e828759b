#include "runtime/calibrate/statistics_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "runtime/evaluate/section.h"
#include "turboquant/base/format_count.h"

namespace tq {
namespace {

constexpr size_t kNamed = 3;  // that stand out, of each kind

// Share of the length of a typical key that is the same in all keys: what a centre takes out.
double ConstantPart(const HeadStatistics& h) {
  double square = 0;
  for (const float m : h.k_mean) square += double{m} * m;
  const double length = h.k_rms * std::sqrt(static_cast<double>(h.k_mean.size()));
  return length > 0 ? std::sqrt(square) / length : 0;
}

class Observed {
 public:
  explicit Observed(const ModelStatistics& s) : s_(s) {
    heads_ = s.attention.empty() ? 0 : s.heads.size() / s.attention.size();
    for (size_t l = 0; l < s.attention.size() && heads_ > 0; ++l) {
      if (!s.heads[l * heads_].k_mean.empty()) layers_.push_back(l);
    }
    for (size_t d = 0; d < LayerAttention::kDistances.size(); ++d) {
      const bool seen = std::any_of(layers_.begin(), layers_.end(),
                                    [&](size_t l) { return s.attention[l].beyond[d] > 0; });
      if (seen) distances_.push_back(d);
    }
  }

  const std::vector<size_t>& layers() const { return layers_; }
  const std::vector<size_t>& distances() const { return distances_; }  // that texts are long for
  const LayerAttention& attention(size_t layer) const { return s_.attention[layer]; }

  double MeanOverLayers(const std::function<double(size_t)>& of_layer) const {
    double sum = 0;
    for (const size_t l : layers_) sum += of_layer(l);
    return sum / static_cast<double>(layers_.size());
  }
  double MeanOverHeads(size_t layer, double (*of_head)(const HeadStatistics&)) const {
    double sum = 0;
    for (size_t h = 0; h < heads_; ++h) sum += of_head(s_.heads[layer * heads_ + h]);
    return sum / static_cast<double>(heads_);
  }
  // The head with the largest channel in comparison to its others.
  size_t WorstHead(size_t layer, VectorStatistics::Outlier HeadStatistics::*of) const {
    size_t worst = 0;
    for (size_t h = 1; h < heads_; ++h) {
      if ((head(layer, h).*of).ratio > (head(layer, worst).*of).ratio) worst = h;
    }
    return worst;
  }
  const HeadStatistics& head(size_t layer, size_t h) const { return s_.heads[layer * heads_ + h]; }

  // Layers with the largest values, largest first.
  std::vector<size_t> Top(const std::function<double(size_t)>& of_layer, size_t count) const {
    std::vector<size_t> order = layers_;
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return of_layer(a) > of_layer(b); });
    order.resize(std::min(order.size(), count));
    return order;
  }

 private:
  const ModelStatistics& s_;
  size_t heads_ = 0;
  std::vector<size_t> layers_, distances_;
};

std::string Percent(double share) {
  return fmt::format("{:.0f} %", 100 * share);
}

// "7 (81 %), 3 (77 %)" of the layers with the largest shares.
std::string TopShares(const Observed& o, const std::function<double(size_t)>& of_layer) {
  std::string out;
  for (const size_t l : o.Top(of_layer, kNamed)) {
    out += fmt::format("{}{} ({})", out.empty() ? "" : ", ", l, Percent(of_layer(l)));
  }
  return out;
}

std::string OutlierWords(const Observed& o, VectorStatistics::Outlier HeadStatistics::*of) {
  const auto ratio = [&](size_t l) { return (o.head(l, o.WorstHead(l, of)).*of).ratio; };
  std::string out;
  for (const size_t l : o.Top(ratio, kNamed)) {
    const size_t h = o.WorstHead(l, of);
    out += fmt::format("{}{:.1f} x in layer {} head {} (channel {})", out.empty() ? "" : ", ",
                       ratio(l), l, h, (o.head(l, h).*of).channel);
  }
  return out;
}

std::string RangeWords(const Observed& o, const std::function<double(size_t)>& of_layer) {
  const size_t high = o.Top(of_layer, 1).front();
  const size_t low = o.Top([&](size_t l) { return -of_layer(l); }, 1).front();
  return fmt::format("{:.2g} (layer {}) to {:.2g} (layer {})", of_layer(low), low, of_layer(high),
                     high);
}

}  // namespace

std::string StatisticsText(const ModelStatistics& s) {
  const Observed o(s);
  if (o.layers().empty()) return "";
  const auto sinks = [&](size_t l) { return o.attention(l).sinks; };
  std::string out =
      fmt::format("observed on {} tokens, means over layers\n", FormatCount(s.tokens));
  const auto line = [&](const char* what, const std::string& text) {
    out += fmt::format("  {:<11}{}\n", what, text);
  };
  std::string far;
  for (const size_t d : o.distances()) {
    if (LayerAttention::kDistances[d] < 64) continue;
    far +=
        fmt::format("{} {} at least {} back", far.empty() ? ";" : ",",
                    Percent(o.MeanOverLayers([&](size_t l) { return o.attention(l).beyond[d]; })),
                    FormatCount(LayerAttention::kDistances[d]));
  }
  line("attention", Percent(o.MeanOverLayers(sinks)) + " goes to the first 64 tokens" + far);
  line("", "most to the first tokens: layers " + TopShares(o, sinks));
  if (!o.distances().empty()) {
    // The furthest of the distances that a recent window does not cover, or what there is.
    const size_t d = o.distances().back();
    line("",
         fmt::format("most at least {} back: layers {}", FormatCount(LayerAttention::kDistances[d]),
                     TopShares(o, [&](size_t l) { return o.attention(l).beyond[d]; })));
  }
  const auto constant = [&](size_t l) { return o.MeanOverHeads(l, ConstantPart); };
  line("constant", "part of a key's length, which the centre takes out: " +
                       Percent(o.MeanOverLayers(constant)) + "; most in layers " +
                       TopShares(o, constant));
  line("outliers", "largest channel of K: " + OutlierWords(o, &HeadStatistics::k_outlier));
  line("", "largest channel of V: " + OutlierWords(o, &HeadStatistics::v_outlier));
  const auto k_rms = [&](size_t l) {
    return o.MeanOverHeads(l, [](const HeadStatistics& h) { return h.k_rms; });
  };
  const auto v_rms = [&](size_t l) {
    return o.MeanOverHeads(l, [](const HeadStatistics& h) { return h.v_rms; });
  };
  line("size", "root mean square of a channel, K: " + RangeWords(o, k_rms) +
                   "; V: " + RangeWords(o, v_rms));
  return out;
}

std::string StatisticsCards(const ModelStatistics& s) {
  const Observed o(s);
  if (o.layers().empty()) return "";
  Chart attention;
  attention.title = "Where attention goes";
  attention.note =
      "Share of each layer's attention that goes to the first 64 tokens, and to tokens at least so "
      "far back; mean over heads";
  attention.x_title = "layer";
  attention.y_title = "share";
  attention.series.push_back({"first 64 tokens", {}, true, 0});
  for (const size_t l : o.layers()) {
    attention.series[0].points.emplace_back(l, o.attention(l).sinks);
  }
  int color = 1;
  for (const size_t d : o.distances()) {
    if (LayerAttention::kDistances[d] < 64) continue;
    ChartSeries& series = attention.series.emplace_back();
    series.name = FormatCount(LayerAttention::kDistances[d]) + " or more back";
    series.color = color++;
    for (const size_t l : o.layers()) series.points.emplace_back(l, o.attention(l).beyond[d]);
  }
  Chart outliers;
  outliers.kind = Chart::Kind::kBars;
  outliers.title = "Outlier channels";
  outliers.note =
      "The largest channel of a layer's heads over the root mean square of all channels of that "
      "head (1: all alike), before RoPE, centre and rotation";
  outliers.x_title = "layer";
  outliers.y_title = "times";
  outliers.series = {{"K", {}, true, 1}, {"V", {}, true, 2}};

  std::vector<std::string> header = {"layer", "first 64"};
  for (const size_t d : o.distances()) {
    header.push_back("\u2265 " + FormatCount(LayerAttention::kDistances[d]) + "\nback");
  }
  for (const char* name :
       {"K rms", "K constant", "largest channel of K", "V rms", "largest channel of V", "Q rms"}) {
    header.emplace_back(name);
  }
  std::vector<std::vector<std::string>> rows;
  for (const size_t l : o.layers()) {
    std::vector<std::string>& row = rows.emplace_back();
    row.push_back(std::to_string(l));
    row.push_back(Percent(o.attention(l).sinks));
    for (const size_t d : o.distances()) row.push_back(Percent(o.attention(l).beyond[d]));
    const auto mean = [&](double (*of_head)(const HeadStatistics&)) {
      return fmt::format("{:#.3g}", o.MeanOverHeads(l, of_head));
    };
    outliers.categories.push_back(std::to_string(l));
    const auto largest = [&](VectorStatistics::Outlier HeadStatistics::*of, ChartSeries* bars) {
      const size_t h = o.WorstHead(l, of);
      const VectorStatistics::Outlier& outlier = o.head(l, h).*of;
      bars->points.emplace_back(l, outlier.ratio);
      return fmt::format("{:.1f} x (head {}, channel {})", outlier.ratio, h, outlier.channel);
    };
    row.push_back(mean([](const HeadStatistics& h) { return h.k_rms; }));
    row.push_back(Percent(o.MeanOverHeads(l, ConstantPart)));
    row.push_back(largest(&HeadStatistics::k_outlier, &outliers.series[0]));
    row.push_back(mean([](const HeadStatistics& h) { return h.v_rms; }));
    row.push_back(largest(&HeadStatistics::v_outlier, &outliers.series[1]));
    row.push_back(mean([](const HeadStatistics& h) { return double{h.queries.rms}; }));
  }
  const Chart charts[] = {attention, outliers};
  return ChartGrid(charts) + "<br>\n" +
         TableCard(
             header, rows, {},
             fmt::format("Observed on {} tokens with the usual cache, means over heads. First "
                         "64, \u2265 ... back: where attention goes, of queries that have "
                         "tokens so far back. Rms: root mean square of a channel. K constant: "
                         "the share of a key's length that is the same in all keys, which the "
                         "centre takes out before it costs bits.",
                         FormatCount(s.tokens)));
}

}  // namespace tq
