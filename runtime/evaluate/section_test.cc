#include "runtime/evaluate/section.h"

#include <gtest/gtest.h>

namespace tq {
namespace {

TEST(Section, TextIsEscaped) {
  EXPECT_EQ(SectionHead("a < b"), "<h2>a &lt; b</h2>\n");
  EXPECT_EQ(SectionText("\"x\" & y"), "<p>&quot;x&quot; &amp; y</p>\n");
  EXPECT_NE(ListCard({{"k", "one\n <two>\n"}}).find("<dd>one<br> &lt;two&gt;</dd>"),
            std::string::npos);
  EXPECT_NE(ListCard({{"<k>", "<v>"}}).find("<dt>&lt;k&gt;</dt><dd>&lt;v&gt;</dd>"),
            std::string::npos);
  const std::string table = TableCard({"two\nlines"}, {{"<1>"}, {"2"}}, {1}, "a & b");
  EXPECT_NE(table.find("<th>two<br>lines</th>"), std::string::npos);
  EXPECT_NE(table.find("<tr><td>&lt;1&gt;</td></tr>"), std::string::npos);
  EXPECT_NE(table.find("<tr class=\"front\"><td>2</td></tr>"), std::string::npos);
  EXPECT_NE(table.find("a &amp; b"), std::string::npos);
}

TEST(Section, ChartsLeaveOutWhatALogarithmHasNoPlaceFor) {
  Chart chart;
  chart.title = "</script><b>";
  chart.y_log = true;
  chart.series = {{"</script>", {{0, 1}, {1, 0}, {2, -1}, {3, 0.5}}, true, 1}};
  const std::string html = ChartCard(chart);
  EXPECT_NE(html.find(R"("points":[{"x":0.0,"y":1.0},{"x":3.0,"y":0.5}])"), std::string::npos)
      << html;
  // Only the element's own end: the name inside is JSON with an escaped slash.
  EXPECT_EQ(html.find("</script>"), html.rfind("</script>"));
}

TEST(Section, PageIsSelfContained) {
  const std::string sections[] = {SectionHead("One"), SectionHead("Two")};
  const std::string html = SectionsPage("A <title>", "sub & more", sections);
  EXPECT_NE(html.find("<h1>A &lt;title&gt;</h1>"), std::string::npos);
  EXPECT_LT(html.find("<h2>One</h2>"), html.find("<h2>Two</h2>"));
  EXPECT_NE(html.find("Chart.js v3"), std::string::npos);
  EXPECT_EQ(html.find("src="), std::string::npos);
  EXPECT_EQ(html.find("{{"), std::string::npos);
  EXPECT_TRUE(html.ends_with("</html>\n"));
}

}  // namespace
}  // namespace tq
