// A session on a small model with random weights: saved, loaded and shared sequences go on as if
// nothing had happened, bit for bit.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>

#include "runtime/engine/session.h"
#include "runtime/model/tiny_llama_for_test.h"
#include "turboquant/base/file.h"
#include "turboquant/cache/snapshot_test_util.h"

namespace tq {
namespace {

namespace fs = std::filesystem;

class SessionCacheTest : public testing::Test {
 protected:
  SessionCacheTest() : path_(testing::TempDir() + StrCat("session_cache_", ::getpid())) {
    bytes_ = tiny_.Build();
    model_ = *tiny_.Make(bytes_, pool_);
  }
  ~SessionCacheTest() override { fs::remove(path_); }

  std::unique_ptr<Session> NewSession(const char* preset = "k3v2", int64_t context = 4096) {
    CacheConfig config = model_->MakeCacheConfig();
    config.recent_len = 64;
    config.formats.assign(config.formats.size(), *ParsePreset(preset));
    return *Session::Create(*model_, config, context);
  }
  static std::vector<TokenId> Tokens(size_t n, uint64_t seed) {
    std::vector<TokenId> tokens;
    for (size_t i = 0; i < n; ++i) tokens.push_back(static_cast<TokenId>(SplitMix64(seed) % 50));
    return tokens;
  }
  // Feeds the same tokens to both and compares the logits of each step.
  static void ExpectSameFuture(Session& a, Session& b, size_t steps) {
    ASSERT_EQ(a.length(), b.length());
    for (const TokenId t : Tokens(steps, 99)) {
      ASSERT_TRUE(a.Decode(t).ok());
      ASSERT_TRUE(b.Decode(t).ok());
      ExpectSameLogits(a, b);
    }
  }
  static void ExpectSameLogits(const Session& a, const Session& b) {
    ASSERT_EQ(a.last_logits().size(), b.last_logits().size());
    ASSERT_FALSE(a.last_logits().empty());
    ASSERT_EQ(
        std::memcmp(a.last_logits().data(), b.last_logits().data(), a.last_logits().size_bytes()),
        0)
        << "at " << a.length();
  }

