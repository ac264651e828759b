#include "turboquant/calibrate/head_selection.h"

#include <gtest/gtest.h>

namespace tq {
namespace {

TEST(IndexList, ParsesRangesAndPrintsThem) {
  EXPECT_EQ(*ParseIndexList("0-3, 7", 8, "layer"), (std::vector<int>{0, 1, 2, 3, 7}));
  EXPECT_EQ(*ParseIndexList("5,5,2", 8, "layer"), (std::vector<int>{2, 5}));
  EXPECT_EQ(FormatIndexList({0, 1, 2, 7}), "0-2,7");
  EXPECT_EQ(FormatIndexList({}), "");
}

TEST(IndexList, SaysWhatIsWrong) {
  for (const char* bad : {"", "a", "1-", "-1", "3-2", "1,,2", "1 2", "99999999999999"}) {
    const auto r = ParseIndexList(bad, 8, "layer");
    ASSERT_FALSE(r.ok()) << bad;
    EXPECT_EQ(r.status().code(), StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(ParseIndexList("3-8", 8, "layer").status().message(),
            "layer 8 is out of range: there are 8, from 0 to 7");
}

TEST(HeadSelection, LayersAndHeads) {
  EXPECT_EQ(*ParseHeadSelection("1", 4, 2), (std::vector<std::pair<int, int>>{{1, 0}, {1, 1}}));
  EXPECT_EQ(*ParseHeadSelection("3:0,0-1:1", 4, 2),
            (std::vector<std::pair<int, int>>{{0, 1}, {1, 1}, {3, 0}}));
  EXPECT_EQ(ParseHeadSelection("1:2", 4, 2).status().message(),
            "KV head 2 is out of range: there are 2, from 0 to 1");
}

}  // namespace
}  // namespace tq
