#include "runtime/model/ops.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "turboquant/base/isa.h"
#include "turboquant/base/numeric.h"

namespace tq {
namespace {

std::vector<float> RandomVector(size_t n, uint64_t seed, float scale = 1) {
  std::vector<float> x(n);
  for (float& v : x) v = scale * (static_cast<float>(SplitMix64(seed) >> 40) * 0x1p-23f - 1);
  return x;
}

class EveryIsa : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { ASSERT_TRUE(ForceIsa(GetParam()).ok()); }
  void TearDown() override { ResetIsa(); }
  const ModelOps& ops() const { return UseReferenceKernels() ? ModelOpsRef() : ModelOpsSimd(); }
};

TEST_P(EveryIsa, RmsNormGivesTheBitsOfTheReference) {
  for (const int64_t n : {1, 15, 16, 33, 576}) {
    const std::vector<float> x = RandomVector(3 * n, 1, 5), w = RandomVector(n, 2);
    std::vector<float> want(3 * n), got = x;
    ModelOpsRef().rms_norm(x.data(), w.data(), 3, n, 1e-5f, want.data());
    ops().rms_norm(got.data(), w.data(), 3, n, 1e-5f, got.data());  // in place
    EXPECT_EQ(got, want) << n;
  }
}

TEST_P(EveryIsa, SiluMulGivesTheBitsOfTheReferenceAndIsClose) {
  for (const int64_t n : {1, 3, 16, 37, 1536}) {
    const std::vector<float> gate = RandomVector(n, 3, 20), up = RandomVector(n, 4);
    std::vector<float> want = gate, got = gate;
    ModelOpsRef().silu_mul(want.data(), up.data(), n);
    ops().silu_mul(got.data(), up.data(), n);
    EXPECT_EQ(got, want) << n;
    for (size_t i = 0; i < gate.size(); ++i) {
      const double exact = gate[i] / (1 + std::exp(-static_cast<double>(gate[i]))) * up[i];
      EXPECT_NEAR(got[i], exact, 1e-6 * std::abs(exact) + 1e-12);
    }
  }
}

TEST_P(EveryIsa, SiluMulAtTheEnds) {
  std::vector<float> gate = {
      -std::numeric_limits<float>::infinity(), -1e30f, -200, 200, 1e30f, std::nanf("")};
  const std::vector<float> up(gate.size(), 1.0f);
  ops().silu_mul(gate.data(), up.data(), static_cast<int64_t>(gate.size()));
  EXPECT_LE(std::abs(gate[2]), 1e-30f);
  EXPECT_EQ(gate[3], 200.0f);
  EXPECT_EQ(gate[4], 1e30f);
  EXPECT_TRUE(std::isnan(gate[5]));
}

TEST_P(EveryIsa, AddAndRopeGiveTheBitsOfTheReference) {
  for (const int64_t n : {1, 7, 16, 61}) {
    std::vector<float> want = RandomVector(n, 5), got = want;
    const std::vector<float> y = RandomVector(n, 6);
    ModelOpsRef().add(want.data(), y.data(), n);
    ops().add(got.data(), y.data(), n);
    EXPECT_EQ(got, want);
  }
  for (const int head_dim : {2, 16, 64, 80, 118}) {
    const size_t half = static_cast<size_t>(head_dim) / 2;
    const std::vector<float> c = RandomVector(2 * half, 7), s = RandomVector(2 * half, 8);
    std::vector<float> want = RandomVector(2 * 3 * 2 * half, 9), got = want;
    ModelOpsRef().apply_rope(want.data(), c.data(), s.data(), 2, 3, head_dim);
    ops().apply_rope(got.data(), c.data(), s.data(), 2, 3, head_dim);
    EXPECT_EQ(got, want) << head_dim;
  }
}

TEST(Rope, TurnsChannelIWithChannelIPlusHalf) {
  std::vector<float> x = {1, 10, 2, 20};
  const std::vector<float> c = {0, 1}, s = {1, 0};  // a quarter turn, none
  ModelOpsRef().apply_rope(x.data(), c.data(), s.data(), 1, 1, 4);
  EXPECT_EQ(x, (std::vector<float>{-2, 10, 1, 20}));
}

INSTANTIATE_TEST_SUITE_P(Ops, EveryIsa, testing::ValuesIn(AvailableIsas()),
                         [](const auto& p) { return p.param; });

}  // namespace
}  // namespace tq
