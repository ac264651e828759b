// Which of several formats each site gets when bytes are limited: the multiple-choice knapsack,
// solved for all budgets at once.
//
// A site is whatever has a format of its own: K or V of one layer and KV head, or of a whole layer.
// Its cost is what a format is predicted to add to the divergence of the model. Sums of costs are
// minimized exactly, so more bytes never cost more, and equal inputs give equal allocations.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "turboquant/base/status.h"

namespace tq {

struct AllocationChoice {
  size_t bytes = 0;
  double cost = 0;  // >= 0, finite
};

// The formats that a site may have, in any order: what is not here is below its floor.
struct AllocationSite {
  std::vector<AllocationChoice> choices;
};

struct Allocation {
  std::vector<int> choices;  // [sites], indices into their choices
  size_t bytes = 0;
  double cost = 0;  // summed in the order of the sites
};

class AllocationFrontier {
 public:
  // kInvalidArgument without sites, for a site without choices or with more than 256, and for a
  // cost that is negative or not finite. Time and memory grow with sites x (range of bytes / the
  // largest unit that divides all differences); beyond kMaxCells the unit is doubled, and bytes are
  // rounded up to it, until it fits: still never over a budget.
  static Result<AllocationFrontier> Create(std::vector<AllocationSite> sites);

  // The least cost within `max_bytes`. Of equal costs the one with the fewest bytes at the last
  // site where they differ, then its first choice. kInvalidArgument when even the smallest choices
  // take more; the message has both numbers.
  Result<Allocation> AtBytes(size_t max_bytes) const;
  // The fewest bytes whose cost is at most `max_cost`. kInvalidArgument when the best choices cost
  // more; the message has both numbers.
  Result<Allocation> AtCost(double max_cost) const;

  size_t min_bytes() const { return min_bytes_; }

  static constexpr size_t kMaxCells = size_t{1} << 28;

 private:
  Allocation Trace(size_t units) const;

  std::vector<AllocationSite> sites_;
  size_t min_bytes_ = 0, unit_ = 1, num_units_ = 0;  // num_units_: 0 units is one of them
  std::vector<double> best_;                         // [num_units_], not increasing
  std::vector<uint8_t> chosen_;                      // [sites][num_units_]
};

}  // namespace tq
