// Reports made of sections: each evaluation writes one, and a page joins any number of them.
//
// A section is HTML without a page around it: SectionHead, then tables and charts. Charts are data:
// sections.js draws every one that stands in the page, so sections need no scripts and no ids.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tq {

struct ChartSeries {
  std::string name;
  std::vector<std::pair<double, double>> points;  // x, y; y only for bars, in order of categories
  bool marked = true;                             // points are filled; false: hollow
  int color = 0;  // of the palette; 0 is grey, for what is compared with
};

struct Chart {
  enum class Kind { kLine, kPoints, kBars };
  Kind kind = Kind::kLine;
  std::string title, note;  // plain text, escaped by ChartCard
  std::string x_title, y_title;
  bool x_log = false, y_log = false;  // points at or below 0 are left out of a logarithmic axis
  std::vector<std::string> categories = {};  // names of x = 0, 1, ...; of kBars always
  std::vector<ChartSeries> series = {};
};

// <h2>title</h2>, and <p>text</p>; both are plain text.
std::string SectionHead(std::string_view title);
std::string SectionText(std::string_view text);
// A card with the chart; several beside each other inside ChartGrid.
std::string ChartCard(const Chart& chart);
std::string ChartGrid(std::span<const Chart> charts);

// A table in a card: cells are plain text, cut into lines by '\n'. A row whose index is in `marked`
// is shaded. `note` below it may be empty.
std::string TableCard(const std::vector<std::string>& header,
                      const std::vector<std::vector<std::string>>& rows,
                      const std::vector<size_t>& marked, std::string_view note);

// A list of names and values, as for where numbers come from; plain text, cut into lines by '\n'.
std::string ListCard(const std::vector<std::pair<std::string, std::string>>& entries);

// The self-contained page: title and subtitle are plain text, sections HTML.
std::string SectionsPage(std::string_view title, std::string_view subtitle,
                         std::span<const std::string> sections);

}  // namespace tq
