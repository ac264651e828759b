#include "cli/table.h"

#include <algorithm>

#include "cli/common.h"

namespace tq::cli {
namespace {

// Columns that a terminal uses: every UTF-8 character counts as one.
size_t Width(const std::string& text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

}  // namespace

TextTable::TextTable(std::vector<std::string> header, std::vector<size_t> left)
    : left_(header.size(), false) {
  for (const size_t column : left) left_[column] = true;
  size_t height = 0;
  std::vector<std::vector<std::string>> cells;
  for (const std::string& title : header) {
    cells.push_back(SplitList(title, '\n'));
    height = std::max(height, cells.back().size());
  }
  for (size_t line = 0; line < height; ++line) {
    std::vector<std::string> row;
    for (const auto& cell : cells) {
      // Short titles stand at the bottom.
      const size_t skip = height - cell.size();
      row.push_back(line < skip ? "" : cell[line - skip]);
    }
    header_lines_.push_back(std::move(row));
  }
}

void TextTable::Add(std::vector<std::string> row) {
  row.resize(left_.size());
  rows_.push_back(std::move(row));
}

std::string TextTable::ToString() const {
  std::vector<size_t> widths(left_.size(), 0);
  for (const auto* lines : {&header_lines_, &rows_}) {
    for (const auto& row : *lines) {
      for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], Width(row[c]));
    }
  }
  std::string out;
  const auto add = [&](const std::vector<std::string>& row) {
    std::string line;
    for (size_t c = 0; c < row.size(); ++c) {
      if (c > 0) line += "  ";
      const std::string pad(widths[c] - Width(row[c]), ' ');
      line += left_[c] ? row[c] + pad : pad + row[c];
    }
    while (!line.empty() && line.back() == ' ') line.pop_back();
    out += line + "\n";
  };
  for (const auto& row : header_lines_) add(row);
  std::vector<std::string> rule;
  for (const size_t w : widths) rule.emplace_back(w, '-');
  add(rule);
  for (const auto& row : rows_) add(row);
  return out;
}

}  // namespace tq::cli
