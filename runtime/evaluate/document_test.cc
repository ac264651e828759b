#include "runtime/evaluate/document.h"

#include <gtest/gtest.h>

#include "runtime/evaluate/fakes_for_test.h"
#include "runtime/tokenizer/utf8.h"

namespace tq {
namespace {

DocumentOptions Options(std::string_view text, int64_t max_tokens) {
  DocumentOptions o;
  o.name = "story.txt";
  o.text = text;
  o.max_tokens = max_tokens;
  return o;
}

std::string Lines(int n) {
  std::string text;
  for (int i = 0; i < n; ++i) text += "line " + std::to_string(i) + " of the story\n";
  return text;
}

TEST(Document, FitsPlantsAndAsks) {
  const ByteTokenizer tokenizer;
  const std::string text = Lines(100);
  const Result<Document> doc = BuildDocument(tokenizer, Options(text, 800));
  ASSERT_TRUE(doc.ok()) << doc.status().ToString();
  EXPECT_LE(doc->tokens.size(), 800u);
  EXPECT_GT(doc->tokens.size(), 770u);  // one more line would not fit
  const std::string decoded = tokenizer.Decode(doc->tokens);
  EXPECT_TRUE(decoded.ends_with("\nThe special magic number for the city of Chicago is"));
  const size_t at = decoded.find("\n" + doc->detail + "\n");
  ASSERT_NE(at, std::string::npos);
  EXPECT_NEAR(static_cast<double>(at) / static_cast<double>(doc->text_bytes), 0.4, 0.05);
  EXPECT_FALSE(doc->whole_text);
}

TEST(Document, WholeTextWhenItFits) {
  const ByteTokenizer tokenizer;
  const Result<Document> doc = BuildDocument(tokenizer, Options(Lines(10), 100000));
  ASSERT_TRUE(doc.ok());
  EXPECT_TRUE(doc->whole_text);
}

TEST(Document, OwnQuestionPlantsNothing) {
  const ByteTokenizer tokenizer;
  const std::string text = Lines(4);
  DocumentOptions options = Options(text, 1000);
  options.question = "What is it?";
  const Result<Document> doc = BuildDocument(tokenizer, options);
  ASSERT_TRUE(doc.ok());
  EXPECT_EQ(tokenizer.Decode(doc->tokens), text + "What is it?");
  EXPECT_TRUE(doc->expected.empty());
}

TEST(Document, OneEndlessLineIsCutAtSpacesAndCharacters) {
  const ByteTokenizer tokenizer;
  std::string words, umlauts;
  for (int i = 0; i < 2000; ++i) words += "word ";
  for (int i = 0; i < 5000; ++i) umlauts += "\xC3\xA4";
  for (const std::string& text : {words, umlauts}) {
    const Result<Document> doc = BuildDocument(tokenizer, Options(text, 2000));
    ASSERT_TRUE(doc.ok()) << doc.status().ToString();
    const std::string decoded = tokenizer.Decode(doc->tokens);
    EXPECT_EQ(ValidUtf8Prefix(decoded), decoded.size());
    EXPECT_GT(decoded.size(), 1500u);
  }
}

TEST(Document, RefusesWhatCannotBeRead) {
  const ByteTokenizer tokenizer;
  const Status whole = BuildDocument(tokenizer, Options("One line.\n", 1000)).status();
  EXPECT_NE(whole.message().find("10 bytes, and at least 64 tokens"), std::string::npos)
      << whole.message();
  const std::string uneven = std::string(49, 'a') + "\n" + std::string(300, 'b') + "\n";
  const Status cut = BuildDocument(tokenizer, Options(uneven, 108 + 64)).status();
  EXPECT_EQ(cut.message(),
            "'story.txt': 50 tokens of text fit, and at least 64 are needed; raise --context");
  const Status empty = BuildDocument(tokenizer, Options(" \n\t\n", 1000)).status();
  EXPECT_EQ(empty.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(empty.message(), "'story.txt' holds no text");
  const Status binary = BuildDocument(tokenizer, Options("ab\xFF", 1000)).status();
  EXPECT_EQ(binary.message(), "'story.txt' is not UTF-8 text (byte 2); convert it with iconv");
  const Status small = BuildDocument(tokenizer, Options(Lines(9), 150)).status();
  EXPECT_EQ(small.message(),
            "a document of 150 tokens is too short: detail and question take 108, and at least 64 "
            "are needed for text; raise --context");
}

}  // namespace
}  // namespace tq
