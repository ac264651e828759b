// Every architecture against Hugging Face transformers: tiny random models that llama.cpp's
// converter wrote, and the logits that transformers computed from the same weights
// (bench/peers/make_architecture_golden.py made both).
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "runtime/engine/session.h"
#include "runtime/evaluate/f32_model.h"
#include "runtime/evaluate/footprint.h"
#include "runtime/model/model.h"
#include "turboquant/base/file.h"
#include "turboquant/base/thread_pool.h"

namespace tq {
namespace {

using nlohmann::json;
using Row = std::vector<float>;

constexpr char kFolder[] = TQ_SOURCE_DIR "/tests/golden/architectures/";
constexpr const char* kNames[] = {"llama",    "llama-linear", "llama-yarn",   "mistral", "qwen2",
                                  "qwen3",    "gemma2",       "gemma3",       "phi3",    "mixtral",
                                  "qwen3moe", "gpt-oss",      "gpt-oss-mxfp4"};

class Architectures : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    golden_ = json::parse(*ReadFile(std::string(kFolder) + GetParam() + ".json"));
    tokens_ = golden_.at("tokens").get<std::vector<int32_t>>();
    model_ = Load(0);
    ASSERT_NE(model_, nullptr);
  }

  std::unique_ptr<Model> Load(int64_t context) {
    auto model = Model::Load(std::string(kFolder) + GetParam() + ".gguf", pool_, {}, context);
    EXPECT_TRUE(model.ok()) << model.status().ToString();
    return model.ok() ? std::move(*model) : nullptr;
  }

  // No window of ours and no sinks: whatever a query reads from blocks before its own is sealed.
  CacheConfig Config(const std::string& preset) const {
    CacheConfig config = model_->MakeCacheConfig();
    config.recent_len = config.sink_len = config.rollback_len = 0;
    for (int layer = 0; layer < config.num_layers; ++layer) {
      if (config.window(layer) > 0) continue;
      for (int head = 0; head < config.num_kv_heads; ++head) {
        HeadFormat f = *ParsePreset(preset);
        if (!config.centers.empty() && !f.k.is_float()) f.k = WithCenter(f.k, Center::kRopeMean);
        config.formats[static_cast<size_t>(layer) * config.num_kv_heads + head] = f;
      }
    }
    return config;
  }

  // Logits of all tokens, cut into calls of `chunk`.
  std::vector<Row> Logits(Model& model, const CacheConfig& config,
                          const std::vector<int32_t>& tokens, size_t chunk) {
    const auto cache = KvCache::Create(config);
    EXPECT_TRUE(cache.ok()) << cache.status().ToString();
    const SeqId seq = (*cache)->NewSequence();
    std::vector<Row> rows;
    const auto vocab = static_cast<size_t>(model.arch().vocab_size);
    for (size_t done = 0; done < tokens.size(); done += chunk) {
      const size_t n = std::min(chunk, tokens.size() - done);
      const ForwardItem item = {seq, {tokens.data() + done, n}, true};
      Row logits;
      const Status s = model.Forward(**cache, {&item, 1}, &logits);
      EXPECT_TRUE(s.ok()) << s.ToString();
      for (size_t i = 0; i < n; ++i) {
        rows.emplace_back(logits.begin() + static_cast<std::ptrdiff_t>(i * vocab),
                          logits.begin() + static_cast<std::ptrdiff_t>((i + 1) * vocab));
      }
    }
    return rows;
  }

  ThreadPool pool_{2};
  json golden_;
  std::vector<int32_t> tokens_;
  std::unique_ptr<Model> model_;
};

std::vector<double> LogSoftmax(const Row& logits) {
  const double top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float x : logits) sum += std::exp(x - top);
  std::vector<double> out;
  for (const float x : logits) out.push_back(x - top - std::log(sum));
  return out;
}

double Kl(const Row& from, const Row& to) {
  const std::vector<double> p = LogSoftmax(from), q = LogSoftmax(to);
  double kl = 0;
  for (size_t i = 0; i < p.size(); ++i) kl += std::exp(p[i]) * (p[i] - q[i]);
  return kl;
}

// Largest distance of our rows from those of the file, and the mean KL.
void Compare(const std::vector<Row>& ours, const json& rows, double* distance, double* kl) {
  *distance = *kl = 0;
  for (const auto& [position, row] : rows.items()) {
    const Row want = row.get<Row>(), &got = ours.at(std::stoul(position));
    ASSERT_EQ(want.size(), got.size());
    for (size_t i = 0; i < want.size(); ++i) {
      *distance = std::max(*distance, static_cast<double>(std::abs(want[i] - got[i])));
    }
    *kl += Kl(want, got) / static_cast<double>(rows.size());
  }
}

