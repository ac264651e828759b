// A K bias as Qwen 2 models have it, of norm 600 in two layers, added to a real model: with the
// centre that is known from the bias, 4-bit codes must lose no more than twice what they lose in
// the model without one. The bias lies on the slowest pairs of RoPE, where trained biases lie.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "runtime/engine/session.h"
#include "runtime/evaluate/kld.h"
#include "runtime/model/llama.h"
#include "runtime/tokenizer/tokenizer.h"
#include "turboquant/base/file.h"
#include "turboquant/base/thread_pool.h"

namespace tq {
namespace {

constexpr char kModel[] = TQ_DATA_DIR "/SmolLM2-135M-Instruct.Q4_1.gguf";
constexpr char kText[] = TQ_DATA_DIR "/bible.txt";
constexpr size_t kContext = 1024;
constexpr int kBiasedLayers[] = {2, 17};
constexpr int kBiasedPairs = 12;  // each with half the energy of the slower one
constexpr double kBiasNorm = 600;

class KBias : public testing::Test {
 protected:
  void SetUp() override {
    if (!FileExists(kModel) || !FileExists(kText)) GTEST_SKIP() << "run ./quickstart first";
  }

  // The model, with a bias on every KV head of the biased layers if asked.
  std::unique_ptr<Model> Load(bool biased) {
    auto file = GgufFile::Open(kModel);
    EXPECT_TRUE(file.ok()) << file.status().ToString();
    GgufContents contents;
    contents.metadata = file->metadata();
    contents.tensors = file->tensors();
    const int heads = static_cast<int>(*file->GetInt("llama.attention.head_count_kv"));
    const int dim = static_cast<int>(*file->GetInt("llama.rope.dimension_count"));
    bias_.assign(static_cast<size_t>(heads) * dim, 0.f);
    for (int head = 0; head < heads; ++head) {
      double energy = kBiasNorm * kBiasNorm / 2;
      for (int pair = 0; pair < kBiasedPairs; ++pair, energy /= 2) {
        // Pairs are adjacent in GGUF's order, the slowest last.
        float* at = &bias_[static_cast<size_t>(head + 1) * dim - 2 * (pair + 1)];
        at[0] = static_cast<float>(std::sqrt(energy / 2)) * (head % 2 == 0 ? 1 : -1);
        at[1] = static_cast<float>(std::sqrt(energy / 2)) * (pair % 2 == 0 ? 1 : -1);
      }
    }
    for (const int layer : kBiasedLayers) {
      GgufTensor t;
      t.name = "blk." + std::to_string(layer) + ".attn_k.bias";
      t.shape = {int64_t{heads} * dim};
      t.data = std::as_bytes(std::span(bias_));
      if (biased) contents.tensors.push_back(t);
    }
    auto with_bias = GgufFile::FromContents(std::move(contents));
    EXPECT_TRUE(with_bias.ok()) << with_bias.status().ToString();
    auto model = LlamaModel::Create(std::make_unique<GgufFile>(std::move(*with_bias)),
                                    MakeCpuBackend(pool_), {}, 0);
    EXPECT_TRUE(model.ok()) << model.status().ToString();
    auto tokenizer = Tokenizer::FromGguf(*file);
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
    std::ifstream in(kText);
    std::string text(6 * kContext, '\0');
    in.read(text.data(), static_cast<std::streamsize>(text.size()));
    tokens_ = (*tokenizer)->Encode(text);
    EXPECT_GE(tokens_.size(), kContext);
    tokens_.resize(kContext);
    maps_.push_back(std::move(*file));  // the tensors point into it
    return std::move(*model);
  }

  // Mean KL of the format to the f16 cache, with or without the centre that the bias gives.
  double MeanKl(Model& model, const char* preset, Center center) {
    CacheConfig config = model.MakeCacheConfig();
    const auto reference = Session::Create(model, config, kContext);
    HeadFormat format = *ParsePreset(preset);
    format.k = WithCenter(format.k, center);
    for (HeadFormat& f : config.formats) f = format;
    const auto session = Session::Create(model, config, kContext);
    EXPECT_TRUE(reference.ok() && session.ok());
    const auto vocab = static_cast<size_t>(model.arch().vocab_size);
    double sum = 0;
    AlignedBuffer<float> work;
    constexpr size_t kChunk = Session::kPrefillChunk;
    for (size_t from = 0; from < kContext; from += kChunk) {
      const auto chunk = std::span(tokens_).subspan(from, std::min(kChunk, kContext - from));
      std::vector<float> rows;
      Status s = (*reference)->Prefill(chunk, [&](int64_t, std::span<const float> logits) {
        rows.assign(logits.begin(), logits.end());
        return OkStatus();
      });
      EXPECT_TRUE(s.ok()) << s.ToString();
      s = (*session)->Prefill(chunk, [&](int64_t, std::span<const float> logits) {
        for (size_t i = 0; i < chunk.size(); ++i) {
          ReferenceRow row;
          PositionScore score;
          EXPECT_TRUE(row.Set(std::span<const float>(rows).subspan(i * vocab, vocab)).ok());
          EXPECT_TRUE(row.Compare(logits.subspan(i * vocab, vocab), -1, &work, &score).ok());
          sum += score.kld;
        }
        return OkStatus();
      });
      EXPECT_TRUE(s.ok()) << s.ToString();
    }
    return sum / static_cast<double>(kContext);
  }

  ThreadPool pool_;
  std::vector<float> bias_;
  std::vector<GgufFile> maps_;
  std::vector<TokenId> tokens_;
};

TEST_F(KBias, CostsFourBitsNothing) {
  const auto twin = Load(false);
  const double twin_kl = MeanKl(*twin, "k4v4", Center::kNone);
  const auto biased = Load(true);
  const double kl = MeanKl(*biased, "k4v4", Center::kRopeMean);
  const double uncentred = MeanKl(*biased, "k4v4", Center::kNone);
  std::printf("  k4v4, %zu tokens: KL %.5f without a bias, %.5f with one, %.4f with no centre\n",
              kContext, twin_kl, kl, uncentred);
  EXPECT_GT(twin_kl, 0);
  EXPECT_LT(kl, 2 * twin_kl);
  EXPECT_GT(uncentred, 5 * twin_kl);  // else the bias would test nothing
}

}  // namespace
}  // namespace tq
