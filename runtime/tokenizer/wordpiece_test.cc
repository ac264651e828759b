// WordPiece against Hugging Face tokenizers: a small vocabulary that is in the golden file, and the
// vocabulary of all-MiniLM-L6-v2 where it was fetched.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "runtime/tokenizer/wordpiece_tokenizer.h"
#include "turboquant/base/file.h"

namespace tq {
namespace {

using nlohmann::json;
using Ids = std::vector<TokenId>;

const json& Golden() {
  static const json kGolden = [] {
    const Result<std::string> text = ReadFile(TQ_SOURCE_DIR "/tests/golden/embeddings.json");
    TQ_CHECK(text.ok());
    return json::parse(*text);
  }();
  return kGolden;
}

std::string SmallVocabulary() {
  std::string lines;
  for (const json& token : Golden()["wordpiece"]["vocabulary"]) {
    lines += token.get<std::string>() + "\n";
  }
  return lines;
}

std::unique_ptr<WordPieceTokenizer> Make(const std::string& vocabulary) {
  auto made = WordPieceTokenizer::FromVocabulary(vocabulary, "vocab.txt");
  EXPECT_TRUE(made.ok()) << made.status().message();
  return made.ok() ? *std::move(made) : nullptr;
}

void ExpectIds(const WordPieceTokenizer& tokenizer, const json& cases) {
  ASSERT_GT(cases.size(), 100u);
  for (const json& c : cases) {
    const std::string text = c["text"];
    EXPECT_EQ(tokenizer.Encode(text, {}), c["ids"].get<Ids>()) << c["text"];
  }
}

TEST(WordPiece, IdsEqualThoseOfTokenizersWithASmallVocabulary) {
  const auto tokenizer = Make(SmallVocabulary());
  ASSERT_NE(tokenizer, nullptr);
  ExpectIds(*tokenizer, Golden()["wordpiece"]["cases"]);
}

TEST(WordPiece, IdsEqualThoseOfTokenizersWithTheRealVocabulary) {
  const std::string path = TQ_DATA_DIR "/all-MiniLM-L6-v2/vocab.txt";
  if (!FileExists(path)) GTEST_SKIP() << "run ./check first";
  const Result<std::string> vocabulary = ReadFile(path);
  ASSERT_TRUE(vocabulary.ok());
  const auto tokenizer = Make(*vocabulary);
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_EQ(tokenizer->vocab_size(), 30522);
  ExpectIds(*tokenizer, Golden()["minilm"]["texts"]);
}

TEST(WordPiece, BytesThatAreNoTextVanish) {
  const auto tokenizer = Make(SmallVocabulary());
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_EQ(tokenizer->Encode("the\xff kingdom\xc3", {}), tokenizer->Encode("the kingdom", {}));
}

TEST(WordPiece, ATextThatParsesNoSpecialTokensMakesNone) {
  const auto tokenizer = Make(SmallVocabulary());
  ASSERT_NE(tokenizer, nullptr);
  const Ids ids = tokenizer->Encode("[SEP] a [CLS]", {.add_bos = false, .parse_special = false});
  EXPECT_FALSE(ids.empty());
  for (const TokenId id : ids) {
    EXPECT_TRUE(id != tokenizer->bos() && id != tokenizer->eos()) << id;
  }
}

TEST(WordPiece, DecodingGivesWordsBack) {
  const auto tokenizer = Make("[UNK]\n[CLS]\n[SEP]\nun\n##aff\n##able\nis\n");
  ASSERT_NE(tokenizer, nullptr);
  const Ids ids = tokenizer->Encode("Unaffable is", {});
  EXPECT_EQ(ids, (Ids{1, 3, 4, 5, 6, 2}));
  EXPECT_EQ(tokenizer->Decode(ids), "unaffable is");
  EXPECT_TRUE(tokenizer->ContinuesWord(4));
  EXPECT_FALSE(tokenizer->ContinuesWord(3));
}

TEST(WordPiece, DamagedVocabulariesAreRefused) {
  const auto refusal = [](const std::string& vocabulary) {
    const auto made = WordPieceTokenizer::FromVocabulary(vocabulary, "v");
    EXPECT_EQ(made.status().code(), StatusCode::kDataLoss) << vocabulary;
    return made.status().message();
  };
  EXPECT_NE(refusal("[UNK]\n[CLS]\n\n[SEP]\n").find("line 3 is empty"), std::string::npos);
  EXPECT_NE(refusal("[UNK]\n[CLS]\na\n[SEP]\na\n").find("lines 3 and 5 are both 'a'"),
            std::string::npos);
  EXPECT_NE(refusal("[UNK]\n[CLS]\n").find("2 tokens, but no [SEP]"), std::string::npos);
  EXPECT_NE(refusal("").find("no [UNK]"), std::string::npos);
  EXPECT_TRUE(WordPieceTokenizer::FromVocabulary("[UNK]\r\n[CLS]\r\n[SEP]", "v").ok());
}

}  // namespace
}  // namespace tq