// K and V are rounded to 16 bits on both sides, and now and then to another neighbour; the file's
// logits have 4 decimals; everything else is float32. Logits reach about 10.
constexpr double kTolerance = 0.01, kKlTolerance = 5e-7;

TEST_P(Architectures, LogitsAreThoseOfTransformers) {
  double distance = 0, kl = 0;
  Compare(Logits(*model_, Config("f16"), tokens_, tokens_.size()), golden_.at("logits"), &distance,
          &kl);
  std::printf("  %s: f16 cache, largest distance of a logit %.5f, KL %.2e\n", GetParam(), distance,
              kl);
  EXPECT_LT(distance, kTolerance);
  EXPECT_LT(kl, kKlTolerance);
  if (!golden_.contains("short_logits")) return;
  const std::vector<int32_t> first(tokens_.begin(), tokens_.begin() + 60);
  model_ = Load(60);
  Compare(Logits(*model_, Config("f16"), first, 60), golden_.at("short_logits"), &distance, &kl);
  EXPECT_LT(distance, kTolerance);
  EXPECT_LT(kl, kKlTolerance);
}

// Plain loops over what the cache never saw rounded: windows, sinks and caps of every family are
// right there, and the 16-bit cache differs from it by its rounding alone.
TEST_P(Architectures, KeysOf32BitsGiveLogitsOfTransformersToo) {
  F32Model exact(*model_, pool_);
  const std::vector<Row> rows = Logits(exact, Config("f16"), tokens_, tokens_.size());
  double distance = 0, kl = 0;
  Compare(rows, golden_.at("logits"), &distance, &kl);
  std::printf("  %s: keys of 32 bits, largest distance of a logit %.5f, KL %.2e\n", GetParam(),
              distance, kl);
  // The file's keys and values were rounded to 16 bits, which moves logits by up to 0.03; a window,
  // sink or cap that is left out moves them by more than 3.
  EXPECT_LT(distance, 0.05);
  EXPECT_LT(kl, 2e-5);
  const std::vector<Row> plain = Logits(*model_, Config("f16"), tokens_, tokens_.size());
  EXPECT_FALSE(rows == plain) << "the cache's own rows were read";
  EXPECT_TRUE(rows == Logits(exact, Config("k3v2"), tokens_, 37))
      << "whatever the cache and chunks";
}

TEST_P(Architectures, OneTokenAtATimeGivesTheSameBits) {
  for (const char* preset : {"f16", "k4v4", "k3v2"}) {
    const CacheConfig config = Config(preset);
    const std::vector<Row> together = Logits(*model_, config, tokens_, tokens_.size());
    for (const size_t chunk : {size_t{1}, size_t{37}, size_t{64}}) {
      EXPECT_TRUE(together == Logits(*model_, config, tokens_, chunk)) << preset << " " << chunk;
    }
  }
}

// Bounds: random weights give flat, noisy attention, so these say only that nothing is broken; the
// quality of real models is measured elsewhere.
TEST_P(Architectures, QuantizedCachesStayClose) {
  const std::vector<Row> plain = Logits(*model_, Config("f16"), tokens_, tokens_.size());
  const bool all_windows = model_->arch().num_window_layers() == model_->arch().num_layers;
  double last = 0;
  for (const auto& [preset, bound] : {std::pair("k8v8", 0.02), {"k4v4", 0.2}, {"k3v2", 1.0}}) {
    const std::vector<Row> rows = Logits(*model_, Config(preset), tokens_, tokens_.size());
    double kl = 0;
    for (size_t i = 64; i < rows.size(); ++i) {
      kl += Kl(plain[i], rows[i]) / static_cast<double>(rows.size() - 64);
    }
    std::printf("  %s: %s, KL %.5f to the f16 cache\n", GetParam(), preset, kl);
    EXPECT_LT(kl, bound) << preset;
    if (all_windows) {
      EXPECT_EQ(kl, 0) << preset;  // nothing is quantized
    } else {
      EXPECT_GT(kl, last) << preset;
    }
    last = kl;
  }
}