  TinyLlama tiny_;
  std::string bytes_;
  ThreadPool pool_{2};
  std::unique_ptr<LlamaModel> model_;
  std::string path_;
  Status status_;
};

TEST_F(SessionCacheTest, LoadedGoesOnLikeTheSaved) {
  for (const char* preset : {"k3v2", "f16"}) {
    const auto a = NewSession(preset);
    ASSERT_TRUE(a->Prefill(Tokens(500, 1)).ok());
    ASSERT_TRUE(a->SaveCache(path_, preset).ok());
    const auto b = NewSession(preset);
    ASSERT_TRUE(b->Prefill(Tokens(77, 2)).ok());  // is replaced
    const auto snapshot = Snapshot::Open(path_);
    ASSERT_TRUE(snapshot.ok()) << snapshot.status().ToString();
    const Status loaded = b->LoadCache(*snapshot);
    ASSERT_TRUE(loaded.ok()) << loaded.ToString();
    ExpectSameLogits(*a, *b);
    EXPECT_TRUE(std::ranges::equal(a->tokens(), b->tokens()));
    // What is sealed ahead is not saved; it is made again.
    EXPECT_EQ(b->cache().Bytes().total() - b->cache().ahead_bytes(),
              a->cache().Bytes().total() - a->cache().ahead_bytes());
    ExpectSameFuture(*a, *b, 70);
    // Back before the place where it was saved.
    EXPECT_TRUE(a->Truncate(490)->exact);
    EXPECT_TRUE(b->Truncate(490)->exact);
    ExpectSameFuture(*a, *b, 70);
  }
}

TEST_F(SessionCacheTest, WhatIsNotThisModelsIsRefused) {
  const auto a = NewSession();
  ASSERT_TRUE(a->Prefill(Tokens(300, 1)).ok());
  ASSERT_TRUE(a->SaveCache(path_, "k3v2").ok());
  const std::string file = *ReadFile(path_);
  const auto refused = [&](Session& session, const std::string& bytes) {
    ASSERT_TRUE(session.Prefill(Tokens(80, 2)).ok());
    const auto snapshot = Snapshot::Parse(std::as_bytes(std::span(bytes)), "f");
    ASSERT_TRUE(snapshot.ok()) << snapshot.status().ToString();
    status_ = session.LoadCache(*snapshot);
    EXPECT_EQ(session.length(), 80);
    const auto same = NewSession();
    ASSERT_TRUE(same->Prefill(Tokens(80, 2)).ok());
    if (session.cache().config().formats == same->cache().config().formats) {
      EXPECT_EQ(session.cache().Bytes().total(), same->cache().Bytes().total());
      ExpectSameLogits(session, *same);
    }
  };
  refused(*NewSession("k3v2", 200), file);
  EXPECT_EQ(status_.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status_.message(),
            "the cache file holds 300 tokens and the context is 200; raise the context");
  refused(*NewSession("k4v4"), file);
  EXPECT_EQ(status_.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(status_.message().rfind("'f' was saved with other formats (k3v2): it has '", 0), 0u);

  std::string forged = file;
  const int32_t token = 50;
  std::memcpy(&forged[testing_util::SectionStart(file, 3) + 40], &token, 4);
  testing_util::FixSums(&forged);
  refused(*NewSession(), forged);
  EXPECT_EQ(status_.code(), StatusCode::kDataLoss);
  EXPECT_EQ(status_.message(), "the cache file has the token 50; the model has 50");

  forged = file;
  forged.erase(testing_util::SectionStart(file, 4), 4);
  testing_util::PutU64(&forged, testing_util::kAtSections + 16 * 4, 49 * 4);
  testing_util::FixSums(&forged);
  refused(*NewSession(), forged);
  EXPECT_EQ(status_.message(), "the cache file has 49 logits; the model has 50");

  TinyLlama other;
  other.rope_base = 5000;
  const std::string other_bytes = other.Build();
  const auto other_model = *other.Make(other_bytes, pool_);
  CacheConfig config = other_model->MakeCacheConfig();
  config.recent_len = 64;
  config.formats.assign(config.formats.size(), *ParsePreset("k3v2"));
  const auto session = *Session::Create(*other_model, config, 4096);
  const auto snapshot = Snapshot::Open(path_);
  const Status s = session->LoadCache(*snapshot);
  EXPECT_EQ(s.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(s.message().find("was saved from another model: 'Tiny' of structure "),
            std::string::npos)
      << s.message();
}

TEST_F(SessionCacheTest, WithoutLogitsThereIsNothingToContinueFrom) {
  const auto a = NewSession();
  ASSERT_TRUE(a->Prefill(Tokens(300, 1)).ok());
  ASSERT_TRUE(a->Truncate(290).ok());
  ASSERT_TRUE(a->SaveCache(path_, "k3v2").ok());
  const auto b = NewSession();
  ASSERT_TRUE(b->LoadCache(*Snapshot::Open(path_)).ok());
  EXPECT_TRUE(b->last_logits().empty());
  ExpectSameFuture(*a, *b, 3);
}

class SessionPrefixTest : public SessionCacheTest {
 protected:
  static std::vector<TokenId> Join(std::vector<TokenId> a, const std::vector<TokenId>& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
  }
  // Starts from what is known of `tokens`, reads the rest, and compares with a session that read
  // everything.
  int64_t Continue(Session& session, const std::vector<TokenId>& tokens, const char* preset) {
    const auto start = session.StartFrom(tokens);
    EXPECT_TRUE(start.ok()) << start.status().ToString();
    EXPECT_TRUE(session.Prefill(std::span(tokens).subspan(static_cast<size_t>(*start))).ok());
    const auto fresh = NewSession(preset);
    EXPECT_TRUE(fresh->Prefill(tokens).ok());
    EXPECT_TRUE(std::ranges::equal(session.tokens(), fresh->tokens()));
    ExpectSameLogits(session, *fresh);
    ExpectSameFuture(session, *fresh, 3);
    return *start;
  }
};

TEST_F(SessionPrefixTest, AHitEqualsAMiss) {
  for (const char* preset : {"k3v2", "k4v4", "f16"}) {
    const auto session = NewSession(preset);
    session->KeepPrefixes(1 << 30);
    const std::vector<TokenId> prompt = Tokens(333, 1);
    ASSERT_TRUE(session->Prefill(prompt).ok());
    ASSERT_TRUE(session->MarkBoundary().ok());
    ASSERT_TRUE(session->Prefill(Tokens(400, 2)).ok());
    // Another turn parts 300 tokens back: further than open blocks are kept. Cutting 16-bit blocks
    // back is exact all the same.
    const auto second = Join(prompt, Tokens(250, 3));
    EXPECT_EQ(Continue(*session, second, preset), 333);
    // A text that parts after the boundary, by less than the rollback, is cut back.
    auto third = Join(second, Tokens(10, 4));
    third.resize(third.size() - 15);
    third = Join(third, Tokens(40, 5));
    EXPECT_EQ(Continue(*session, third, preset), 578);
    // One that has nothing in common.
    EXPECT_EQ(Continue(*session, Tokens(100, 6), preset), 0);
    // And back to the first: only the boundary knows it.
    EXPECT_EQ(Continue(*session, Join(prompt, Tokens(5, 7)), preset), 333);
  }
}

TEST_F(SessionPrefixTest, TheLastTokenIsReadAgainForItsLogits) {
  const auto session = NewSession();
  const std::vector<TokenId> prompt = Tokens(200, 1);
  ASSERT_TRUE(session->Prefill(prompt).ok());
  EXPECT_EQ(*session->StartFrom(prompt), 200) << "its logits are there";
  EXPECT_FALSE(session->last_logits().empty());
  ASSERT_TRUE(session->Prefill(Tokens(20, 2)).ok());
  EXPECT_EQ(*session->StartFrom(prompt), 199);
  EXPECT_EQ(session->length(), 199);
  EXPECT_EQ(*session->cache().Length(2), 199) << "a fork that was cut back";
  EXPECT_FALSE(session->cache().Exists(1));
  ASSERT_TRUE(session->Truncate(100).ok());
  EXPECT_EQ(*session->StartFrom(std::span(prompt).first(100)), 99);
}

TEST_F(SessionPrefixTest, Errors) {
  const auto session = NewSession();
  EXPECT_EQ(session->StartFrom({}).status().message(),
            "there are no tokens to read: the prompt is empty");
  EXPECT_EQ(session->MarkBoundary().message(), "this session keeps no prefixes");
  session->KeepPrefixes(100);
  ASSERT_TRUE(session->Prefill(Tokens(100, 1)).ok());
  EXPECT_EQ(session->MarkBoundary().code(), StatusCode::kResourceExhausted);
  const size_t bytes = session->cache().Bytes().total();
  session->KeepPrefixes(1 << 30);
  ASSERT_TRUE(session->MarkBoundary().ok());
  ASSERT_TRUE(session->Decode(1).ok());
  EXPECT_GT(session->cache().Bytes().total(), bytes);
  session->KeepPrefixes(0);
  EXPECT_EQ(session->cache().Bytes().total(), bytes);
}

}  // namespace
}  // namespace tq
