#include "turboquant/codec/encode.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "turboquant/base/isa.h"
#include "turboquant/codec/codebook.h"
#include "turboquant/codec/decode.h"
#include "turboquant/codec/encode_kernels.h"
#include "turboquant/codec/pack.h"

namespace tq {
namespace {

constexpr int kDims[] = {2, 16, 59, 64, 80, 96, 112, 128, 160, 256, 512};

// One side of one block, open and sealed.
struct SideData {
  std::vector<float> x;  // [64][dim]
  AlignedBuffer<std::byte> open;
  AlignedBuffer<float> open_scales{kPageLen};
  AlignedBuffer<uint8_t> codes;
  std::vector<uint8_t> scales = std::vector<uint8_t>(kPageLen);
  bf16_t base = 0, bound = 0;
  WriteCounters counters;
  Rotation rotation;
};

std::vector<float> GaussianRows(int dim, unsigned seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<size_t>(kPageLen) * dim);
  for (int t = 0; t < kPageLen; ++t) {
    const float size = std::exp(0.5f * normal(rng));  // rows of different length
    for (int c = 0; c < dim; ++c) x[t * dim + c] = size * normal(rng);
  }
  return x;
}

SideData Encode(const Codec& codec, Side side, int dim, int open_bits, std::vector<float> x) {
  SideData d;
  d.x = std::move(x);
  d.rotation = Rotation(codec.rotate, dim, 1, 2, 3, side);
  d.open.Resize(ValueBytes(open_bits, dim));
  d.codes.Resize(ValueBytes(codec.bits, dim));
  const RowWriter writer{side, dim, open_bits, &d.rotation, nullptr, nullptr};
  WriteOpenRows(writer, d.x.data(), static_cast<size_t>(dim), 0, 0, kPageLen, d.open.data(),
                d.open_scales.data(), &d.counters);
  SealSide(codec, side, dim, open_bits, d.open.data(), d.open_scales.data(), d.codes.data(),
           d.scales.data(), &d.base, &d.bound);
  return d;
}

std::vector<float> DecodeSealed(const SideData& d, const Codec& codec, Side side, int dim) {
  std::vector<float> out(static_cast<size_t>(kPageLen) * dim);
  DecodeSealedSide(codec, side, dim, d.codes.data(), d.scales.data(), d.base, out.data());
  for (int t = 0; t < kPageLen; ++t) d.rotation.Inverse(&out[static_cast<size_t>(t) * dim]);
  return out;
}

double RelativeError(const std::vector<float>& x, const std::vector<float>& y) {
  double e = 0, n = 0;
  for (size_t i = 0; i < x.size(); ++i) e += (x[i] - y[i]) * (x[i] - y[i]), n += x[i] * x[i];
  return e / n;
}

TEST(Seal, ErrorIsThatOfTheBook) {
  // Gaussian mean squared error of each width (codebook_test.cc), plus the int8 row and the log8
  // scale (together under 0.0003), plus what gain correction costs: at most D / (1 - D) with D the
  // book's error.
  for (const FormatInfo& format : RegisteredFormats()) {
    const Codec codec = *DefaultCodec(format.bits);
    for (const int dim : {64, 80, 128, 256}) {
      for (const Side side : {Side::kK, Side::kV}) {
        const SideData d = Encode(codec, side, dim, codec.is_f16() ? 16 : 8, GaussianRows(dim, 5));
        const double error = RelativeError(d.x, DecodeSealed(d, codec, side, dim));
        const double bound = format.bits == 2   ? 0.1188 / (1 - 0.1188) * 1.05
                             : format.bits == 3 ? 0.0346 / (1 - 0.0346) * 1.05
                             : format.bits == 4 ? 0.0098 * 1.05
                             : format.bits == 8 ? 0.0004
                                                : 1e-6;
        EXPECT_LT(error, bound) << format.name << " dim " << dim;
        if (format.bits <= 4) {
          EXPECT_GT(error, bound * 0.5) << format.name << " dim " << dim;
        }
      }
    }
  }
}

TEST(Seal, NormGainKeepsTheLength) {
  const Codec codec = *DefaultCodec(2);
  const SideData d = Encode(codec, Side::kV, 128, 8, GaussianRows(128, 6));
  const std::vector<float> y = DecodeSealed(d, codec, Side::kV, 128);
  for (int t = 0; t < kPageLen; ++t) {
    double nx = 0, ny = 0;
    for (int c = 0; c < 128; ++c) {
      nx += d.x[t * 128 + c] * d.x[t * 128 + c];
      ny += y[t * 128 + c] * y[t * 128 + c];
    }
    EXPECT_NEAR(std::sqrt(ny / nx), 1, 0.03);  // half a log8 step and the int8 row
  }
}

TEST(Seal, UnbiasedGainKeepsTheProduct) {
  const Codec codec = WithCenter(*DefaultCodec(2), Center::kRopeMean);
  const SideData d = Encode(codec, Side::kK, 128, 8, GaussianRows(128, 7));
  const std::vector<float> y = DecodeSealed(d, codec, Side::kK, 128);
  for (int t = 0; t < kPageLen; ++t) {
    double xx = 0, xy = 0;
    for (int c = 0; c < 128; ++c) {
      xx += d.x[t * 128 + c] * d.x[t * 128 + c];
      xy += d.x[t * 128 + c] * y[t * 128 + c];
    }
    EXPECT_NEAR(xy / xx, 1, 0.03);
  }
}

TEST(Seal, BoundIsAboveEveryRow) {
  for (const FormatInfo& format : RegisteredFormats()) {
    const Codec codec = *DefaultCodec(format.bits);
    const SideData d = Encode(codec, Side::kV, 64, codec.is_f16() ? 16 : 8, GaussianRows(64, 8));
    const std::vector<float> y = DecodeSealed(d, codec, Side::kV, 64);
    double largest = 0;
    for (int t = 0; t < kPageLen; ++t) {
      double n = 0;
      for (int c = 0; c < 64; ++c) n += y[t * 64 + c] * y[t * 64 + c];
      largest = std::max(largest, std::sqrt(n));
    }
    EXPECT_GE(F32FromBF16(d.bound), largest) << format.name;
    EXPECT_LE(F32FromBF16(d.bound), largest * 1.01) << format.name;
  }
}

// The bytes do not depend on the instruction set, for every format, side, width of open rows and
// head_dim.
TEST(Seal, EveryIsaGivesTheBytesOfTheReference) {
  for (const FormatInfo& format : RegisteredFormats()) {
    for (const Codebook book : format.codebooks) {
      Codec codec = *DefaultCodec(format.bits);
      codec.codebook = book;
      for (const int dim : kDims) {
        for (const Side side : {Side::kK, Side::kV}) {
          for (const int open_bits :
               codec.is_f16() ? std::vector<int>{16} : std::vector<int>{8, 16}) {
            const std::vector<float> x = GaussianRows(dim, static_cast<unsigned>(dim));
            ASSERT_TRUE(ForceIsa("ref").ok());
            const SideData want = Encode(codec, side, dim, open_bits, x);
            for (const std::string& isa : AvailableIsas()) {
              ASSERT_TRUE(ForceIsa(isa).ok());
              const SideData got = Encode(codec, side, dim, open_bits, x);
              const std::string where = StrCat(isa, " ", format.name, " dim ", dim);
              EXPECT_EQ(0, std::memcmp(want.open.data(), got.open.data(), want.open.size()))
                  << where;
              EXPECT_EQ(0, std::memcmp(want.codes.data(), got.codes.data(), want.codes.size()))
                  << where;
              EXPECT_EQ(want.scales, got.scales) << where;
              EXPECT_EQ(want.base, got.base) << where;
            }
            ResetIsa();
          }
        }
      }
    }
  }
}

TEST(Pack, EveryWidthAndIsaRoundTrips) {
  std::mt19937 rng(3);
  for (const int bits : {2, 3, 4}) {
    for (const int cells : {16, 32, 64, 80, 512}) {
      std::vector<uint8_t> codes(static_cast<size_t>(cells) * 64), out(codes.size());
      for (uint8_t& c : codes) c = static_cast<uint8_t>(rng() & ((1u << bits) - 1));
      std::vector<uint8_t> packed(codes.size() * bits / 8);
      PackCodes(bits, codes.data(), cells, packed.data());
      alignas(16) uint8_t table[16];
      for (int i = 0; i < 16; ++i) table[i] = static_cast<uint8_t>(200 - i);
      for (const std::string& isa : AvailableIsas()) {
        ASSERT_TRUE(ForceIsa(isa).ok());
        UnpackCodes(bits, packed.data(), cells, table, out.data());
        for (size_t i = 0; i < codes.size(); ++i) ASSERT_EQ(out[i], 200 - codes[i]) << isa;
      }
      ResetIsa();
    }
  }
}

// The order of docs/formats/record.md, by hand: K, head_dim 16, one code set.
TEST(Pack, ThreeBitsLieWhereTheDocumentSays) {
  std::vector<uint8_t> codes(16 * 64, 0);
  const int token = 17, channel = 6;  // lane 17 -> group 1, depth 6 -> quad 1
  codes[CodeIndex(token, channel, 16)] = 5;
  EXPECT_EQ(CodeIndex(token, channel, 16), (1u * 4 + 1) * 64 + 1 * 4 + 2);
  std::vector<uint8_t> packed(16 * 64 * 3 / 8);
  PackCodes(3, codes.data(), 16, packed.data());
  // Cell 5: second line of the 2-bit plane, bits 2-3; first line of the 1-bit plane, bit 5.
  EXPECT_EQ(packed[64 + 6], 1 << 2);
  EXPECT_EQ(packed[256 + 6], 1 << 5);
  EXPECT_EQ(std::count(packed.begin(), packed.end(), 0), static_cast<long>(packed.size()) - 2);
}

TEST(NumericPolicy, NonFiniteBecomesZeroAndTouchesNobody) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  for (const char* isa : {"ref", "best"}) {
    if (std::string(isa) == "ref") {
      ASSERT_TRUE(ForceIsa("ref").ok());
    }
    const Codec codec = *DefaultCodec(3);
    std::vector<float> x = GaussianRows(64, 9);
    const SideData clean = Encode(codec, Side::kK, 64, 8, x);
    x[5 * 64 + 1] = nan;
    x[5 * 64 + 2] = -inf;
    const SideData d = Encode(codec, Side::kK, 64, 8, x);
    EXPECT_EQ(d.counters.nonfinite_values, 2u);
    EXPECT_EQ(clean.counters.nonfinite_values, 0u);
    const std::vector<float> a = DecodeSealed(clean, codec, Side::kK, 64);
    const std::vector<float> b = DecodeSealed(d, codec, Side::kK, 64);
    for (int t = 0; t < kPageLen; ++t) {
      for (int c = 0; c < 64; ++c) {
        EXPECT_TRUE(std::isfinite(b[t * 64 + c]));
        if (t != 5) {
          EXPECT_EQ(a[t * 64 + c], b[t * 64 + c]);
        }
      }
    }
    ResetIsa();
  }
}

