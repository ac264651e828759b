// Small models with random weights: what is planned, measured, written and read back.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "runtime/model/tiny_llama_for_test.h"
#include "runtime/quantize/encode_tensor.h"
#include "runtime/quantize/input_statistics.h"
#include "runtime/quantize/quantize_result.h"
#include "runtime/quantize/sensitivity.h"
#include "runtime/quantize/weight_plan.h"
#include "runtime/quantize/write_quantized.h"
#include "turboquant/base/file.h"
#include "turboquant/linear/file_block.h"

namespace tq {
namespace {

using enum WeightType;

std::vector<std::vector<int32_t>> SomeWindows(int vocab) {
  std::vector<std::vector<int32_t>> windows(2);
  for (size_t w = 0; w < windows.size(); ++w) {
    for (int t = 0; t < 40; ++t) {
      windows[w].push_back((t * t * 7 + static_cast<int>(w) * 3 + t) % vocab);
    }
  }
  return windows;
}

std::vector<float> Logits(Model& model, const std::vector<int32_t>& tokens) {
  auto cache = KvCache::Create(model.MakeCacheConfig());
  const ForwardItem item = {(*cache)->NewSequence(), tokens, true};
  std::vector<float> logits;
  EXPECT_TRUE(model.Forward(**cache, {&item, 1}, &logits).ok());
  return logits;
}

class QuantizeTest : public testing::Test {
 protected:
  void SetUp() override {
    bytes_ = tiny_.Build();
    auto model = tiny_.Make(bytes_, pool_);
    ASSERT_TRUE(model.ok()) << model.status().ToString();
    model_ = *std::move(model);
  }
  WeightPlan Plan(const std::string& to) {
    auto plan = WeightPlan::Create(model_->file(), *QuantizeTargetOf(to), false);
    EXPECT_TRUE(plan.ok()) << plan.status().ToString();
    return *std::move(plan);
  }
  InputStatistics Statistics() {
    auto statistics = InputStatistics::Collect(*model_, SomeWindows(tiny_.vocab), {}, pool_);
    EXPECT_TRUE(statistics.ok()) << statistics.status().ToString();
    return *std::move(statistics);
  }
  const TensorPlan& Tensor(const WeightPlan& plan, const std::string& name) {
    for (const TensorPlan& t : plan.tensors) {
      if (t.tensor->name == name) return t;
    }
    ADD_FAILURE() << name;
    return plan.tensors.front();
  }

