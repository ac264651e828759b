#include "runtime/evaluate/sweep.h"

#include <gtest/gtest.h>

#include "runtime/evaluate/fakes_for_test.h"

namespace tq {
namespace {

SweepRow Row(const std::string& name, double bits, double scales, double kld, double error,
             std::optional<double> ms = {}) {
  SweepRow row;
  row.name = name;
  row.bits_per_value = bits;
  row.scales_share = scales;
  row.all.mean = kld;
  row.all.mean_stderr = error;
  row.step_ms = ms;
  return row;
}

TEST(Sweep, FrontsAndWhatEatsItsGain) {
  SweepResult r;
  r.rows = {Row("k4v4", 4.125, 0.03, 0.002, 1e-4, 5), Row("k4v4-group16", 6, 0.33, 0.0018, 1e-4, 7),
            Row("k6v6", 6, 0.02, 0.0005, 1e-4, 6), Row("k3v2-group32", 3.5, 0.28, 0.02, 1e-3, 4),
            Row("k5v5-group64", 5.5, 0.1, 0.00195, 1e-3, 9)};
  CompareSweepRows(&r);
  EXPECT_TRUE(r.rows[0].on_bits_front);
  EXPECT_FALSE(r.rows[1].on_bits_front);
  EXPECT_EQ(r.rows[1].beaten_by, "k6v6");
  EXPECT_TRUE(r.rows[2].on_bits_front);
  EXPECT_TRUE(r.rows[3].on_bits_front);
  EXPECT_TRUE(r.rows[4].on_bits_front);
  EXPECT_EQ(r.rows[4].beaten_by, "");  // the difference is within the errors
  EXPECT_TRUE(r.rows[2].on_time_front);
  EXPECT_FALSE(r.rows[1].on_time_front);
  ASSERT_EQ(r.findings.size(), 1u);
  EXPECT_EQ(r.findings[0],
            "k4v4-group16 spends 33.0 % of its bytes on scales and has a KL of 0.00180 at 6.000 "
            "bits; k6v6 has 0.00050 at 6.000 bits (2.0 % scales).");
  const auto j = SweepJson(r);
  EXPECT_EQ(j["rows"][1]["beaten_by"], "k6v6");
  EXPECT_TRUE(j["rows"][0]["beaten_by"].is_null());
}

TEST(Sweep, MeasuresEveryFormatAndItsTime) {
  ThreadPool pool(2);
  TinyModel model(pool);
  SweepOptions options;
  options.reference = {"f16", &model, model.Config("f16")};
  for (const char* f : {"k8v8", "k2v2", "k2v2-group16"}) {
    options.formats.push_back({f, &model, model.Config(f)});
  }
  EvalText& text = options.texts.emplace_back();
  uint64_t seed = 1;
  std::vector<TokenId>& w = text.windows.emplace_back();
  while (w.size() < 700) w.push_back(static_cast<TokenId>(SplitMix64(seed) % 256));
  options.depth = 64;
  std::vector<std::string> timed;
  options.step_ms = [&](const Stream& s) -> Result<double> {
    timed.push_back(s.name);
    return static_cast<double>(timed.size());
  };
  const Result<SweepResult> r = RunSweep(options);
  ASSERT_TRUE(r.ok()) << r.status().ToString();
  EXPECT_EQ(timed, (std::vector<std::string>{"f16", "k8v8", "k2v2", "k2v2-group16"}));
  EXPECT_EQ(*r->plain_step_ms, 1);
  EXPECT_EQ(*r->rows[2].step_ms, 4);
  EXPECT_LT(r->rows[0].all.mean, r->rows[1].all.mean);
  // Finer scales take a larger share.
  EXPECT_GT(r->rows[2].scales_share, r->rows[1].scales_share);
  EXPECT_GT(r->rows[2].bits_per_value, r->rows[1].bits_per_value);
  EXPECT_NE(SweepSection(*r).find("Time against KL"), std::string::npos);
  options.step_ms = [](const Stream&) -> Result<double> { return Unavailable("no clock"); };
  EXPECT_EQ(RunSweep(options).status().message(), "no clock");
}

}  // namespace
}  // namespace tq
