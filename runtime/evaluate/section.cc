#include "runtime/evaluate/section.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "runtime/evaluate/page.h"
#include "runtime/evaluate/report_assets.h"

namespace tq {
namespace {

std::string ChartJson(const Chart& chart) {
  nlohmann::ordered_json j;
  static constexpr const char* kKinds[] = {"line", "points", "bars"};
  j["kind"] = kKinds[static_cast<int>(chart.kind)];
  j["x"] = {{"title", chart.x_title}, {"log", chart.x_log}};
  j["y"] = {{"title", chart.y_title}, {"log", chart.y_log}};
  j["categories"] = chart.categories;
  j["series"] = nlohmann::json::array();
  for (const ChartSeries& s : chart.series) {
    nlohmann::ordered_json points = nlohmann::json::array();
    for (const auto& [x, y] : s.points) {
      if ((chart.x_log && x <= 0) || (chart.y_log && y <= 0)) continue;
      points.push_back({{"x", x}, {"y", y}});
    }
    j["series"].push_back(
        {{"name", s.name}, {"points", points}, {"marked", s.marked}, {"color", s.color}});
  }
  return ForScript(j.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace));
}

// Escaped, with its lines as lines; those at the end that are empty are left out.
std::string Lines(std::string_view text) {
  while (text.ends_with('\n')) text.remove_suffix(1);
  std::string out;
  for (const char c : EscapeHtml(text)) {
    if (c == '\n') {
      out += "<br>";
    } else {
      out += c;
    }
  }
  return out;
}

std::string Cells(const std::vector<std::string>& cells, const char* tag) {
  std::string out;
  for (const std::string& cell : cells) {
    out += std::string("<") + tag + ">" + Lines(cell) + "</" + tag + ">";
  }
  return out;
}

}  // namespace

std::string SectionHead(std::string_view title) {
  return "<h2>" + EscapeHtml(title) + "</h2>\n";
}

std::string SectionText(std::string_view text) {
  return "<p>" + EscapeHtml(text) + "</p>\n";
}

std::string ChartCard(const Chart& chart) {
  std::string out = "<div class=\"card\"><h3>" + EscapeHtml(chart.title) + "</h3>\n";
  out += "<p class=\"note\">" + EscapeHtml(chart.note) + "</p>\n";
  out += "<div class=\"plot\"><canvas></canvas><script type=\"application/json\">";
  return out + ChartJson(chart) + "</script></div></div>\n";
}

std::string ChartGrid(std::span<const Chart> charts) {
  std::string out = "<div class=\"grid\">\n";
  for (const Chart& chart : charts) out += ChartCard(chart);
  return out + "</div>\n";
}

std::string TableCard(const std::vector<std::string>& header,
                      const std::vector<std::vector<std::string>>& rows,
                      const std::vector<size_t>& marked, std::string_view note) {
  std::string out = "<div class=\"card\"><div class=\"scroll\"><table><thead><tr>" +
                    Cells(header, "th") + "</tr></thead><tbody>\n";
  for (size_t i = 0; i < rows.size(); ++i) {
    const bool front = std::find(marked.begin(), marked.end(), i) != marked.end();
    out += (front ? "<tr class=\"front\">" : "<tr>") + Cells(rows[i], "td") + "</tr>\n";
  }
  out += "</tbody></table></div>";
  if (!note.empty()) out += "<p class=\"note\">" + EscapeHtml(note) + "</p>";
  return out + "</div>\n";
}

std::string ListCard(const std::vector<std::pair<std::string, std::string>>& entries) {
  std::string out = "<div class=\"card\"><dl>";
  for (const auto& [name, value] : entries) {
    out += "<dt>" + EscapeHtml(name) + "</dt><dd>" + Lines(value) + "</dd>\n";
  }
  return out + "</dl></div>\n";
}

std::string SectionsPage(std::string_view title, std::string_view subtitle,
                         std::span<const std::string> sections) {
  std::string all;
  for (const std::string& s : sections) all += s;
  return FillPage(kSectionsTemplate, {{"title", EscapeHtml(title)},
                                      {"subtitle", EscapeHtml(subtitle)},
                                      {"sections", std::move(all)},
                                      {"draw", std::string(kSectionsScript)}});
}

}  // namespace tq
