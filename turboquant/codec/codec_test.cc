#include "turboquant/codec/codec.h"

#include <gtest/gtest.h>

#include "turboquant/codec/center.h"
#include "turboquant/codec/log8.h"
#include "turboquant/codec/record_layout.h"
#include "turboquant/codec/rope_for_test.h"

namespace tq {
namespace {

HeadFormat Preset(const char* name) {
  Result<HeadFormat> f = ParsePreset(name);
  EXPECT_TRUE(f.ok()) << f.status().ToString();
  return f.ok() ? *f : HeadFormat{};
}

TEST(Preset, ParsesEveryPairAndPrintsItBack) {
  for (const FormatInfo& k : RegisteredFormats()) {
    for (const FormatInfo& v : RegisteredFormats()) {
      const std::string name = StrCat("k", k.token, "v", v.token);
      const HeadFormat f = Preset(name.c_str());
      EXPECT_EQ(f.k, k.codec());
      EXPECT_EQ(f.v, v.codec());
      EXPECT_TRUE(ValidateCodec(f.k, Side::kK).ok());
      EXPECT_TRUE(ValidateCodec(f.v, Side::kV).ok());
      const bool plain = k.type == v.type && k.type != ValueType::kInt;
      EXPECT_EQ(PresetName(f), plain ? k.name : name);
      EXPECT_EQ(Preset(PresetName(f).c_str()), f);
    }
  }
  EXPECT_EQ(Preset("K3V2"), Preset("k3v2"));
}

TEST(Preset, RejectsWhatIsNotOne) {
  for (const char* bad : {"", "k", "k3", "kv", "k3v", "v2k3", "k3v2x", "q4_0", "k3 v2", "k-3v2"}) {
    const Result<HeadFormat> f = ParsePreset(bad);
    ASSERT_FALSE(f.ok()) << bad;
    EXPECT_EQ(f.status().code(), StatusCode::kInvalidArgument) << bad;
    EXPECT_NE(f.status().message().find("use f16, bf16, fp8 or k<a>v<b>"), std::string::npos);
  }
}

TEST(Preset, Suffixes) {
  const HeadFormat t = Preset("k3v2-trellis");
  EXPECT_EQ(t.k.codebook, Codebook::kTrellis);
  EXPECT_EQ(t.v.codebook, Codebook::kTrellis);
  EXPECT_EQ(Preset("k8v2-trellis").k.codebook, Codebook::kUniform);
  const HeadFormat g = Preset("k4v4-group32");
  EXPECT_EQ(g.k.group_len, 32);
  EXPECT_EQ(g.k.zero, Zero::kAffine);
  EXPECT_EQ(g.k.rotate, Rotate::kNone);
  EXPECT_EQ(Preset("k3v2-trellis-anchor2").anchors, 2);
  for (const char* name : {"k3v2-trellis", "k4v4-group32", "k3v2-anchor1", "k3v2-trellis-anchor2",
                           "bf16", "fp8", "kfp8v4"}) {
    EXPECT_EQ(PresetName(Preset(name)), name);
  }
}

TEST(Preset, NamesWhatHasNoKernel) {
  const auto error = [](const char* name) { return ParsePreset(name).status(); };
  EXPECT_EQ(error("k7v2").code(), StatusCode::kUnsupported);
  EXPECT_EQ(error("k7v2").message(),
            "'k7v2': no codec with 7 bits; supported: 2, 3, 4, 5, 6, 8, 16 (f16)");
  EXPECT_EQ(error("k8v8-trellis").message(), "'k8v8-trellis': trellis codes have 2, 3 or 4 bits");
  EXPECT_EQ(error("k4v4-group24").message(),
            "'k4v4-group24': K: group_len 24; supported: head (the whole vector), 16, 32, 64, 128");
  EXPECT_EQ(error("k3v2-anchor5").message(),
            "'k3v2-anchor5': 5 anchors a block; supported: 0 to 4");
  EXPECT_EQ(error("f16-anchor1").code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(error("k16v4-anchor1").message(),
            "'k16v4-anchor1': anchors beside K f16; they are residuals of integer codes on both "
            "sides");
  EXPECT_EQ(error("k3v2-fast").code(), StatusCode::kInvalidArgument);
}

TEST(ValidateCodec, SaysWhichAxisIsWrong) {
  Codec c = *DefaultCodec(3);
  c.codebook = Codebook::kNone;
  EXPECT_EQ(ValidateCodec(c, Side::kK).message(),
            "codebook 'none' with int3; supported: uniform, lloyd, calibrated, trellis");
  c = *DefaultCodec(3);
  c.zero = Zero::kAffine;
  EXPECT_EQ(
      ValidateCodec(c, Side::kK).message(),
      "zero 'affine' with codebook 'lloyd' and gain 'norm'; supported: codebook uniform, gain "
      "none");
  c = *DefaultCodec(8);
  c.gain = Gain::kNorm;
  EXPECT_EQ(ValidateCodec(c, Side::kV).message(), "gain 'norm' at 8 bits; supported: none");
  c = WithCenter(*DefaultCodec(3), Center::kRopeMean);
  EXPECT_TRUE(ValidateCodec(c, Side::kK).ok());
  EXPECT_EQ(ValidateCodec(c, Side::kV).message(), "center 'rope_mean' on V; it exists for K only");
}

TEST(DefaultCodec, FollowsTheWidth) {
  EXPECT_EQ(DefaultCodec(2)->codebook, Codebook::kUniform);
  EXPECT_EQ(DefaultCodec(3)->codebook, Codebook::kLloyd);
  EXPECT_EQ(DefaultCodec(4)->gain, Gain::kNorm);
  EXPECT_EQ(DefaultCodec(5)->gain, Gain::kNorm);
  EXPECT_EQ(DefaultCodec(6)->codebook, Codebook::kUniform);
  EXPECT_EQ(DefaultCodec(8)->gain, Gain::kNone);
  EXPECT_EQ(DefaultCodec(16)->rotate, Rotate::kNone);
  EXPECT_EQ(WithCenter(*DefaultCodec(3), Center::kRopeMean).gain, Gain::kUnbiased);
}

// The sizes that docs/formats/record.md and the planner promise.
TEST(RecordLayout, SizesToTheByte) {
  EXPECT_EQ(RecordLayout::For(Preset("k3v2"), 64).bytes, 2688u);
  EXPECT_EQ(RecordLayout::For(Preset("k3v2"), 128).bytes, 5248u);
  EXPECT_EQ(RecordLayout::For(Preset("k4v4"), 64).bytes, 4224u);
  EXPECT_EQ(RecordLayout::For(Preset("f16"), 64).bytes, 64u * 64 * 4);
  EXPECT_NEAR(BitsPerValue(Preset("k3v2"), 64), 2.633, 5e-4);
  EXPECT_NEAR(BitsPerValue(Preset("k3v2"), 128), 2.566, 5e-4);
  EXPECT_LE(BitsPerValue(Preset("k3v2"), 64), 2.64);
  EXPECT_LE(BitsPerValue(Preset("k4v4"), 64), 4.15);
  // Parts do not overlap and V codes come last.
  for (const FormatInfo& k : RegisteredFormats()) {
    for (const FormatInfo& v : RegisteredFormats()) {
      for (const int dim : {2, 59, 64, 80, 96, 112, 128, 160, 256, 512}) {
        const HeadFormat f = Preset(StrCat("k", k.token, "v", v.token).c_str());
        const RecordLayout l = RecordLayout::For(f, dim);
        EXPECT_LE(l.k_codes + ValueBytes(k.bits, dim), l.k_scales);
        EXPECT_EQ(l.v_scales, l.k_scales + ScaleBytes(f.k, dim));
        EXPECT_EQ(l.v_codes, l.v_scales + ScaleBytes(f.v, dim));
        EXPECT_LE(l.v_codes + ValueBytes(v.bits, dim), l.bytes);
        EXPECT_EQ(l.bytes % kRecordAlign, 0u);
      }
    }
  }
}

TEST(Log8, StepsAndEnds) {
  const float base = F32FromBF16(Log8Base(3.f));
  EXPECT_GE(base, 3.f);
  EXPECT_EQ(Log8Encode(base, base), 255);
  EXPECT_EQ(Log8Table()[255], 1.f);
  EXPECT_EQ(Log8Table()[0], 0.f);
  EXPECT_EQ(Log8Encode(0, base), 0);
  EXPECT_EQ(Log8Encode(base * 0x1p-17f, base), 0);  // more than half a step below the smallest
  EXPECT_EQ(Log8Encode(base * 0x1p-16f, base), 1);
  for (int code = 1; code < 256; ++code) {
    const float value = base * Log8Table()[code];
    EXPECT_EQ(Log8Encode(value, base), code);
    EXPECT_EQ(Log8EncodeUp(value, base), code);
    EXPECT_NEAR(Log8Table()[code], std::exp2((code - 255) / 16.0), 1e-7);
  }
  for (float s = base * 0.001f; s < base; s *= 1.01f) {
    EXPECT_NEAR(base * Log8Table()[Log8Encode(s, base)] / s, 1.f, 0.0225f);  // half of 2^(1/16)
    EXPECT_GE(base * Log8Table()[Log8EncodeUp(s, base)], s * 0.9999f);
  }
}

TEST(Center, KeepsTheStrongestPairs) {
  const RopeFrequencies rope = TestRope(64);
  std::vector<float> mean(64, 0.f);
  EXPECT_TRUE(MakeHeadCenter(mean, rope).empty());
  for (int i = 0; i < 64; ++i) mean[i] = static_cast<float>(i % 32 + 1);
  const HeadCenter center = MakeHeadCenter(mean, rope);
  ASSERT_EQ(center.pairs.size(), 16u);
  EXPECT_EQ(center.pairs[0].i, 31);
  EXPECT_EQ(center.pairs[0].j, 63);
  EXPECT_EQ(center.pairs[15].i, 16);
}

TEST(Center, SubtractsTheTurnedMean) {
  RopeFrequencies rope = TestRope(8);
  rope.attention_scale = 1.5f;
  CenterTable table(rope);
  table.EnsureBlocks(40);
  // Channels 8, 9, 10 lie behind the rotated part: the mean is taken as it is.
  std::vector<float> mean = {1, -2, 3, 4, 5, 6, -7, 8, 9, 10, 11};
  const HeadCenter center = MakeHeadCenter(mean, rope);
  for (const int64_t position : {0, 1, 63, 64, 1000, 2500}) {
    std::vector<float> k(11, 0.f);
    table.Subtract(center, position, k.data());
    for (int i = 0; i < 4; ++i) {
      const double angle = static_cast<double>(rope.inv_freq[i]) * static_cast<double>(position);
      const double c = 1.5 * std::cos(angle), s = 1.5 * std::sin(angle);
      EXPECT_NEAR(k[i], -(mean[i] * c - mean[i + 4] * s), 2e-5);
      EXPECT_NEAR(k[i + 4], -(mean[i] * s + mean[i + 4] * c), 2e-5);
    }
    EXPECT_EQ(k[8], -9.f);
    EXPECT_EQ(k[9], -10.f);
    EXPECT_EQ(k[10], -11.f);
  }
}

}  // namespace
}  // namespace tq
