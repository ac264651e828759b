// Meaning as a number, with the real embeddings where they were fetched.
#include "runtime/evaluate/similarity.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "turboquant/base/file.h"

namespace tq {
namespace {

constexpr char kFolder[] = TQ_DATA_DIR "/all-MiniLM-L6-v2";

class Similarity : public testing::Test {
 protected:
  void SetUp() override {
    if (!FileExists(TQ_DATA_DIR "/all-MiniLM-L6-v2/model.safetensors")) {
      GTEST_SKIP() << "run ./check first";
    }
    auto loaded = TextEmbedder::Load(kFolder, pool_);
    ASSERT_TRUE(loaded.ok()) << loaded.status().message();
    embedder_ = *std::move(loaded);
  }
  double Of(const std::string& a, const std::string& b) {
    const Result<double> found = embedder_->Similarity(a, b);
    EXPECT_TRUE(found.ok()) << found.status().message();
    return found.ok() ? *found : NAN;
  }
  ThreadPool pool_;
  std::unique_ptr<TextEmbedder> embedder_;
};

TEST_F(Similarity, ParaphrasesAreNearAndOtherSubjectsFar) {
  const std::string text = "The order ships on Monday morning.";
  EXPECT_EQ(Of(text, text), 1);
  const double paraphrase = Of(text, "Your parcel will leave us at the start of the week.");
  const double unrelated = Of(text, "Bananas are rich in potassium.");
  EXPECT_GT(paraphrase, 0.4);
  EXPECT_LT(unrelated, 0.2);
}

TEST_F(Similarity, AWrongDigitBarelyMovesIt) {
  EXPECT_GT(Of("The order number is 4711.", "The order number is 4712."), 0.9);
}

TEST_F(Similarity, NothingIsNearToNothingOnly) {
  EXPECT_EQ(Of("", ""), 1);
  EXPECT_EQ(Of("", "word"), 0);
  EXPECT_EQ(Of("word", " \n"), 0);
  EXPECT_EQ(Of("", " \n"), 1);
}

TEST_F(Similarity, WhatLooksLikeASpecialTokenIsText) {
  const auto plain = embedder_->Embed("the end");
  const auto marked = embedder_->Embed("the end [SEP]");
  ASSERT_TRUE(plain.ok() && marked.ok());
  EXPECT_NE(*plain, *marked);
}

// Two equal halves of one piece each: the mean of the pieces is the vector of one half.
TEST_F(Similarity, LongTextsAreTheMeanOfTheirPieces) {
  std::string half;
  for (int i = 0; i < 25; ++i)
    half += "the quick brown fox jumps over the lazy dog . ";  // 250 tokens
  const auto one = embedder_->Embed(half);
  const auto two = embedder_->Embed(half + half);
  ASSERT_TRUE(one.ok() && two.ok());
  EXPECT_NEAR(CosineOfUnitVectors(*one, *two), 1, 1e-6);
}

TEST(EndsOfPieces, AreNearlyOfOneSizeAndBetweenWords) {
  using Ends = std::vector<size_t>;
  EXPECT_EQ(EndsOfPieces({}, 10), (Ends{0}));
  EXPECT_EQ(EndsOfPieces(std::vector<bool>(10), 10), (Ends{10}));
  EXPECT_EQ(EndsOfPieces(std::vector<bool>(11), 10), (Ends{6, 11}));
  std::vector<bool> goes_on(12);
  goes_on[6] = goes_on[5] = true;  // tokens 4, 5 and 6 are one word
  EXPECT_EQ(EndsOfPieces(goes_on, 10), (Ends{4, 12}));
  EXPECT_EQ(EndsOfPieces(goes_on, 6), (Ends{4, 10, 12}));
  // One word longer than a piece.
  EXPECT_EQ(EndsOfPieces(std::vector<bool>(5, true), 2), (Ends{2, 4, 5}));
}

TEST(TextEmbedder, RefusesFoldersThatAreNotThere) {
  ThreadPool pool(1);
  const auto loaded = TextEmbedder::Load("/no/such/folder", pool);
  EXPECT_EQ(loaded.status().code(), StatusCode::kNotFound);
  EXPECT_NE(loaded.status().message().find("vocab.txt"), std::string::npos);
}

TEST(TextEmbedder, RefusesCasedVocabularies) {
  const std::string folder = testing::TempDir() + "tq_cased";
  std::filesystem::create_directories(folder);
  ASSERT_TRUE(
      WriteFileAtomic(folder + "/tokenizer_config.json", R"({"do_lower_case": false})").ok());
  ThreadPool pool(1);
  const auto loaded = TextEmbedder::Load(folder, pool);
  EXPECT_EQ(loaded.status().code(), StatusCode::kUnsupported);
  EXPECT_NE(loaded.status().message().find("do_lower_case"), std::string::npos);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace tq
