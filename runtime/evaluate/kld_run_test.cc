#include "runtime/evaluate/kld_run.h"

#include <gtest/gtest.h>

#include "runtime/evaluate/fakes_for_test.h"

namespace tq {
namespace {

class KldRunTest : public testing::Test {
 protected:
  KldOptions Options(const std::vector<std::string>& formats, std::vector<size_t> lengths) {
    KldOptions o;
    o.reference = Of("f16");
    o.floor = Of("k8v8");
    for (const std::string& f : formats) o.candidates.push_back(Of(f));
    uint64_t seed = 5;
    for (const size_t n : lengths) {
      EvalText& text = o.texts.emplace_back();
      text.name = "text " + std::to_string(o.texts.size());
      std::vector<TokenId>& w = text.windows.emplace_back();
      while (w.size() < n) w.push_back(static_cast<TokenId>(SplitMix64(seed) % 256));
    }
    return o;
  }
  Stream Of(const std::string& preset) { return {preset, &model_, model_.Config(preset)}; }
  KldResult Run(const KldOptions& options) {
    Result<KldResult> r = RunKld(options);
    EXPECT_TRUE(r.ok()) << r.status().ToString();
    return r.ok() ? std::move(*r) : KldResult{};
  }

  ThreadPool pool_{2};
  TinyModel model_{pool_};
};

TEST_F(KldRunTest, RowsTextsAndFloor) {
  const KldResult r = Run(Options({"k8v8", "k2v2"}, {1600, 500}));
  ASSERT_EQ(r.rows.size(), 2u);
  EXPECT_EQ(r.tokens, 2100);
  EXPECT_EQ(r.windows, 2);
  EXPECT_EQ(r.context_len, 1600);
  const KldRow& worst = r.rows[1];
  EXPECT_EQ(worst.total.all.positions, 2100);
  ASSERT_EQ(worst.texts.size(), 2u);
  EXPECT_EQ(worst.texts[0].all.positions, 1600);
  EXPECT_EQ(worst.texts[1].all.positions, 500);
  EXPECT_NEAR(1600 * worst.texts[0].all.mean + 500 * worst.texts[1].all.mean,
              2100 * worst.total.all.mean, 1e-6);
  // Blocks 22 to 24 of the first text have 16 sealed ones behind them (4 recent, 1 sink).
  EXPECT_EQ(worst.total.behind.positions, 1600 - 21 * 64);
  EXPECT_EQ(worst.layer_cosine.size(), static_cast<size_t>(TinyModel::kLayers));
  EXPECT_EQ(r.floor.all.mean, r.rows[0].total.all.mean);
  EXPECT_EQ(r.rows[0].verdict, KldVerdict::kSame);
  EXPECT_EQ(worst.verdict, KldVerdict::kWorse);
  EXPECT_TRUE(r.passed());  // nothing was asked
}

TEST_F(KldRunTest, GateNamesWhatFailed) {
  KldOptions options = Options({"k8v8", "k2v2"}, {700});
  options.gate.max_kld = 1e-9;
  options.gate.min_same_top = 0;
  const KldResult r = Run(options);
  EXPECT_FALSE(r.passed());
  ASSERT_GE(r.rows[1].failures.size(), 1u);
  EXPECT_NE(r.rows[1].failures[0].find("is above"), std::string::npos);
  const auto j = KldJson(r);
  EXPECT_FALSE(j["passed"].get<bool>());
  EXPECT_FALSE(j["rows"][1]["passed"].get<bool>());
}

// Bounds that are kept prove nothing where the plain model itself predicts nothing.
TEST(ApplyGate, PassesOnlyOnTextsThatSaySomething) {
  KldResult r;
  r.rows.resize(1);
  r.rows[0].total.all.mean = 0.001;
  r.gate.max_kld = 0.01;
  ApplyGate(&r);
  EXPECT_TRUE(r.passed());
  r.informative = false;
  r.note = "guesses";
  ApplyGate(&r);
  EXPECT_FALSE(r.passed());
  EXPECT_EQ(r.rows[0].failures.back(), "not informative, so that no bound is proven: guesses");
  r.gate = {};
  ApplyGate(&r);
  EXPECT_TRUE(r.passed()) << "nothing was asked";
}

// The rule that a calibration's target, a profile's block `quality` and --max-kld share.
TEST(GateFailures, ABoundOnTheKlIsFailedBeyondItsStandardError) {
  DivergenceSummary s;
  s.mean = 0.0055;
  s.mean_stderr = 0.0006;
  s.ppl_ratio = 1.02;
  s.ppl_ratio_stderr = 0.5;
  KldGate gate;
  gate.max_kld = 0.005;
  EXPECT_TRUE(GateFailures(gate, s, "").empty());
  s.mean_stderr = 0.0004;
  const std::vector<std::string> above = {"mean KL 0.00550 \u00b1 0.00040 is above 0.00500"};
  EXPECT_EQ(GateFailures(gate, s, ""), above);
  // Ratios are compared as they are, and nothing is failed that was not asked.
  gate = {};
  EXPECT_TRUE(GateFailures(gate, s, "guesses").empty());
  gate.max_ppl_ratio = 1.01;
  EXPECT_EQ(GateFailures(gate, s, "guesses").size(), 2u);
}

// A profile that is measured on what it was calibrated on flatters itself, and that is said.
TEST_F(KldRunTest, SaysWhenTheCalibrationHasReadTheText) {
  KldOptions options = Options({"k4v4", "k3v2"}, {1600});
  const KldOptions others = Options({"k4v4"}, {1600, 1600});
  options.calibrated_on = {TextSketch(options.texts[0].windows),
                           TextSketch(others.texts[1].windows)};
  const KldResult r = Run(options);
  EXPECT_GT(r.rows[0].seen.share(), 0.9);
  EXPECT_EQ(SeenWords(r.rows[0].seen).find("about 100 % of this text was read by its calibration"),
            0u)
      << SeenWords(r.rows[0].seen);
  EXPECT_EQ(SeenWords(r.rows[1].seen), "");
  const auto j = KldJson(r);
  EXPECT_TRUE(j["rows"][0]["seen_by_calibration"]["certain"].get<bool>());
  EXPECT_FALSE(j["rows"][1]["seen_by_calibration"]["certain"].get<bool>());
  EXPECT_NE(KldSection(r).find("But about 100 % of this text"), std::string::npos);
  options.calibrated_on.clear();  // of a preset nothing is known, nor of profiles of old
  EXPECT_FALSE(KldJson(Run(options))["rows"][0].contains("seen_by_calibration"));
}

// A zero of no positions would keep every bound.
TEST_F(KldRunTest, WhatWasNotMeasuredIsNull) {
  const auto j = KldJson(Run(Options({"k4v4"}, {300})));
  EXPECT_EQ(j["kld_behind_1024"]["positions"], 0);
  EXPECT_TRUE(j["kld_behind_1024"]["mean"].is_null());
  EXPECT_TRUE(j["kld_behind_1024"]["same_top"].is_null());
  EXPECT_TRUE(j["kld"]["mean"].is_number());
}

// Windows of equal texts can be compared pair by pair.
TEST_F(KldRunTest, EveryWindowIsTold) {
  const auto j = KldJson(Run(Options({"k4v4"}, {500, 500, 500})));
  double mean = 0;
  size_t windows = 0;
  for (const auto& text : j["by_text"]) {
    for (const auto& kld : text["kld_by_window"]) {
      mean += kld.get<double>();
      ++windows;
    }
  }
  ASSERT_EQ(windows, 3u);
  EXPECT_NEAR(mean / 3, j["kld"]["mean"].get<double>(), 1e-9);
  EXPECT_GT(mean, 0);
}

// A changed model may predict this text better by chance: that is not a quality.
TEST_F(KldRunTest, LowerPerplexityWithMoreDivergenceIsWorse) {
  const auto sentence = [&](bool lower) {
    for (const char* preset : {"k2v2", "k3v2", "k2v4", "k4v2", "k3v3", "k2v3"}) {
      for (const size_t length : {600, 700, 800}) {
        const KldResult r = Run(Options({preset}, {length}));
        const KldRow& row = r.rows[0];
        if (row.verdict != KldVerdict::kWorse) continue;
        if ((row.total.all.ppl_ratio < 1) == lower) return row.explanation;
      }
    }
    return std::string();
  };
  const std::string lower = sentence(true), higher = sentence(false);
  EXPECT_EQ(lower.rfind("worse: its KL is ", 0), 0u) << lower;
  EXPECT_NE(lower.find("lower is no gain"), std::string::npos) << lower;
  EXPECT_EQ(higher.rfind("worse: its KL is ", 0), 0u) << higher;
  EXPECT_EQ(higher.find("no gain"), std::string::npos) << higher;
}

TEST_F(KldRunTest, JsonHasThePromisedKeys) {
  const auto j = KldJson(Run(Options({"k3v2"}, {400})));
  for (const char* key : {"mean", "mean_stderr", "median", "p90", "p95", "p99", "p999", "max"}) {
    EXPECT_TRUE(j["kld"][key].is_number()) << key;
  }
  for (const char* key : {"f16", "quantized", "ratio", "ratio_stderr"}) {
    EXPECT_TRUE(j["ppl"][key].is_number()) << key;
  }
  for (const char* key : {"same_top", "same_top_stderr", "delta_p_rms", "one_minus_tvd",
                          "bits_per_value", "tokens"}) {
    EXPECT_TRUE(j[key].is_number()) << key;
  }
  EXPECT_GT(j["floor"]["kld_mean"].get<double>(), 0);
  EXPECT_EQ(j["by_layer"].size(), static_cast<size_t>(TinyModel::kLayers));
  EXPECT_EQ(j["by_position"].size(), 7u);  // blocks of 64
  EXPECT_FALSE(j.contains("rows"));
  // Random bytes are not predicted: the report says that it proves nothing.
  EXPECT_EQ(j["informative"].get<bool>(), j["ppl"]["f16"].get<double>() <= 25.7);
}

TEST_F(KldRunTest, SectionIsEscapedAndHasCharts) {
  KldOptions options = Options({"k4v4", "k3v2"}, {300, 200});
  options.texts[0].name = "a<b>.txt";
  options.candidates[0].name = "<k4v4>";
  const std::string html = KldSection(Run(options));
  EXPECT_EQ(html.find("<b>"), std::string::npos);
  EXPECT_NE(html.find("a&lt;b&gt;.txt"), std::string::npos);
  EXPECT_EQ(html.find("<k4v4>"), std::string::npos);
  size_t charts = 0;
  for (size_t at = 0; (at = html.find("<canvas>", at)) != std::string::npos; ++at) ++charts;
  EXPECT_EQ(charts, 4u);
}

}  // namespace
}  // namespace tq
