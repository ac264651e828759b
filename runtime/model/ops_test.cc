#include "runtime/model/ops.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <utility>
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

double Exact(Activation activation, double gate, double up) {
  const auto s = [](double z) { return 1 / (1 + std::exp(-z)); };
  switch (activation) {
    case Activation::kSilu: return gate * s(gate) * up;
    case Activation::kGelu:
      return 0.5 * gate *
             (1 +
              std::tanh(std::sqrt(2 / std::numbers::pi) * (gate + 0.044715 * gate * gate * gate))) *
             up;
    case Activation::kClampedSilu: {
      const double g = std::min(gate, 7.0);
      return g * s(1.702 * g) * (std::clamp(up, -7.0, 7.0) + 1);
    }
  }
  return 0;
}

constexpr Activation kActivations[] = {Activation::kSilu, Activation::kGelu,
                                       Activation::kClampedSilu};

TEST_P(EveryIsa, GatedMulGivesTheBitsOfTheReferenceAndIsClose) {
  for (const Activation a : kActivations) {
    for (const int64_t n : {1, 3, 16, 37, 1536}) {
      const float range = a == Activation::kGelu ? 5 : 20;  // beyond, 1 + tanh is rounding
      const std::vector<float> gate = RandomVector(n, 3, range), up = RandomVector(n, 4, 20);
      std::vector<float> want = gate, got = gate;
      ModelOpsRef().gated_mul(a, want.data(), up.data(), n);
      ops().gated_mul(a, got.data(), up.data(), n);
      EXPECT_EQ(got, want) << n;
      for (size_t i = 0; i < gate.size(); ++i) {
        const double exact = Exact(a, gate[i], up[i]);
        EXPECT_NEAR(got[i], exact, 5e-6 * std::abs(exact) + 1e-10) << gate[i] << " " << up[i];
      }
    }
  }
}

TEST_P(EveryIsa, GatedMulAtTheEnds) {
  for (const Activation a : kActivations) {
    std::vector<float> gate = {
        -std::numeric_limits<float>::infinity(), -1e30f, -200, 200, 1e30f, std::nanf(""), 1};
    std::vector<float> up(gate.size(), a == Activation::kClampedSilu ? 0.0f : 1.0f);
    up.back() = std::nanf("");
    ops().gated_mul(a, gate.data(), up.data(), static_cast<int64_t>(gate.size()));
    EXPECT_LE(std::abs(gate[2]), 1e-30f);
    const bool clamped = a == Activation::kClampedSilu;
    EXPECT_NEAR(gate[3], clamped ? 7.0f : 200.0f, clamped ? 1e-4 : 0);
    EXPECT_NEAR(gate[4], clamped ? 7.0f : 1e30f, clamped ? 1e-4 : 0);
    EXPECT_TRUE(std::isnan(gate[5]));
    EXPECT_TRUE(std::isnan(gate[6]));
  }
}

TEST_P(EveryIsa, SoftcapGivesTheBitsOfTheReferenceAndIsClose) {
  for (const int64_t n : {1, 16, 37}) {
    for (const float cap : {0.5f, 30.f}) {
      std::vector<float> x = RandomVector(n, 3, 100);
      x[0] = std::numeric_limits<float>::infinity();
      std::vector<float> want = x, got = x;
      ModelOpsRef().softcap(cap, want.data(), n);
      ops().softcap(cap, got.data(), n);
      EXPECT_EQ(got, want) << n;
      for (size_t i = 0; i < x.size(); ++i) {
        EXPECT_NEAR(got[i], cap * std::tanh(static_cast<double>(x[i]) / cap), 1e-6 * cap) << x[i];
      }
    }
  }
}

TEST_P(EveryIsa, AddAndRopeGiveTheBitsOfTheReference) {
  for (const int64_t n : {1, 7, 16, 61}) {
    std::vector<float> want = RandomVector(n, 5), got = want;
    const std::vector<float> y = RandomVector(n, 6);
    ModelOpsRef().add(want.data(), y.data(), n);
    ops().add(got.data(), y.data(), n);
    EXPECT_EQ(got, want);
  }
  for (const auto& [head_dim, rope_dim] :
       {std::pair(2, 2), {16, 16}, {64, 64}, {80, 80}, {118, 118}, {96, 72}, {10, 4}}) {
    const size_t half = static_cast<size_t>(rope_dim) / 2;
    const std::vector<float> c = RandomVector(2 * half, 7), s = RandomVector(2 * half, 8);
    const std::vector<float> x = RandomVector(2 * 3 * static_cast<size_t>(head_dim), 9);
    std::vector<float> want = x, got = x;
    ModelOpsRef().apply_rope(want.data(), c.data(), s.data(), 2, 3, head_dim, rope_dim);
    ops().apply_rope(got.data(), c.data(), s.data(), 2, 3, head_dim, rope_dim);
    EXPECT_EQ(got, want) << head_dim;
    for (size_t i = 0; i < x.size(); ++i) {
      if (static_cast<int>(i) % head_dim >= rope_dim) {
        EXPECT_EQ(got[i], x[i]);
      }
    }
  }
}

TEST(Rope, TurnsChannelIWithChannelIPlusHalf) {
  std::vector<float> x = {1, 10, 2, 20};
  const std::vector<float> c = {0, 1}, s = {1, 0};  // a quarter turn, none
  ModelOpsRef().apply_rope(x.data(), c.data(), s.data(), 1, 1, 4, 4);
  EXPECT_EQ(x, (std::vector<float>{-2, 10, 1, 20}));
}

INSTANTIATE_TEST_SUITE_P(Ops, EveryIsa, testing::ValuesIn(AvailableIsas()),
                         [](const auto& p) { return p.param; });

}  // namespace
}  // namespace tq
