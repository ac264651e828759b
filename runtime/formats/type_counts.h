// What a file is made of, in words.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "turboquant/base/status.h"

namespace tq {

// "Q4_1 (210), F32 (61), Q8_0 (1)": tensors of each type, most first.
inline std::string TypeCountsText(const std::map<std::string, int>& counts) {
  std::vector<std::pair<std::string, int>> sorted(counts.begin(), counts.end());
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  std::string out;
  for (const auto& [type, count] : sorted) {
    out += StrCat(out.empty() ? "" : ", ", type, " (", count, ")");
  }
  return out;
}

}  // namespace tq
