// Every kind of tokenizer against the reference implementations, on vocabularies that were trained
// for it (tests/golden/tokenizers.json) and, where they were fetched, on real ones.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>

#include "runtime/formats/gguf_builder_for_test.h"
#include "runtime/formats/hf_tokenizer.h"
#include "runtime/formats/memory_folder_for_test.h"
#include "runtime/tokenizer/tokenizer.h"
#include "runtime/tokenizer/utf8.h"
#include "turboquant/base/file.h"

namespace tq {
namespace {

using nlohmann::json;
using Ids = std::vector<TokenId>;

const json& Golden() {
  static const json kGolden = [] {
    const Result<std::string> text = ReadFile(TQ_SOURCE_DIR "/tests/golden/tokenizers.json");
    TQ_CHECK(text.ok());
    return json::parse(*text);
  }();
  return kGolden;
}

Result<GgufFile> FileOf(std::map<std::string, GgufValue> metadata) {
  GgufContents contents;
  contents.path = "t";
  contents.metadata = std::move(metadata);
  return GgufFile::FromContents(std::move(contents));
}

Result<std::unique_ptr<Tokenizer>> FromJson(const json& tokenizer, const json& config = {},
                                            const json& settings = json::object()) {
  MemoryFolder folder;
  folder.files["tokenizer.json"] = tokenizer.dump();
  folder.files["tokenizer_config.json"] = settings.dump();
  std::map<std::string, GgufValue> metadata;
  TQ_RETURN_IF_ERROR(ReadHfTokenizer(folder, config, 0, metadata));
  TQ_ASSIGN_OR_RETURN(const GgufFile file, FileOf(std::move(metadata)));
  return Tokenizer::FromGguf(file);
}

Result<std::unique_ptr<Tokenizer>> FromGgml(const json& ggml) {
  std::map<std::string, GgufValue> m;
  m["tokenizer.ggml.model"] = ggml["model"].get<std::string>();
  m["tokenizer.ggml.tokens"] = ggml["tokens"].get<std::vector<std::string>>();
  m["tokenizer.ggml.scores"] = ggml["scores"].get<std::vector<double>>();
  m["tokenizer.ggml.token_type"] = ggml["kinds"].get<std::vector<int64_t>>();
  m["tokenizer.ggml.add_space_prefix"] = ggml["add_space_prefix"].get<bool>();
  m["tokenizer.ggml.remove_extra_whitespaces"] = ggml["remove_extra_whitespaces"].get<bool>();
  m["tokenizer.ggml.add_bos_token"] = false;
  m["tokenizer.ggml.precompiled_charsmap"] = ggml["charsmap_bytes"].get<std::vector<int64_t>>();
  TQ_ASSIGN_OR_RETURN(const GgufFile file, FileOf(std::move(m)));
  return Tokenizer::FromGguf(file);
}

class EveryKind : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    entry_ = Golden()["tokenizers_of_kind"][GetParam()];
    ASSERT_TRUE(entry_.is_object());
    texts_ = Golden()["texts"].get<std::vector<std::string>>();
    if (entry_.contains("texts")) {  // of those that the reference was given
      std::vector<std::string> given;
      for (const json& i : entry_["texts"]) given.push_back(texts_[i.get<size_t>()]);
      texts_ = std::move(given);
    }
    ASSERT_EQ(entry_["ids"].size(), texts_.size());
    ASSERT_GE(texts_.size(), 190u);
    auto loaded = entry_.contains("json") ? FromJson(entry_["json"]) : FromGgml(entry_["ggml"]);
    ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
    tokenizer_ = *std::move(loaded);
  }
  json entry_;
  std::vector<std::string> texts_;
  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_P(EveryKind, IdsEqualTheReference) {
  for (size_t i = 0; i < texts_.size(); ++i) {
    auto want = entry_["ids"][i].get<Ids>();
    // A text that begins with BOS gets a second one there.
    if (want.size() > 1 && want[0] == want[1] && want[0] == tokenizer_->bos()) {
      want.erase(want.begin());
    }
    EXPECT_EQ(tokenizer_->Encode(texts_[i]), want) << json(texts_[i]).dump();
  }
}

TEST_P(EveryKind, DecodesAsTheReference) {
  if (!entry_.contains("decoded_otherwise")) return;
  for (size_t i = 0; i < texts_.size(); ++i) {
    const auto want = entry_["decoded_otherwise"].value(std::to_string(i), texts_[i]);
    // There a character that is cut off becomes U+FFFD; here bytes stay bytes.
    if (want.find("\xEF\xBF\xBD") != std::string::npos) continue;
    EXPECT_EQ(tokenizer_->Decode(entry_["ids"][i].get<Ids>()), want) << json(texts_[i]).dump();
  }
}

TEST_P(EveryKind, StreamsWholeCharactersOnly) {
  for (size_t i = 0; i < texts_.size(); ++i) {
    StreamDecoder decoder(*tokenizer_);
    std::string streamed;
    for (const TokenId id : entry_["ids"][i].get<Ids>()) {
      const std::string part = decoder.Push(id);
      EXPECT_EQ(ValidUtf8Prefix(part), part.size()) << json(texts_[i]).dump();
      streamed += part;
    }
    streamed += decoder.Finish();
    EXPECT_EQ(ValidUtf8Prefix(streamed), streamed.size());
  }
}

INSTANTIATE_TEST_SUITE_P(Golden, EveryKind,
                         testing::Values("gpt2", "smollm", "llama3", "qwen2", "o200k", "tekken",
                                         "other", "llama2", "metaspace_first", "metaspace_split",
                                         "gemma", "unigram", "sp_bpe", "sp_bpe_unknown",
                                         "sp_unigram", "sp_unigram_bytes"),
                         [](const auto& kind) { return std::string(kind.param); });

// --- tokenizer.json: what is around the model ----------------------------------------------------

json Gpt2() {
  return Golden()["tokenizers_of_kind"]["gpt2"]["json"];
}

TEST(TokenizerJson, SettingsSayBosEosAndTheTemplate) {
  const json settings = {{"bos_token", "<s>"},
                         {"eos_token", {{"content", "</s>"}}},
                         {"add_bos_token", true},
                         {"chat_template",
                          {{{"name", "tools"}, {"template", "no"}},
                           {{"name", "default"}, {"template", "{{ 'yes' }}"}}}}};
  const auto t = FromJson(Gpt2(), {{"eos_token_id", {1, 2}}}, settings);
  ASSERT_TRUE(t.ok()) << t.status().ToString();
  EXPECT_EQ((*t)->bos(), 0);
  EXPECT_EQ((*t)->eos(), 1);
  EXPECT_EQ((*t)->stop_tokens(), (Ids{1, 2}));
  EXPECT_EQ((*t)->chat_template(), "{{ 'yes' }}");
  const Ids ids = (*t)->Encode("a");
  ASSERT_EQ(ids.size(), 2u);
  EXPECT_EQ(ids[0], 0);
  EXPECT_EQ((*t)->Encode("<s>a"), ids) << "exactly one BOS";
}

TEST(TokenizerJson, RefusesWhatIsNotBuilt) {
  const auto expect = [](const json& tokenizer, StatusCode code, const std::string& part,
                         const json& config = {}) {
    const Status status = FromJson(tokenizer, config).status();
    EXPECT_EQ(status.code(), code) << status.ToString();
    EXPECT_NE(status.message().find(part), std::string::npos) << status.ToString();
  };
  const auto with = [](const json& patch) {
    json out = Gpt2();
    out.merge_patch(patch);
    return out;
  };
  const auto unsupported = StatusCode::kUnsupported;
  expect(with({{"model", {{"type", "WordPiece"}}}}), unsupported, "model of type 'WordPiece'");
  expect(with({{"normalizer", {{"type", "Lowercase"}}}}), unsupported, "normalizer 'Lowercase'");
  expect(with({{"pre_tokenizer", {{"type", "Bert"}}}}), unsupported, "pre-tokenizer 'Bert'");
  expect(with({{"model", {{"end_of_word_suffix", "</w>"}}}}), unsupported, "end_of_word_suffix");
  json split = {{"type", "Split"}, {"pattern", {{"Regex", "(?<!a"}}}, {"behavior", "Isolated"}};
  const json level = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  const auto sequence = [&] {
    return with({{"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {split, level}}}}});
  };
  expect(sequence(), unsupported, "the expression '(?<!a' of the pre-tokenizer");
  split["behavior"] = "MergedWithNext";
  expect(sequence(), unsupported, "pre-tokenizer 'Split'");
  json tokens = Gpt2();
  tokens["added_tokens"][0]["single_word"] = true;
  expect(tokens, unsupported, "matches whole words only");
  tokens = Gpt2();
  tokens["added_tokens"][0]["id"] = 5;
  expect(tokens, StatusCode::kDataLoss, "token 5 is both '");
  tokens["added_tokens"][0]["id"] = 1 << 23;
  expect(tokens, StatusCode::kDataLoss, "far beyond the");
  tokens["added_tokens"][0]["id"] = -1;
  expect(tokens, StatusCode::kDataLoss, "a token's id is no number");
  expect(with({{"model", {{"merges", {"ab"}}}}}), StatusCode::kDataLoss, "two tokens with a space");
  expect(with({{"model", {{"merges", {{"a", "b", "c"}}}}}}), StatusCode::kDataLoss, "no pair");
  expect(with({{"model", {{"vocab", 1}}}}), StatusCode::kInvalidArgument, "'vocab' of");
  expect(Gpt2(), StatusCode::kInvalidArgument, "'eos_token_id' of 'config.json' is 100000",
         {{"eos_token_id", 100000}});
}

TEST(TokenizerJson, AUnigramHasNoStepsThatItDoesNotKnow) {
  const json unigram = Golden()["tokenizers_of_kind"]["unigram"]["json"];
  const json digits = {{"type", "Digits"}, {"individual_digits", true}};
  const json level = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  for (const auto& [steps, part] :
       {std::pair{json::array({digits, unigram["pre_tokenizer"]}), "Split and Digits are"},
        {json::array({unigram["pre_tokenizer"], level}), "a Unigram with ByteLevel"},
        {json::array(), "a Unigram without Metaspace"}}) {
    json tokenizer = unigram;
    tokenizer["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", steps}};
    const Status status = FromJson(tokenizer).status();
    EXPECT_EQ(status.code(), StatusCode::kUnsupported) << status.ToString();
    EXPECT_NE(status.message().find(part), std::string::npos) << status.ToString();
  }
}

TEST(TokenizerJson, APadTokenIsNotLookedAt) {
  EXPECT_TRUE(FromJson(Gpt2(), {{"pad_token_id", -1}}).ok());
}

TEST(TokenizerJson, ATokenIsATextOrAnObjectWithOne) {
  const auto bos = [](const json& token) {
    const auto t = FromJson(Gpt2(), {}, {{"bos_token", token}});
    TQ_CHECK(t.ok());
    return (*t)->bos();
  };
  const int id = bos("<s>");
  EXPECT_GE(id, 0);
  EXPECT_EQ(bos({{"content", "<s>"}}), id);
  ASSERT_NE(bos(nullptr), id);
  EXPECT_EQ(bos({{"content", {{"content", "<s>"}}}}), bos(nullptr));
}

TEST(TokenizerJson, RowsWithoutATokenAreBounded) {
  MemoryFolder folder;
  folder.files["tokenizer.json"] = Gpt2().dump();
  std::map<std::string, GgufValue> metadata;
  const Status status = ReadHfTokenizer(folder, json::object(), 1 << 24, metadata);
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_NE(status.message().find("'vocab_size' of 'config.json' is 16777216, far beyond the"),
            std::string::npos)
      << status.ToString();
  EXPECT_TRUE(ReadHfTokenizer(folder, json::object(), 65536, metadata).ok());
}

TEST(TokenizerJson, EveryTruncationIsAnError) {
  const std::string whole = Golden()["tokenizers_of_kind"]["unigram"]["json"].dump();
  for (size_t n = 0; n < whole.size(); n += 37) {
    MemoryFolder folder;
    folder.files["tokenizer.json"] = whole.substr(0, n);
    std::map<std::string, GgufValue> metadata;
    EXPECT_EQ(ReadHfTokenizer(folder, {}, 0, metadata).code(), StatusCode::kDataLoss) << n;
  }
}

TEST(TokenizerJson, AGreedyExpressionDoesNotHang) {
  json tokenizer = Gpt2();
  tokenizer["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers",
       {{{"type", "Split"}, {"pattern", {{"Regex", "(a+)+b"}}}, {"behavior", "Isolated"}},
        {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
  const auto t = FromJson(tokenizer);
  ASSERT_TRUE(t.ok()) << t.status().ToString();
  const std::string text(200, 'a');
  EXPECT_EQ((*t)->Decode((*t)->Encode(text)), text);
}

// --- SentencePiece vocabularies of GGUF files ----------------------------------------------------

// <unk>, <s>, bytes, then normal tokens with falling scores.
struct Pieces {
  GgufBuilder b;
  std::vector<std::string> tokens = {"<unk>", "<s>"};
  std::vector<int32_t> kinds = {2, 3};
  std::vector<float> scores = {0, 0};
  explicit Pieces(bool bytes = true) {
    for (int i = 0; bytes && i < 256; ++i) {
      char text[8];
      std::snprintf(text, sizeof text, "<0x%02X>", i);
      Add(text, 0, 6);
    }
  }
  TokenId Add(const std::string& text, float score, int32_t kind = 1) {
    tokens.push_back(text);
    kinds.push_back(kind);
    scores.push_back(score);
    return static_cast<TokenId>(tokens.size() - 1);
  }
  std::string Build(const std::string& model = "llama") {
    return GgufBuilder(b)
        .Text("tokenizer.ggml.model", model)
        .Texts("tokenizer.ggml.tokens", tokens)
        .I32s("tokenizer.ggml.token_type", kinds)
        .F32s("tokenizer.ggml.scores", scores)
        .U32("tokenizer.ggml.bos_token_id", 1)
        .Build();
  }
};

Result<std::unique_ptr<Tokenizer>> Load(const std::string& bytes) {
  TQ_ASSIGN_OR_RETURN(const GgufFile file, GgufFile::Parse(std::as_bytes(std::span(bytes)), "v"));
  return Tokenizer::FromGguf(file);
}

TEST(SentencePiece, HighestScoreThenLeftmost) {
  Pieces p;
  const TokenId blank = p.Add("\xE2\x96\x81", -10), a = p.Add("a", -11), b = p.Add("b", -12);
  const TokenId aa = p.Add("aa", -1), ab = p.Add("ab", -1), ba = p.Add("ba", -0.5f);
  const auto t = Load(p.Build());
  ASSERT_TRUE(t.ok()) << t.status().ToString();
  EXPECT_EQ((*t)->Encode("aaab"), (Ids{1, blank, aa, ab}));
  EXPECT_EQ((*t)->Encode("aba"), (Ids{1, blank, a, ba})) << "the better score, though on the right";
  EXPECT_EQ((*t)->Encode("b"), (Ids{1, blank, b}));
  EXPECT_EQ((*t)->Decode((*t)->Encode(" aab")), " aab") << "one blank in front goes, not two";
}

TEST(SentencePiece, BytesWhereThereIsNoToken) {
  Pieces p;
  const TokenId blank = p.Add("\xE2\x96\x81", -10);
  const auto t = Load(p.Build());
  ASSERT_TRUE(t.ok());
  EXPECT_EQ((*t)->Encode("\xC3\xA9"), (Ids{1, blank, 2 + 0xC3, 2 + 0xA9}));
  EXPECT_EQ((*t)->Encode("\xFF"), (Ids{1, blank, 2 + 0xFF})) << "not UTF-8";
  EXPECT_EQ((*t)->Encode("<0x0A>").size(), 8u) << "a byte token's name is no token";
  EXPECT_EQ((*t)->TokenBytes(2 + 0x0A), "\n");
  StreamDecoder decoder(**t);
  EXPECT_EQ(decoder.Push(2 + 0xC3), "");
  EXPECT_EQ(decoder.Push(2 + 0xA9), "\xC3\xA9");
}

TEST(SentencePiece, RefusesMalformedVocabularies) {
  const auto expect = [](Pieces p, const std::string& part, const std::string& model = "llama") {
    const Status status = Load(p.Build(model)).status();
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << status.ToString();
    EXPECT_NE(status.message().find(part), std::string::npos) << status.ToString();
  };
  Pieces p;
  p.scores.pop_back();
  expect(p, "'tokenizer.ggml.scores' has 257 entries for 258 tokens");
  p = Pieces();
  p.scores[3] = NAN;
  expect(p, "has a score of nan");
  p = Pieces();
  p.b.U32("tokenizer.ggml.unknown_token_id", 258);
  expect(p, "'tokenizer.ggml.unknown_token_id' is 258");
  for (const std::vector<int32_t>& map : {std::vector<int32_t>{1, 2}, {8, 0, 0, 0, 1, 2, 3}}) {
    p = Pieces();
    p.b.I32s("tokenizer.ggml.precompiled_charsmap", map);
    expect(p, "precompiled_charsmap", "t5");
  }
}

TEST(SentencePiece, ADamagedMapOfCharactersIsHarmless) {
  const json& ggml = Golden()["tokenizers_of_kind"]["sp_unigram"]["ggml"];
  const auto map = ggml["charsmap_bytes"].get<std::vector<int64_t>>();
  ASSERT_GT(map.size(), 100u);
  for (size_t i = 4; i < map.size(); i += 13) {
    json damaged = ggml;
    damaged["charsmap_bytes"][i] = map[i] ^ 0x5A;
    const auto t = FromGgml(damaged);
    ASSERT_TRUE(t.ok()) << t.status().ToString();
    EXPECT_LT((*t)->Encode("e\xCC\x81\xEF\xAC\x81 \xE2\x91\xA0\xE3\x80\x80z").size(), 200u);
  }
}

// --- Real vocabularies, where they were fetched
// ---------------------------------------------------

// llama.cpp's source has vocabularies of known models, with texts and the ids of their tokenizers.
class RealVocabulary : public testing::TestWithParam<const char*> {};

TEST_P(RealVocabulary, IdsEqualTheReference) {
  const std::string path =
      std::string(TQ_DATA_DIR "/llama.cpp/models/ggml-vocab-") + GetParam() + ".gguf";
  if (!FileExists(path)) GTEST_SKIP() << path << " is not there";
  const Result<GgufFile> file = GgufFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  const auto tokenizer = Tokenizer::FromGguf(*file);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
  const Result<std::string> texts = ReadFile(path + ".inp"), ids = ReadFile(path + ".out");
  ASSERT_TRUE(texts.ok() && ids.ok());
  constexpr std::string_view kEnd = "\n__ggml_vocab_test__\n";
  std::istringstream lines(*ids);
  size_t count = 0;
  for (size_t pos = 0, end; (end = texts->find(kEnd, pos)) != std::string::npos;
       pos = end + kEnd.size(), ++count) {
    std::string line;
    std::getline(lines, line);
    std::istringstream numbers(line);
    Ids want;
    for (TokenId id; numbers >> id;) want.push_back(id);
    const std::string text = texts->substr(pos, end - pos);
    EXPECT_EQ((*tokenizer)->Encode(text, {.add_bos = false}), want) << json(text).dump();
  }
  EXPECT_GE(count, 40u);
}

INSTANTIATE_TEST_SUITE_P(LlamaCpp, RealVocabulary,
                         testing::Values("gpt-2", "llama-bpe", "llama-spm", "phi-3", "qwen2",
                                         "qwen35", "starcoder", "refact", "command-r", "mpt",
                                         "deepseek-coder", "gemma-4"),
                         [](const auto& kind) {
                           std::string name = kind.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace tq
