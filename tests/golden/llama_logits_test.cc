// Our logits and greedy continuations against those of llama.cpp, which logits_smollm2.json holds
// (bench/peers/make_logits_golden.sh made it). Both with a 16-bit cache, from the same token ids.
//
// Bounds: llama.cpp rounds activations to 8 bits before every matrix, so a sum in another order
// moves its logits visibly. The file records how far its own settings lie from each other; ours
// may lie no further. Continuations are compared where all of llama.cpp's settings agree on them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "runtime/engine/session.h"
#include "runtime/model/model.h"
#include "turboquant/base/file.h"
#include "turboquant/base/thread_pool.h"

namespace tq {
namespace {

using nlohmann::json;

constexpr char kModel[] = TQ_DATA_DIR "/SmolLM2-135M-Instruct.Q4_1.gguf";
// The file of the repository, or one made on this machine (bench/peers/compare_live.sh).
std::string GoldenPath() {
  const char* live = std::getenv("TQ_GOLDEN_LOGITS");
  return live != nullptr ? live : TQ_SOURCE_DIR "/tests/golden/logits_smollm2.json";
}
constexpr int kContext = 1024;

double LogSumExp(std::span<const float> v) {
  const double max = *std::max_element(v.begin(), v.end());
  double sum = 0;
  for (float x : v) sum += std::exp(x - max);
  return max + std::log(sum);
}

// KL of the golden distribution to ours over its top logits, the rest of the vocabulary being one
// more outcome. (A lower bound of the KL over all tokens; the rest holds little mass.)
double TopKl(const json& row, std::span<const float> logits) {
  const double golden_sum = row.at("logsumexp"), our_sum = LogSumExp(logits);
  const auto& ids = row.at("ids");
  double kl = 0, golden_mass = 0, our_mass = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    const double log_p = row.at("logits")[i].get<double>() - golden_sum;
    const double log_q = logits[ids[i].get<size_t>()] - our_sum;
    kl += std::exp(log_p) * (log_p - log_q);
    golden_mass += std::exp(log_p);
    our_mass += std::exp(log_q);
  }
  const double p = 1 - golden_mass, q = 1 - our_mass;
  return p > 0 && q > 0 ? kl + p * std::log(p / q) : kl;
}

TokenId Best(std::span<const float> logits) {
  return static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

class LlamaLogits : public testing::Test {
 protected:
  void SetUp() override {
    if (!FileExists(kModel)) GTEST_SKIP() << kModel << " is not there: run ./quickstart";
    std::ifstream file(GoldenPath());
    ASSERT_TRUE(file.good()) << GoldenPath();
    golden_ = json::parse(file);
    auto model = Model::Load(kModel, pool_);
    ASSERT_TRUE(model.ok()) << model.status().ToString();
    model_ = std::move(*model);
  }

  std::unique_ptr<Session> NewSession() {
    auto session = Session::Create(*model_, model_->MakeCacheConfig(), kContext);
    EXPECT_TRUE(session.ok()) << session.status().ToString();
    return session.ok() ? std::move(*session) : nullptr;
  }

  ThreadPool pool_;
  std::unique_ptr<Model> model_;
  json golden_;
};

TEST_F(LlamaLogits, LieWithinItsOwnFloor) {
  double sum = 0, max = 0;
  int count = 0;
  for (const json& prompt : golden_.at("prompts")) {
    const auto ids = prompt.at("ids").get<std::vector<TokenId>>();
    const auto session = NewSession();
    ASSERT_NE(session, nullptr);
    const size_t vocab = static_cast<size_t>(model_->arch().vocab_size);
    const auto sink = [&](int64_t first_pos, std::span<const float> logits) {
      for (const json& row : prompt.at("rows")) {
        const int64_t i = row.at("position").get<int64_t>() - first_pos;
        if (i < 0 || static_cast<size_t>(i) >= logits.size() / vocab) continue;
        const double kl = TopKl(row, logits.subspan(static_cast<size_t>(i) * vocab, vocab));
        sum += kl;
        max = std::max(max, kl);
        ++count;
      }
      return OkStatus();
    };
    const Status status = session->Prefill(ids, sink);
    ASSERT_TRUE(status.ok()) << status.ToString();
  }
  ASSERT_GT(count, 100);
  double floor_mean = 0, floor_max = 0;
  for (const json& floor : golden_.at("floor")) {
    floor_mean = std::max(floor_mean, floor.at("kld_mean").get<double>());
    floor_max = std::max(floor_max, floor.at("kld_max").get<double>());
  }
  const double mean = sum / count;
  std::printf("KL to llama.cpp: mean %.5f, max %.5f; between its own settings: %.5f, %.5f\n", mean,
              max, floor_mean, floor_max);
  EXPECT_LE(mean, floor_mean) << "largest " << max << " over " << count << " positions";
  EXPECT_LE(max, 2 * floor_max) << "mean " << mean << " over " << count << " positions";
}

TEST_F(LlamaLogits, GreedyContinuationsAreEqual) {
  int equal = 0, compared = 0;
  std::string differences;
  for (const json& prompt : golden_.at("prompts")) {
    if (!prompt.at("stable").get<bool>()) continue;
    const auto ids = prompt.at("ids").get<std::vector<TokenId>>();
    const auto greedy = prompt.at("greedy").get<std::vector<TokenId>>();
    const auto session = NewSession();
    ASSERT_NE(session, nullptr);
    ASSERT_TRUE(session->Prefill(ids).ok());
    size_t i = 0;
    while (i < greedy.size() && Best(session->last_logits()) == greedy[i]) {
      if (++i == greedy.size()) break;
      const Status status = session->Decode(greedy[i - 1]);
      ASSERT_TRUE(status.ok()) << status.ToString();
    }
    ++compared;
    equal += i == greedy.size();
    if (i < greedy.size())
      differences += prompt.at("name").get<std::string>() + " at token " + std::to_string(i) + "; ";
  }
  std::printf("greedy continuations equal: %d of %d; differ: %s\n", equal, compared,
              differences.empty() ? "none" : differences.c_str());
  ASSERT_GE(compared, 10);
  EXPECT_GE(equal * 10, compared * 8) << "of " << compared << "; differ: " << differences;
}

}  // namespace
}  // namespace tq
