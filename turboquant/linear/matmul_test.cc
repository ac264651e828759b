#include "turboquant/linear/matmul.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "turboquant/base/isa.h"
#include "turboquant/linear/test_util.h"

namespace tq {
namespace {

std::vector<float> Times(const PackedMatrix& m, const std::vector<float>& x, int rows,
                         int threads = 1) {
  ThreadPool pool(threads);
  MatmulScratch scratch;
  std::vector<float> y(static_cast<size_t>(rows * m.out_dim()), NAN);
  const Product product = {&m, y.data(), m.out_dim()};
  Multiply({&product, 1}, x.data(), rows, scratch, pool);
  return y;
}

class EveryIsa : public testing::Test {
 protected:
  void TearDown() override { ResetIsa(); }
};

TEST_F(EveryIsa, GivesTheBitsOfTheReference) {
  for (const WeightType type : AllWeightTypes()) {
    const int64_t block = WeightBlockLen(type);
    const std::vector<int64_t> widths = block == 1    ? std::vector<int64_t>{1, 31, 1031}
                                        : block == 32 ? std::vector<int64_t>{32, 96, 1056}
                                                      // 1056: two tiles of 33 blocks
                                                      : std::vector<int64_t>{256, 1280};
    for (const int64_t out : {1, 15, 17}) {
      for (const int64_t in_dim : widths) {
        const PackedMatrix m = RandomMatrix(type, out, in_dim, 11);
        for (const int rows : {1, 2, 3, 4, 7, 12, 33}) {
          const std::vector<float> x = RandomVector(static_cast<size_t>(rows * in_dim), 5);
          ASSERT_TRUE(ForceIsa("ref").ok());
          const std::vector<float> want = Times(m, x, rows);
          for (const std::string& isa : AvailableIsas()) {
            if (isa == "ref") continue;
            ASSERT_TRUE(ForceIsa(isa).ok());
            ASSERT_EQ(Times(m, x, rows), want) << isa << " " << WeightTypeName(type) << " " << out
                                               << " x " << in_dim << ", " << rows << " rows";
          }
        }
      }
    }
  }
}

// The largest sums that a block can have.
TEST_F(EveryIsa, ExtremeCodesDoNotOverflow) {
  for (const WeightType type : AllWeightTypes()) {
    if (!IsBlockType(type)) continue;
    for (const int fill : {0x00, 0xFF, 0x7F, 0x80}) {
      std::vector<std::byte> rows(
          static_cast<size_t>(16 * 256 / WeightBlockLen(type) * WeightBlockBytes(type)),
          static_cast<std::byte>(fill));
      const f16_t one = F16FromF32(1.0f);
      for (size_t at = 0; at < rows.size(); at += static_cast<size_t>(WeightBlockBytes(type))) {
        for (const size_t half : HalvesOf(type)) std::memcpy(rows.data() + at + half, &one, 2);
        if (type == WeightType::kMXFP4) rows[at] = std::byte{128};  // 1
      }
      ThreadPool pool(1);
      const auto m = PackedMatrix::Pack(type, 16, 256, rows, {}, pool);
      ASSERT_TRUE(m.ok());
      for (const float value : {1.0f, -1.0f}) {
        const std::vector<float> x(256, value);
        std::vector<float> w(256);
        m->DecodeRow(3, w.data());
        double want = 0, magnitude = 0;
        for (size_t i = 0; i < 256; ++i) {
          want += w[i] * x[i];
          magnitude += std::abs(w[i]);
        }
        for (const std::string& isa : AvailableIsas()) {
          ASSERT_TRUE(ForceIsa(isa).ok());
          EXPECT_NEAR(Times(*m, x, 1)[3], want, 1e-5 * magnitude) << isa;
        }
      }
    }
  }
}

// Scales at both ends of what MXFP4 can hold, subnormal ones too, and every code in every place.
TEST_F(EveryIsa, EveryFloat4ScaleAndCodeIsTheReferences) {
  constexpr int kBlocks = 16;
  std::vector<std::byte> rows(16 * kBlocks * 17);
  for (size_t block = 0; block < rows.size() / 17; ++block) {
    std::byte* const p = rows.data() + block * 17;
    p[0] = static_cast<std::byte>(block % (kFloat4MaxExponent + 1));
    for (size_t i = 0; i < 16; ++i) p[1 + i] = static_cast<std::byte>((i + block) % 16 * 17);
  }
  ThreadPool pool(1);
  const auto m = PackedMatrix::Pack(WeightType::kMXFP4, 16, kBlocks * 32, rows, {}, pool);
  ASSERT_TRUE(m.ok()) << m.status().ToString();
  for (size_t block = 0; block < kBlocks; ++block) {  // one at a time: small scales count
    std::vector<float> x(kBlocks * 32);
    for (size_t k = 0; k < 32; ++k) x[block * 32 + k] = 0.01f * static_cast<float>(k + 1);
    ASSERT_TRUE(ForceIsa("ref").ok());
    const std::vector<float> want = Times(*m, x, 1);
    EXPECT_NE(want[0], 0);
    for (const std::string& isa : AvailableIsas()) {
      ASSERT_TRUE(ForceIsa(isa).ok());
      EXPECT_EQ(Times(*m, x, 1), want) << isa << " block " << block;
    }
  }
}

// Against products in double precision: the float types round only in the sum; the block types add
// the rounding of the activations, at most half a step (1/65534 of the block's largest) a value.
TEST_F(EveryIsa, IsCloseToTheExactProduct) {
  for (const WeightType type : AllWeightTypes()) {
    const PackedMatrix m = RandomMatrix(type, 40, 256, 2);
    const std::vector<float> x = RandomVector(256, 9);
    const std::vector<float> y = Times(m, x, 1);
    for (int64_t r = 0; r < 40; ++r) {
      std::vector<float> w(256);
      m.DecodeRow(r, w.data());
      double want = 0, magnitude = 0;
      for (size_t k = 0; k < 256; ++k) {
        want += static_cast<double>(w[k]) * x[k];
        magnitude += std::abs(w[k]);
      }
      const double bound = magnitude * (IsBlockType(type) ? 1.0 / 65534 : 0) + 1e-6 * magnitude;
      EXPECT_NEAR(y[static_cast<size_t>(r)], want, bound) << WeightTypeName(type);
    }
  }
}

TEST(Multiply, ARowIsTheSameAloneAndAmongOthersAndForAnyThreads) {
  constexpr int kRows = 128;
  for (const WeightType type : AllWeightTypes()) {
    const PackedMatrix m = RandomMatrix(type, 75, 512, 4);
    const std::vector<float> x = RandomVector(kRows * 512, 8);
    const std::vector<float> all = Times(m, x, kRows);
    EXPECT_EQ(Times(m, x, kRows, 3), all);
    for (const int first : {0, 1, 63, 127}) {
      const std::vector<float> one(x.begin() + first * 512, x.begin() + (first + 1) * 512);
      EXPECT_EQ(Times(m, one, 1),
                std::vector<float>(all.begin() + first * 75, all.begin() + (first + 1) * 75));
    }
  }
}

TEST(Multiply, SeveralMatricesShareOneCall) {
  const PackedMatrix a = RandomMatrix(WeightType::kQ4_1, 40, 64, 1);
  const PackedMatrix b = RandomMatrix(WeightType::kQ8_0, 7, 64, 2);
  const PackedMatrix c = RandomMatrix(WeightType::kF16, 300, 64, 3);
  const std::vector<float> x = RandomVector(5 * 64, 6);
  ThreadPool pool(2);
  MatmulScratch scratch;
  constexpr int64_t kStride = 400;  // the three side by side, with room behind them
  std::vector<float> y(5 * kStride, -1.0f);
  const Product products[] = {
      {&a, y.data(), kStride}, {&b, y.data() + 40, kStride}, {&c, y.data() + 47, kStride}};
  Multiply(products, x.data(), 5, scratch, pool);
  const std::vector<float> ya = Times(a, x, 5), yb = Times(b, x, 5), yc = Times(c, x, 5);
  for (size_t r = 0; r < 5; ++r) {
    const float* row = y.data() + r * kStride;
    EXPECT_EQ(std::vector<float>(row, row + 40),
              std::vector<float>(ya.begin() + r * 40, ya.begin() + (r + 1) * 40));
    EXPECT_EQ(std::vector<float>(row + 40, row + 47),
              std::vector<float>(yb.begin() + r * 7, yb.begin() + (r + 1) * 7));
    EXPECT_EQ(std::vector<float>(row + 47, row + 347),
              std::vector<float>(yc.begin() + r * 300, yc.begin() + (r + 1) * 300));
    EXPECT_EQ(row[347], -1.0f);
  }
}

TEST(Multiply, ANonFiniteActivationIsSeenInTheResult) {
  const PackedMatrix m = RandomMatrix(WeightType::kQ4_0, 16, 64, 1);
  std::vector<float> x(64, 1.0f);
  x[40] = INFINITY;
  for (const float y : Times(m, x, 1)) EXPECT_TRUE(std::isnan(y));
}

}  // namespace
}  // namespace tq