TEST(NumericPolicy, ZeroRowsAndDenormalsAreExactlyZero) {
  for (const FormatInfo& format : RegisteredFormats()) {
    const Codec codec = *DefaultCodec(format.bits);
    std::vector<float> x = GaussianRows(64, 10);
    for (int c = 0; c < 64; ++c) x[3 * 64 + c] = 0, x[4 * 64 + c] = 1e-40f;
    const SideData d = Encode(codec, Side::kV, 64, codec.is_f16() ? 16 : 8, x);
    const std::vector<float> y = DecodeSealed(d, codec, Side::kV, 64);
    for (int c = 0; c < 64; ++c) {
      EXPECT_EQ(y[3 * 64 + c], 0.f) << format.name;
      EXPECT_EQ(y[4 * 64 + c], 0.f) << format.name;
    }
  }
}

TEST(NumericPolicy, LargeValuesSurvive) {
  for (const int bits : {2, 3, 4, 8}) {
    const Codec codec = *DefaultCodec(bits);
    for (const int dim : {64, 512}) {
      std::vector<float> x = GaussianRows(dim, 11);
      for (int c = 0; c < dim; ++c) x[7 * dim + c] = 70000.f;  // one coordinate gets 70000 sqrt(D)
      for (int c = 0; c < dim; ++c) x[8 * dim + c] = c % 2 == 0 ? 70000.f : -70000.f;
      const SideData d = Encode(codec, Side::kK, dim, 8, x);
      EXPECT_EQ(d.counters.clamped_values, 0u);
      const std::vector<float> y = DecodeSealed(d, codec, Side::kK, dim);
      double xx = 0, xy = 0;
      for (int c = 0; c < dim; ++c) {
        xx += 70000.0 * 70000.0;
        xy += 70000.0 * y[7 * dim + c];
      }
      EXPECT_GT(xy / xx, 0.5) << bits << " bits, dim " << dim;
      for (const float v : y) EXPECT_TRUE(std::isfinite(v));
    }
  }
}

TEST(NumericPolicy, ClampsAndCounts) {
  std::vector<float> x = GaussianRows(64, 12);
  x[0] = 1e30f;
  const SideData d = Encode(*DefaultCodec(4), Side::kK, 64, 8, x);
  EXPECT_EQ(d.counters.clamped_values, 1u);
  x[0] = 70000.f;
  const SideData h = Encode(*DefaultCodec(16), Side::kK, 64, 16, x);
  EXPECT_EQ(h.counters.clamped_values, 1u);  // beyond f16
  EXPECT_EQ(DecodeSealed(h, *DefaultCodec(16), Side::kK, 64)[0], 65504.f);
}

// A tiny V must not grow: scales far below the record's largest become zero, not the smallest step.
TEST(NumericPolicy, TinyRowsBesideLargeOnesVanish) {
  std::vector<float> x = GaussianRows(64, 13);
  for (int c = 0; c < 64; ++c) x[9 * 64 + c] *= 1e-7f;
  const SideData d = Encode(*DefaultCodec(2), Side::kV, 64, 8, x);
  EXPECT_EQ(d.scales[9], 0);
}

}  // namespace
}  // namespace tq
