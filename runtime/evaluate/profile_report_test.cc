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
  p.sensitivity = Profile::Sensitivity{2, {1e-5, 1e-1, 1e-3, 1e-5}, {0, 1e-5, 1e-5, 1e-5}};
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
  p.calibration = Profile::Calibration{0x12ab, 48, 98304, 2048, "kld", 2.75, 0, "2026-11-30"};
  p.quality = Profile::Quality{32768, 16, 0.004, 0.0003, 0.05, 0.0005, 0.975, 1.001, 0.005, "cpu",
                               true};
  p.bits_all_counted = {{8192, 2.92}};
  const auto facts = ProfileFacts(p);
  ASSERT_EQ(facts.size(), 6u);
  EXPECT_NE(facts[2].second.find("; 2.920 bits with all counted at 8192 tokens"),
            std::string::npos);
  EXPECT_EQ(facts[3].second,
            "98304 tokens in 48 sequences, at a context of 2048, objective kld, budget 2.75 bits, "
            "2026-11-30; data 00000000000012ab");
  EXPECT_EQ(facts[4].second,
            "on 32768 tokens of held-out text in 16 windows, KL 0.00400 \xC2\xB1 0.00030 (99 %: "
            "0.0500), of k8v8 0.00050, the same likeliest token 97.50 %, perplexity ratio 1.0010; "
            "measured on cpu");
  EXPECT_EQ(facts[5].second, "passed: a KL of at most 0.005 was asked for");
}

TEST(ProfilePage, HoldsTheMapAndEscapesNames) {
  Profile p = TwoLayers();
  p.sensitivity = Profile::Sensitivity{2, {1e-3, 1e-1}, {1e-3, 1e-3}};  // by layer
  const std::string page = ProfilePage(p, "a&b.tqprofile");
  EXPECT_EQ(page.find("Tiny <b>"), std::string::npos);
  EXPECT_NE(page.find("Tiny &lt;b&gt;"), std::string::npos);
  EXPECT_NE(page.find("a&amp;b.tqprofile"), std::string::npos);
  EXPECT_NE(page.find("all heads"), std::string::npos);
  EXPECT_NE(page.find(">0.1</td>"), std::string::npos);
}

}  // namespace
}  // namespace tq
