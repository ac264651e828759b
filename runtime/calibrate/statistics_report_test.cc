#include "runtime/calibrate/statistics_report.h"

#include <gtest/gtest.h>

namespace tq {
namespace {

// Three layers of two heads; the middle one has a sliding window and so nothing to show.
ModelStatistics Observed() {
  ModelStatistics s;
  s.tokens = 12345;
  s.heads.resize(6);
  s.attention.resize(3);
  for (const size_t l : {size_t{0}, size_t{2}}) {
    for (size_t h = 2 * l; h < 2 * l + 2; ++h) {
      s.heads[h].k_mean = {1, 1, 1, 1};
      s.heads[h].k_rms = l == 0 ? 2 : 1.25;  // constant: 1 / 2 and 4 / 5 of a key's length
      s.heads[h].v_rms = 0.5;
      s.heads[h].k_outlier = {3, 1.5};
      s.heads[h].v_outlier = {0, 1.1};
    }
  }
  s.heads[5].k_outlier = {17, 7.25};
  s.attention[0].sinks = 0.2;
  s.attention[2].sinks = 0.6;
  s.attention[0].beyond = {0.9, 0.5, 0.25, 0, 0};  // texts of fewer than 1,024 tokens
  s.attention[2].beyond = {0.8, 0.4, 0.05, 0, 0};
  return s;
}

TEST(StatisticsText, SaysWhatStandsOut) {
  EXPECT_EQ(StatisticsText(Observed()),
            "observed on 12,345 tokens, means over layers\n"
            "  attention  40 % goes to the first 64 tokens; 45 % at least 64 back, 15 % at least "
            "256 back\n"
            "             most to the first tokens: layers 2 (60 %), 0 (20 %)\n"
            "             most at least 256 back: layers 0 (25 %), 2 (5 %)\n"
            "  constant   part of a key's length, which the centre takes out: 65 %; most in layers "
            "2 (80 %), 0 (50 %)\n"
            "  outliers   largest channel of K: 7.2 x in layer 2 head 1 (channel 17), 1.5 x in "
            "layer 0 head 0 (channel 3)\n"
            "             largest channel of V: 1.1 x in layer 0 head 0 (channel 0), 1.1 x in "
            "layer 2 head 0 (channel 0)\n"
            "  size       root mean square of a channel, K: 1.2 (layer 2) to 2 (layer 0); V: 0.5 "
            "(layer 0) to 0.5 (layer 0)\n");
}

TEST(StatisticsCards, HaveARowForEachLayerThatIsNotSliding) {
  const std::string html = StatisticsCards(Observed());
  EXPECT_NE(html.find("Where attention goes"), std::string::npos);
  EXPECT_NE(html.find("7.2 x (head 1, channel 17)"), std::string::npos) << html;
  EXPECT_NE(html.find("256<br>back"), std::string::npos) << html;
  EXPECT_EQ(html.find("1,024"), std::string::npos) << "no text was that long";
  const auto rows = [&](const std::string& tag) {
    size_t n = 0;
    for (size_t at = html.find(tag); at != std::string::npos; at = html.find(tag, at + 1)) ++n;
    return n;
  };
  EXPECT_EQ(rows("<tr"), 3u);
  EXPECT_EQ(StatisticsText({}), "");
  EXPECT_EQ(StatisticsCards({}), "");
}

}  // namespace
}  // namespace tq
