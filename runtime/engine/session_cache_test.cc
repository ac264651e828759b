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
    EXPECT_EQ(b->cache().Bytes().total(), a->cache().Bytes().total());
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

}  // namespace
}  // namespace tq
