#include "runtime/evaluate/plan_report.h"

#include <gtest/gtest.h>

namespace tq {
namespace {

TEST(PlanReport, IsSelfContainedAndEscaped) {
  ModelSpec spec;
  spec.name = "A <model>";
  spec.family = "numbers";
  LayerSpec layer;
  layer.num_kv_heads = 2;
  layer.head_dim = 64;
  spec.layers.assign(4, layer);
  spec.weights = {{.name = "all", .params = 1e9, .active = 1e9}};
  SurveyGrid grid;
  grid.contexts = {4096};
  grid.batches = {1};
  grid.weights = {*ParseWeightChoice("bf16")};
  grid.formats = {*CacheFormat::FromPreset("f16", {}), *CacheFormat::FromPreset("k4v4", {})};
  PlanOptions options;
  options.machine = *FindDevice("h100");
  const Result<Survey> survey = MakeSurvey(spec, grid, options);
  ASSERT_TRUE(survey.ok()) << survey.status().ToString();
  const Result<std::vector<Curve>> curves = MakeCurves(spec, grid, options);
  ASSERT_TRUE(curves.ok());
  ASSERT_EQ(curves->size(), 2u);
  EXPECT_EQ((*curves)[0].points.back().context, 4096);
  const std::string html =
      RenderPlanReport(*survey, *curves, "k4v4", {"1.2.3", "tq plan '</script>'"});
  EXPECT_NE(html.find("Chart.js v3"), std::string::npos);
  EXPECT_EQ(html.find("src="), std::string::npos);  // nothing is loaded
  EXPECT_EQ(html.find("{{"), std::string::npos);    // every mark was replaced
  EXPECT_NE(html.find("Plan: A &lt;model&gt;"), std::string::npos);
  EXPECT_NE(html.find("tq plan &#39;&lt;/script&gt;&#39;"), std::string::npos);
  EXPECT_NE(html.find("\"contexts\":[1024,2048,4096]"), std::string::npos);
  EXPECT_NE(html.find("class=\"good\""), std::string::npos);
  size_t closings = 0;
  for (size_t at = 0; (at = html.find("</script>", at)) != std::string::npos; ++at) ++closings;
  EXPECT_EQ(closings, 2u);
}

}  // namespace
}  // namespace tq
