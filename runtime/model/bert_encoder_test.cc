// The sentence encoder against the vectors of sentence-transformers, and what it refuses.
#include "runtime/model/bert_encoder.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "runtime/model/tiny_bert_for_test.h"
#include "turboquant/base/file.h"

namespace tq {
namespace {

using nlohmann::json;

constexpr char kFolder[] = TQ_DATA_DIR "/all-MiniLM-L6-v2";

TEST(BertEncoder, VectorsEqualThoseOfSentenceTransformers) {
  if (!FileExists(std::string(kFolder) + "/model.safetensors")) {
    GTEST_SKIP() << "run ./check first";
  }
  const Result<std::string> text = ReadFile(TQ_SOURCE_DIR "/tests/golden/embeddings.json");
  ASSERT_TRUE(text.ok());
  const json golden = json::parse(*text);
  ThreadPool pool;
  auto encoder = BertEncoder::Load(kFolder, pool);
  ASSERT_TRUE(encoder.ok()) << encoder.status().message();
  EXPECT_EQ((*encoder)->dim(), 384);
  for (const json& sentence : golden["minilm"]["sentences"]) {
    const auto ids = sentence["ids"].get<std::vector<int32_t>>();
    const auto expected = sentence["vector"].get<std::vector<float>>();
    const Result<std::vector<float>> vector = (*encoder)->Encode(ids);
    ASSERT_TRUE(vector.ok()) << vector.status().message();
    ASSERT_EQ(vector->size(), expected.size());
    double worst = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
      worst = std::max(worst, std::fabs(static_cast<double>((*vector)[i]) - expected[i]));
    }
    // Sums in another order: float32 rounding through six layers, entries of about 0.05.
    EXPECT_LT(worst, 2e-6) << sentence["text"];
  }
}

TEST(BertEncoder, VectorsHaveLengthOneAndDoNotDependOnThreads) {
  TinyBert tiny;
  ThreadPool one(1), two(2);
  auto a = tiny.Build(one);
  ASSERT_TRUE(a.ok()) << a.status().message();
  const std::vector<int32_t> ids = {1, 7, 0, 3, 2};
  const std::vector<float> va = *(*a)->Encode(ids);
  TinyBert same;
  auto b = same.Build(two);
  ASSERT_TRUE(b.ok());
  EXPECT_EQ(va, *(*b)->Encode(ids));
  double square = 0;
  for (const float x : va) square += static_cast<double>(x) * x;
  EXPECT_NEAR(square, 1, 1e-6);
  EXPECT_NE(va, *(*b)->Encode(std::vector<int32_t>{7, 1, 0, 3, 2}));  // places matter
}

TEST(BertEncoder, BadTokensAreRefused) {
  TinyBert tiny;
  ThreadPool pool(1);
  auto encoder = tiny.Build(pool);
  ASSERT_TRUE(encoder.ok());
  const auto refusal = [&](std::vector<int32_t> ids) {
    const auto vector = (*encoder)->Encode(ids);
    EXPECT_EQ(vector.status().code(), StatusCode::kInvalidArgument);
    return vector.status().message();
  };
  EXPECT_NE(refusal({}).find("0 tokens"), std::string::npos);
  EXPECT_NE(refusal({1, 1, 1, 1, 1, 1, 1}).find("7 tokens to encode; 1 to 6"), std::string::npos);
  EXPECT_NE(refusal({8}).find("token 8"), std::string::npos);
  EXPECT_NE(refusal({-1}).find("token -1"), std::string::npos);
}

TEST(BertEncoder, DamagedFilesAreRefused) {
  ThreadPool pool(1);
  const auto refusal = [&](const auto& damage, StatusCode code) {
    TinyBert tiny;
    damage(tiny);
    const auto encoder = tiny.Build(pool);
    EXPECT_EQ(encoder.status().code(), code) << encoder.status().message();
    return encoder.status().message();
  };
  const auto has = [](const std::string& text, const char* part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  for (const char* key : {"hidden_size", "intermediate_size", "vocab_size", "num_hidden_layers",
                          "max_position_embeddings", "num_attention_heads"}) {
    has(refusal([&](TinyBert& t) { t.config.erase(key); }, StatusCode::kInvalidArgument), key);
    has(refusal([&](TinyBert& t) { t.config[key] = 0; }, StatusCode::kInvalidArgument), key);
    has(refusal([&](TinyBert& t) { t.config[key] = "8"; }, StatusCode::kInvalidArgument), key);
  }
  has(refusal([](TinyBert& t) { t.config["num_attention_heads"] = 3; },
              StatusCode::kInvalidArgument),
      "3 heads do not divide");
  has(refusal([](TinyBert& t) { t.config["model_type"] = "roberta"; }, StatusCode::kUnsupported),
      "'roberta'");
  has(refusal([](TinyBert& t) { t.config["hidden_act"] = "relu"; }, StatusCode::kUnsupported),
      "'relu'");
  has(refusal([](TinyBert& t) { t.config["layer_norm_eps"] = 2; }, StatusCode::kInvalidArgument),
      "layer_norm_eps");
  has(refusal([](TinyBert& t) { t.config["vocab_size"] = 9; }, StatusCode::kInvalidArgument),
      "[9, 8]");
  has(refusal([](TinyBert& t) { t.config["num_hidden_layers"] = 3; }, StatusCode::kNotFound),
      "encoder.layer.2.attention.self.query.weight");
  has(refusal([](TinyBert& t) { t.tensors[0].name = "other"; }, StatusCode::kNotFound),
      "embeddings.word_embeddings.weight");
  has(refusal(
          [](TinyBert& t) {
            t.Tensor("embeddings.token_type_embeddings.weight") = {
                "embeddings.token_type_embeddings.weight", {1, 4}, std::vector<float>(4)};
          },
          StatusCode::kInvalidArgument),
      "4 values");
  has(refusal([](TinyBert& t) { t.Tensor("encoder.layer.1.output.dense.weight").values[5] = NAN; },
              StatusCode::kDataLoss),
      "encoder.layer.1.output.dense.weight");
}

TEST(BertEncoder, WordsThatAreNoNumbersAreAnErrorNotAVector) {
  TinyBert tiny;
  tiny.Tensor("embeddings.word_embeddings.weight").values[3 * 8] = NAN;
  ThreadPool pool(1);
  auto encoder = tiny.Build(pool);
  ASSERT_TRUE(encoder.ok());
  EXPECT_TRUE((*encoder)->Encode(std::vector<int32_t>{1, 2}).ok());
  const auto vector = (*encoder)->Encode(std::vector<int32_t>{1, 3});
  EXPECT_EQ(vector.status().code(), StatusCode::kDataLoss);
}

}  // namespace
}  // namespace tq
