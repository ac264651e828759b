#include "turboquant/codec/rotation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "turboquant/base/isa.h"
#include "turboquant/codec/rotation_kernels.h"

namespace tq {
namespace {

std::vector<float> Random(int n, unsigned seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<size_t>(n));
  for (float& v : x) v = normal(rng);
  return x;
}

class RotationDims : public testing::TestWithParam<int> {};

TEST_P(RotationDims, KeepsTheNormAndInverts) {
  const int dim = GetParam();
  const Rotation rotation(Rotate::kHadamard, dim, 7, 3, 1, Side::kK);
  const std::vector<float> x = Random(dim, 1);
  std::vector<float> y = x;
  rotation.Forward(y.data());
  double nx = 0, ny = 0;
  for (int i = 0; i < dim; ++i) nx += x[i] * x[i], ny += y[i] * y[i];
  EXPECT_NEAR(ny / nx, 1, 1e-5);
  rotation.Inverse(y.data());
  for (int i = 0; i < dim; ++i) EXPECT_NEAR(y[i], x[i], 1e-5);
}

TEST_P(RotationDims, EveryIsaGivesTheBitsOfTheReference) {
  const int dim = GetParam();
  const Rotation rotation(Rotate::kHadamard, dim, 0, 0, 0, Side::kV);
  for (const bool inverse : {false, true}) {
    std::vector<float> expected = Random(dim, 2);
    const std::vector<float> x = expected;
    RotateRef(rotation.plan(), inverse, expected.data());
    for (const std::string& isa : AvailableIsas()) {
      ASSERT_TRUE(ForceIsa(isa).ok());
      std::vector<float> y = x;
      inverse ? rotation.Inverse(y.data()) : rotation.Forward(y.data());
      EXPECT_EQ(y, expected) << isa << (inverse ? " inverse" : "");
    }
    ResetIsa();
  }
}

// A single large channel ends up spread evenly over power-of-two dimensions, and by at most a
// factor 2 in energy unevenly over the others (the DCT's rows).
TEST_P(RotationDims, SpreadsAnOutlier) {
  const int dim = GetParam();
  const Rotation rotation(Rotate::kHadamard, dim, 0, 0, 0, Side::kK);
  std::vector<float> x(static_cast<size_t>(dim), 0.f);
  x[static_cast<size_t>(dim) / 2] = 1000;
  rotation.Forward(x.data());
  for (const float v : x) EXPECT_LE(std::fabs(v), 1000 * std::sqrt(2.01 / dim));
}

INSTANTIATE_TEST_SUITE_P(Dims, RotationDims,
                         testing::Values(2, 3, 6, 7, 8, 12, 16, 59, 64, 80, 96, 112, 128, 160, 256,
                                         512));

TEST(Rotation, SignsDependOnPlace) {
  const auto signs = [](int layer, int head, Side side) {
    const Rotation r(Rotate::kHadamard, 64, 0, layer, head, side);
    return std::vector<float>(r.plan().signs.data(), r.plan().signs.data() + 64);
  };
  EXPECT_EQ(signs(1, 2, Side::kK), signs(1, 2, Side::kK));
  EXPECT_NE(signs(1, 2, Side::kK), signs(1, 2, Side::kV));
  EXPECT_NE(signs(1, 2, Side::kK), signs(2, 1, Side::kK));
}

TEST(Rotation, NoneIsIdentity) {
  const Rotation r(Rotate::kNone, 64, 0, 0, 0, Side::kK);
  std::vector<float> x = Random(64, 3);
  const std::vector<float> before = x;
  r.Forward(x.data());
  EXPECT_EQ(x, before);
}

}  // namespace
}  // namespace tq
