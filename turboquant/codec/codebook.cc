#include "turboquant/codec/codebook.h"

#include <algorithm>
#include <array>
#include <initializer_list>

namespace tq {
namespace {

// From the positive half of the levels and the unit; the other half mirrors it.
CodebookTable Make(std::initializer_list<int> positive, float unit) {
  CodebookTable t;
  const int half = static_cast<int>(positive.size());
  t.num_levels = 2 * half;
  for (int i = 0; i < half; ++i) {
    t.levels[half + i] = static_cast<int8_t>(positive.begin()[i]);
    t.levels[half - 1 - i] = static_cast<int8_t>(-positive.begin()[i]);
  }
  for (int i = 0; i + 1 < t.num_levels; ++i) {
    t.thresholds[i] = unit * 0.5f * static_cast<float>(t.levels[i] + t.levels[i + 1]);
  }
  t.unit = unit;
  t.offset = t.levels[t.num_levels - 1];
  constexpr int kMaxInt16 = 32767;
  t.max_k_sums = kMaxInt16 / (2 * t.offset * 2 * kMaxKDigit);
  t.max_v_sums = kMaxInt16 / (t.offset * 2 * kMaxVDigit);
  return t;
}

}  // namespace

const CodebookTable& GetCodebook(Codebook kind, int bits) {
  // Uniform steps are the optimal mid-rise ones for N(0, 1): 0.9957, 0.5860, 0.3352 sigma.
  static const std::array<CodebookTable, 3> uniform = {
      Make({1, 3}, 0.9957f / 2),
      Make({1, 3, 5, 7}, 0.5860f / 2),
      Make({1, 3, 5, 7, 9, 11, 13, 15}, 0.3352f / 2),
  };
  static const std::array<CodebookTable, 3> lloyd = {
      Make({3, 10}, 0.1507f),
      Make({3, 9, 16, 26}, 0.082923f),
      Make({3, 9, 15, 21, 28, 36, 46, 61}, 0.044721f),
  };
  TQ_CHECK(bits >= 2 && bits <= 4);
  TQ_CHECK(kind == Codebook::kUniform || kind == Codebook::kLloyd);
  return (kind == Codebook::kUniform ? uniform : lloyd)[static_cast<size_t>(bits - 2)];
}

}  // namespace tq
