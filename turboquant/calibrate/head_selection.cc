#include "turboquant/calibrate/head_selection.h"

#include <charconv>
#include <set>

namespace tq {
namespace {

std::vector<std::string_view> Split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (size_t from = 0; from <= text.size();) {
    const size_t to = std::min(text.find(separator, from), text.size());
    std::string_view part = text.substr(from, to - from);
    while (!part.empty() && part.front() == ' ') part.remove_prefix(1);
    while (!part.empty() && part.back() == ' ') part.remove_suffix(1);
    parts.push_back(part);
    from = to + 1;
  }
  return parts;
}

// "a" or "a-b" into *set.
Status AddRange(std::string_view part, int limit, const char* what, std::set<int>* set) {
  const size_t dash = part.find('-');
  const std::string_view low_text = part.substr(0, dash);
  const std::string_view high_text = dash == part.npos ? low_text : part.substr(dash + 1);
  unsigned low = 0, high = 0;
  const auto parse = [](std::string_view s, unsigned* n) {
    const auto r = std::from_chars(s.data(), s.data() + s.size(), *n);
    return r.ec == std::errc() && r.ptr == s.data() + s.size() && !s.empty();
  };
  if (!parse(low_text, &low) || !parse(high_text, &high) || low > high) {
    return InvalidArgument("'", part, "' is not a ", what, " or a range of them, like 3 or 0-2");
  }
  if (high >= static_cast<unsigned>(limit)) {
    return InvalidArgument(what, " ", high, " is out of range: there are ", limit, ", from 0 to ",
                           limit - 1);
  }
  for (unsigned i = low; i <= high; ++i) set->insert(static_cast<int>(i));
  return OkStatus();
}

}  // namespace

Result<std::vector<int>> ParseIndexList(std::string_view text, int limit, const char* what) {
  std::set<int> set;
  for (const std::string_view part : Split(text, ',')) {
    TQ_RETURN_IF_ERROR(AddRange(part, limit, what, &set));
  }
  return std::vector<int>(set.begin(), set.end());
}

Result<std::vector<std::pair<int, int>>> ParseHeadSelection(std::string_view text, int num_layers,
                                                            int num_heads) {
  std::set<std::pair<int, int>> selected;
  for (const std::string_view part : Split(text, ',')) {
    const size_t colon = part.find(':');
    std::set<int> layers, heads;
    TQ_RETURN_IF_ERROR(AddRange(part.substr(0, colon), num_layers, "layer", &layers));
    if (colon == part.npos) {
      for (int h = 0; h < num_heads; ++h) heads.insert(h);
    } else {
      TQ_RETURN_IF_ERROR(AddRange(part.substr(colon + 1), num_heads, "KV head", &heads));
    }
    for (const int layer : layers) {
      for (const int head : heads) selected.emplace(layer, head);
    }
  }
  return std::vector<std::pair<int, int>>(selected.begin(), selected.end());
}

std::string FormatIndexList(const std::vector<int>& indices) {
  std::string out;
  for (size_t i = 0; i < indices.size();) {
    size_t last = i;
    while (last + 1 < indices.size() && indices[last + 1] == indices[last] + 1) ++last;
    if (!out.empty()) out += ",";
    out += std::to_string(indices[i]);
    if (last > i) out.append("-").append(std::to_string(indices[last]));
    i = last + 1;
  }
  return out;
}

}  // namespace tq
