#include "turboquant/calibrate/allocation.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace tq {
namespace {

size_t LeastBytes(const AllocationSite& site) {
  return std::min_element(site.choices.begin(), site.choices.end(),
                          [](const auto& a, const auto& b) { return a.bytes < b.bytes; })
      ->bytes;
}

Status Validate(const std::vector<AllocationSite>& sites) {
  if (sites.empty()) return InvalidArgument("allocation: there are no sites");
  for (size_t s = 0; s < sites.size(); ++s) {
    const size_t choices = sites[s].choices.size();
    if (choices < 1 || choices > 256) {
      return InvalidArgument("allocation: site ", s, " has ", choices, " choices; it must have 1 ",
                             "to 256");
    }
    for (size_t c = 0; c < choices; ++c) {
      const double cost = sites[s].choices[c].cost;
      if (!std::isfinite(cost) || cost < 0) {
        return InvalidArgument("allocation: choice ", c, " of site ", s, " costs ", cost,
                               "; costs are finite and not negative");
      }
    }
  }
  return OkStatus();
}

}  // namespace

Result<AllocationFrontier> AllocationFrontier::Create(std::vector<AllocationSite> sites) {
  TQ_RETURN_IF_ERROR(Validate(sites));
  AllocationFrontier f;
  size_t unit = 0, range = 0;
  for (const AllocationSite& site : sites) {
    const size_t least = LeastBytes(site);
    size_t most = least;
    for (const AllocationChoice& c : site.choices) {
      unit = std::gcd(unit, c.bytes - least);
      most = std::max(most, c.bytes);
    }
    f.min_bytes_ += least;
    range += most - least;
  }
  f.unit_ = std::max<size_t>(1, unit);
  // Rounding up adds less than a unit a site.
  const auto units_for = [&] { return range / f.unit_ + sites.size() + 1; };
  while (range / f.unit_ >= kMaxCells / sites.size()) f.unit_ *= 2;
  f.num_units_ = f.unit_ == std::max<size_t>(1, unit) ? range / f.unit_ + 1 : units_for();

  // best[u]: the least cost of the sites so far within u units beyond their least bytes.
  f.best_.assign(f.num_units_, 0.0);
  f.chosen_.resize(sites.size() * f.num_units_);
  std::vector<double> next(f.num_units_);
  for (size_t s = 0; s < sites.size(); ++s) {
    const std::vector<AllocationChoice>& choices = sites[s].choices;
    const size_t least = LeastBytes(sites[s]);
    std::vector<int> order(choices.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int a, int b) { return choices[a].bytes < choices[b].bytes; });
    std::fill(next.begin(), next.end(), std::numeric_limits<double>::infinity());
    uint8_t* chosen = &f.chosen_[s * f.num_units_];
    for (const int c : order) {
      const size_t units = (choices[c].bytes - least + f.unit_ - 1) / f.unit_;
      for (size_t u = units; u < f.num_units_; ++u) {
        const double cost = f.best_[u - units] + choices[c].cost;
        if (cost < next[u]) {
          next[u] = cost;
          chosen[u] = static_cast<uint8_t>(c);
        }
      }
    }
    f.best_.swap(next);
  }
  f.sites_ = std::move(sites);
  return f;
}

Allocation AllocationFrontier::Trace(size_t units) const {
  Allocation a;
  a.choices.resize(sites_.size());
  for (size_t s = sites_.size(); s-- > 0;) {
    const int c = chosen_[s * num_units_ + units];
    a.choices[s] = c;
    units -= (sites_[s].choices[c].bytes - LeastBytes(sites_[s]) + unit_ - 1) / unit_;
  }
  for (size_t s = 0; s < sites_.size(); ++s) {
    const AllocationChoice& c = sites_[s].choices[a.choices[s]];
    a.bytes += c.bytes;
    a.cost += c.cost;
  }
  return a;
}

Result<Allocation> AllocationFrontier::AtBytes(size_t max_bytes) const {
  if (max_bytes < min_bytes_) {
    return InvalidArgument("allocation: a budget of ", max_bytes,
                           " bytes; the smallest formats take ", min_bytes_);
  }
  return Trace(std::min((max_bytes - min_bytes_) / unit_, num_units_ - 1));
}

Result<Allocation> AllocationFrontier::AtCost(double max_cost) const {
  if (!(best_.back() <= max_cost)) {
    return InvalidArgument("allocation: a cost of at most ", max_cost, "; the best formats cost ",
                           best_.back());
  }
  // best_ does not increase.
  const auto first = std::partition_point(best_.begin(), best_.end(),
                                          [&](double cost) { return cost > max_cost; });
  return Trace(static_cast<size_t>(first - best_.begin()));
}

}  // namespace tq
