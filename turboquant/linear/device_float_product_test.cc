#include "turboquant/linear/device_float_product.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "turboquant/linear/cublaslt.h"
#include "turboquant/linear/test_util.h"

namespace tq {
namespace {

struct FloatType {
  WeightType type;
  DeviceIo io;
  double rounding;  // half a step of a number, of its size
};
constexpr FloatType kFloatTypes[] = {{WeightType::kF32, DeviceIo::kF32, 0x1p-24},
                                     {WeightType::kF16, DeviceIo::kF16, 0x1p-11},
                                     {WeightType::kBF16, DeviceIo::kBF16, 0x1p-8}};

size_t BytesOf(DeviceIo io) {
  return io == DeviceIo::kF32 ? 4 : 2;
}

// The bytes of floats in a type, and back.
std::vector<std::byte> Encode(const std::vector<float>& values, DeviceIo io) {
  std::vector<std::byte> bytes(values.size() * BytesOf(io));
  for (size_t i = 0; i < values.size(); ++i) {
    std::byte* const to = bytes.data() + i * BytesOf(io);
    if (io == DeviceIo::kF32) {
      std::memcpy(to, &values[i], 4);
    } else if (io == DeviceIo::kF16) {
      const f16_t half = F16FromF32(values[i]);
      std::memcpy(to, &half, 2);
    } else {
      const bf16_t bf16 = BF16FromF32(values[i]);
      std::memcpy(to, &bf16, 2);
    }
  }
  return bytes;
}
std::vector<float> Decode(const std::vector<std::byte>& bytes, DeviceIo io) {
  std::vector<float> values(bytes.size() / BytesOf(io));
  for (size_t i = 0; i < values.size(); ++i) {
    const std::byte* const from = bytes.data() + i * BytesOf(io);
    if (io == DeviceIo::kF32) {
      std::memcpy(&values[i], from, 4);
    } else if (io == DeviceIo::kF16) {
      f16_t half;
      std::memcpy(&half, from, 2);
      values[i] = F32FromF16(half);
    } else {
      bf16_t bf16;
      std::memcpy(&bf16, from, 2);
      values[i] = F32FromBF16(bf16);
    }
  }
  return values;
}

TEST(DeviceFloatProduct, TypesThatAreNotMultipliedAreNamed) {
  for (const FloatType& t : kFloatTypes) {
    EXPECT_TRUE(DeviceMatrix::Check(t.type).ok());
    EXPECT_TRUE(DeviceFloatProducts::Check(t.type, t.io, t.io).ok());
    EXPECT_TRUE(DeviceFloatProducts::Check(t.type, t.io, DeviceIo::kF32).ok());
  }
  Status s = DeviceFloatProducts::Check(WeightType::kBF16, DeviceIo::kF32, DeviceIo::kBF16);
  EXPECT_EQ(s.code(), StatusCode::kUnsupported);
  EXPECT_EQ(
      s.message(),
      "cuda products: weights of type BF16 with x in f32 and y in bf16; supported: x in bf16, "
      "y in bf16 or f32");
  s = DeviceFloatProducts::Check(WeightType::kF32, DeviceIo::kF32, DeviceIo::kF16);
  EXPECT_EQ(s.code(), StatusCode::kUnsupported);
  EXPECT_NE(s.message().find("supported: x in f32, y in f32"), std::string::npos) << s.message();
  s = DeviceFloatProducts::Check(WeightType::kQ4_0, DeviceIo::kF16, DeviceIo::kF16);
  EXPECT_EQ(s.code(), StatusCode::kUnsupported);
  EXPECT_NE(s.message().find("DeviceActivations multiplies them"), std::string::npos)
      << s.message();
}

TEST(DeviceFloatProduct, ALibraryThatIsNotThereIsNamed) {
  const std::vector<std::string> files = {"libnot_there.so.1", "libc.so.6"};
  const Status s = CublasLt::Create(files).status();
  if (CublasLt::Files().empty()) {
    EXPECT_EQ(s.code(), StatusCode::kUnsupported);
    EXPECT_NE(s.message().find("install its header cublasLt.h"), std::string::npos) << s.message();
    return;
  }
  EXPECT_EQ(s.code(), StatusCode::kUnavailable);
  for (const char* part :
       {"libnot_there.so.1", "libc.so.6 has no cublasLtCreate", "install", "LD_LIBRARY_PATH"}) {
    EXPECT_NE(s.message().find(part), std::string::npos) << s.message();
  }
}

TEST(DeviceFloatProduct, WithoutADeviceThereIsNoHandle) {
  if (GetCudaDeviceInfo().ok()) GTEST_SKIP() << "there is a device";
  EXPECT_EQ(DeviceFloatProducts::Create().status().code(), StatusCode::kUnavailable);
  // The library itself says so too, by the name of its status.
  const Status s = CublasLt::Create(CublasLt::Files()).status();
  EXPECT_FALSE(s.ok());
  if (s.message().find("cublasLtCreate") != std::string::npos) {
    EXPECT_NE(s.message().find("CUBLAS_STATUS_"), std::string::npos) << s.message();
  }
}

class FloatsOnDevice : public testing::Test {
 protected:
  void SetUp() override {
    if (!GetCudaDeviceInfo().ok()) GTEST_SKIP() << GetCudaDeviceInfo().status().ToString();
    auto products = DeviceFloatProducts::Create();
    if (!products.ok()) GTEST_SKIP() << products.status().ToString();
    products_ = std::make_unique<DeviceFloatProducts>(std::move(*products));
    stream_ = std::make_unique<DeviceStream>(*DeviceStream::Create());
  }

