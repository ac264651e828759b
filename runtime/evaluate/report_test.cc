#include "runtime/evaluate/report.h"

#include <gtest/gtest.h>

#include <string>

namespace tq {
namespace {

CompareRow Row(const std::string& name, const std::string& preset, double kld) {
  CompareRow row;
  row.name = name;
  row.is_plain = preset == "f16";
  row.config.num_layers = row.config.num_kv_heads = 1;
  row.config.head_dim = 64;
  row.config.formats = {*ParsePreset(preset)};
  row.bytes.payload = 1 << 20;
  row.f16_bytes = 4 << 20;
  row.ratio = 4;
  row.bits_per_value = 4;
  row.all.mean = kld;
  row.by_position = {{0, 64, 0, 64}, {64, 128, kld, 64}};
  row.by_depth = {{128, 1.5}};
  row.answer = " 7421.</script><b>";
  row.answer_is_right = true;
  return row;
}

CompareResult Sample() {
  CompareResult r;
  r.model_name = "A <model> & co";
  r.tokens = 128;
  r.document.name = "text.txt";
  r.document.detail = "The number is 7421.";
  r.document.question = "The number is";
  r.document.expected = "7421";
  r.floor_name = "k8v8";
  r.rows = {Row("f16", "f16", 0), Row("k4v4", "k4v4", 0.25)};
  r.plain = r.rows[0];
  return r;
}

TEST(Report, IsSelfContainedAndEscaped) {
  Provenance p;
  p.model_path = "a\"b.gguf";
  p.command = "tq compare --data 'x<y'";
  const std::string html = RenderReport(Sample(), p);
  EXPECT_NE(html.find("Chart.js v3"), std::string::npos);
  EXPECT_EQ(html.find("src="), std::string::npos);  // nothing is loaded
  EXPECT_NE(html.find("A &lt;model&gt; &amp; co"), std::string::npos);
  EXPECT_NE(html.find("7421.&lt;/script&gt;"), std::string::npos);
  EXPECT_NE(html.find("a&quot;b.gguf"), std::string::npos);
  EXPECT_NE(html.find("tq compare --data &#39;x&lt;y&#39;"), std::string::npos);
  // The page has two script elements and both end where they should.
  size_t closings = 0;
  for (size_t at = 0; (at = html.find("</script>", at)) != std::string::npos; ++at) ++closings;
  EXPECT_EQ(closings, 2u);
  EXPECT_TRUE(html.ends_with("</html>\n"));
}

TEST(Report, ChartDataLeavesOutWhatALogAxisCannotShow) {
  const std::string html = RenderReport(Sample(), {});
  EXPECT_NE(html.find("\"by_position\":[{\"x\":96.0,\"y\":0.25}]"), std::string::npos);
  EXPECT_NE(html.find("\"by_depth\":[{\"x\":128,\"y\":1.5}]"), std::string::npos);
}

TEST(Report, EscapesControlCharacters) {
  EXPECT_EQ(EscapeHtml("a\x01\tb\n"), "a\xEF\xBF\xBD\tb\n");
}

}  // namespace
}  // namespace tq
