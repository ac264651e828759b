// Which text a calibration reads, and how it brings layers into line.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "runtime/calibrate/planted_for_test.h"

namespace tq {
namespace {

using namespace planted;  // NOLINT(google-build-using-namespace)

using Rungs = std::vector<std::array<int, 2>>;

size_t LinesWith(const CalibrateResult& r, const std::string& words) {
  return static_cast<size_t>(std::count_if(
      r.log.begin(), r.log.end(),
      [&](const std::string& line) { return line.find(words) != std::string::npos; }));
}

// What the alignment measured, in order.
std::vector<const CalibrateTrial*> AlignedTrials(const CalibrateResult& r) {
  std::vector<const CalibrateTrial*> trials;
  for (const CalibrateTrial& t : r.trials) {
    if (t.name.find(", aligned") != std::string::npos) trials.push_back(&t);
  }
  return trials;
}

// The attention of the last layer is so sharp that few bits for its keys turn it elsewhere; what it
// says counts for nothing, so no allocation spends on it.
void PlantSharpAndMute(Planted* planted, float sharp) {
  planted->ScaleAll("blk.3.attn_q.weight", sharp);
  planted->ScaleAll("blk.3.attn_q.bias", sharp);
  planted->ScaleAll("blk.3.attn_output.weight", 1e-13f);
}

// As the alignment defines it: at most three times the median, errors of 0.1 are never too large.
double Limit(const CalibrateResult& r) {
  std::vector<double> errors;
  for (const CalibrateLayer& l : r.layers) errors.push_back(l.output_error);
  std::sort(errors.begin(), errors.end());
  return std::max(0.1, 3 * errors[errors.size() / 2]);
}

TEST(Calibrate, SearchAndProofReadAtLeastTwoWindows) {
  Planted planted;
  Model& model = planted.Load();
  CalibrateOptions o = Options(planted);
  o.site_tokens = o.search_tokens = o.held_out_tokens = 1;  // one window has more
  o.budget_bits = 2.8;
  o.granularity = Granularity::kLayer;
  const auto calibration = SomeWindows(4, 1), held_out = SomeWindows(3, 2);
  const auto r = Calibrate(model, calibration, held_out, o);
  ASSERT_TRUE(r.ok()) << r.status().ToString();
  EXPECT_GE(kCalibrateLeastWindows, 2u);
  for (const CalibrateTrial& t : r->trials) {
    EXPECT_EQ(t.window_means.size(), kCalibrateLeastWindows) << t.name;
  }
  EXPECT_EQ(r->held_out.window_means.size(), kCalibrateLeastWindows);
  EXPECT_EQ(r->profile.quality->windows, static_cast<int64_t>(kCalibrateLeastWindows));
  EXPECT_GT(r->gain_stderr, 0);
  // The sites read one: no error can be told, and none is shown.
  EXPECT_EQ(r->layers[0].k_stderr, 0);
  const std::string text = CalibrateText(*r);
  EXPECT_EQ(text.substr(0, text.find("observed on")).find("\u00b1"), std::string::npos) << text;

  // The search's are not the sites': the same cache over windows 1 and 2 shows the same.
  CacheConfig chosen = model.MakeCacheConfig();
  std::string note;
  ASSERT_TRUE(r->profile.Apply(model.StructureHash(), 0, &chosen, &note).ok());
  const auto scores = MeasureDivergence(
      {"f16", &model, model.MakeCacheConfig()}, std::vector<Stream>{{"chosen", &model, chosen}},
      std::span(calibration).subspan(1, kCalibrateLeastWindows), {});
  ASSERT_TRUE(scores.ok()) << scores.status().ToString();
  EXPECT_EQ(r->chosen.window_means, scores->front().window_means);
}

// Of one window nothing can be told beyond chance: the simplest stays.
TEST(Calibrate, OneWindowDecidesNothing) {
  Planted planted;
  planted.ScaleAll("blk.2.attn_q.weight", 4);
  planted.ScaleAll("blk.2.attn_output.weight", 6);
  Model& model = planted.Load();
  CalibrateOptions o = Options(planted);
  o.budget_bits = 2.67;
  Journal journal;
  o.journal = &journal;
  const auto calibration = SomeWindows(1, 1);
  const auto one = Calibrate(model, calibration, SomeWindows(1, 2), o);
  ASSERT_TRUE(one.ok()) << one.status().ToString();
  EXPECT_TRUE(one->kept_uniform);
  EXPECT_GT(one->gain, 0);
  const auto three = Calibrate(model, calibration, SomeWindows(3, 2), o);
  ASSERT_TRUE(three.ok()) << three.status().ToString();
  EXPECT_FALSE(three->kept_uniform);
}

TEST(Align, RaisesALayerStepByStepUntilItIsInLine) {
  Planted planted;
  PlantSharpAndMute(&planted, 4);
  Model& model = planted.Load();
  CalibrateOptions o = Options(planted);
  o.granularity = Granularity::kLayer;
  o.target_kld = 5e-5;
  const auto r = Calibrate(model, SomeWindows(4, 1), SomeWindows(3, 2), o);
  ASSERT_TRUE(r.ok()) << r.status().ToString();
  const auto steps = AlignedTrials(*r);
  ASSERT_GE(steps.size(), 2u);
  EXPECT_EQ(r->chosen.rungs, steps.back()->rungs);
  EXPECT_LE(r->layers[3].output_error, Limit(*r));

  // Each step raises one side of that layer by one rung in all heads, and nothing else.
  const Rungs* last = nullptr;
  for (const CalibrateTrial& t : r->trials) {
    if (t.name + ", aligned" == steps.front()->name) last = &t.rungs;
  }
  ASSERT_NE(last, nullptr);
  for (const CalibrateTrial* step : steps) {
    int raised = 0;
    for (size_t h = 0; h < last->size(); ++h) {
      for (const int side : {0, 1}) {
        const int by = step->rungs[h][side] - (*last)[h][side];
        EXPECT_TRUE(by == 0 || (by == 1 && h / kHeads == 3)) << h << ' ' << side << ' ' << by;
        raised += by;
      }
    }
    EXPECT_EQ(raised, kHeads);
    last = &step->rungs;
  }
  for (const int layer : {0, 1, 2, 3}) EXPECT_EQ(r->layers[layer].raised, layer == 3) << layer;
  EXPECT_EQ(LinesWith(*r, "alignment: layer 3 has an attention output error of"), steps.size());
  EXPECT_EQ(LinesWith(*r, "; raising "), steps.size());
  EXPECT_EQ(LinesWith(*r, "alignment: KL"), steps.size());
  EXPECT_EQ(LinesWith(*r, "still out of line"), 0u);
  EXPECT_TRUE(CalibrateJson(*r)["by_layer"][3]["raised"].get<bool>());
  EXPECT_FALSE(CalibrateJson(*r)["by_layer"][2]["raised"].get<bool>());
}

// The budget has room for one step; a second one takes from layers that count.
TEST(Align, KeepsTheLastStepThatDoesNoHarm) {
  Planted planted;
  PlantSharpAndMute(&planted, 16);
  Model& model = planted.Load();
  CalibrateOptions o = Options(planted);
  o.granularity = Granularity::kLayer;
  o.budget_bits = 4.2;  // 4 bits for all that counts, 2 for the mute layer, and one more for its K
  const auto r = Calibrate(model, SomeWindows(4, 1), SomeWindows(3, 2), o);
  ASSERT_TRUE(r.ok()) << r.status().ToString();
  const auto steps = AlignedTrials(*r);
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_EQ(r->chosen.rungs, steps[0]->rungs);
  EXPECT_GT(steps[1]->kld(), 1.03 * steps[0]->kld());
  EXPECT_TRUE(r->layers[3].raised);
  EXPECT_EQ(LinesWith(*r, "alignment: KL"), 1u);
  EXPECT_EQ(LinesWith(*r, "alignment: taken back, the KL grows from"), 1u);
  EXPECT_EQ(LinesWith(*r, "alignment: still out of line: layers 3"), 1u);
  // What is reported of the layer is of the step that was kept.
  EXPECT_GT(r->layers[3].output_error, Limit(*r));
  EXPECT_EQ(r->layers[3].k_bits + r->layers[3].v_bits, 5);
}

}  // namespace
}  // namespace tq