  // y = W x into poisoned memory, of which nothing behind y may change. x and y begin `offset`
  // numbers behind where device memory does. replays: of a graph; 0: a plain call.
  std::vector<float> Times(const DeviceMatrix& w, const std::vector<float>& x, int64_t rows,
                           DeviceIo x_io, DeviceIo y_io, size_t offset = 0, int replays = 0) {
    constexpr size_t kBehind = 256;
    const std::vector<std::byte> from = Encode(x, x_io);
    std::vector<std::byte> to(static_cast<size_t>(rows * w.out_dim()) * BytesOf(y_io));
    const size_t x_at = offset * BytesOf(x_io), y_at = offset * BytesOf(y_io);
    const auto x_device = *DeviceBuffer::Allocate(x_at + from.size());
    const auto y_device = *DeviceBuffer::Allocate(y_at + to.size() + kBehind);
    EXPECT_TRUE(x_device.Upload(from.data(), from.size(), x_at, *stream_).ok());
    EXPECT_TRUE(y_device.Fill(0xff, *stream_).ok());
    const auto multiply = [&] {
      const Status s = products_->Multiply(w, x_device.data() + x_at, x_io, rows,
                                           y_device.data() + y_at, y_io, *stream_);
      EXPECT_TRUE(s.ok()) << s.ToString();
    };
    multiply();
    if (replays > 0) {
      EXPECT_TRUE(DeviceGraph::Begin(*stream_).ok());
      multiply();
      const auto graph = DeviceGraph::End(*stream_);
      EXPECT_TRUE(graph.ok()) << graph.status().ToString();
      EXPECT_TRUE(y_device.Fill(0xff, *stream_).ok());
      for (int i = 0; i < replays; ++i) EXPECT_TRUE(graph->Launch(*stream_).ok());
    }
    std::vector<std::byte> behind(kBehind);
    EXPECT_TRUE(y_device.Download(to.data(), to.size(), y_at, *stream_).ok());
    EXPECT_TRUE(y_device.Download(behind.data(), kBehind, y_at + to.size(), *stream_).ok());
    const Status s = stream_->Synchronize();
    EXPECT_TRUE(s.ok()) << s.ToString();
    EXPECT_EQ(behind, std::vector<std::byte>(kBehind, std::byte{0xff}));
    return Decode(to, y_io);
  }

  // x rounded to the type, and the exact product with |w| |x| summed beside it.
  static void ExpectClose(const PackedMatrix& m, const std::vector<float>& x, int64_t rows,
                          const FloatType& type, DeviceIo y_io, const std::vector<float>& y) {
    // Tensor cores add 8 or more products at a time and may cut off what is below a float's last
    // place; the rest is the rounding of y.
    const double sum_error = static_cast<double>(m.in_dim() / 8 + 2) * 0x1p-23;
    const double y_error = y_io == DeviceIo::kF32 ? 0x1p-24 : type.rounding;
    std::vector<float> w(static_cast<size_t>(m.in_dim()));
    for (int64_t o = 0; o < m.out_dim(); ++o) {
      m.DecodeRow(o, w.data());
      for (int64_t row = 0; row < rows; ++row) {
        double want = 0, magnitude = 0;
        for (int64_t i = 0; i < m.in_dim(); ++i) {
          const double product = static_cast<double>(w[static_cast<size_t>(i)]) *
                                 x[static_cast<size_t>(row * m.in_dim() + i)];
          want += product, magnitude += std::abs(product);
        }
        ASSERT_NEAR(y[static_cast<size_t>(row * m.out_dim() + o)], want,
                    magnitude * sum_error + std::abs(want) * y_error + 0x1p-24)
            << WeightTypeName(type.type) << " " << m.out_dim() << " x " << m.in_dim() << ", row "
            << row << " of " << rows << ", output " << o;
      }
    }
  }

