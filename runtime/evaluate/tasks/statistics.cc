#include "runtime/evaluate/tasks/statistics.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "turboquant/base/numeric.h"

namespace tq {
namespace {

constexpr double kZ = 1.959963984540054;  // 97.5 % of the normal distribution

}  // namespace

Interval WilsonInterval(int64_t count, int64_t total) {
  if (total <= 0) return {0, 1};
  const double n = static_cast<double>(total), share = static_cast<double>(count) / n;
  const double z2 = kZ * kZ;
  const double center = (share + z2 / (2 * n)) / (1 + z2 / n);
  const double half = kZ / (1 + z2 / n) * std::sqrt(share * (1 - share) / n + z2 / (4 * n * n));
  // Rounding must not exclude what was seen.
  return {std::clamp(center - half, 0.0, share), std::clamp(center + half, share, 1.0)};
}

PairedDifference DifferenceOfShares(int64_t gained, int64_t lost, int64_t total) {
  if (total <= 0) return {};
  const double n = static_cast<double>(total);
  const double up = (static_cast<double>(gained) + 1) / (n + 2);
  const double down = (static_cast<double>(lost) + 1) / (n + 2);
  const double center = up - down;
  const double half = kZ * std::sqrt(std::max(0.0, up + down - center * center) / (n + 2));
  PairedDifference out;
  out.difference = static_cast<double>(gained - lost) / n;
  out.interval = {std::clamp(center - half, -1.0, out.difference),
                  std::clamp(center + half, out.difference, 1.0)};
  return out;
}

Interval BootstrapInterval(size_t count, const Statistic& statistic, uint64_t seed, int resamples) {
  if (count == 0 || resamples < 1) return {};
  std::vector<size_t> chosen(count);
  std::vector<double> values;
  values.reserve(static_cast<size_t>(resamples));
  uint64_t state = seed;
  for (int r = 0; r < resamples; ++r) {
    for (size_t& index : chosen) index = SplitMix64(state) % count;
    values.push_back(statistic(chosen));
  }
  std::sort(values.begin(), values.end());
  const auto at = [&](double share) {
    return values[static_cast<size_t>(share * static_cast<double>(values.size() - 1))];
  };
  return {at(0.025), at(0.975)};
}

Interval BootstrapMeanInterval(std::span<const double> values, uint64_t seed, int resamples) {
  return BootstrapInterval(
      values.size(),
      [&](std::span<const size_t> chosen) {
        double sum = 0;
        for (const size_t index : chosen) sum += values[index];
        return sum / static_cast<double>(chosen.size());
      },
      seed, resamples);
}

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  const size_t mid = values.size() / 2;
  std::nth_element(values.begin(), values.begin() + mid, values.end());
  const double upper = values[mid];
  if (values.size() % 2 == 1) return upper;
  return 0.5 * (upper + *std::max_element(values.begin(), values.begin() + mid));
}

double Mean(std::span<const double> values) {
  if (values.empty()) return 0;
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

}  // namespace tq
