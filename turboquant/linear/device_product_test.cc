#include "turboquant/linear/device_product.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "turboquant/linear/test_util.h"

namespace tq {
namespace {

constexpr WeightType kTypes[] = {WeightType::kQ4_0, WeightType::kQ4_1, WeightType::kQ4_K,
                                 WeightType::kQ8_0};

float Half(const uint8_t* p) {
  f16_t h;
  std::memcpy(&h, p, sizeof h);
  return F32FromF16(h);
}

// One weight as product_params.h says that a tile holds it.
float WeightAt(WeightType type, const ProductLayout& layout, const uint8_t* tile, int row,
               int64_t input) {
  const int64_t chunk = input / 128;
  const int b = static_cast<int>(input % 128 / 32), k = static_cast<int>(input % 32);
  const int r = row % 8, second = row / 8, lane = 4 * r + k % 16 / 4;
  const int reg = second + 2 * (k / 16), byte = k % 4;
  const uint8_t* const codes = tile + layout.codes(chunk);
  const uint8_t* const scales = tile + layout.scales(chunk);
  if (type == WeightType::kQ8_0) {
    const auto code = static_cast<int8_t>(codes[(b * 32 + lane) * 16 + reg * 4 + byte]);
    return Half(scales + (r * 8 + second * 4 + b) * 2) * static_cast<float>(code);
  }
  // Word 2 b: a0 | a2 << 4, word 2 b + 1: a1 | a3 << 4; 4 words of a lane in turn.
  const int word = 2 * b + reg % 2;
  const int pair = codes[(word / 4 * 32 + lane) * 16 + word % 4 * 4 + byte];
  const auto code = static_cast<float>(reg >= 2 ? pair >> 4 : pair & 15);
  switch (type) {
    case WeightType::kQ4_1: {
      const uint8_t* const of_row = scales + (r * 8 + second * 4 + b) * 4;
      return Half(of_row) * code + Half(of_row + 2);
    }
    case WeightType::kQ4_K: {
      const uint8_t* const of_row = tile + layout.supers(chunk) + (r * 2 + second) * 4;
      const uint8_t* const group = scales + (r * 8 + second * 4 + b) * 2;
      return Half(of_row) * static_cast<float>(group[0]) * code -
             Half(of_row + 2) * static_cast<float>(group[1]);
    }
    default: return Half(scales + (r * 8 + second * 4 + b) * 2) * (code - 8);
  }
}

TEST(DeviceProduct, TilesHoldTheNumbersOfTheMatrix) {
  for (const WeightType type : kTypes) {
    const int64_t in_dim = type == WeightType::kQ4_K ? 512 : 416;
    const PackedMatrix m = RandomMatrix(type, 21, in_dim, 7);
    const ProductLayout layout = ProductLayout::For(type, in_dim);
    for (const int64_t first : {0, 16}) {
      std::vector<uint8_t> tile(layout.tile_bytes());
      PackProductTile(m, layout, first, tile.data());
      for (int row = 0; row < 16; ++row) {
        std::vector<float> want(static_cast<size_t>(in_dim), 0.f);
        if (first + row < m.out_dim()) m.DecodeRow(first + row, want.data());
        for (int64_t i = 0; i < in_dim; ++i) {
          ASSERT_EQ(WeightAt(type, layout, tile.data(), row, i), want[static_cast<size_t>(i)])
              << WeightTypeName(type) << " row " << first + row << " input " << i;
        }
      }
    }
  }
}

TEST(DeviceProduct, TypesWithoutKernelsAreNamed) {
  for (const WeightType type : kTypes) EXPECT_TRUE(DeviceMatrix::Check(type).ok());
  const Status s = DeviceMatrix::Check(WeightType::kQ6_K);
  EXPECT_EQ(s.code(), StatusCode::kUnsupported);
  EXPECT_NE(s.message().find("Q6_K; supported: Q4_0, Q4_1, Q4_K, Q8_0, F32, F16, BF16"),
            std::string::npos)
      << s.message();
}

class OnDevice : public testing::Test {
 protected:
  void SetUp() override {
    if (!GetCudaDeviceInfo().ok()) GTEST_SKIP() << GetCudaDeviceInfo().status().ToString();
    stream_ = std::make_unique<DeviceStream>(*DeviceStream::Create());
  }

