#include "runtime/engine/session.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

namespace tq {
namespace {

// Token texts of the tests; 0 is special, 1 ends a generation.
const std::vector<std::string> kTexts = {"<s>", "<end>",    "Hello", " wor", "ld",
                                         "!",   "\xe2\x82", "\xac",  "EN",   "D"};
constexpr TokenId kEnd = 1;

class ListTokenizer : public Tokenizer {
 public:
  ListTokenizer() {
    vocab_size_ = static_cast<int>(kTexts.size());
    eos_ = kEnd;
    stop_tokens_ = {kEnd};
  }
  std::vector<TokenId> Encode(std::string_view, const EncodeOptions&) const override { return {}; }
  std::string TokenBytes(TokenId id) const override { return kTexts[static_cast<size_t>(id)]; }
  bool IsSpecial(TokenId id) const override { return id <= kEnd; }
};

// Says script[position of the next token]; the others have lower logits, which depend on what was
// fed last. Fails when `fail` is set, as a model without memory would.
class ScriptModel : public Model {
 public:
  explicit ScriptModel(std::vector<TokenId> script) : script_(std::move(script)) {
    arch_.num_layers = arch_.num_kv_heads = arch_.num_q_heads = 1;
    arch_.head_dim = 16;
    arch_.vocab_size = static_cast<int>(kTexts.size());
  }
  WeightInfo weights() const override { return {}; }
  std::vector<std::vector<float>> KBias() const override { return {}; }
  Status Forward(KvCache& cache, std::span<const ForwardItem> items,
                 std::vector<float>* logits) override {
    if (fail) return ResourceExhausted("no memory");
    batches.push_back(items.size());
    if (logits != nullptr) logits->clear();
    for (const ForwardItem& item : items) {
      const auto n = static_cast<int>(item.tokens.size());
      chunks.push_back(n);
      TQ_ASSIGN_OR_RETURN(const int64_t length, cache.Length(item.seq));
      TQ_RETURN_IF_ERROR(cache.BeginAppend(item.seq, n));
      const std::vector<float> zeros(static_cast<size_t>(n) * 16);
      TQ_RETURN_IF_ERROR(cache.AppendLayer(item.seq, 0, zeros.data(), zeros.data(), pool_));
      TQ_RETURN_IF_ERROR(cache.CommitAppend(item.seq));
      if (logits == nullptr) continue;
      for (int t = item.all_logits ? 0 : n - 1; t < n; ++t) {
        const auto next = static_cast<size_t>(length + t + 1);
        for (TokenId id = 0; id < arch_.vocab_size; ++id) {
          const bool said = next < script_.size() && script_[next] == id;
          logits->push_back(nan ? std::nanf("") : said ? 5.0f : 0.1f * static_cast<float>(id));
        }
      }
    }
    return OkStatus();
  }
  CacheConfig Config() const {
    CacheConfig c;
    c.num_layers = c.num_kv_heads = 1;
    c.head_dim = 16;
    c.formats = {*ParsePreset("f16")};
    return c;
  }

  std::vector<int> chunks;
  std::vector<size_t> batches;  // items of each call
  bool fail = false, nan = false;

