// Columns of text for the terminal.
#pragma once

#include <string>
#include <vector>

namespace tq::cli {

class TextTable {
 public:
  // The first column is aligned left, the others right, unless `left` names them. A header may have
  // several lines, cut by '\n'.
  explicit TextTable(std::vector<std::string> header, std::vector<size_t> left = {0});
  // Missing cells at the end are empty.
  void Add(std::vector<std::string> row);
  std::string ToString() const;

 private:
  std::vector<std::vector<std::string>> header_lines_, rows_;
  std::vector<bool> left_;
};

}  // namespace tq::cli
