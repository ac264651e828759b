// Counts and means with intervals, all at 95 %.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace tq {

struct Interval {
  double low = 0, high = 0;
};

// Of a share: `count` of `total` (Wilson's score interval). total = 0: 0 to 1.
Interval WilsonInterval(int64_t count, int64_t total);

// Of the difference candidate - baseline of two shares over the same trials: `gained` are right
// with the candidate alone, `lost` with the baseline alone (Bonett and Price's adjusted Wald
// interval). total = 0: -1 to 1.
struct PairedDifference {
  double difference = 0;
  Interval interval = {-1, 1};
};
PairedDifference DifferenceOfShares(int64_t gained, int64_t lost, int64_t total);

// Of `statistic` over `count` units (requests, say): percentiles of its values over resamples of
// the units with replacement. The statistic gets the chosen indices, [count]. The same seed gives
// the same interval. count = 0: the interval {0, 0}.
using Statistic = std::function<double(std::span<const size_t> chosen)>;
Interval BootstrapInterval(size_t count, const Statistic& statistic, uint64_t seed,
                           int resamples = 2000);

// Of the mean of `values`.
Interval BootstrapMeanInterval(std::span<const double> values, uint64_t seed, int resamples = 2000);

double Mean(std::span<const double> values);  // 0 for none
double Median(
    std::vector<double> values);  // of an even number: the mean of the middle two; 0 for none

}  // namespace tq