TEST_P(Architectures, PlannedBytesAreAllocatedBytes) {
  for (const char* preset : {"f16", "k4v4"}) {
    CacheConfig config = Config(preset);
    for (const int rollback : {0, 64}) {
      config.rollback_len = rollback;
      const auto cache = KvCache::Create(config);
      ASSERT_TRUE(cache.ok()) << cache.status().ToString();
      const SeqId seq = (*cache)->NewSequence();
      for (size_t done = 0; done < tokens_.size(); done += 25) {
        const ForwardItem item = {seq, {tokens_.data() + done, 25}};
        Row logits;
        ASSERT_TRUE(model_->Forward(**cache, {&item, 1}, &logits).ok());
        const auto n = static_cast<int64_t>(done) + 25;
        const CacheBytes planned = CacheFootprint(config, n), held = (*cache)->Bytes();
        EXPECT_EQ(planned.total(), held.total()) << preset << " at " << n;
        EXPECT_EQ(planned.sliding, held.sliding) << preset << " at " << n;
        EXPECT_EQ(F16Footprint(config, n), (*cache)->F16Bytes()) << preset << " at " << n;
      }
    }
  }
}

TEST_P(Architectures, ASavedCacheGoesOnAsItWould) {
  CacheConfig config = Config("k4v4");
  config.rollback_len = 64;
  const auto session = Session::Create(*model_, config, 256);
  ASSERT_TRUE(session.ok());
  ASSERT_TRUE((*session)->Prefill(std::span(tokens_).first(120)).ok());
  const std::string path =
      (std::filesystem::temp_directory_path() / StrCat(GetParam(), ::getpid(), ".tqcache"))
          .string();
  ASSERT_TRUE((*session)->SaveCache(path, "k4v4").ok());
  const auto other = Session::Create(*model_, config, 256);
  {
    const auto snapshot = Snapshot::Open(path);
    ASSERT_TRUE(snapshot.ok()) << snapshot.status().ToString();
    const Status s = (*other)->LoadCache(*snapshot);
    ASSERT_TRUE(s.ok()) << s.ToString();
  }
  std::filesystem::remove(path);
  for (Session* s : {session->get(), other->get()}) {
    ASSERT_TRUE(s->Truncate(100)->exact);
    ASSERT_TRUE(s->Prefill(std::span(tokens_).subspan(100)).ok());
  }
  const Row whole = Logits(*model_, config, tokens_, tokens_.size()).back();
  EXPECT_TRUE(std::ranges::equal(whole, (*session)->last_logits()));
  EXPECT_TRUE(std::ranges::equal(whole, (*other)->last_logits()));
}

// Back to a beginning that a window has left behind: a boundary if there is one, else from 0.
TEST_P(Architectures, ABeginningThatAWindowHasLeftIsReadAgain) {
  CacheConfig config = Config("k4v4");
  const auto session = Session::Create(*model_, config, 256);
  ASSERT_TRUE(session.ok());
  const std::span<const int32_t> tokens(tokens_);
  const std::vector<int>& windows = model_->arch().windows;
  const int window = windows.empty() ? 0 : *std::max_element(windows.begin(), windows.end());
  // After 150 tokens the first block is gone, unless the window still reaches into it.
  const bool gone = window > 0 && 150 + 1 - window >= kPageLen;
  ASSERT_TRUE((*session)->Prefill(tokens).ok());
  auto kept = (*session)->StartFrom(tokens.first(80));
  ASSERT_TRUE(kept.ok()) << kept.status().ToString();
  EXPECT_EQ(*kept, gone ? 0 : 79);

  (*session)->KeepPrefixes(64 << 20);
  kept = (*session)->StartFrom(tokens.first(1));
  ASSERT_TRUE(kept.ok());
  ASSERT_TRUE((*session)->Prefill(tokens.subspan(static_cast<size_t>(*kept), 70)).ok());
  const int64_t boundary = (*session)->length();
  ASSERT_TRUE((*session)->MarkBoundary().ok());
  ASSERT_TRUE((*session)->Prefill(tokens.subspan(static_cast<size_t>(boundary))).ok());
  const Row first((*session)->last_logits().begin(), (*session)->last_logits().end());
  std::vector<int32_t> other(tokens_);
  other[100] = 5;
  kept = (*session)->StartFrom(other);
  ASSERT_TRUE(kept.ok()) << kept.status().ToString();
  EXPECT_EQ(*kept, window > 0 && !gone ? 100 : boundary);
  ASSERT_TRUE((*session)->Prefill(std::span(other).subspan(static_cast<size_t>(*kept))).ok());
  EXPECT_TRUE(
      std::ranges::equal(Logits(*model_, config, other, 150).back(), (*session)->last_logits()));
}

INSTANTIATE_TEST_SUITE_P(Golden, Architectures, testing::ValuesIn(kNames), [](const auto& p) {
  std::string name = p.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

}  // namespace
}  // namespace tq
