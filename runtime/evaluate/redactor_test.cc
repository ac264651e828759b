#include "runtime/evaluate/redactor.h"

#include <gtest/gtest.h>

namespace tq {
namespace {

std::string Redact(const std::string& rules, std::string text, int64_t* count = nullptr) {
  const auto parsed = ParseRedactions(rules);
  EXPECT_TRUE(parsed.ok()) << parsed.status().ToString();
  const Result<Redactor> redactor = Redactor::Create(*parsed);
  EXPECT_TRUE(redactor.ok()) << redactor.status().ToString();
  EXPECT_TRUE(redactor->Apply(&text, count).ok());
  return text;
}

TEST(Redactor, ReplacesEveryMatchOfEveryExpressionInTurn) {
  int64_t count = 0;
  EXPECT_EQ(Redact("# mail addresses\n[\\w.]+@[\\w.]+ => <mail>\n\n\\d{4,}\n",
                   "a.b@c.de wrote to x@y.z about 12345 and 12", &count),
            "<mail> wrote to <mail> about [redacted] and 12");
  EXPECT_EQ(count, 3);
  EXPECT_EQ(Redact("(\\d{2})\\d+ => $1..$$", "pay 12345"), "pay 12..$");
  EXPECT_EQ(Redact("secret =>", "a secret b"), "a  b");
  EXPECT_EQ(Redact("x*", "axxb"), "a[redacted]b");  // empty matches take nothing out
  EXPECT_EQ(Redact("", "kept"), "kept");
  EXPECT_EQ(Redact("Stra\xC3\x9F"
                   "e",
                   "STRA\xC3\x9F"
                   "E Stra\xC3\x9F"
                   "e"),
            "STRA\xC3\x9F"
            "E [redacted]");
}

TEST(Redactor, BadExpressionsNameTheirLine) {
  const Status open = ParseRedactions("a\n(b\n").status();
  EXPECT_EQ(open.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(open.message().rfind("redaction, line 2: the expression '(b' is not understood at ", 0),
            0u)
      << open.message();
  EXPECT_EQ(
      ParseRedactions("(a) => $2").status().message(),
      "redaction, line 1: the replacement '$2' names group 2, and the expression '(a)' has 1");
}

// An expression that would run for ages on this text: the text must not pass unchanged.
TEST(Redactor, GivesUpRatherThanLettingATextThrough) {
  Result<Redactor> redactor = Redactor::Create({{"(?:a+)+[bc]", "-"}});
  ASSERT_TRUE(redactor.ok());
  std::string text = std::string(60, 'a') + "d";
  EXPECT_EQ(redactor->Apply(&text).code(), StatusCode::kInvalidArgument);
}

TEST(Redactor, CutsMoveBehindAMatch) {
  const Result<Redactor> redactor = Redactor::Create({{"\\d+ \\d+", "-"}});
  const std::string text = "line one\n555 1234 end\n";
  EXPECT_EQ(redactor->SafeCut(text, 9), 9u);
  EXPECT_EQ(redactor->SafeCut(text, 13), 17u);
  EXPECT_EQ(redactor->SafeCut(text, 17), 17u);
  EXPECT_EQ(redactor->SafeCut(text, text.size()), text.size());
  EXPECT_EQ(Redactor().SafeCut(text, 13), 13u);
}

// What an expression looks at beside its match must not be cut off either.
TEST(Redactor, CutsLeaveTheContextOfAMatch) {
  const std::string text = "a token s3cr3t end of it\n";
  for (const char* pattern : {"(?<=token )\\S+", "token \\K\\S+", "\\w+(?= s3cr3t)",
                              "s3cr3t(?= end)", "\\bend\\b", "of it"}) {
    const Result<Redactor> redactor = Redactor::Create({{pattern, "-"}});
    ASSERT_TRUE(redactor.ok());
    std::string whole = text;
    ASSERT_TRUE(redactor->Apply(&whole).ok());
    ASSERT_NE(whole, text);
    for (size_t cut = 1; cut < text.size(); ++cut) {
      const size_t at = redactor->SafeCut(text, cut);
      EXPECT_GE(at, cut);
      std::string left = text.substr(0, at), right = text.substr(at);
      ASSERT_TRUE(redactor->Apply(&left).ok() && redactor->Apply(&right).ok());
      EXPECT_EQ(left + right, whole) << pattern << " cut at " << cut;
    }
  }
  // No cut is right for this one.
  EXPECT_EQ(Redactor::Create({{"^."}})->SafeCut(std::string(5000, 'x'), 2000), 2000u);
}

}  // namespace
}  // namespace tq
