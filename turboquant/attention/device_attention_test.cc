#include "turboquant/attention/device_attention.h"

#include <gtest/gtest.h>

#include <cmath>

#include "turboquant/attention/device_attention_for_test.h"

namespace tq {
namespace {

using testing_util::ConfigOf;
using testing_util::Shape;
using OnDevice = testing_util::DeviceAttentionTest;

TEST(DeviceAttention, FormatsThatTheKernelLacksAreNamed) {
  for (const char* preset : {"k2v2", "k3v2", "k4v4", "k2v4", "k3v2-anchor1", "k8v8", "k8v4", "f16",
                             "bf16", "fp8", "k16v3", "k4v4-group32", "k8v2-group16"}) {
    for (const int dim : {64, 128, 256}) {
      EXPECT_TRUE(CheckDeviceFormat(*ParsePreset(preset), dim, RecentType::kQ8).ok()) << preset;
      EXPECT_TRUE(CheckDeviceFormat(*ParsePreset(preset), dim, RecentType::kF16).ok()) << preset;
    }
  }
  for (const char* preset : {"k5v5", "k6v4", "k3v2-trellis", "k5v4-group32"}) {
    const Status s = CheckDeviceFormat(*ParsePreset(preset), 128, RecentType::kQ8);
    EXPECT_EQ(s.code(), StatusCode::kUnsupported);
    EXPECT_NE(s.message().find(
                  StrCat(preset, " at head_dim 128; supported: f16, bf16, fp8 and k<a>v<b>")),
              std::string::npos)
        << s.message();
  }
  EXPECT_FALSE(CheckDeviceFormat(*ParsePreset("k4v4"), 96, RecentType::kQ8).ok());
  HeadFormat matrix = *ParsePreset("k4v4");
  matrix.k.rotate = Rotate::kMatrix;
  EXPECT_EQ(CheckDeviceFormat(matrix, 64, RecentType::kQ8).code(), StatusCode::kUnsupported);
}

// Query digits keep 10 bits or more, weight digits 9 or more: about 1e-3 of the output for random
// data, where the output is an average that cancels. 4e-3 is stated.
constexpr double kBound = 4e-3;

TEST_F(OnDevice, EveryPairOfWidths) {
  for (const char* preset :
       {"k2v2", "k2v3", "k2v4", "k3v2", "k3v3", "k3v4", "k4v2", "k4v3", "k4v4"}) {
    Check({.presets = {preset}, .lengths = {1000}}, kBound, preset);
  }
}

TEST_F(OnDevice, EveryLengthAroundTheEdges) {
  for (const char* preset : {"k3v2", "k4v4"}) {
    Check({.presets = {preset},
           .lengths = {0,   1,   2,   31,  32,  33,  63,  64,  65,  127,  128,  129, 191,
                       192, 193, 255, 256, 257, 319, 320, 321, 511, 4095, 4096, 4097}},
          kBound, preset);
  }
}

TEST_F(OnDevice, EveryHeadDimAndGroup) {
  for (const int dim : {64, 128, 256}) {
    for (const int group : {1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 20}) {
      Check({.presets = {"k3v2", "k4v3"}, .head_dim = dim, .group = group, .lengths = {777, 130}},
            kBound, StrCat("head_dim ", dim, " group ", group));
    }
  }
}

TEST_F(OnDevice, CalibratedBooks) {
  for (const char* preset : {"k2v2", "k3v3", "k4v4"}) {
    Check({.presets = {preset}, .lengths = {700}, .calibrated = true}, kBound, preset);
  }
}

TEST_F(OnDevice, Centres) {
  for (const char* preset : {"k2v2", "k3v2", "k4v4"}) {
    for (const int dim : {64, 128, 256}) {
      for (const int group : {1, 8, 16}) {
        Check({.presets = {preset, preset},
               .head_dim = dim,
               .group = group,
               .lengths = {900, 65, 31},
               .center = 1},
              kBound, StrCat(preset, " head_dim ", dim, " group ", group));
      }
    }
  }
  // Longer than the keys, as biases are; turned only in part; with a scale on the angles.
  Check({.presets = {"k3v2"}, .group = 4, .lengths = {700}, .center = 30}, kBound, "long");
  Check({.presets = {"k3v2"}, .group = 4, .lengths = {700}, .center = 1, .rope_dim = 24}, kBound,
        "partial RoPE");
  Check({.presets = {"k3v2"}, .group = 4, .lengths = {700}, .center = 1, .attention_scale = 1.3f},
        kBound, "scaled");
  Check({.presets = {"k3v2"}, .lengths = {5000, 20}, .num_tokens = 3, .softcap = 4, .center = 1},
        kBound, "soft cap and three queries");
}

// With one row of queries, centres of up to four pages of a warp are made at once.
TEST_F(OnDevice, CentresOfManyPages) {
  for (const char* preset : {"k2v2", "k3v2", "k4v4"}) {
    for (const int dim : {64, 128}) {
      Check(
          {.presets = {preset, "k3v2"}, .head_dim = dim, .lengths = {9000, 2500, 700}, .center = 1},
          kBound, StrCat(preset, " head_dim ", dim));
    }
  }
  Check({.presets = {"k3v2"},
         .lengths = {2500},
         .softcap = 4,
         .sliding_window = 1500,
         .center = 1,
         .rope_dim = 24,
         .attention_scale = 1.3f},
        kBound, "soft cap, sliding window, partial RoPE, scaled");
}

TEST_F(OnDevice, Anchors) {
  for (const char* preset : {"k2v2", "k3v2", "k4v4"}) {
    for (const int dim : {64, 128, 256}) {
      for (const int bits : {4, 8}) {
        for (const int anchors : {1, 2, 4}) {
          Check({.presets = {preset, preset},
                 .head_dim = dim,
                 .group = anchors == 4 ? 16 : 2 * anchors,
                 .lengths = {900, 400},
                 .center = anchors == 2 ? 1.f : 0.f,
                 .anchors = anchors,
                 .anchor_bits = bits},
                kBound,
                StrCat(preset, " head_dim ", dim, ", ", anchors, " anchors of ", bits, " bits"));
        }
      }
    }
  }
}

// Few launches, for the sanitizers.
TEST_F(OnDevice, OneOfEverything) {
  Check({.presets = {"k3v2", "k4v4"},
         .head_dim = 64,
         .group = 3,
         .lengths = {700, 130},
         .num_tokens = 2,
         .softcap = 5,
         .sliding_window = 400,
         .center = 1,
         .anchors = 2},
        kBound, "head_dim 64");
  Check({.presets = {"k3v2"}, .lengths = {700}, .center = 1, .anchors = 1}, kBound, "head_dim 128");
}

TEST_F(OnDevice, HeadsOfOneLayerMayDiffer) {
  Check({.presets = {"k2v2", "k4v4", "k3v2", "k4v2"}, .group = 4, .lengths = {3000, 64, 999}},
        kBound, "mixed");
}

TEST_F(OnDevice, UnevenBatches) {
  std::vector<int> lengths;
  for (int i = 0; i < 70; ++i) lengths.push_back(i * i * 37 % 1500);
  Check({.presets = {"k3v2", "k3v2"}, .head_dim = 64, .group = 3, .lengths = lengths}, kBound,
        "70 sequences");
  // So many units that several thread blocks share a multiprocessor.
  lengths.clear();
  for (int i = 0; i < 300; ++i) lengths.push_back(i * 37 % 290);
  Check({.presets = {"k3v2", "k4v4"}, .head_dim = 64, .group = 2, .lengths = lengths, .center = 1},
        kBound, "300 sequences");
}

TEST_F(OnDevice, SeveralQueriesOfASequence) {
  for (const int n : {2, 3, 5, 8}) {
    for (const int group : {1, 4, 8}) {
      Check({.presets = {"k4v4", "k3v2"},
             .group = group,
             .lengths = {1, 3, 8, 63, 64, 65, 66, 70, 71, 320, 321, 322, 700, 1026},
             .num_tokens = n},
            kBound, StrCat(n, " queries, group ", group));
    }
  }
}

TEST_F(OnDevice, SlidingWindows) {
  for (const int window : {1, 63, 64, 65, 200, 513}) {
    for (const int n : {1, 4}) {
      Check({.presets = {"k4v4", "k3v2"},
             .lengths = {5, 100, 400, 1030, 1088},
             .num_tokens = n,
             .sliding_window = window},
            kBound, StrCat("window ", window, ", ", n, " queries"));
    }
  }
}

TEST_F(OnDevice, Softcap) {
  Check({.presets = {"k4v4", "k3v2"}, .group = 2, .lengths = {50, 900}, .softcap = 3}, kBound,
        "softcap 3");
}

TEST_F(OnDevice, WindowsAndSinksOfOtherSizes) {
  for (const int recent : {0, 64, 256}) {
    for (const int sinks : {0, 64, 128}) {
      Check({.presets = {"k3v2"},
             .lengths = {64, 65, 130, 900},
             .recent_len = recent,
             .sink_len = sinks},
            kBound, StrCat("recent_len ", recent, ", sink_len ", sinks));
    }
  }
}

// The error stays within the bound that is reported, and pages are skipped at all; in a batch,
// where ranges are cut elsewhere, the same pages are.
TEST_F(OnDevice, SkippingStaysWithinItsBound) {
  for (const char* preset : {"k2v2", "k3v2", "k4v4", "k3v2-anchor1"}) {
    for (const int dim : {64, 128, 256}) {
      for (const int group : {1, 3, 8}) {
        const Shape shape{.presets = {preset, preset},
                          .head_dim = dim,
                          .group = group,
                          .lengths = {group == 1 ? 9000 : 2500},
                          .center = group == 8 ? 0.f : 1.f,
                          .anchors = ParsePreset(preset)->anchors};
        SCOPED_TRACE(StrCat(preset, " head_dim ", dim, " group ", group));
        for (const float eps : {1e-4f, 3e-2f, 0.3f}) {
          const SkipResult r = RunSkipping(shape, eps);
          double most = 0;
          for (size_t row = 0; row < r.out.size() / dim; ++row) {
            const double share = r.skipped[2 * row], bound = r.skipped[2 * row + 1];
            double error = 0, length = 0, other = 0;
            for (int c = 0; c < dim; ++c) {
              const double a = r.out[row * dim + c], b = r.plain[row * dim + c];
              const double o = r.in_batch[row * dim + c];
              error += (a - b) * (a - b), length += a * a, other += (a - o) * (a - o);
            }
            ASSERT_TRUE(share >= 0 && share < 1) << share;
            ASSERT_LE(std::sqrt(error),
                      share * std::sqrt(length) + bound + 4e-3 * std::sqrt(length))
                << "eps " << eps << ", row " << row << ", share " << share;
            // Another page would be a thousand times this.
            ASSERT_LE(std::sqrt(other), 1e-5 * std::sqrt(length) + 1e-6) << "row " << row;
            most = std::max(most, share);
          }
          if (eps == 0.3f) {
            EXPECT_GT(most, 0.001);
          }
        }
      }
    }
  }
}

// Few launches, for the sanitizers.
TEST_F(OnDevice, SkippingOfAFewShapes) {
  for (const int dim : {64, 128}) {
    const SkipResult r = RunSkipping({.presets = {"k3v2"},
                                      .head_dim = dim,
                                      .group = 2,
                                      .lengths = {1300},
                                      .center = 1,
                                      .anchors = 1},
                                     0.1f);
    for (const float s : r.skipped) EXPECT_TRUE(s >= 0 && std::isfinite(s)) << s;
  }
}

TEST_F(OnDevice, WithAnEpsThatNothingReachesNothingIsSkipped) {
  const SkipResult r = RunSkipping({.presets = {"k3v2"}, .lengths = {2000}}, 1e-30f);
  for (const float s : r.skipped) EXPECT_EQ(s, 0.f);
  EXPECT_LT(testing_util::RelativeDistance(r.out, r.plain), 1e-6);
}

TEST_F(OnDevice, SkippingIsRefusedWhereItHasNoKernel) {
  const CacheConfig config = ConfigOf({});
  auto device =
      DeviceCache::Create(config, {.max_tokens = 64, .open_slots = 2, .sealed_slots = 1}, *stream_);
  ASSERT_TRUE(device.ok());
  const auto create = [&](int q_heads, float eps) {
    return DeviceAttention::Create(**device, {.num_q_heads = q_heads, .v_skip = eps}, *stream_)
        .status();
  };
  EXPECT_TRUE(create(8, 0.01f).ok());
  EXPECT_EQ(create(9, 0.01f).code(), StatusCode::kUnsupported);
  EXPECT_NE(create(9, 0.01f).message().find("at most 8"), std::string::npos);
  EXPECT_EQ(create(1, 1.f).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(create(1, -0.1f).code(), StatusCode::kInvalidArgument);
}

// Long enough that many thread blocks share a unit.
TEST_F(OnDevice, LongSequences) {
  Check({.presets = {"k3v2"}, .group = 4, .lengths = {50000}}, kBound, "k3v2");
  Check({.presets = {"k4v4", "k2v2"}, .lengths = {20001, 30000}}, kBound, "two heads");
}

}  // namespace
}  // namespace tq
