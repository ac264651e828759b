#include "runtime/engine/stop_strings.h"

#include <algorithm>
#include <utility>

namespace tq {

std::string StopStrings::Push(const std::string& piece) {
  if (stopped_) return "";
  held_ += piece;
  size_t first = std::string::npos;
  for (const std::string& stop : stops_) first = std::min(first, held_.find(stop));
  if (first != std::string::npos) {
    stopped_ = true;
    return std::exchange(held_, "").substr(0, first);
  }
  // The longest end of the text that begins a stop string stays here.
  size_t keep = 0;
  for (const std::string& stop : stops_) {
    for (size_t n = std::min(stop.size() - 1, held_.size()); n > keep; --n) {
      if (held_.compare(held_.size() - n, n, stop, 0, n) == 0) keep = n;
    }
  }
  std::string shown = held_.substr(0, held_.size() - keep);
  held_.erase(0, shown.size());
  return shown;
}

std::string StopStrings::Finish() {
  return stopped_ ? "" : std::exchange(held_, "");
}

}  // namespace tq