  TinyLlama tiny_;
  std::string bytes_;
  ThreadPool pool_{2};
  std::unique_ptr<LlamaModel> model_;
};

TEST(QuantizeTargetOf, NamesWhatThereIs) {
  EXPECT_EQ(QuantizeTargetOf("int8")->type, kQ8_0);
  EXPECT_EQ(QuantizeTargetOf("int4")->type, kQ4_K);
  EXPECT_EQ(QuantizeTargetOf("Q5_1")->outer, kQ6_K);
  EXPECT_EQ(QuantizeTargetOf("Q8_0")->outer, kQ8_0);
  EXPECT_FALSE(QuantizeTargetOf("Q5_1")->outer_is_fixed);
  const auto named = QuantizeTargetOf("Q4_0", "Q4_1");
  ASSERT_TRUE(named.ok());
  EXPECT_EQ(named->type, kQ4_0);
  EXPECT_EQ(named->outer, kQ4_1);
  EXPECT_TRUE(named->outer_is_fixed);
  const Status s = QuantizeTargetOf("awq").status();
  EXPECT_EQ(s.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(s.message(),
            "there is no kind of weights 'awq'; there are int8, int4, F16, BF16, Q4_0, Q4_1, Q5_0, "
            "Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K");
  for (const char* not_written : {"F32", "MXFP4"}) {
    EXPECT_EQ(QuantizeTargetOf(not_written).status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(QuantizeTargetOf("int4", not_written).status().message(),
              StrCat("there is no type '", not_written,
                     "' for embeddings; there are auto, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, "
                     "Q2_K, Q3_K, Q4_K, Q5_K, Q6_K"));
  }
}

TEST(TypeForRows, TakesTheNextLargerTypeWhoseBlocksFit) {
  EXPECT_EQ(TypeForRows(kQ4_K, 512), kQ4_K);
  EXPECT_EQ(TypeForRows(kQ4_K, 576), kQ4_1);
  EXPECT_EQ(TypeForRows(kQ5_K, 576), kQ5_1);
  EXPECT_EQ(TypeForRows(kQ6_K, 576), kQ8_0);
  EXPECT_EQ(TypeForRows(kQ2_K, 576), kQ4_1);
  EXPECT_EQ(TypeForRows(kQ3_K, 576), kQ4_0);
  EXPECT_EQ(TypeForRows(kQ4_0, 40), kF16);
}

TEST_F(QuantizeTest, PlansMatricesAndKeepsSmallTensors) {
  const WeightPlan plan = Plan("int4");
  const TensorPlan& q = Tensor(plan, "blk.1.attn_q.weight");
  EXPECT_EQ(q.role, TensorRole::kMatrix);
  EXPECT_EQ(q.type, kQ4_1) << "rows of 64";
  EXPECT_EQ(q.layer, 1);
  EXPECT_EQ(q.kind, "attn_q.weight");
  EXPECT_EQ(q.reason, "--to int4; rows of 64 are no whole blocks of Q4_K");
  EXPECT_EQ(Tensor(plan, "token_embd.weight").type, kQ8_0);
  EXPECT_EQ(Tensor(plan, "token_embd.weight").role, TensorRole::kOuter);
  EXPECT_EQ(Tensor(plan, "blk.0.attn_norm.weight").type, kF32);
  EXPECT_EQ(plan.main_type(), kQ4_1);
  size_t rows = 0;
  for (const TensorPlan& t : plan.tensors) rows += t.role != TensorRole::kPlain;
  EXPECT_EQ(rows, 15u);
  EXPECT_EQ(TypeCounts(plan), "Q4_1 (14), Q8_0 (1)");
  EXPECT_LT(plan.bytes(), plan.source_bytes() / 4);
}

TEST(WeightPlan, RefusesWeightsThatAreQuantizedAlready) {
  TinyLlama tiny;
  tiny.type = GgmlType::kQ4_1;
  const std::string bytes = tiny.Build();
  const auto file = GgufFile::Parse(std::as_bytes(std::span(bytes)), "tiny");
  const auto target = QuantizeTargetOf("int4");
  const Status s = WeightPlan::Create(*file, *target, false).status();
  EXPECT_EQ(s.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(s.message(),
            "'tiny' is quantized already: Q4_1 (14 tensors); start from the model's F32, F16 or "
            "BF16 weights, or accept the loss of both steps with --requantize");
  EXPECT_TRUE(WeightPlan::Create(*file, *target, true).ok());
}

// The first layer's input is the normed embedding: its mean squares can be computed by hand.
TEST_F(QuantizeTest, ImportanceIsTheMeanSquareOfInputs) {
  const auto windows = SomeWindows(tiny_.vocab);
  const InputStatistics statistics = Statistics();
  EXPECT_EQ(statistics.tokens(), 80);
  const auto n = static_cast<size_t>(tiny_.hidden);
  std::vector<double> squares(n);
  const auto& norm = tiny_.floats["blk.0.attn_norm.weight"];
  for (const auto& window : windows) {
    for (const int32_t token : window) {
      const float* x = tiny_.floats["token_embd.weight"].data() + static_cast<size_t>(token) * n;
      double mean = 0;
      for (size_t i = 0; i < n; ++i) mean += double{x[i]} * x[i] / static_cast<double>(n);
      for (size_t i = 0; i < n; ++i) {
        squares[i] += std::pow(x[i] * norm[i], 2) / (mean + 1e-5);
      }
    }
  }
  double sum = 0;
  for (const double s : squares) sum += s / static_cast<double>(n);
  const WeightPlan plan = Plan("int4");
  const std::vector<float> got = statistics.Importance(Tensor(plan, "blk.0.attn_k.weight"));
  ASSERT_EQ(got.size(), n);
  for (size_t i = 0; i < n; ++i) {
    EXPECT_NEAR(got[i], std::max(squares[i] / sum, 0.01), 1e-3 * (squares[i] / sum + 0.01));
  }
  EXPECT_EQ(statistics.Importance(Tensor(plan, "blk.1.ffn_down.weight")).size(), 96u);
  EXPECT_EQ(statistics.Importance(Tensor(plan, "token_embd.weight")).size(), n) << "tied: the head";
  EXPECT_EQ(statistics.Importance(Tensor(plan, "blk.0.attn_q.weight")), got);
}

// U^T U is the inverse of the damped second moments; the first input's can be computed by hand.
TEST_F(QuantizeTest, FactorsInvertTheMomentsOfInputs) {
  const auto windows = SomeWindows(tiny_.vocab);
  const InputStatistics statistics = Statistics();
  const WeightPlan plan = Plan("int4");
  const std::span<const float> u = statistics.Factor(Tensor(plan, "blk.0.attn_q.weight"));
  const auto n = static_cast<size_t>(tiny_.hidden);
  ASSERT_EQ(u.size(), n * n);
  std::vector<double> h(n * n);
  const auto& norm = tiny_.floats["blk.0.attn_norm.weight"];
  for (const auto& window : windows) {
    for (const int32_t token : window) {
      const float* x = tiny_.floats["token_embd.weight"].data() + static_cast<size_t>(token) * n;
      double mean = 0;
      for (size_t i = 0; i < n; ++i) mean += double{x[i]} * x[i] / static_cast<double>(n);
      for (size_t i = 0; i < n; ++i) {
        for (size_t j = 0; j < n; ++j) {
          h[i * n + j] += double{x[i]} * norm[i] * x[j] * norm[j] / (mean + 1e-5);
        }
      }
    }
  }
  double mean = 0;
  for (size_t i = 0; i < n; ++i) mean += h[i * n + i] / static_cast<double>(n);
  for (size_t i = 0; i < n; ++i) h[i * n + i] += 0.01 * mean;
  // H U^T U = 1
  for (size_t i = 0; i < n; ++i) {
    std::vector<double> hu(n);  // row i of H U^T
    for (size_t k = 0; k < n; ++k) {
      for (size_t j = k; j < n; ++j) hu[k] += h[i * n + j] * u[k * n + j];
    }
    for (size_t j = 0; j < n; ++j) {
      double one = 0;
      for (size_t k = 0; k <= j; ++k) one += hu[k] * u[k * n + j];
      ASSERT_NEAR(one, i == j ? 1 : 0, 2e-3) << i << ", " << j;
    }
  }
  EXPECT_TRUE(statistics.Factor(Tensor(plan, "token_embd.weight")).empty());
  const auto none = InputStatistics::Collect(
      *model_, windows, StatisticsOptions{.max_moment_columns = 64, .progress = {}}, pool_);
  ASSERT_TRUE(none.ok());
  EXPECT_TRUE(none->Factor(Tensor(plan, "blk.0.ffn_down.weight")).empty()) << "96 columns";
}

// Moments of the first layers' inputs fit, those of the last one's do not: its tensors say so.
TEST_F(QuantizeTest, LostFeedbackIsNamed) {
  WeightPlan plan = Plan("int4");
  EXPECT_EQ(Statistics().NoteLostFeedback(&plan), 0);
  const auto windows = SomeWindows(tiny_.vocab);
  const auto few = InputStatistics::Collect(
      *model_, windows, StatisticsOptions{.max_moment_bytes = 20000, .progress = {}}, pool_);
  ASSERT_TRUE(few.ok());
  EXPECT_EQ(few->NoteLostFeedback(&plan), 11) << "all but the first q, k and v";
  EXPECT_EQ(Tensor(plan, "blk.0.attn_q.weight").reason.find("feedback"), std::string::npos);
  EXPECT_TRUE(Tensor(plan, "blk.1.ffn_down.weight")
                  .reason.ends_with("; without feedback: second moments of all inputs do not fit "
                                    "into 20000 bytes"));
  EXPECT_TRUE(few->Factor(Tensor(plan, "blk.1.ffn_down.weight")).empty());
}

TEST(QuantizeJson, SaysWhyNothingWasMeasured) {
  QuantizeResult r;
  EXPECT_EQ(QuantizeJson(r)["note"],
            "No --data: all inputs counted the same and nothing was measured");
  r.data["corpus"] = 1;
  EXPECT_EQ(QuantizeJson(r)["note"], "Nothing was measured: no held-out text");
  EXPECT_NE(QuantizeSection(r).find("no held-out text"), std::string::npos);
}

TEST_F(QuantizeTest, MeasuringLeavesTheModelAsItWas) {
  const auto windows = SomeWindows(tiny_.vocab);
  const std::vector<float> before = Logits(*model_, windows[0]);
  SensitivityOptions options;
  options.choices = {kQ4_0, kQ8_0};
  const WeightPlan plan = Plan("int4");
  const auto sites = MeasureSites(*model_, plan, Statistics(), windows, options, pool_);
  ASSERT_TRUE(sites.ok()) << sites.status().ToString();
  EXPECT_EQ(Logits(*model_, windows[0]), before);
  ASSERT_EQ(sites->size(), 15u);
  for (const WeightSite& site : *sites) {
    EXPECT_EQ(site.tensors.size(), 1u);
    EXPECT_EQ(site.probe, kQ4_0);
    EXPECT_GT(site.kld, 0) << site.name;
    ASSERT_EQ(site.choices.size(), 2u);
    EXPECT_NEAR(site.choices[0].kld, site.kld, 1e-12);
    EXPECT_LT(site.choices[1].kld, site.kld / 50) << "8 bits have 1/16 of the step of 4";
  }
}

// What is measured is what the written file shows: one site alone in its probe type.
TEST_F(QuantizeTest, ASitesKlIsThatOfAModelWithThatTensorReplaced) {
  auto windows = SomeWindows(tiny_.vocab);
  windows.resize(1);
  SensitivityOptions options;
  options.choices = {kQ4_0};
  options.windows = 1;
  const WeightPlan plan = Plan("int4");
  const InputStatistics statistics = Statistics();
  const auto sites = MeasureSites(*model_, plan, statistics, windows, options, pool_);
  ASSERT_TRUE(sites.ok());
  const auto rows = static_cast<size_t>(tiny_.vocab);
  const std::vector<float> plain = Logits(*model_, windows[0]);
  for (const char* name : {"token_embd.weight", "blk.1.ffn_up.weight"}) {
    const TensorPlan& t = Tensor(plan, name);
    const auto bytes = EncodeTensor(model_->file(), *t.tensor, kQ4_0, statistics.Importance(t),
                                    statistics.Factor(t), pool_);
    ASSERT_TRUE(bytes.ok());
    ASSERT_TRUE(model_->ReplaceMatrix(name, kQ4_0, *bytes).ok());
    const std::vector<float> changed = Logits(*model_, windows[0]);
    std::vector<PositionScore> scores;
    ReferenceRows reference(rows, nullptr);
    reference.Start(0);
    ASSERT_TRUE(reference.Add(plain).ok());
    ASSERT_TRUE(reference.Score(windows[0], {}, 0, changed, &scores).ok());
    for (const WeightSite& site : *sites) {
      if (site.name != name) continue;
      EXPECT_NEAR(site.kld, Summarize(scores).mean, 1e-9) << name;
    }
    ASSERT_TRUE(model_->ReplaceMatrix(name, kF32, t.tensor->data).ok());
  }
}

TEST_F(QuantizeTest, LayersShareASiteWhenThereAreTooMany) {
  SensitivityOptions options;
  options.choices = {kQ4_0, kQ8_0};
  options.max_work = 0;
  tiny_.num_layers = 6;
  SetUp();
  const auto windows = SomeWindows(tiny_.vocab);
  const auto sites = MeasureSites(*model_, Plan("int4"), Statistics(), windows, options, pool_);
  ASSERT_TRUE(sites.ok()) << sites.status().ToString();
  EXPECT_EQ(sites->size(), 15u) << "7 kinds in two ranges of layers, and the embeddings";
  EXPECT_EQ((*sites)[1].name, "attn_q.weight of layers 0-2");
  EXPECT_EQ((*sites)[1].tensors.size(), 3u);
}

TEST_F(QuantizeTest, AllocatesWithinTheBudget) {
  SensitivityOptions options;
  options.choices = {kQ4_0, kQ5_0, kQ8_0};
  WeightPlan plan = Plan("int4");
  const auto sites =
      MeasureSites(*model_, plan, Statistics(), SomeWindows(tiny_.vocab), options, pool_);
  ASSERT_TRUE(sites.ok());
  double last = 1e9;
  for (const double bits : {5.5, 6.5, 8.0, 9.5}) {
    const auto budget = static_cast<size_t>(bits * static_cast<double>(plan.num_weights()) / 8);
    const auto kld = AllocateTypes(*sites, budget, &plan);
    ASSERT_TRUE(kld.ok()) << kld.status().ToString();
    EXPECT_LE(plan.bytes(), budget);
    EXPECT_LE(*kld, last);
    last = *kld;
  }
  EXPECT_EQ(TypeCounts(plan), "Q8_0 (15)");
  const Status s = AllocateTypes(*sites, 1000, &plan).status();
  EXPECT_EQ(s.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(s.message().find("a budget of 1000 bytes"), std::string::npos) << s.ToString();
  EXPECT_NE(s.message().find("the smallest types take "), std::string::npos) << s.ToString();
}

// Embeddings whose type was asked for keep it under any budget, and their bytes count.
TEST_F(QuantizeTest, EmbeddingsAskedForByNameAreNotAllocated) {
  const auto target = QuantizeTargetOf("int4", "Q5_1");
  auto plan = WeightPlan::Create(model_->file(), *target, false);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(Tensor(*plan, "token_embd.weight").type, kQ5_1);
  EXPECT_EQ(Tensor(*plan, "token_embd.weight").reason, "--embeddings Q5_1");
  SensitivityOptions options;
  options.choices = target->choices;
  options.outer_is_fixed = target->outer_is_fixed;
  const auto sites =
      MeasureSites(*model_, *plan, Statistics(), SomeWindows(tiny_.vocab), options, pool_);
  ASSERT_TRUE(sites.ok()) << sites.status().ToString();
  for (const double bits : {6.5, 9.5}) {
    const auto budget = static_cast<size_t>(bits * static_cast<double>(plan->num_weights()) / 8);
    ASSERT_TRUE(AllocateTypes(*sites, budget, &*plan).ok());
    EXPECT_LE(plan->bytes(), budget);
    EXPECT_EQ(Tensor(*plan, "token_embd.weight").type, kQ5_1) << bits;
    EXPECT_EQ(Tensor(*plan, "token_embd.weight").reason, "--embeddings Q5_1");
  }
  EXPECT_EQ(TypeCounts(*plan), "Q8_0 (14), Q5_1 (1)");
}

TEST_F(QuantizeTest, WhatWasDoneIsSaidInWords) {
  QuantizeResult r;
  r.plan = Plan("int4");
  EXPECT_EQ(EmbeddingsText(r), "Q8_0, by default");
  EXPECT_EQ(FeedbackText(r), "none: no calibration");
  r.calibration_tokens = 80;
  EXPECT_EQ(FeedbackText(r), "off");
  r.feedback_columns = 2048;
  r.feedback_tensors = Statistics().NumWithFeedback(r.plan);
  EXPECT_EQ(FeedbackText(r), "14 matrices");
  r.lost_feedback = 2;
  EXPECT_EQ(FeedbackText(r), "14 matrices; 2 without, whose inputs have no second moments");
  r.sites.resize(1);
  r.sites[0].tensors = {0};
  EXPECT_EQ(EmbeddingsText(r), "Q8_0, by measured KL");
  r.embeddings_by_name = true;
  EXPECT_EQ(QuantizeJson(r)["embeddings"], "Q8_0, as asked for");
}

TEST_F(QuantizeTest, WritesAModelWithItsProvenance) {
  const std::string path = testing::TempDir() + "/tiny.int4.gguf";
  const WeightPlan plan = Plan("int4");
  const InputStatistics statistics = Statistics();
  const auto written = WriteQuantized(model_->file(), plan, &statistics,
                                      {{"target", "int4"}, {"version", "1"}}, path, pool_);
  ASSERT_TRUE(written.ok()) << written.status().ToString();
  EXPECT_EQ(std::filesystem::file_size(path), written->file_bytes);
  const auto file = GgufFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  EXPECT_EQ(*file->GetInt("general.file_type"), 3) << "mostly Q4_1";
  EXPECT_EQ(*file->GetInt("general.quantization_version"), 2);
  EXPECT_EQ(*file->GetString("general.name"), "Tiny");
  EXPECT_EQ(file->GetStrings("tokenizer.ggml.tokens")->size(), 50u);
  EXPECT_EQ(QuantizeProvenance(*file),
            (std::map<std::string, std::string>{{"target", "int4"}, {"version", "1"}}));
  EXPECT_TRUE(QuantizeProvenance(model_->file()).empty());
  for (const TensorPlan& t : plan.tensors) {
    const GgufTensor* out = file->FindTensor(t.tensor->name);
    ASSERT_NE(out, nullptr);
    EXPECT_EQ(GgmlTypeName(out->type), WeightTypeName(t.type));
    const auto bytes = EncodeTensor(model_->file(), *t.tensor, t.type, statistics.Importance(t),
                                    statistics.Factor(t), pool_);
    ASSERT_TRUE(bytes.ok());
    EXPECT_TRUE(std::equal(bytes->begin(), bytes->end(), out->data.begin(), out->data.end()));
  }
  auto model = Model::Load(path, pool_);
  ASSERT_TRUE(model.ok()) << model.status().ToString();
  const auto windows = SomeWindows(tiny_.vocab);
  const std::vector<float> a = Logits(*model_, windows[0]), b = Logits(**model, windows[0]);
  double difference = 0, all = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += std::pow(a[i] - b[i], 2);
    all += std::pow(a[i], 2);
  }
  EXPECT_LT(difference / all, 0.2);
  EXPECT_GT(difference, 0);
  // Fewer threads, the same file.
  const std::string again = testing::TempDir() + "/tiny.again.gguf";
  ThreadPool one(1);
  ASSERT_TRUE(WriteQuantized(model_->file(), plan, &statistics,
                             {{"target", "int4"}, {"version", "1"}}, again, one)
                  .ok());
  EXPECT_EQ(*ReadFile(again), *ReadFile(path));
}

TEST_F(QuantizeTest, CancelledWorkLeavesNoFile) {
  const std::string path = testing::TempDir() + "/cancelled.gguf";
  const Status s =
      WriteQuantized(model_->file(), Plan("int8"), nullptr, {}, path, pool_,
                     [](size_t done, size_t total, const std::string&) { return done < total / 2; })
          .status();
  EXPECT_EQ(s.code(), StatusCode::kCancelled) << s.ToString();
  EXPECT_FALSE(FileExists(path));
  const auto no = [](size_t, size_t, const std::string&) { return false; };
  EXPECT_EQ(
      InputStatistics::Collect(*model_, SomeWindows(50), {.progress = no}, pool_).status().code(),
      StatusCode::kCancelled);
  SensitivityOptions options;
  options.choices = {kQ4_0};
  options.progress = no;
  EXPECT_EQ(MeasureSites(*model_, Plan("int4"), Statistics(), SomeWindows(50), options, pool_)
                .status()
                .code(),
            StatusCode::kCancelled);
}

TEST_F(QuantizeTest, ReplacingRefusesWhatIsNoMatrix) {
  const std::vector<std::byte> bytes(100);
  EXPECT_EQ(model_->ReplaceMatrix("blk.0.attn_norm.weight", kF32, bytes).status().code(),
            StatusCode::kNotFound);
  const Status s = model_->ReplaceMatrix("blk.0.attn_q.weight", kQ4_0, bytes).status();
  EXPECT_EQ(s.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(s.message().find("tensor 'blk.0.attn_q.weight': "), 0u) << s.ToString();
}

// Inputs of an expert's down are seen expert by expert.
TEST(InputStatistics, KnowsExpertsApart) {
  ThreadPool pool(2);
  const auto model = Model::Load(TQ_SOURCE_DIR "/tests/golden/architectures/mixtral.gguf", pool);
  ASSERT_TRUE(model.ok()) << model.status().ToString();
  const auto statistics =
      InputStatistics::Collect(**model, SomeWindows((*model)->arch().vocab_size), {}, pool);
  ASSERT_TRUE(statistics.ok()) << statistics.status().ToString();
  const auto plan = WeightPlan::Create((*model)->file(), *QuantizeTargetOf("int8"), true);
  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  size_t experts = 0;
  for (const TensorPlan& t : plan->tensors) {
    if (t.kind == "ffn_gate_inp.weight") {
      EXPECT_EQ(t.type, kF32);
    }
    if (t.kind != "ffn_down_exps.weight") continue;
    ++experts;
    const auto n = static_cast<size_t>(t.tensor->shape[0]);
    const std::vector<float> w = statistics->Importance(t);
    ASSERT_EQ(w.size(), n * static_cast<size_t>((*model)->arch().num_experts));
    EXPECT_FALSE(std::equal(w.begin(), w.begin() + static_cast<std::ptrdiff_t>(n),
                            w.begin() + static_cast<std::ptrdiff_t>(n)));
    EXPECT_TRUE(EncodeTensor((*model)->file(), *t.tensor, t.type, w, {}, pool).ok());
  }
  EXPECT_EQ(experts, static_cast<size_t>((*model)->arch().num_layers));
}

}  // namespace
}  // namespace tq
