#include <gtest/gtest.h>

#include "cli/eval/generate_flags.h"
#include "cli/eval/text_windows.h"
#include "runtime/evaluate/fakes_for_test.h"
#include "turboquant/base/file.h"

namespace tq::cli {
namespace {

// A token a byte, with a token 1 in front as models with a beginning-of-text token have it.
class BosTokenizer : public ByteTokenizer {
 public:
  BosTokenizer() { bos_ = 1; }
  std::vector<TokenId> Encode(std::string_view text, const EncodeOptions& options) const override {
    std::vector<TokenId> ids = ByteTokenizer::Encode(text, options);
    ids.insert(ids.begin(), 1);
    return ids;
  }
};

std::string Text(size_t length) {
  std::string text;
  for (size_t i = 0; i < length; ++i) text += static_cast<char>('a' + i % 26);
  return text;
}

// Lines that differ, so that none of them is dropped as a copy.
TaskFlags FlagsOfText(const std::string& name, int lines) {
  std::string text;
  for (int i = 0; i < lines; ++i) text += StrCat("Line ", i, " of the user's own text.\n");
  const std::string path = testing::TempDir() + name;
  EXPECT_TRUE(WriteFileAtomic(path, text).ok());
  TaskFlags flags;
  flags.data.data = {path};
  flags.output.quiet = true;
  return flags;
}

TEST(ReadLongText, APartOfADocumentIsAsLongAsAllOfIt) {
  TaskFlags flags = FlagsOfText("tq_long.txt", 20000);
  flags.data.part = "held-out";
  const auto text = ReadLongText(flags, 1024);
  ASSERT_TRUE(text.ok()) << text.status().ToString();
  EXPECT_EQ(text->first, "tq_long.txt");
  EXPECT_GE(text->second.size(), 3 * 4 * 1024u);
}

TEST(ReadLongText, TheUsersTextIsNeverReplaced) {
  const auto text = ReadLongText(FlagsOfText("tq_short.txt", 10), 1 << 16);
  ASSERT_TRUE(text.ok()) << text.status().ToString();
  EXPECT_EQ(text->first, "tq_short.txt");
  EXPECT_LT(text->second.size(), 1000u);
}

TEST(CutWindows, SpreadOverTheTextOrOneAfterTheOther) {
  const ByteTokenizer tokenizer;
  const std::string text = Text(400);
  const Result<EvalText> spread = CutWindows(tokenizer, "t", text, WindowCut::kSpread, 4, 30);
  ASSERT_TRUE(spread.ok()) << spread.status().ToString();
  ASSERT_EQ(spread->windows.size(), 4u);
  const Result<EvalText> llama = CutWindows(tokenizer, "t", text, WindowCut::kLlama, 4, 30);
  ASSERT_TRUE(llama.ok()) << llama.status().ToString();
  for (size_t w = 0; w < 4; ++w) {
    ASSERT_EQ(spread->windows[w].size(), 30u);
    ASSERT_EQ(llama->windows[w].size(), 30u);
    EXPECT_EQ(spread->windows[w][0], text[100 * w]);
    EXPECT_EQ(llama->windows[w][0], text[30 * w]);
    EXPECT_EQ(llama->windows[w][29], text[30 * w + 29]);
  }
}

// llama-perplexity tokenizes the text once and puts the beginning-of-text token in place of the
// first token of every window.
TEST(CutWindows, EveryWindowBeginsAsTheModelWantsIt) {
  const BosTokenizer tokenizer;
  const std::string text = Text(400);
  const Result<EvalText> llama = CutWindows(tokenizer, "t", text, WindowCut::kLlama, 2, 30);
  const Result<EvalText> spread = CutWindows(tokenizer, "t", text, WindowCut::kSpread, 2, 30);
  ASSERT_TRUE(llama.ok() && spread.ok());
  EXPECT_EQ(llama->windows[1][0], 1);
  EXPECT_EQ(llama->windows[1][1], text[30]);  // token 31 of the text with its first token
  EXPECT_EQ(spread->windows[1][0], 1);
  EXPECT_EQ(spread->windows[1][1], text[200]);
}

TEST(CutWindows, TooShortATextIsRefusedWithBothNumbers) {
  const ByteTokenizer tokenizer;
  for (const WindowCut cut : {WindowCut::kSpread, WindowCut::kLlama}) {
    const Status status = CutWindows(tokenizer, "t.txt", Text(75), cut, 3, 30).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(" tokens of 30; use fewer or shorter windows"),
              std::string::npos)
        << status.message();
  }
  EXPECT_FALSE(CutWindows(tokenizer, "t", "", WindowCut::kLlama, 1, 30).ok());
}

}  // namespace
}  // namespace tq::cli