  // y = W x into poisoned memory.
  std::vector<float> Times(const PackedMatrix& m, const std::vector<float>& x, int rows) {
    const auto matrix = DeviceMatrix::Upload(m, *stream_);
    EXPECT_TRUE(matrix.ok()) << matrix.status().ToString();
    return Times(*matrix, x, rows);
  }
  std::vector<float> Times(const DeviceMatrix& matrix, const std::vector<float>& x, int rows) {
    auto activations = DeviceActivations::Create(matrix.in_dim(), *stream_);
    EXPECT_TRUE(activations.ok()) << activations.status().ToString();
    std::vector<float> y(static_cast<size_t>(rows * matrix.out_dim()));
    const auto x_device = *DeviceBuffer::Allocate(x.size() * 4);
    const auto y_device = *DeviceBuffer::Allocate(y.size() * 4);
    EXPECT_TRUE(x_device.Upload(x.data(), x.size() * 4, 0, *stream_).ok());
    EXPECT_TRUE(y_device.Fill(0xff, *stream_).ok());
    Status s = activations->Quantize(x_device.data(), rows, DeviceIo::kF32, *stream_);
    EXPECT_TRUE(s.ok()) << s.ToString();
    s = activations->Multiply(matrix, y_device.data(), DeviceIo::kF32, *stream_);
    EXPECT_TRUE(s.ok()) << s.ToString();
    EXPECT_TRUE(y_device.Download(y.data(), y.size() * 4, 0, *stream_).ok());
    s = stream_->Synchronize();
    EXPECT_TRUE(s.ok()) << s.ToString();
    return y;
  }

  std::unique_ptr<DeviceStream> stream_;
};

// Against products in double precision: activations are rounded by at most half a step, 1/65024 of
// the largest of their block, which is below 1; sums in float32. Of every step-th output.
void ExpectClose(const PackedMatrix& m, const std::vector<float>& x, int rows,
                 const std::vector<float>& y, int64_t step) {
  std::vector<float> w(static_cast<size_t>(m.in_dim()));
  for (int64_t o = 0; o < m.out_dim(); o += step) {
    m.DecodeRow(o, w.data());
    for (int row = 0; row < rows; ++row) {
      double want = 0, magnitude = 0;
      for (int64_t i = 0; i < m.in_dim(); ++i) {
        want += static_cast<double>(w[static_cast<size_t>(i)]) *
                x[static_cast<size_t>(row * m.in_dim() + i)];
        magnitude += std::abs(w[static_cast<size_t>(i)]);
      }
      ASSERT_NEAR(y[static_cast<size_t>(row * m.out_dim() + o)], want,
                  magnitude * (1.0 / 65024 + 4e-6))
          << WeightTypeName(m.type()) << " " << m.out_dim() << " x " << m.in_dim() << ", row "
          << row << " of " << rows << ", output " << o;
    }
  }
}

TEST_F(OnDevice, IsCloseToTheExactProduct) {
  for (const WeightType type : kTypes) {
    const bool super = type == WeightType::kQ4_K;
    for (const int64_t in_dim : {super ? 256 : 32, super ? 768 : 416, 2816}) {
      for (const int64_t out_dim : {1, 16, 53}) {
        const PackedMatrix m = RandomMatrix(type, out_dim, in_dim, 7);
        for (const int rows : {1, 2, 4, 5, 8, 9, 16}) {
          const std::vector<float> x = RandomVector(static_cast<size_t>(rows * in_dim), 3);
          ExpectClose(m, x, rows, Times(m, x, rows), 1);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST_F(OnDevice, ManyTilesForEachMultiprocessor) {
  const int64_t out_dim = 16 * 5 * GetCudaDeviceInfo()->num_multiprocessors - 11, in_dim = 2304;
  ThreadPool pool(0);
  for (const WeightType type : kTypes) {
    const PackedMatrix m = RandomMatrix(type, out_dim, in_dim, 7);
    const auto matrix = DeviceMatrix::Upload(m, *stream_, &pool);
    ASSERT_TRUE(matrix.ok()) << matrix.status().ToString();
    for (const int rows : {1, 6, 15}) {
      const std::vector<float> x = RandomVector(static_cast<size_t>(rows * in_dim), 3);
      ExpectClose(m, x, rows, Times(*matrix, x, rows), 7);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(OnDevice, ARowHasTheSameBitsAloneAndAmongOthers) {
  for (const WeightType type : kTypes) {
    const PackedMatrix m = RandomMatrix(type, 40, 1024, 7);
    const std::vector<float> x = RandomVector(16 * 1024, 8);
    const std::vector<float> all = Times(m, x, 16);
    EXPECT_EQ(Times(m, x, 16), all);
    for (const int row : {0, 6, 15}) {
      const std::vector<float> one(x.begin() + row * 1024, x.begin() + (row + 1) * 1024);
      EXPECT_EQ(Times(m, one, 1),
                std::vector<float>(all.begin() + row * 40, all.begin() + (row + 1) * 40))
          << WeightTypeName(type) << " row " << row;
    }
  }
}

TEST_F(OnDevice, ANonFiniteActivationIsSeenInTheResult) {
  const PackedMatrix m = RandomMatrix(WeightType::kQ4_0, 16, 64, 7);
  std::vector<float> x(128, 1.0f);
  x[40] = INFINITY;
  const std::vector<float> y = Times(m, x, 2);
  for (int o = 0; o < 16; ++o) {
    EXPECT_TRUE(std::isnan(y[static_cast<size_t>(o)]));
    EXPECT_FALSE(std::isnan(y[static_cast<size_t>(16 + o)]));
  }
}

}  // namespace
}  // namespace tq