  std::unique_ptr<DeviceFloatProducts> products_;
  std::unique_ptr<DeviceStream> stream_;
};

std::vector<float> RandomInputs(int64_t rows, int64_t in_dim, DeviceIo io) {
  return Decode(Encode(RandomVector(static_cast<size_t>(rows * in_dim), 3), io), io);
}

TEST_F(FloatsOnDevice, IsCloseToTheExactProduct) {
  for (const FloatType& type : kFloatTypes) {
    for (const int64_t in_dim : {1, 32, 77, 416, 2816}) {
      for (const int64_t out_dim : {1, 16, 53}) {
        const PackedMatrix m = RandomMatrix(type.type, out_dim, in_dim, 7);
        const auto matrix = DeviceMatrix::Upload(m, *stream_);
        ASSERT_TRUE(matrix.ok()) << matrix.status().ToString();
        for (int64_t rows = 1; rows <= 17; ++rows) {
          const std::vector<float> x = RandomInputs(rows, in_dim, type.io);
          for (const DeviceIo y_io : {type.io, DeviceIo::kF32}) {
            ExpectClose(m, x, rows, type, y_io, Times(*matrix, x, rows, type.io, y_io));
            if (HasFatalFailure()) return;
          }
        }
      }
    }
  }
}

TEST_F(FloatsOnDevice, APromptOfRowsAndAnyAlignment) {
  for (const FloatType& type : kFloatTypes) {
    const PackedMatrix m = RandomMatrix(type.type, 72, 200, 7);
    const auto matrix = DeviceMatrix::Upload(m, *stream_);
    ASSERT_TRUE(matrix.ok()) << matrix.status().ToString();
    for (const int64_t rows : {64, 333}) {
      for (const size_t offset : {0, 1, 4}) {
        const std::vector<float> x = RandomInputs(rows, 200, type.io);
        ExpectClose(m, x, rows, type, type.io, Times(*matrix, x, rows, type.io, type.io, offset));
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_F(FloatsOnDevice, EqualCallsGiveEqualBitsAlsoFromAGraph) {
  for (const FloatType& type : kFloatTypes) {
    const auto matrix = DeviceMatrix::Upload(RandomMatrix(type.type, 520, 4096, 7), *stream_);
    ASSERT_TRUE(matrix.ok()) << matrix.status().ToString();
    for (const int64_t rows : {1, 5, 130}) {
      const std::vector<float> x = RandomInputs(rows, 4096, type.io);
      const std::vector<float> once = Times(*matrix, x, rows, type.io, DeviceIo::kF32);
      EXPECT_EQ(Times(*matrix, x, rows, type.io, DeviceIo::kF32), once);
      EXPECT_EQ(Times(*matrix, x, rows, type.io, DeviceIo::kF32, 0, 2), once);
    }
  }
}

TEST_F(FloatsOnDevice, AMatrixOfAnotherKindIsRefused) {
  const auto floats = DeviceMatrix::Upload(RandomMatrix(WeightType::kBF16, 16, 64, 7), *stream_);
  const auto codes = DeviceMatrix::Upload(RandomMatrix(WeightType::kQ4_0, 16, 64, 7), *stream_);
  auto activations = DeviceActivations::Create(64, *stream_);
  ASSERT_TRUE(floats.ok() && codes.ok() && activations.ok());
  const auto memory = *DeviceBuffer::Allocate(64 * 4);
  ASSERT_TRUE(memory.Fill(0, *stream_).ok());
  ASSERT_TRUE(activations->Quantize(memory.data(), 1, DeviceIo::kBF16, *stream_).ok());
  EXPECT_EQ(activations->Multiply(*floats, memory.data(), DeviceIo::kF32, *stream_).code(),
            StatusCode::kUnsupported);
  EXPECT_EQ(products_
                ->Multiply(*codes, memory.data(), DeviceIo::kBF16, 1, memory.data(),
                           DeviceIo::kBF16, *stream_)
                .code(),
            StatusCode::kUnsupported);
  EXPECT_EQ(products_
                ->Multiply(*floats, memory.data(), DeviceIo::kBF16, 0, memory.data(),
                           DeviceIo::kBF16, *stream_)
                .code(),
            StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tq
