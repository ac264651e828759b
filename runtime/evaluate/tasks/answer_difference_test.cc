#include "runtime/evaluate/tasks/answer_difference.h"

#include <gtest/gtest.h>

namespace tq {
namespace {

using nlohmann::ordered_json;

Result<double> Overlap(const std::string& a, const std::string& b) {
  return WordOverlap(a, b);
}

AnswerDifference Compare(const std::string& a, const std::string& b) {
  Reply x, y;
  x.text = a;
  y.text = b;
  return *CompareAnswers(x, y, Overlap);
}

TEST(WordOverlap, CountsWordsAsOftenAsTheyStandThere) {
  EXPECT_EQ(WordOverlap("a b c", "a b c"), 1);
  EXPECT_EQ(WordOverlap("a b", "c d"), 0);
  EXPECT_EQ(WordOverlap("a a b", "a"), 0.5);  // one of 3 + 1
  EXPECT_EQ(WordOverlap("", ""), 1);
  EXPECT_EQ(WordOverlap("", "a"), 0);
}

TEST(CompareAnswers, FindsTheFirstPieceThatDiffers) {
  EXPECT_EQ(Compare("one two three", "one two three").first_difference, -1);
  EXPECT_TRUE(Compare("one two three", "one two three").exact);
  EXPECT_EQ(Compare("one two three", "one two four").first_difference, 2);
  EXPECT_EQ(Compare("one two three", "one two").first_difference, 2);  // where the shorter one ends
  EXPECT_EQ(Compare("one, two", "one; two").first_difference, 1);
  Reply a, b;
  a.text = b.text = "same";
  a.tokens = {"sa", "me"};
  b.tokens = {"s", "ame"};
  const AnswerDifference d = *CompareAnswers(a, b, Overlap);
  EXPECT_TRUE(d.in_tokens);
  EXPECT_EQ(d.first_difference, 0);
  EXPECT_TRUE(d.exact);  // the text is what counts
}

TEST(CompareAnswers, SeesBrokenJsonAndOtherShapes) {
  const std::string good = R"({"name": "a", "tags": [1, 2]})";
  EXPECT_TRUE(Compare(good, R"({"name": "a", "tags": [1, )").json_broken);
  EXPECT_TRUE(Compare(good, "Sure! Here it is.").json_broken);
  EXPECT_TRUE(Compare(good, R"({"title": "a", "tags": [1, 2]})").shape_differs);  // renamed
  EXPECT_TRUE(Compare(good, R"({"name": "a", "tags": ["1"]})").shape_differs);    // other type
  const AnswerDifference same = Compare(good, "```json\n{\"tags\": [7], \"name\": \"b\"}\n```");
  EXPECT_FALSE(same.json_broken || same.shape_differs);  // values, order and fence do not count
  EXPECT_FALSE(same.exact);
  EXPECT_TRUE(Compare(good, std::string(100000, '[')).json_broken);
  EXPECT_FALSE(Compare("[citation needed", "x").json_broken);  // the baseline's was none
}

TEST(CompareAnswers, SeesOtherToolCalls) {
  const auto call = [](const char* name, const char* arguments) {
    return ordered_json::array({{{"function", {{"name", name}, {"arguments", arguments}}}}});
  };
  Reply a, b;
  a.tool_calls = call("find", R"({"x": 1, "y": 2})");
  b.tool_calls = call("find", R"({ "y":2, "x":1 })");
  EXPECT_FALSE(CompareAnswers(a, b, Overlap)->tool_calls_differ);
  EXPECT_TRUE(CompareAnswers(a, b, Overlap)->exact);
  b.tool_calls = call("find", R"({"x": 1, "y": 3})");
  EXPECT_TRUE(CompareAnswers(a, b, Overlap)->tool_calls_differ);
  EXPECT_FALSE(CompareAnswers(a, b, Overlap)->tool_names_differ);
  b.tool_calls = call("seek", R"({"x": 1, "y": 2})");
  EXPECT_TRUE(CompareAnswers(a, b, Overlap)->tool_names_differ);
  b.tool_calls = ordered_json::array();
  EXPECT_TRUE(CompareAnswers(a, b, Overlap)->tool_calls_differ);
  b.tool_calls = ordered_json::parse("[3]");  // damaged
  EXPECT_TRUE(CompareAnswers(a, b, Overlap)->tool_calls_differ);
}

TEST(CompareAnswers, SeesWhyItEndedAndRepetition) {
  Reply a, b;
  a.text = "a b c d e f";
  b.text = "a b c d a b c d a b c d";
  a.finish_reason = "stop";
  b.finish_reason = "length";
  const AnswerDifference d = *CompareAnswers(a, b, Overlap);
  EXPECT_TRUE(d.finish_differs);
  EXPECT_TRUE(d.is_structural());
  EXPECT_EQ(d.baseline_repetition, 0);
  EXPECT_GT(d.candidate_repetition, 0.4);
}

TEST(ShapeOf, ListsPathsWithTypes) {
  EXPECT_EQ(ShapeOf(ordered_json::parse(R"({"a": [1, {"b": ""}, 2.5]})")),
            (std::vector<std::string>{"$.a: array", "$.a[].b: string", "$.a[]: number",
                                      "$.a[]: object", "$: object"}));
}

}  // namespace
}  // namespace tq
