#include "runtime/evaluate/profile_report.h"

#include <gtest/gtest.h>

namespace tq {
namespace {

Profile TwoLayers() {
  Profile p;
  p.model.name = "Tiny <b>";
  p.model.architecture = "llama";
  p.model.num_layers = 2;
  p.model.num_q_heads = 4;
  p.model.num_kv_heads = 2;
  p.model.head_dim = 64;
  p.formats.assign(4, *ParsePreset("k3v2"));
  p.formats[1] = *ParsePreset("k8v4");
  p.formats[3].v = ParsePreset("f16")->v;
  return p;
}

TEST(ProfileMapText, ShowsBitsOfEveryLayerAndHead) {
  EXPECT_EQ(ProfileMapText(TwoLayers(), false),
            "layer  K bits      V bits\n"
            "    0   3  8        2  4\n"
            "    1   3  3        2 16\n");
  const std::string colored = ProfileMapText(TwoLayers(), true);
  EXPECT_NE(colored.find("\x1b[48;5;153;38;5;16m 3 \x1b[0m"), std::string::npos);
  EXPECT_NE(colored.find("\x1b[48;5;25;38;5;231m 8 \x1b[0m"), std::string::npos);
}

TEST(ProfileMapText, ShowsWhatEachCostsAlone) {
  Profile p = TwoLayers();
  p.sensitivity = ProfileSensitivity{2, {1e-5, 1e-1, 1e-3, 1e-5}, {0, 1e-5, 1e-5, 1e-5}};
  EXPECT_EQ(ProfileMapText(p, false),
            "layer  K bits      V bits      K alone  V alone\n"
            "    0   3  8        2  4       .@       ..\n"
            "    1   3  3        2 16       +.       ..\n"
            "alone: mean KL when only this K or V has 2 bits, from 1e-05 (.) to 0.1 (@)\n");
}

TEST(ProfileFacts, SaysWhatIsKnownInWords) {
  Profile p = TwoLayers();
  const auto plain = ProfileFacts(p);
  EXPECT_EQ(plain.front(), std::pair(std::string("model"), std::string("Tiny <b>, llama")));
  EXPECT_EQ(plain.back().second, "not verified on held-out text");
  p.calibration = ProfileCalibration{0x12ab, 48, 98304, 2048, "kld", 2.75, 0, "2026-11-30"};
  p.quality =
      ProfileQuality{32768, 16, 0.004, 0.0003, 0.05, 0.0005, 0.975, 1.001, 0.005, "cpu", true};
  p.bits_all_counted = {{8192, 2.92}, {1024, 5.1}};
  const auto facts = ProfileFacts(p);
  ASSERT_EQ(facts.size(), 6u);
  EXPECT_TRUE(facts[2].second.ends_with(
      "; with the window of recent tokens 5.100 at 1,024 tokens, 2.920 at 8,192 tokens"))
      << facts[2].second;
  EXPECT_EQ(facts[3].second,
            "98,304 tokens of 48 texts or requests, at a context of 2,048, objective kld, budget "
            "2.75 bits, "
            "2026-11-30; data 00000000000012ab");
  EXPECT_EQ(facts[4].second,
            "on 32,768 tokens of held-out text in 16 windows: KL to the 16-bit cache 0.00400 "
            "\xC2\xB1 0.00030 (99 of 100 tokens below 0.0500); 8 bits everywhere 0.00050; the same "
            "likeliest next token at 97.50 %; perplexity times 1.0010; measured on cpu");
  EXPECT_EQ(facts[5].second, "passed: a KL of at most 0.005 was asked for");
}

TEST(ProfilePage, HoldsTheMapAndEscapesNames) {
  Profile p = TwoLayers();
  p.sensitivity = ProfileSensitivity{2, {1e-3, 1e-1}, {1e-3, 1e-3}};  // by layer
  const std::string page = ProfilePage(p, "a&b.tqprofile");
  EXPECT_EQ(page.find("Tiny <b>"), std::string::npos);
  EXPECT_NE(page.find("Tiny &lt;b&gt;"), std::string::npos);
  EXPECT_NE(page.find("a&amp;b.tqprofile"), std::string::npos);
  EXPECT_NE(page.find("all heads"), std::string::npos);
  EXPECT_NE(page.find(">100000</td>"), std::string::npos);
}

}  // namespace
}  // namespace tq