 private:
  std::vector<TokenId> script_;
  ThreadPool pool_{1};
};

class SessionTest : public testing::Test {
 protected:
  // The script begins with the prompt.
  void Start(std::vector<TokenId> script, size_t prompt, int64_t context = 100) {
    model_ = std::make_unique<ScriptModel>(script);
    auto session = Session::Create(*model_, model_->Config(), context);
    ASSERT_TRUE(session.ok()) << session.status().ToString();
    session_ = std::move(*session);
    script.resize(prompt);
    const Status s = session_->Prefill(script);
    ASSERT_TRUE(s.ok()) << s.ToString();
  }
  Result<GenerateResult> Generate(const GenerateOptions& options = {}) {
    pieces_.clear();
    return session_->Generate(tokenizer_, options,
                              [this](const std::string& text) { pieces_.push_back(text); });
  }
  ListTokenizer tokenizer_;
  std::unique_ptr<ScriptModel> model_;
  std::unique_ptr<Session> session_;
  std::vector<std::string> pieces_;
};

TEST_F(SessionTest, LogprobsAreOfEachToken) {
  Start({0, 2, 3, 4, kEnd}, 2);
  const auto r = Generate({.logprobs = 2});
  ASSERT_TRUE(r.ok()) << r.status().ToString();
  ASSERT_EQ(r->logprobs.size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(r->logprobs[i].chosen.id, r->tokens[i]);
    EXPECT_LT(r->logprobs[i].chosen.logprob, 0);
    ASSERT_EQ(r->logprobs[i].top.size(), 2u);
    EXPECT_EQ(r->logprobs[i].top[0].id, r->tokens[i]) << "greedy takes the most probable";
    EXPECT_GT(r->logprobs[i].top[0].logprob, r->logprobs[i].top[1].logprob);
  }
  EXPECT_EQ(Generate()->logprobs.size(), 0u);
}

TEST_F(SessionTest, SeveralAnswersAreThoseOfTheirSeeds) {
  const std::vector<TokenId> script = {0, 2};  // then all tokens are likely
  GenerateOptions options = {.max_tokens = 12};
  options.sampling.temperature = 1;
  options.sampling.seed = 5;
  Start(script, 2);
  const size_t blocks = session_->cache().Bytes().total();
  constexpr int kCount = 6;  // more than are written side by side
  std::map<int, std::string> streamed;
  int speaking = 0;
  const auto several = session_->GenerateSeveral(
      tokenizer_, options, kCount, [&](int answer, const std::string& text) {
        EXPECT_GE(answer, speaking) << "one answer's text after the other's";
        speaking = answer;
        streamed[answer] += text;
      });
  ASSERT_TRUE(several.ok()) << several.status().ToString();
  ASSERT_EQ(several->size(), static_cast<size_t>(kCount));
  EXPECT_EQ(model_->batches[1], Session::kAnswersAtOnce);
  EXPECT_EQ(session_->cache().Bytes().total(), blocks) << "the forks are gone";
  EXPECT_EQ(session_->length(), 2 + static_cast<int64_t>((*several)[0].tokens.size()))
      << "the sequence is that of the first answer";
  const std::vector<TokenId> held(session_->tokens().begin() + 2, session_->tokens().end());
  EXPECT_EQ(held, (*several)[0].tokens);
  EXPECT_NE((*several)[0].tokens, (*several)[1].tokens);
  std::set<size_t> lengths;
  for (int i = 0; i < kCount; ++i) {
    Start(script, 2);
    GenerateOptions own = options;
    own.sampling.seed += static_cast<uint64_t>(i);
    const auto alone = Generate(own);
    ASSERT_TRUE(alone.ok());
    const GenerateResult& one = (*several)[static_cast<size_t>(i)];
    EXPECT_EQ(alone->tokens, one.tokens) << i;
    EXPECT_EQ(alone->finish_reason, one.finish_reason);
    EXPECT_EQ(alone->text, streamed[i]);
    lengths.insert(one.tokens.size());
  }
  EXPECT_GT(lengths.size(), 1u) << "some end before others";
  EXPECT_EQ(session_->GenerateSeveral(tokenizer_, options, 0).status().message(),
            "number of answers = 0: expected 1 or more");
}

TEST_F(SessionTest, AnErrorLeavesTheSequenceAndNoFork) {
  Start({0, 2}, 2);
  const size_t bytes = session_->cache().Bytes().total();
  model_->fail = true;
  EXPECT_EQ(session_->GenerateSeveral(tokenizer_, {.max_tokens = 3}, 3).status().code(),
            StatusCode::kResourceExhausted);
  EXPECT_EQ(session_->length(), 2);
  EXPECT_EQ(session_->cache().Bytes().total(), bytes);
  model_->fail = false;
  EXPECT_TRUE(Generate({.max_tokens = 3}).ok());
}

TEST_F(SessionTest, ABiasOutsideOfTheVocabularyIsAnError) {
  Start({0, 2, 3}, 2);
  GenerateOptions options;
  options.sampling.logit_bias = {{10, 1.0f}};
  EXPECT_EQ(Generate(options).status().message(),
            "logit_bias names token 10, but the model has 10");
  EXPECT_EQ(Generate({.logprobs = 101}).status().message(),
            "logprobs = 101: expected 0 to 100, or -1 for none");
}

TEST_F(SessionTest, GeneratesUntilTheStopToken) {
  Start({0, 2, 3, 4, 5, kEnd}, 2);
  const auto r = Generate();
  ASSERT_TRUE(r.ok()) << r.status().ToString();
  EXPECT_EQ(r->text, " world!");
  EXPECT_EQ(r->tokens, (std::vector<TokenId>{3, 4, 5}));
  EXPECT_EQ(r->finish_reason, FinishReason::kStop);
  EXPECT_EQ(r->prompt_tokens, 2);
  EXPECT_EQ(r->token_seconds.size(), 3u);
  EXPECT_EQ(pieces_, (std::vector<std::string>{" wor", "ld", "!"}));
  EXPECT_EQ(session_->length(), 5);
  EXPECT_EQ(*session_->cache().Length(1), 5);
}

TEST_F(SessionTest, AStopTokenThatComesFirstGivesNoText) {
  Start({2, kEnd}, 1);
  const auto r = Generate();
  ASSERT_TRUE(r.ok());
  EXPECT_EQ(r->text, "");
  EXPECT_TRUE(r->tokens.empty());
  EXPECT_EQ(r->finish_reason, FinishReason::kStop);
  EXPECT_EQ(session_->length(), 1);
}

TEST_F(SessionTest, StopTokensCanBeIgnored) {
  Start({2, kEnd, 5, 0, 5}, 1);
  const auto r = Generate({.max_tokens = 4, .ignore_stop_tokens = true});
  ASSERT_TRUE(r.ok());
  EXPECT_EQ(r->tokens, (std::vector<TokenId>{kEnd, 5, 0, 5}));
  EXPECT_EQ(r->text, "!!");  // special tokens have no text
  EXPECT_EQ(r->finish_reason, FinishReason::kLength);
}

TEST_F(SessionTest, AStopStringAcrossTokensIsCutOff) {
  Start({2, 3, 8, 9, 5}, 1);
  GenerateOptions options;
  options.stop = {"END", "nothing"};
  const auto r = Generate(options);
  ASSERT_TRUE(r.ok());
  EXPECT_EQ(r->text, " wor");
  EXPECT_EQ(r->finish_reason, FinishReason::kStop);
  EXPECT_EQ(r->tokens, (std::vector<TokenId>{3, 8, 9}));
  EXPECT_EQ(session_->length(), 4);
}

TEST_F(SessionTest, TextHeldForAStopStringComesOutAtTheEnd) {
  Start({2, 3, 8, kEnd}, 1);
  GenerateOptions options;
  options.stop = {"END"};
  const auto r = Generate(options);
  ASSERT_TRUE(r.ok());
  EXPECT_EQ(r->text, " worEN");
  EXPECT_EQ(pieces_, (std::vector<std::string>{" wor", "EN"}));
}

TEST_F(SessionTest, CharactersAreNeverSplit) {
  Start({2, 6, 7, 6, kEnd}, 1);
  const auto r = Generate();
  ASSERT_TRUE(r.ok());
  EXPECT_EQ(r->text, "\xe2\x82\xac\xef\xbf\xbd");
  EXPECT_EQ(pieces_, (std::vector<std::string>{"\xe2\x82\xac", "\xef\xbf\xbd"}));
}

TEST_F(SessionTest, MaxTokens) {
  Start({2, 3, 4, 5, 5}, 1);
  auto r = Generate({.max_tokens = 2});
  ASSERT_TRUE(r.ok());
  EXPECT_EQ(r->text, " world");
  EXPECT_EQ(r->finish_reason, FinishReason::kLength);
  r = Generate({.max_tokens = 0});
  ASSERT_TRUE(r.ok());
  EXPECT_EQ(r->text, "");
  // It goes on where it stopped.
  EXPECT_EQ(Generate({.max_tokens = 1})->text, "!");
}

TEST_F(SessionTest, TheContextEndsAGeneration) {
  Start({2, 3, 4, 5, 5}, 1, 3);
  const auto r = Generate();
  ASSERT_TRUE(r.ok());
  EXPECT_EQ(r->text, " world");
  EXPECT_EQ(r->finish_reason, FinishReason::kContext);
  const Status s = session_->Decode(3);
  EXPECT_EQ(s.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(s.message(),
            "the sequence has 3 tokens and the context is 3: there is no room for another");
}

TEST_F(SessionTest, CancelStopsAfterTheCurrentToken) {
  Start({2, 3, 4, 5, 5}, 1);
  std::atomic<bool> cancel{false};
  const auto r = session_->Generate(tokenizer_, {.cancel = &cancel},
                                    [&](const std::string& text) { cancel = text == "ld"; });
  ASSERT_TRUE(r.ok());
  EXPECT_EQ(r->text, " world");
  EXPECT_EQ(r->finish_reason, FinishReason::kCancelled);
  EXPECT_EQ(session_->length(), 3);
}

TEST_F(SessionTest, SamplingIsDecidedByTheSeed) {
  const auto tokens = [&](uint64_t seed) {
    Start({2}, 1);
    return Generate({.max_tokens = 20, .sampling = {.temperature = 1, .seed = seed}})->tokens;
  };
  EXPECT_EQ(tokens(1), tokens(1));
  EXPECT_NE(tokens(1), tokens(2));
}

TEST_F(SessionTest, PrefillGoesInChunksAndHandsOutLogits) {
  Start({2}, 1, 1000);
  model_->chunks.clear();
  std::vector<TokenId> prompt(300, 3);
  ASSERT_TRUE(session_->Prefill(prompt).ok());
  EXPECT_EQ(model_->chunks, (std::vector<int>{128, 128, 44}));
  std::vector<int64_t> firsts;
  size_t rows = 0;
  ASSERT_TRUE(session_
                  ->Prefill(prompt,
                            [&](int64_t first, std::span<const float> logits) {
                              firsts.push_back(first);
                              rows += logits.size() / kTexts.size();
                              return OkStatus();
                            })
                  .ok());
  EXPECT_EQ(firsts, (std::vector<int64_t>{301, 429, 557}));
  EXPECT_EQ(rows, 300u);
  EXPECT_EQ(session_->last_logits().size(), kTexts.size());
  const Status s = session_->Prefill(
      prompt, [](int64_t, std::span<const float>) { return Unavailable("disk full"); });
  EXPECT_EQ(s.message(), "disk full");
}

TEST_F(SessionTest, PrefillErrors) {
  Start({2}, 1, 10);
  Status s = session_->Prefill({});
  EXPECT_EQ(s.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(s.message(), "there are no tokens to read: the prompt is empty");
  s = session_->Prefill(std::vector<TokenId>(10, 2));
  EXPECT_EQ(s.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(
      s.message(),
      "the prompt has 10 tokens after 1 in the sequence, but the context is 10; shorten it or "
      "raise the context");
  std::atomic<bool> cancel{true};
  s = session_->Prefill(std::vector<TokenId>(2, 2), {}, {}, &cancel);
  EXPECT_EQ(s.code(), StatusCode::kCancelled);
  EXPECT_EQ(s.message(), "reading the prompt was cancelled after 0 of 2 tokens");
  EXPECT_EQ(session_->length(), 1);
}

TEST_F(SessionTest, ProgressCanCancelAPrefill) {
  Start({2}, 1, 1000);
  const Status s =
      session_->Prefill(std::vector<TokenId>(300, 2), {},
                        [](size_t done, size_t, const std::string&) { return done < 200; });
  EXPECT_EQ(s.code(), StatusCode::kCancelled);
  EXPECT_EQ(s.message(), "reading the prompt was cancelled after 256 of 300 tokens");
  EXPECT_EQ(session_->length(), 257);
  EXPECT_EQ(Generate().status().code(), StatusCode::kFailedPrecondition);
}

TEST_F(SessionTest, GenerateErrors) {
  Start({2, 3, 4}, 1);
  const auto message = [&](const GenerateOptions& options) {
    const Status s = Generate(options).status();
    EXPECT_EQ(s.code(), StatusCode::kInvalidArgument);
    return s.message();
  };
  const Status shift = Generate({.context_shift = true}).status();
  EXPECT_EQ(shift.code(), StatusCode::kUnsupported);
  EXPECT_EQ(shift.message(),
            "context shift: stored keys are turned by their position and would have to be decoded, "
            "turned and stored again, which loses precision with every shift; raise the context, "
            "or start again from a shorter prompt");
  EXPECT_EQ(message({.max_tokens = -1}), "max_tokens = -1: expected 0 or more");
  GenerateOptions empty;
  empty.stop = {"a", ""};
  EXPECT_EQ(message(empty), "a stop string is empty");
  EXPECT_EQ(message({.sampling = {.top_k = -1}}), "top_k = -1: expected 0 or more");
  auto fresh = Session::Create(*model_, model_->Config(), 10);
  ASSERT_TRUE(fresh.ok());
  const Status s = (*fresh)->Generate(tokenizer_, {}).status();
  EXPECT_EQ(s.code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(s.message(), "there is nothing to continue from: prefill a prompt first");
}

TEST_F(SessionTest, AFailedStepChangesNothing) {
  Start({2, 3, 4}, 1);
  const std::vector<float> before(session_->last_logits().begin(), session_->last_logits().end());
  model_->fail = true;
  EXPECT_EQ(Generate().status().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(session_->length(), 1);
  EXPECT_TRUE(std::equal(before.begin(), before.end(), session_->last_logits().begin()));
  model_->fail = false;
  EXPECT_EQ(Generate({.max_tokens = 2})->text, " world");
}

TEST_F(SessionTest, LogitsThatAreNotNumbersAreAnError) {
  Start({2, 3, 4}, 1);
  model_->nan = true;
  const Status s = Generate().status();
  EXPECT_EQ(s.code(), StatusCode::kDataLoss);
  EXPECT_EQ(
      s.message(),
      "the logits after token 2 are not numbers: the model's weights or its cache are damaged");
}

TEST_F(SessionTest, TruncateForgetsTheLogits) {
  Start({2, 3, 4, 5}, 3);
  const auto t = session_->Truncate(1);
  ASSERT_TRUE(t.ok());
  EXPECT_EQ(session_->length(), 1);
  EXPECT_TRUE(session_->last_logits().empty());
  ASSERT_TRUE(session_->Decode(3).ok());
  EXPECT_EQ(Generate({.max_tokens = 2})->text, "ld!");
  EXPECT_FALSE(session_->Truncate(50).ok());
  EXPECT_EQ(session_->length(), 4);
}

TEST(Session, ContextMustBePositive) {
  ScriptModel model({2});
  const Status s = Session::Create(model, model.Config(), 0).status();
  EXPECT_EQ(s.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(s.message(), "context = 0: expected 1 or more tokens");
}

TEST(FinishReason, Names) {
  EXPECT_STREQ(FinishReasonName(FinishReason::kStop), "stop");
  EXPECT_STREQ(FinishReasonName(FinishReason::kLength), "length");
  EXPECT_STREQ(FinishReasonName(FinishReason::kContext), "context");
  EXPECT_STREQ(FinishReasonName(FinishReason::kCancelled), "cancelled");
}

}  // namespace
}  // namespace tq
