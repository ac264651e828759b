#include "turboquant/calibrate/statistics.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tq {
namespace {

RopeFrequencies Rope(int half) {
  RopeFrequencies rope;
  for (int i = 0; i < half; ++i) {
    rope.inv_freq.push_back(std::pow(10000.f, -static_cast<float>(i) / static_cast<float>(half)));
  }
  return rope;
}

// A constant vector, turned to its position and scaled as YaRN does; channels 6 and 7 are not
// turned.
TEST(VectorStatistics, MeansAreThoseBeforeRope) {
  RopeFrequencies rope = Rope(3);
  rope.attention_scale = 1.25f;
  const float plain[8] = {1, -2, 3, 0.5f, 4, -1, 7, 0};
  VectorStatistics s(rope, 8, 2, 2);
  for (int64_t first = 0; first < 40; first += 10) {
    std::vector<float> rows;
    for (int64_t p = first; p < first + 10; ++p) {
      for (const float factor : {1.f, -3.f}) {
        float x[8];
        std::copy_n(plain, 8, x);
        for (int i = 0; i < 3; ++i) {
          const double angle = double{rope.inv_freq[i]} * static_cast<double>(p);
          const double c = std::cos(angle) * 1.25, n = std::sin(angle) * 1.25;
          x[i] = static_cast<float>(plain[i] * c - plain[i + 3] * n);
          x[i + 3] = static_cast<float>(plain[i + 3] * c + plain[i] * n);
        }
        for (const float v : x) rows.push_back(factor * v);
      }
    }
    s.Add(1, first, 10, rows.data());
  }
  for (int i = 0; i < 8; ++i) {
    EXPECT_NEAR(s.Mean(2)[i], plain[i], 1e-5);
    EXPECT_NEAR(s.Mean(3)[i], -3 * plain[i], 1e-5);
    EXPECT_EQ(s.Mean(0)[i], 0);
  }
  const double rms = std::sqrt((1 + 4 + 9 + 0.25 + 16 + 1 + 49) / 8);
  EXPECT_NEAR(s.Rms(3), 3 * rms, 1e-5);
  EXPECT_EQ(s.LargestChannel(3).channel, 6);
  EXPECT_NEAR(s.LargestChannel(3).ratio, 7 / rms, 1e-5);
  EXPECT_EQ(s.Rms(1), 0);
  EXPECT_EQ(s.LargestChannel(1).ratio, 1);
}

}  // namespace
}  // namespace tq
