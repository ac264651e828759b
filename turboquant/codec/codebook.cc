#include "turboquant/codec/codebook.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <initializer_list>
#include <vector>

namespace tq {
namespace {

CodebookTable Make(std::span<const int> levels, float unit, bool absmax) {
  CodebookTable t;
  t.num_levels = static_cast<int>(levels.size());
  for (int i = 0; i < kMaxLevels; ++i) {
    t.levels[i] = static_cast<int8_t>(levels[std::min(i, t.num_levels - 1)]);
  }
  for (int i = 0; i + 1 < t.num_levels; ++i) {
    t.thresholds[i] = unit * 0.5f * static_cast<float>(levels[i] + levels[i + 1]);
  }
  t.unit = unit;
  t.absmax = absmax;
  t.offset = std::max(0, -levels.front());
  const int top_k = levels.back() + t.offset;
  const int top_v = std::max(-levels.front(), levels.back());
  constexpr int kMaxInt16 = 32767;
  t.max_k_sums = kMaxInt16 / (top_k * 2 * kMaxKDigit);
  t.max_v_sums = kMaxInt16 / (top_v * 2 * kMaxVDigit);
  return t;
}

// From the positive half of the levels; the other half mirrors it.
CodebookTable Mirror(std::initializer_list<int> positive, float unit) {
  std::vector<int> levels;
  for (const int l : positive) levels.insert(levels.begin(), -l), levels.push_back(l);
  return Make(levels, unit, false);
}

// Mid-rise steps over the whole range of max|x| = 127 in the int8 row.
CodebookTable FullRange(int bits) {
  std::vector<int> levels;
  for (int code = 0; code < 1 << bits; ++code) levels.push_back(2 * code + 1 - (1 << bits));
  return Make(levels, 127.5f / 127.f / static_cast<float>(1 << bits), true);
}

}  // namespace

const CodebookTable& GetCodebook(Codebook kind, int bits) {
  // Uniform steps are the optimal mid-rise ones for N(0, 1): 0.9957, 0.5860, 0.3352 sigma.
  static const std::array<CodebookTable, 5> uniform = {
      Mirror({1, 3}, 0.9957f / 2),
      Mirror({1, 3, 5, 7}, 0.5860f / 2),
      Mirror({1, 3, 5, 7, 9, 11, 13, 15}, 0.3352f / 2),
      FullRange(5),
      FullRange(6),
  };
  static const std::array<CodebookTable, 3> lloyd = {
      Mirror({3, 10}, 0.1507f),
      Mirror({3, 9, 16, 26}, 0.082923f),
      Mirror({3, 9, 15, 21, 28, 36, 46, 61}, 0.044721f),
  };
  TQ_CHECK(bits >= 2 && bits <= 6);
  TQ_CHECK(kind == Codebook::kUniform || (kind == Codebook::kLloyd && bits <= 4));
  return kind == Codebook::kUniform ? uniform[static_cast<size_t>(bits - 2)]
                                    : lloyd[static_cast<size_t>(bits - 2)];
}

const CodebookTable& BookOf(const Codec& codec, const CodebookTable* calibrated) {
  if (codec.codebook != Codebook::kCalibrated) return GetCodebook(codec.codebook, codec.bits);
  TQ_CHECK(calibrated != nullptr && calibrated->num_levels == 1 << codec.bits);
  return *calibrated;
}

Result<CodebookTable> MakeCodebook(std::span<const float> levels) {
  const size_t n = levels.size();
  if (n != 4 && n != 8 && n != 16) {
    return InvalidArgument("a calibrated code book has ", n, " levels; supported: 4, 8, 16");
  }
  float top = 0;
  for (size_t i = 0; i < n; ++i) {
    if (!std::isfinite(levels[i])) return InvalidArgument("level ", i, " is not finite");
    if (i > 0 && !(levels[i] > levels[i - 1])) {
      return InvalidArgument("levels are not ascending: ", levels[i - 1], ", ", levels[i]);
    }
    top = std::max(top, std::fabs(levels[i]));
  }
  // The unit whose rounding disturbs the levels least; ties go to the smaller integers.
  double best = -1;
  std::vector<int> chosen;
  float chosen_unit = 0;
  for (int largest = static_cast<int>(n) - 1; largest <= kMaxLevel; ++largest) {
    const float unit = top / static_cast<float>(largest);
    std::vector<int> rounded;
    double error = 0;
    bool distinct = true;
    for (size_t i = 0; i < n; ++i) {
      rounded.push_back(static_cast<int>(std::nearbyint(levels[i] / unit)));
      const double e = static_cast<double>(levels[i]) - static_cast<double>(unit) * rounded.back();
      error += e * e;
      distinct &= i == 0 || rounded[i] > rounded[i - 1];
    }
    if (!distinct || (best >= 0 && error >= best)) continue;
    best = error;
    chosen = rounded;
    chosen_unit = unit;
  }
  if (best < 0) {
    return InvalidArgument("levels lie too far apart for 7-bit integers: the largest is ", top,
                           " and two of them round to one");
  }
  return Make(chosen, chosen_unit, false);
}

}  // namespace tq
