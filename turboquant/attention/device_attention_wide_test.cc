// Decode attention over 8-bit codes, groups and float rows: decode_wide.cuh.
#include <gtest/gtest.h>

#include "turboquant/attention/device_attention_for_test.h"

namespace tq {
namespace {

using testing_util::ConfigOf;
using testing_util::Shape;
class WideOnDevice : public testing_util::DeviceAttentionTest {};

// What both sides store is multiplied with 16-bit digits or as sums of two 16-bit floats, so only
// those digits and the order of float32 sums are between this and float64: below 1e-4 of the output
// for random data, where the output is an average that cancels.
constexpr double kBound = 5e-4;
// With 2 to 4 bits and a log8 scale on one side: as in device_attention_test.cc.
constexpr double kBoundWithPlain = 4e-3;

constexpr const char* kWidths[] = {"2", "3", "4", "8", "16", "bf16", "fp8"};
constexpr const char* kEach[] = {"k8v8", "f16", "bf16", "fp8", "k4v4-group32"};

TEST_F(WideOnDevice, EveryPairOfWidths) {
  for (const char* k : kWidths) {
    for (const char* v : kWidths) {
      const std::string preset = StrCat("k", k, "v", v);
      const bool plain = std::strlen(k) == 1 || std::strlen(v) == 1;
      Check({.presets = {preset.c_str()}, .group = 2, .lengths = {600}},
            plain ? kBoundWithPlain : kBound, preset);
    }
  }
}

TEST_F(WideOnDevice, EveryGroupLengthAndWidth) {
  for (const char* widths : {"k2v3", "k3v2", "k4v4", "k8v8"}) {
    for (const int len : {16, 32, 64, 128}) {
      for (const int dim : {64, 128, 256}) {
        const std::string preset = StrCat(widths, "-group", len);
        Check({.presets = {preset.c_str()}, .head_dim = dim, .group = 2, .lengths = {400}}, kBound,
              StrCat(preset, " head_dim ", dim));
      }
    }
  }
}

TEST_F(WideOnDevice, EveryLengthAroundTheEdges) {
  for (const char* preset : kEach) {
    Check({.presets = {preset}, .head_dim = 64, .lengths = {0,   1,   2,   31,  32,  33,  63,  64,
                                                            65,  127, 128, 129, 191, 192, 193, 255,
                                                            256, 257, 319, 320, 321, 2049}},
          kBound, preset);
  }
}

TEST_F(WideOnDevice, EveryHeadDimAndGroup) {
  for (const char* preset : kEach) {
    for (const int dim : {64, 128, 256}) {
      for (const int group : {1, 3, 4, 5, 8, 16, 20}) {
        Check({.presets = {preset, preset}, .head_dim = dim, .group = group, .lengths = {460, 130}},
              kBound, StrCat(preset, " head_dim ", dim, " group ", group));
      }
    }
  }
}

// Axes that presets do not name: groups with books and gains, log8 scales and offsets, a rotation,
// none.
TEST_F(WideOnDevice, EveryKindOfScale) {
  struct Case {
    const char* name;
    double bound;
    void (*change)(HeadFormat*);
  };
  const Case cases[] = {
      {"rotated groups of a lloyd book", kBound,
       [](HeadFormat* f) { f->k.group_len = f->v.group_len = 32; }},
      {"f16 scale a token", kBound,
       [](HeadFormat* f) { f->k.scale = f->v.scale = ScaleType::kF16; }},
      {"groups without rotation and gain", kBound,
       [](HeadFormat* f) {
         for (Codec* c : {&f->k, &f->v}) {
           c->group_len = 16, c->rotate = Rotate::kNone, c->gain = Gain::kNone;
         }
       }},
      {"log8 scales with offsets", kBound,
       [](HeadFormat* f) {
         f->k = WithGroups(f->k, 64), f->v = WithGroups(f->v, 32);
         f->k.scale = f->v.scale = ScaleType::kLog8;
       }},
      {"offsets of whole vectors", kBound,
       [](HeadFormat* f) { f->k = WithGroups(f->k, kGroupHead), f->v = WithGroups(f->v, 0); }},
      {"codes without a rotation", kBoundWithPlain,
       [](HeadFormat* f) { f->k.rotate = f->v.rotate = Rotate::kNone; }},
  };
  for (const Case& c : cases) {
    for (const char* preset : {"k4v4", "k3v2"}) {
      Check({.presets = {preset}, .group = 3, .lengths = {500}, .change = c.change}, c.bound,
            StrCat(c.name, " ", preset));
    }
  }
}

TEST_F(WideOnDevice, HeadsOfOneLayerMayDiffer) {
  Check({.presets = {"f16", "k3v2", "k4v4-group32", "k8v8", "fp8", "kbf16v2", "k4v8"},
         .group = 4,
         .lengths = {1500, 64, 399}},
        kBoundWithPlain, "mixed");
}

TEST_F(WideOnDevice, SeveralQueriesOfASequence) {
  for (const char* preset : kEach) {
    for (const int n : {2, 5, 8}) {
      Check({.presets = {preset},
             .group = 2,
             .lengths = {1, 8, 63, 64, 65, 66, 70, 320, 321, 700},
             .num_tokens = n},
            kBound, StrCat(preset, ", ", n, " queries"));
    }
  }
}

TEST_F(WideOnDevice, SlidingWindowsSoftcapAndOtherWindows) {
  for (const char* preset : kEach) {
    for (const int window : {1, 64, 200}) {
      Check({.presets = {preset},
             .lengths = {5, 400, 1030},
             .num_tokens = 3,
             .softcap = 4,
             .sliding_window = window},
            kBound, StrCat(preset, " window ", window));
    }
    Check({.presets = {preset}, .lengths = {64, 65, 900}, .recent_len = 0, .sink_len = 0}, kBound,
          StrCat(preset, " without a window"));
  }
}

TEST_F(WideOnDevice, A16BitWindow) {
  for (const char* preset : {"k3v2", "k8v8", "k4v4-group32"}) {
    Check({.presets = {preset}, .group = 2, .lengths = {500, 33}, .recent = RecentType::kF16},
          kBoundWithPlain, preset);
  }
}

TEST_F(WideOnDevice, CentresAndAnchors) {
  for (const char* preset : {"k8v8", "k4v4-group32", "f16", "k8v4"}) {
    const int anchors = ParsePreset(preset)->k.is_float() ? 0 : 2;
    for (const int dim : {64, 128, 256}) {
      Check({.presets = {preset, preset},
             .head_dim = dim,
             .group = 4,
             .lengths = {600, 65},
             .center = 1,
             .anchors = anchors},
            kBoundWithPlain, StrCat(preset, " head_dim ", dim));
    }
  }
}

TEST_F(WideOnDevice, UnevenBatchesAndLongSequences) {
  std::vector<int> lengths;
  for (int i = 0; i < 60; ++i) lengths.push_back(i * i * 37 % 1100);
  Check({.presets = {"k8v8", "f16"}, .head_dim = 64, .group = 3, .lengths = lengths}, kBound,
        "60 sequences");
  Check({.presets = {"k4v4-group32", "k8v8"}, .lengths = {20001}}, kBound, "long");
}

// Few launches, for the sanitizers.
TEST_F(WideOnDevice, OneOfEverything) {
  for (const char* preset : {"f16", "kbf16vfp8", "k8v8", "k4v3-group32", "k2v8-group16"}) {
    Check({.presets = {preset}, .head_dim = 64, .group = 3, .lengths = {400}, .num_tokens = 2},
          kBound, preset);
  }
}

TEST_F(WideOnDevice, SkippingIsRefused) {
  for (const char* preset : {"k8v4", "f16"}) {
    auto device =
        DeviceCache::Create(ConfigOf({.presets = {preset}}),
                            {.max_tokens = 64, .open_slots = 2, .sealed_slots = 1}, *stream_);
    ASSERT_TRUE(device.ok());
    const Status s =
        DeviceAttention::Create(**device, {.num_q_heads = 1, .v_skip = 0.01f}, *stream_).status();
    EXPECT_EQ(s.code(), StatusCode::kUnsupported);
    EXPECT_NE(s.message().find(StrCat("skipping of V in a cache with ", preset, "; supported: ")),
              std::string::npos)
        << s.message();
  }
}

}  // namespace
}  // namespace tq
