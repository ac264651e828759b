// Ids equal to the reference tokenizers, on a real vocabulary (golden file) and on small ones made
// here; malformed vocabularies; streaming.
#include "runtime/tokenizer/tokenizer.h"

#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "runtime/formats/gguf_builder_for_test.h"
#include "runtime/tokenizer/pre_tokenizer.h"
#include "runtime/tokenizer/utf8.h"
#include "turboquant/base/file.h"

namespace tq {
namespace {

using Ids = std::vector<TokenId>;

// --- A small vocabulary: all 256 bytes (token = byte), then what the merges make, then specials
// ---

std::string ByteText(int b) {
  const bool printable = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
  uint32_t code_point = static_cast<uint32_t>(b);
  if (!printable) {
    code_point = 0x100;
    for (int i = 0; i < b; ++i) {
      if (!((i >= '!' && i <= '~') || (i >= 0xA1 && i <= 0xAC) || i >= 0xAE)) ++code_point;
    }
  }
  std::string text;
  AppendUtf8(code_point, text);
  return text;
}

constexpr int kControl = 3, kUserDefined = 4;

struct Vocabulary {
  Vocabulary() {
    for (int b = 0; b < 256; ++b) Add(ByteText(b), 1);
  }
  TokenId Add(const std::string& text, int32_t kind) {
    tokens.push_back(text);
    kinds.push_back(kind);
    return static_cast<TokenId>(tokens.size() - 1);
  }
  TokenId Merge(const std::string& left, const std::string& right) {
    merges.push_back(left + " " + right);
    return Add(left + right, 1);
  }
  std::string Build(const std::string& pre, GgufBuilder b = {}) const {
    return b.Text("tokenizer.ggml.model", "gpt2")
        .Text("tokenizer.ggml.pre", pre)
        .Texts("tokenizer.ggml.tokens", tokens)
        .I32s("tokenizer.ggml.token_type", kinds)
        .Texts("tokenizer.ggml.merges", merges)
        .Build();
  }
  std::vector<std::string> tokens, merges;
  std::vector<int32_t> kinds;
};

Result<std::unique_ptr<Tokenizer>> Load(const std::string& bytes) {
  TQ_ASSIGN_OR_RETURN(const GgufFile file, GgufFile::Parse(std::as_bytes(std::span(bytes)), "v"));
  return Tokenizer::FromGguf(file);
}

std::unique_ptr<Tokenizer> MustLoad(const std::string& bytes) {
  Result<std::unique_ptr<Tokenizer>> tokenizer = Load(bytes);
  TQ_CHECK(tokenizer.ok());
  return *std::move(tokenizer);
}

TEST(Tokenizer, MergesByRankThenFromTheLeft) {
  Vocabulary v;
  const TokenId bc = v.Merge("b", "c");
  const TokenId ab = v.Merge("a", "b");
  const TokenId aa = v.Merge("a", "a");
  const TokenId abc = v.Merge("a", "bc");
  const auto tokenizer = MustLoad(v.Build("gpt-2"));
  EXPECT_EQ(tokenizer->Encode("abc"), Ids{abc}) << "b+c has the lower rank, then a+bc";
  EXPECT_EQ(tokenizer->Encode("ab"), Ids{ab});
  EXPECT_EQ(tokenizer->Encode("aaa"), (Ids{aa, 'a'}));
  EXPECT_EQ(tokenizer->Encode("aaab"), (Ids{aa, ab})) << "a+b has a lower rank than a+a";
  EXPECT_EQ(tokenizer->Encode("bcbc"), (Ids{bc, bc}));
  EXPECT_EQ(tokenizer->Encode(""), Ids{});
  EXPECT_EQ(tokenizer->Describe(), "gpt2 byte-level BPE, pre-tokenizer gpt-2, 260 tokens");
  EXPECT_EQ(tokenizer->vocab_size(), 260);
}

TEST(Tokenizer, BytesRoundTripWhateverTheyAre) {
  Vocabulary v;
  v.Merge("a", "b");
  const auto tokenizer = MustLoad(v.Build("smollm"));
  std::string all;
  for (int b = 0; b < 256; ++b) all.push_back(static_cast<char>(b));
  for (const std::string& text :
       {all, all + all,
        std::string("ab\xff\xfe"
                    "ab"),
        std::string("\xc3"), std::string("\xed\xa0\x80"), std::string("\xf4\x90\x80\x80"),
        std::string("\xc0\x80"), std::string("a\xe2\x82")}) {
    EXPECT_EQ(tokenizer->Decode(tokenizer->Encode(text)), text);
  }
  EXPECT_EQ(tokenizer->Encode("ab\xff"
                              "ab"),
            (Ids{256, 0xFF, 256}))
      << "an invalid byte is a piece";
}

TEST(Tokenizer, InvalidBytesWithoutATokenBecomeReplacementCharacters) {
  Vocabulary v;
  v.tokens[0xFF] = "unused-ff";
  v.tokens[0x04] = "unused-04";
  const auto tokenizer = MustLoad(v.Build("smollm"));
  EXPECT_EQ(tokenizer->Encode("a\xff"), (Ids{'a', 0xEF, 0xBF, 0xBD}));
  EXPECT_EQ(tokenizer->Encode("a\x04!"), (Ids{'a', '!'})) << "valid, but not in the vocabulary";
}

TEST(Tokenizer, SpecialTokens) {
  Vocabulary v;
  const TokenId start = v.Add("<|im_start|>", kControl);
  const TokenId stop = v.Add("<|im_end|>", kControl);
  const TokenId longer = v.Add("<|im_end|>!", kControl);
  const TokenId user = v.Add("<tag>", kUserDefined);
  GgufBuilder keys;
  keys.U32("tokenizer.ggml.bos_token_id", static_cast<uint32_t>(start));
  keys.U32("tokenizer.ggml.eos_token_id", static_cast<uint32_t>(longer));
  const auto tokenizer = MustLoad(v.Build("smollm", keys));
  EXPECT_EQ(tokenizer->Encode("a<|im_start|>b<|im_end|>"), (Ids{'a', start, 'b', stop}));
  EXPECT_EQ(tokenizer->Encode("<|im_end|>!"), Ids{longer}) << "the longest";
  EXPECT_EQ(tokenizer->Encode("<<tag>"), (Ids{'<', user}));
  EXPECT_EQ(tokenizer->Encode("<tag><|im_end|>", {.add_bos = true, .parse_special = false}),
            (Ids{user, '<', '|', 'i', 'm', '_', 'e', 'n', 'd', '|', '>'}));
  EXPECT_TRUE(tokenizer->IsSpecial(stop));
  EXPECT_FALSE(tokenizer->IsSpecial(user));
  EXPECT_FALSE(tokenizer->IsSpecial('a'));
  EXPECT_FALSE(tokenizer->IsSpecial(-1));
  EXPECT_FALSE(tokenizer->IsSpecial(100000));
  EXPECT_EQ(tokenizer->TokenBytes(stop), "<|im_end|>");
  EXPECT_EQ(tokenizer->TokenBytes(100000), "");
  EXPECT_EQ(tokenizer->Decode({'a', stop, user}), "a<tag>");
  EXPECT_EQ(tokenizer->Decode({'a', stop}, false), "a<|im_end|>");
  EXPECT_EQ(tokenizer->stop_tokens(), (Ids{stop, longer})) << "eos and end of turn";
  EXPECT_TRUE(tokenizer->IsStop(stop));
  EXPECT_FALSE(tokenizer->IsStop(start));
}

TEST(Tokenizer, ExactlyOneBos) {
  Vocabulary v;
  const TokenId bos = v.Add("<s>", kControl);
  const auto load = [&](bool add) {
    GgufBuilder keys;
    keys.U32("tokenizer.ggml.bos_token_id", static_cast<uint32_t>(bos));
    keys.Bool("tokenizer.ggml.add_bos_token", add);
    return MustLoad(v.Build("gpt-2", keys));
  };
  const auto with = load(true), without = load(false);
  EXPECT_EQ(with->Encode("a"), (Ids{bos, 'a'}));
  EXPECT_EQ(with->Encode(""), Ids{bos});
  EXPECT_EQ(with->Encode("<s>a"), (Ids{bos, 'a'}));
  EXPECT_EQ(with->Encode("a<s>"), (Ids{bos, 'a', bos}));
  EXPECT_EQ(with->Encode("a", {.add_bos = false, .parse_special = true}), Ids{'a'});
  EXPECT_EQ(with->Encode("<s>", {.add_bos = true, .parse_special = false}),
            (Ids{bos, '<', 's', '>'}));
  EXPECT_EQ(without->Encode("a"), Ids{'a'});
  EXPECT_EQ(with->bos(), bos);
  EXPECT_EQ(with->eos(), -1);
  // Llama 3 begins with BOS unless the file says otherwise.
  GgufBuilder keys;
  keys.U32("tokenizer.ggml.bos_token_id", static_cast<uint32_t>(bos));
  EXPECT_EQ(MustLoad(v.Build("llama-bpe", keys))->Encode("a"), (Ids{bos, 'a'}));
}

TEST(Tokenizer, LlamaTakesWholePiecesWithoutMerging) {
  Vocabulary v;
  const TokenId word = v.Add("abc", 1);  // no merges lead to it
  EXPECT_EQ(MustLoad(v.Build("llama-bpe"))->Encode("abc"), Ids{word});
  EXPECT_EQ(MustLoad(v.Build("gpt-2"))->Encode("abc"), (Ids{'a', 'b', 'c'}));
}

TEST(Tokenizer, LongPiecesAreMergedQuickly) {
  Vocabulary v;
  std::string unit = "a";
  for (int i = 0; i < 6; ++i) {
    v.Merge(unit, unit);
    unit += unit;
  }
  const auto tokenizer = MustLoad(v.Build("gpt-2"));
  const Ids ids = tokenizer->Encode(std::string(1 << 20, 'a'));
  EXPECT_EQ(ids, Ids((1 << 20) / 64, 261));
}

// --- Pieces ---

std::vector<std::string> Pieces(const std::string& pre, const std::string& text) {
  const auto splitter = PreTokenizer::Create(pre);
  TQ_CHECK(splitter.ok());
  std::vector<std::string_view> views;
  (*splitter)->Split(text, views);
  return {views.begin(), views.end()};
}
using Texts = std::vector<std::string>;

TEST(PreTokenizer, Gpt2) {
  EXPECT_EQ(Pieces("gpt-2", "Don't  stop 123!\n\n x"),
            (Texts{"Don", "'t", " ", " stop", " 123", "!", "\n\n", " x"}));
  EXPECT_EQ(Pieces("gpt-2", "'S"), (Texts{"'", "S"}));
  EXPECT_EQ(Pieces("gpt-2", "a   "), (Texts{"a", "   "}));
  EXPECT_EQ(Pieces("gpt-2", ""), Texts{});
}

TEST(PreTokenizer, SmollmTakesDigitsOneByOne) {
  EXPECT_EQ(Pieces("smollm", "a 12b"), (Texts{"a", " ", "1", "2", "b"}));
  EXPECT_EQ(Pieces("smollm", "\xC2\xBD\xD9\xA1"), (Texts{"\xC2\xBD", "\xD9\xA1"})) << "any script";
}

TEST(PreTokenizer, Llama3AndQwen2) {
  EXPECT_EQ(Pieces("llama-bpe", "x=12345 DON'T\n\n  y"),
            (Texts{"x", "=", "123", "45", " DON", "'T", "\n\n", " ", " y"}));
  EXPECT_EQ(Pieces("qwen2", "x=123\r\n!?\n"), (Texts{"x", "=", "1", "2", "3", "\r\n", "!?\n"}));
  EXPECT_EQ(Pieces("llama-bpe", "(word \t\nz"), (Texts{"(word", " \t\n", "z"}));
}

TEST(PreTokenizer, WhitespaceIsUnicodes) {
  EXPECT_EQ(Pieces("gpt-2", "\xC2\x85\xE2\x80\xA9x"), (Texts{"\xC2\x85", "\xE2\x80\xA9", "x"}));
  EXPECT_EQ(Pieces("gpt-2", "!\xE1\xA0\x8E!"), Texts{"!\xE1\xA0\x8E!"}) << "U+180E is none";
}

TEST(PreTokenizer, PiecesAreTheWholeText) {
  std::string text;
  for (uint32_t c = 0; c < 0x3000; ++c) {
    AppendUtf8(c, text);
    if (c % 7 == 0) text += " ";
  }
  for (const char* pre : {"gpt-2", "smollm", "llama-bpe", "qwen2"}) {
    std::string joined;
    for (const std::string& piece : Pieces(pre, text)) joined += piece;
    EXPECT_EQ(joined, text) << pre;
  }
}

// --- Malformed vocabularies ---

void ExpectError(const std::string& bytes, StatusCode code, const std::string& part) {
  const Status status = Load(bytes).status();
  EXPECT_EQ(status.code(), code) << status.ToString();
  EXPECT_NE(status.message().find(part), std::string::npos) << status.ToString();
}

TEST(Tokenizer, NamesWhatIsNotSupported) {
  ExpectError(GgufBuilder().Build(), StatusCode::kNotFound, "no metadata 'tokenizer.ggml.model'");
  ExpectError(GgufBuilder().Text("tokenizer.ggml.model", "bert").Build(), StatusCode::kUnsupported,
              "tokenizer model 'bert' is not supported; supported: gpt2, llama, gemma4, t5");
  ExpectError(Vocabulary().Build("viking"), StatusCode::kUnsupported,
              "pre-tokenizer 'viking' is not supported; supported: gpt-2, phi-2, mpt");
  ExpectError(GgufBuilder().Text("tokenizer.ggml.model", "gpt2").Build(), StatusCode::kUnsupported,
              "does not say which pre-tokenizer");
}

TEST(Tokenizer, RefusesMalformedVocabularies) {
  GgufBuilder b;
  b.Text("tokenizer.ggml.model", "gpt2").Text("tokenizer.ggml.pre", "smollm");
  ExpectError(b.Build(), StatusCode::kNotFound, "no metadata 'tokenizer.ggml.tokens'");
  ExpectError(GgufBuilder(b).I32s("tokenizer.ggml.tokens", {1}).Build(),
              StatusCode::kInvalidArgument, "an array of strings was expected");
  ExpectError(GgufBuilder(b).Texts("tokenizer.ggml.tokens", {}).Build(), StatusCode::kDataLoss,
              "'tokenizer.ggml.tokens' has 0 tokens");
  b.Texts("tokenizer.ggml.tokens", {"a", "b", "ab"});
  ExpectError(b.Build(), StatusCode::kNotFound, "no metadata 'tokenizer.ggml.merges'");
  ExpectError(GgufBuilder(b).I32s("tokenizer.ggml.token_type", {1, 1}).Build(),
              StatusCode::kDataLoss, "'tokenizer.ggml.token_type' has 2 entries for 3 tokens");
  for (const std::string& merge :
       {std::string("ab"), std::string(""), std::string("a "), std::string(" b")}) {
    ExpectError(GgufBuilder(b).Texts("tokenizer.ggml.merges", {"a b", merge}).Build(),
                StatusCode::kDataLoss, "merge 1 of 'tokenizer.ggml.merges' is '" + merge + "'");
  }
  ExpectError(GgufBuilder(b).Texts("tokenizer.ggml.merges", {"x b"}).Build(), StatusCode::kDataLoss,
              "its left part is not in the vocabulary");
  ExpectError(GgufBuilder(b).Texts("tokenizer.ggml.merges", {"a x"}).Build(), StatusCode::kDataLoss,
              "its right part is not in the vocabulary");
  ExpectError(GgufBuilder(b).Texts("tokenizer.ggml.merges", {"b a"}).Build(), StatusCode::kDataLoss,
              "its result is not in the vocabulary");
  b.Texts("tokenizer.ggml.merges", {"a b"});
  EXPECT_TRUE(Load(b.Build()).ok());
  ExpectError(GgufBuilder(b).U32("tokenizer.ggml.bos_token_id", 3).Build(), StatusCode::kDataLoss,
              "'tokenizer.ggml.bos_token_id' is 3, but the vocabulary has 3 tokens");
  ExpectError(GgufBuilder(b).I32("tokenizer.ggml.eos_token_id", -1).Build(), StatusCode::kDataLoss,
              "'tokenizer.ggml.eos_token_id' is -1");
  ExpectError(GgufBuilder(b).U32("tokenizer.ggml.add_bos_token", 1).Build(),
              StatusCode::kInvalidArgument, "a bool was expected");
}

// --- Streaming ---

TEST(StreamDecoder, HoldsBackUnfinishedCharacters) {
  const auto tokenizer = MustLoad(Vocabulary().Build("smollm"));
  const std::string text = "a\xC3\xA9\xE6\xBC\xA2\xF0\x9F\x98\x80z";
  StreamDecoder decoder(*tokenizer);
  std::string streamed;
  for (const TokenId id : tokenizer->Encode(text)) {
    const std::string part = decoder.Push(id);
    EXPECT_EQ(ValidUtf8Prefix(part), part.size());
    streamed += part;
  }
  EXPECT_EQ(streamed, text);
  EXPECT_EQ(decoder.Finish(), "");
}

TEST(StreamDecoder, ReplacesWhatIsNoText) {
  const auto tokenizer = MustLoad(Vocabulary().Build("smollm"));
  StreamDecoder decoder(*tokenizer);
  EXPECT_EQ(decoder.Push(0xFF), "\xEF\xBF\xBD");
  EXPECT_EQ(decoder.Push(0xF0), "");
  EXPECT_EQ(decoder.Push(0x9F), "");
  EXPECT_EQ(decoder.Push('a'),
            "\xEF\xBF\xBD\xEF\xBF\xBD"
            "a")
      << "the character never came";
  EXPECT_EQ(decoder.Push(0xE2), "");
  EXPECT_EQ(decoder.Push(0x82), "");
  EXPECT_EQ(decoder.Finish(), "\xEF\xBF\xBD");
  EXPECT_EQ(decoder.Finish(), "");
}

TEST(Utf8, AcceptsExactlyTheCharacters) {
  for (uint32_t c = 0; c < 0x110000; c += c < 0x1000 ? 1 : 13) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string text;
    AppendUtf8(c, text);
    const Utf8Char got = DecodeUtf8(text);
    ASSERT_EQ(got.code_point, c);
    ASSERT_EQ(static_cast<size_t>(got.size), text.size());
    for (size_t n = 1; n < text.size(); ++n) EXPECT_TRUE(DecodeUtf8(text.substr(0, n)).incomplete);
  }
  for (const char* bad : {"\x80", "\xC1\x80", "\xE0\x9F\x80", "\xED\xA0\x80", "\xF0\x8F\x80\x80",
                          "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF", "\xC3\x28"}) {
    EXPECT_EQ(DecodeUtf8(bad).size, 0);
    EXPECT_FALSE(DecodeUtf8(bad).incomplete);
  }
}

// --- The real vocabulary ---

class SmolLM2 : public testing::Test {
 protected:
  void SetUp() override {
    const std::string path = TQ_DATA_DIR "/SmolLM2-135M-Instruct.Q4_1.gguf";
    if (!FileExists(path)) GTEST_SKIP() << path << " is not there";
    const Result<GgufFile> file = GgufFile::Open(path);
    ASSERT_TRUE(file.ok()) << file.status().ToString();
    Result<std::unique_ptr<Tokenizer>> loaded = Tokenizer::FromGguf(*file);
    ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
    tokenizer_ = *std::move(loaded);
  }
  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_F(SmolLM2, IdsEqualTheReference) {
  const Result<std::string> golden = ReadFile(TQ_SOURCE_DIR "/tests/golden/tokenizer_smollm2.json");
  ASSERT_TRUE(golden.ok()) << golden.status().ToString();
  const auto json = nlohmann::json::parse(*golden, nullptr, /*allow_exceptions=*/false);
  ASSERT_TRUE(json.is_object());
  size_t num_cases = 0;
  for (const auto& entry : json["cases"]) {
    const auto text = entry["text"].get<std::string>();
    const auto ids = entry["ids"].get<Ids>();
    EXPECT_EQ(tokenizer_->Encode(text), ids) << entry.dump();
    const auto plain =
        entry.contains("ids_without_special") ? entry["ids_without_special"].get<Ids>() : ids;
    EXPECT_EQ(tokenizer_->Encode(text, {.add_bos = true, .parse_special = false}), plain)
        << entry.dump();
    ++num_cases;
  }
  EXPECT_GE(num_cases, 260u);
}

TEST_F(SmolLM2, KnowsItsSpecialTokens) {
  EXPECT_EQ(tokenizer_->vocab_size(), 49152);
  EXPECT_EQ(tokenizer_->bos(), 1);
  EXPECT_EQ(tokenizer_->eos(), 2);
  EXPECT_EQ(tokenizer_->stop_tokens(), (Ids{0, 2})) << "end of text and end of turn";
  EXPECT_EQ(tokenizer_->Describe(), "gpt2 byte-level BPE, pre-tokenizer smollm, 49152 tokens");
  EXPECT_NE(tokenizer_->chat_template().find("<|im_start|>"), std::string::npos);
}

TEST_F(SmolLM2, StreamsWhatItDecodes) {
  const std::string text =
      "caf\xC3\xA9 \xF0\x9F\x91\xA8\xE2\x80\x8D\xF0\x9F\x91\xA9 \xE6\xBC\xA2\xE5\xAD\x97 123";
  const Ids ids = tokenizer_->Encode(text);
  EXPECT_EQ(tokenizer_->Decode(ids), text);
  StreamDecoder decoder(*tokenizer_);
  std::string streamed;
  for (const TokenId id : ids) streamed += decoder.Push(id);
  EXPECT_EQ(streamed + decoder.Finish(), text);
}

}  // namespace
}  // namespace tq
