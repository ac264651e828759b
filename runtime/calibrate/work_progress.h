// One progress over stages of different length.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "turboquant/base/sinks.h"

namespace tq {

class WorkProgress {
 public:
  // `units`: how long each stage is expected to take, in any unit.
  WorkProgress(ProgressSink sink, std::vector<double> units)
      : sink_(std::move(sink)), units_(std::move(units)) {
    for (const double u : units_) total_ += u;
  }
  // The progress of stage `i`, named for the user; stages before it are over.
  ProgressSink Stage(size_t i, std::string what) const {
    double before = 0;
    for (size_t s = 0; s < i; ++s) before += units_[s];
    return [this, before, units = units_[i], what = std::move(what)](size_t done, size_t total,
                                                                     const std::string&) {
      const double share = total == 0 ? 0 : static_cast<double>(done) / static_cast<double>(total);
      return ReportProgress(sink_, static_cast<size_t>(before + units * share),
                            static_cast<size_t>(total_), what);
    };
  }

 private:
  ProgressSink sink_;
  std::vector<double> units_;
  double total_ = 0;
};

}  // namespace tq
