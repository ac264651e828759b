#include "runtime/formats/json_member.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace tq {
namespace {

std::string Set(const std::string& text, const std::string& value) {
  const auto out = WithJsonMember(text, "us", value);
  EXPECT_TRUE(out.ok()) << out.status().ToString();
  return out.ok() ? *out : "";
}

TEST(WithJsonMember, EverythingElseStaysByteForByte) {
  // Spacing, number spellings, escapes and a key like ours inside another value.
  const std::string before =
      "{\r\n    \"a\" : 1.50e+0,\n    \"b\": {\"us\": [1, \"}\\\"\"]},\n    \"c\":\"\\u00e9\"\n}\n";
  EXPECT_EQ(Set(before, "{\n  \"x\": 1\n}"),
            "{\r\n    \"a\" : 1.50e+0,\n    \"b\": {\"us\": [1, \"}\\\"\"]},\n    "
            "\"c\":\"\\u00e9\",\n    \"us\": {\n      \"x\": 1\n    }\n}\n");
  const std::string with = Set(before, "1");
  EXPECT_EQ(Set(with, "2"), Set(before, "2"));
  EXPECT_EQ(*WithJsonMember(with, "us", std::nullopt), before);
  EXPECT_EQ(*WithJsonMember(before, "us", std::nullopt), before);
}

TEST(WithJsonMember, AByteOrderMarkStays) {
  EXPECT_EQ(Set("\xEF\xBB\xBF{\"a\": true}", "1"), "\xEF\xBB\xBF{\"a\": true, \"us\": 1}");
  EXPECT_EQ(*WithJsonMember("\xEF\xBB\xBF{\"us\": 3}", "us", std::nullopt), "\xEF\xBB\xBF{}");
}

TEST(WithJsonMember, FitsOneLineEmptyAndMiddle) {
  EXPECT_EQ(Set("{\"a\": true}", "1"), "{\"a\": true, \"us\": 1}");
  EXPECT_EQ(nlohmann::json::parse(Set("{}", "1")), (nlohmann::json{{"us", 1}}));
  EXPECT_EQ(nlohmann::json::parse(Set(" { } ", "[1]")), (nlohmann::json{{"us", {1}}}));
  EXPECT_EQ(Set("{\"us\": 3, \"a\": 2}", "1"), "{\"us\": 1, \"a\": 2}");
  EXPECT_EQ(*WithJsonMember("{\"us\": 3, \"a\": 2}", "us", std::nullopt), "{\"a\": 2}");
  EXPECT_EQ(*WithJsonMember("{\"us\": 3}", "us", std::nullopt), "{}");
  // The same key by an escape.
  EXPECT_EQ(Set("{\"\\u0075s\": 3}", "1"), "{\"us\": 1}");
}

TEST(WithJsonMember, WhatIsNoObjectIsDataLoss) {
  for (const char* text : {"", "[]", "{", "{\"a\": 1,}", "{\"us\": 1, \"us\": 2}"}) {
    EXPECT_EQ(WithJsonMember(text, "us", "1").status().code(), StatusCode::kDataLoss) << text;
  }
}

TEST(WithJsonMember, TruncationsAreDataLossAtEveryByte) {
  const std::string text = "{\"a\": [1, {\"b\": \"c\\\"\"}], \"us\": null, \"d\": -1.5}";
  for (size_t n = 0; n < text.size(); ++n) {
    EXPECT_EQ(WithJsonMember(text.substr(0, n), "us", "1").status().code(), StatusCode::kDataLoss)
        << n;
  }
}

}  // namespace
}  // namespace tq
