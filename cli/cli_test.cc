#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/common.h"
#include "cli/data_flags.h"
#include "cli/kv_choice.h"
#include "cli/memory_limit.h"
#include "cli/plan_model.h"
#include "cli/plan_traffic.h"
#include "cli/table.h"
#include "runtime/evaluate/footprint.h"
#include "runtime/formats/gguf_builder_for_test.h"
#include "runtime/model/model.h"
#include "runtime/model/model_profile.h"
#include "runtime/tokenizer/tokenizer.h"
#include "turboquant/base/file.h"
#include "turboquant/base/safetensors.h"
#include "turboquant/linear/weight.h"
#include "turboquant/plan/plan.h"

namespace tq::cli {
namespace {

KvModel TestModel() {
  KvModel model;
  model.base.num_layers = 12;
  model.base.num_kv_heads = 3;
  model.base.head_dim = 64;
  model.base.formats.assign(36, HeadFormat{});
  model.path = "nowhere/model.gguf";
  return model;
}

KvFlags Flags(const std::string& kv, const std::string& pin = "") {
  KvFlags flags;
  flags.kv = kv;
  flags.pin = pin;
  return flags;
}

std::string NameAt(const KvChoice& choice, int layer, int head) {
  return PresetName(choice.config.formats[static_cast<size_t>(layer) * 3 + head]);
}

TEST(DataFlags, TheCommandLineGivesTheSameDataAgain) {
  DataFlags flags;
  flags.data = {"a/b.jsonl", "my log's.jsonl"};
  flags.redact_file = "$rules";
  flags.shared_prefix = 0.5;
  const std::string line = flags.CommandLine();
  EXPECT_TRUE(
      line.starts_with(R"(--data a/b.jsonl --data 'my log'\''s.jsonl' --redact-file '$rules')"))
      << line;
  EXPECT_NE(line.find(" --shared-prefix 0.5"), std::string::npos) << line;
}

// Pasted, "..." as an expression would redact all there is.
TEST(DataFlags, ExpressionsStandOnTheTerminalAndNotInReports) {
  DataFlags flags;
  flags.redact = {"secret-[0-9]+ => it's gone", "plain"};
  const std::string terminal = flags.CommandLine(DataFlags::ShownIn::kTerminal);
  EXPECT_NE(terminal.find(R"(--redact 'secret-[0-9]+ => it'\''s gone' --redact plain )"),
            std::string::npos)
      << terminal;
  const std::string report = flags.CommandLine();
  EXPECT_EQ(report.find("secret"), std::string::npos) << report;
  EXPECT_EQ(report.find("--redact "), std::string::npos) << report;
  EXPECT_NE(report.find("--redact-file EXPRESSIONS.txt"), std::string::npos) << report;
}

TEST(GivenOptions, AreThoseThatWereGivenAsAShellReadsThem) {
  CLI::App app;
  std::string model, name = "default";
  std::vector<std::string> data;
  bool quick = false, never = false;
  app.add_option("model,--model", model);
  app.add_option("--name", name);
  app.add_option("--data", data)->expected(1)->take_all();
  app.add_flag("--quick", quick);
  app.add_flag("--never", never);
  app.parse("\"a b.gguf\" --quick --data x --data y");
  EXPECT_EQ(GivenOptions(app, {}), " --model 'a b.gguf' --data x --data y --quick");
  constexpr std::string_view kBut[] = {"--data"};
  EXPECT_EQ(GivenOptions(app, kBut), " --model 'a b.gguf' --quick");
}

TEST(DataFlags, NotesAreToldOnce) {
  const std::string path = testing::TempDir() + "tq_notes.txt";
  ASSERT_TRUE(WriteFileAtomic(path, std::string(5000, 'x')).ok());
  DataFlags flags;
  flags.data = {path};
  const auto said = [&](DataFlags::Notes notes) {
    testing::internal::CaptureStderr();
    const auto corpus = flags.Read(512, {}, notes);
    EXPECT_TRUE(corpus.ok()) << corpus.status().ToString();
    return std::pair(testing::internal::GetCapturedStderr(), CorpusText(corpus->report));
  };
  const std::string note = "there is one document only";
  EXPECT_NE(said(DataFlags::Notes::kPrint).first.find("data: " + note), std::string::npos);
  // Who prints the report as a text has them there.
  const auto [printed, text] = said(DataFlags::Notes::kLeave);
  EXPECT_EQ(printed.find(note), std::string::npos);
  EXPECT_NE(text.find(note), std::string::npos);
}

// A part can come out empty though there were two requests: one of them was the beginning of the
// other.
TEST(DataFlags, APartThatIsAskedForAndEmptyIsRefusedWithTheReason) {
  const std::string path = testing::TempDir() + "tq_parts.jsonl";
  ASSERT_TRUE(WriteFileAtomic(path, R"({"prompt": "The order contains"})"
                                    "\n"
                                    R"({"prompt": "The order contains two lamps and a chair"})"
                                    "\n")
                  .ok());
  DataFlags flags;
  flags.data = {path};
  flags.held_out_share = 0.9;
  for (const char* part : {"calibration", "held-out"}) {
    flags.part = part;
    int num_empty = 0;
    for (flags.seed = 0; flags.seed < 10; ++flags.seed) {
      const auto corpus = flags.Read(512, OutputFlags{.quiet = true});
      if (corpus.ok()) {
        EXPECT_EQ(flags.ItemsOf(*corpus).size(), 1u);
        continue;
      }
      ++num_empty;
      EXPECT_EQ(corpus.status().code(), StatusCode::kInvalidArgument);
      EXPECT_NE(corpus.status().message().find(
                    StrCat("--part ", part, ": the data has no ", part, " part (2 lines of logs")),
                std::string::npos)
          << corpus.status().message();
      EXPECT_NE(corpus.status().message().find("1 dropped for a longer one that begins alike"),
                std::string::npos)
          << corpus.status().message();
    }
    EXPECT_GT(num_empty, 0) << part;
    EXPECT_LT(num_empty, 10) << part;
  }
}

TEST(KvFlags, TheCommandLineGivesTheSameCacheAgain) {
  KvFlags flags = Flags("k3v2", "1,10=k8v4;3:0=k4v4");
  EXPECT_EQ(flags.CommandLine(), "--kv k3v2 --pin '1,10=k8v4;3:0=k4v4'");
  flags.recent_len = 64;
  flags.sink_len = 0;
  EXPECT_EQ(flags.CommandLine(),
            "--kv k3v2 --pin '1,10=k8v4;3:0=k4v4' --recent-len 64 --sink-len 0");
  flags.v_skip = "0.02";
  EXPECT_EQ(flags.CommandLine(),
            "--kv k3v2 --pin '1,10=k8v4;3:0=k4v4' --recent-len 64 --sink-len 0 --v-skip=0.02");
}

TEST(ChooseKv, SkippingOfValuesIsOffUnlessItIsAskedFor) {
  KvFlags flags = Flags("k4v4");
  EXPECT_EQ(ChooseKv(TestModel(), flags, 8192)->config.v_skip, 0);
  flags.v_skip = "0.02";
  const Result<KvChoice> choice = ChooseKv(TestModel(), flags, 8192);
  ASSERT_TRUE(choice.ok());
  EXPECT_EQ(choice->config.v_skip, 0.02f);
  EXPECT_EQ(choice->name, "k4v4 v-skip 0.02");
  flags.v_skip = "0";
  EXPECT_EQ(ChooseKv(TestModel(), flags, 8192)->name, "k4v4");
  for (const char* bad : {"x", "1", "-0.1", "0.01,0.02", "0.01x", "nan"}) {
    flags.v_skip = bad;
    const Status status = ChooseKv(TestModel(), flags, 8192).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << bad;
    EXPECT_NE(status.message().find(StrCat("--v-skip '", bad, "' is no number from 0")),
              std::string::npos)
        << status.message();
  }
}

TEST(ChooseKv, PresetForAllHeads) {
  const Result<KvChoice> choice = ChooseKv(TestModel(), Flags("K4V4"), 8192);
  ASSERT_TRUE(choice.ok()) << choice.status().ToString();
  EXPECT_EQ(choice->name, "k4v4");
  EXPECT_EQ(NameAt(*choice, 11, 2), "k4v4");
  EXPECT_EQ(choice->reasons[0], "--kv k4v4");
  EXPECT_TRUE(choice->notes.empty());
}

TEST(ChooseKv, WindowLayersStayAndAreCounted) {
  KvModel model = TestModel();
  model.base.windows.assign(12, 512);
  model.base.windows[5] = model.base.windows[11] = 0;
  const Result<KvChoice> choice = ChooseKv(model, Flags("k4v4"), 8192);
  ASSERT_TRUE(choice.ok()) << choice.status().ToString();
  EXPECT_EQ(NameAt(*choice, 4, 0), "f16");
  EXPECT_EQ(NameAt(*choice, 5, 0), "k4v4");
  EXPECT_EQ(choice->reasons[0], "sliding window of 512: kept in 16 bit");
  EXPECT_EQ(choice->reasons[5 * 3], "--kv k4v4");
  EXPECT_EQ(choice->notes, std::vector<std::string>{
                               "kv: k4v4 applied to 2 of 12 layers; 10 window layers kept in 16 "
                               "bit"});
  const Result<KvChoice> automatic = ChooseKv(model, Flags("auto"), 8192);
  ASSERT_TRUE(automatic.ok());
  EXPECT_EQ(automatic->reasons[0], "sliding window of 512: kept in 16 bit");
  EXPECT_EQ(automatic->reasons[5 * 3], "--kv auto");
  EXPECT_EQ(ChooseKv(model, Flags("k4v4", "0=k3v2"), 8192).status().code(),
            StatusCode::kInvalidArgument);
}

TEST(ChooseKv, SixteenBitsKeepNothingBack) {
  KvModel model = TestModel();
  model.base.windows.assign(12, 512);
  EXPECT_TRUE(ChooseKv(model, Flags("f16"), 8192)->notes.empty());
  EXPECT_EQ(ChooseKv(model, Flags("auto"), 100)->notes.size(), 1u);  // why it is f16
  EXPECT_TRUE(ChooseKv(model, Flags("f16", "3=f16"), 8192)->notes.empty());
  // What was asked for and is not done is said, even where nothing at all is quantized.
  EXPECT_EQ(ChooseKv(model, Flags("k4v4"), 8192)->notes,
            std::vector<std::string>{
                "kv: k4v4 applied to 0 of 12 layers; 12 window layers kept in 16 bit"});
  EXPECT_EQ(ChooseKv(model, Flags("f16", "3=k8v8"), 8192)->notes,
            std::vector<std::string>{"kv: f16 + pins applied to 1 of 12 layers; 11 window layers "
                                     "kept in 16 bit, 1 in 8 bit"});
}

TEST(ChooseKv, ProfileLiesBesideFileOrFolder) {
  const std::string root =
      (std::filesystem::path(testing::TempDir()) / "tq_beside").lexically_normal().string();
  const std::string folder = root + "/Llama-3.1-8B";
  std::filesystem::create_directories(folder);
  EXPECT_EQ(ProfileBeside(folder), folder + ".tqprofile");
  EXPECT_EQ(ProfileBeside(folder + "/"), folder + ".tqprofile");
  EXPECT_EQ(ProfileBeside(folder + "//"), folder + ".tqprofile");
  EXPECT_EQ(ProfileBeside(folder + "/."), folder + ".tqprofile");
  EXPECT_EQ(ProfileBeside("a/Llama-3.1-8B.gguf"), "a/Llama-3.1-8B.tqprofile");
  EXPECT_EQ(ProfileBeside("a/Llama-3.1-8B"), "a/Llama-3.1-8B.tqprofile");
}

TEST(ChooseKv, AutoSaysWhatAndWhy) {
  const Result<KvChoice> choice = ChooseKv(TestModel(), Flags("auto"), 8192);
  ASSERT_TRUE(choice.ok());
  EXPECT_EQ(choice->name, "k8v4");
  ASSERT_EQ(choice->notes.size(), 1u);
  EXPECT_EQ(choice->notes[0],
            "kv: k8v4 (auto: no model.tqprofile beside the model, and contexts from 1,024 on gain "
            "from it)");
  const Result<KvChoice> small = ChooseKv(TestModel(), Flags("auto"), 1023);
  ASSERT_TRUE(small.ok());
  EXPECT_EQ(small->name, "f16");
  EXPECT_EQ(small->notes[0],
            "kv: f16 (auto: a context of 1,023 is mostly recent window: nothing to gain below "
            "1,024)");
}

TEST(ChooseKv, KeysBelow4BitsAreMentionedOnce) {
  const Result<KvChoice> choice = ChooseKv(TestModel(), Flags("k3v2"), 8192);
  ASSERT_TRUE(choice.ok());
  ASSERT_EQ(choice->notes.size(), 1u);
  EXPECT_EQ(choice->notes[0],
            "k3v2: keys below 4 bits are not verified for this model; `tq compare` measures what "
            "they cost");
}

TEST(ChooseKv, CentresOfTheModelApplyToQuantizedKeys) {
  KvModel model = TestModel();
  model.base.centers.resize(36);
  const Result<KvChoice> choice = ChooseKv(model, Flags("k4v4", "0=f16"), 8192);
  ASSERT_TRUE(choice.ok());
  EXPECT_EQ(choice->config.formats[0].k.center, Center::kNone);
  EXPECT_EQ(choice->config.formats[3].k.center, Center::kRopeMean);
  EXPECT_EQ(choice->config.formats[3].k.gain, Gain::kUnbiased);
}

TEST(ChooseKv, WindowFlagsAndTheirRounding) {
  KvFlags flags = Flags("k4v4");
  flags.recent_len = 100;
  flags.sink_len = 0;
  const Result<KvChoice> choice = ChooseKv(TestModel(), flags, 8192);
  ASSERT_TRUE(choice.ok());
  EXPECT_EQ(choice->config.recent_len, 100);
  EXPECT_EQ(choice->config.sink_len, 0);
  ASSERT_EQ(choice->notes.size(), 1u);
  EXPECT_EQ(choice->notes[0], "--recent-len 100: rounded up to 128, whole blocks of 64 tokens");
}

TEST(Pins, LayersRangesAndHeads) {
  const Result<KvChoice> choice =
      ChooseKv(TestModel(), Flags("k4v4", "1,10=k8v4; 3:0 = f16;5-6:1-2=k8v8;6:2=k4v2"), 8192);
  ASSERT_TRUE(choice.ok()) << choice.status().ToString();
  EXPECT_EQ(choice->name, "k4v4 + pins");
  EXPECT_EQ(NameAt(*choice, 0, 0), "k4v4");
  EXPECT_EQ(NameAt(*choice, 1, 2), "k8v4");
  EXPECT_EQ(NameAt(*choice, 10, 0), "k8v4");
  EXPECT_EQ(NameAt(*choice, 3, 0), "f16");
  EXPECT_EQ(NameAt(*choice, 3, 1), "k4v4");
  EXPECT_EQ(NameAt(*choice, 5, 1), "k8v8");
  EXPECT_EQ(NameAt(*choice, 6, 2), "k4v2");  // the later pin wins
  EXPECT_EQ(choice->reasons[3], "--pin 1,10=k8v4");
}

TEST(Pins, ErrorsNameTheWord) {
  const struct {
    const char* pin;
    StatusCode code;
    const char* message;
  } cases[] = {
      {"1k8v4", StatusCode::kInvalidArgument, "--pin '1k8v4' has no '='"},
      {"12=k8v4", StatusCode::kInvalidArgument,
       "--pin '12=k8v4': layer 12 is out of range: there are 12, from 0 to 11"},
      {"1:3=k8v4", StatusCode::kInvalidArgument,
       "--pin '1:3=k8v4': KV head 3 is out of range: there are 3, from 0 to 2"},
      {"a=k8v4", StatusCode::kInvalidArgument,
       "--pin 'a=k8v4': 'a' is not a layer or a range of them, like 3 or 0-2"},
      {"4-2=k8v4", StatusCode::kInvalidArgument,
       "--pin '4-2=k8v4': '4-2' is not a layer or a range of them, like 3 or 0-2"},
      {"1=best", StatusCode::kInvalidArgument, "--pin '1=best': 'best' is not a cache format"},
      {"1=k7v7", StatusCode::kUnsupported, "--pin '1=k7v7': "},
  };
  for (const auto& c : cases) {
    const Status status = ChooseKv(TestModel(), Flags("k4v4", c.pin), 8192).status();
    EXPECT_EQ(status.code(), c.code) << c.pin << ": " << status.message();
    EXPECT_EQ(status.message().rfind(c.message, 0), 0u) << status.message();
  }
}

TEST(Explain, RunsOfEqualLayersAndHeads) {
  const Result<KvChoice> choice = ChooseKv(TestModel(), Flags("k4v4", "3:0=k8v4"), 8192);
  ASSERT_TRUE(choice.ok());
  const std::string text = ExplainKv(*choice);
  EXPECT_NE(text.find("layer 0-2 "), std::string::npos) << text;
  EXPECT_NE(text.find("layer 3 head 0 "), std::string::npos) << text;
  EXPECT_NE(text.find("layer 3 head 1-2 "), std::string::npos) << text;
  EXPECT_NE(text.find("layer 4-11 "), std::string::npos) << text;
  EXPECT_NE(text.find("(--pin 3:0=k8v4)"), std::string::npos) << text;
}

TEST(TextTable, AlignsColumns) {
  TextTable table({"format", "KL\nmean"});
  table.Add({"f16", "-"});
  table.Add({"k4v4", "0.00125"});
  table.Add({"\xC3\xA4", "1"});
  EXPECT_EQ(table.ToString(),
            "             KL\n"
            "format     mean\n"
            "------  -------\n"
            "f16           -\n"
            "k4v4    0.00125\n"
            "\xC3\xA4             1\n");
}

// Keys that every architecture has; 64 wide, 4 heads, a vocabulary of 32.
GgufBuilder PlanGguf(const std::string& arch, uint32_t layers) {
  GgufBuilder b;
  b.Text("general.architecture", arch)
      .U32(arch + ".block_count", layers)
      .U32(arch + ".embedding_length", 64)
      .U32(arch + ".feed_forward_length", 128)
      .U32(arch + ".attention.head_count", 4)
      .U32(arch + ".context_length", 4096);
  return b;
}

Result<ModelSpec> SpecOf(GgufBuilder& builder, int64_t context = 0) {
  builder.Tensor("token_embd.weight", GgmlType::kF16, {64, 32}, std::string(64 * 32 * 2, '\0'))
      .Tensor("blk.0.attn_q.weight", GgmlType::kF16, {64, 64}, std::string(64 * 64 * 2, '\0'))
      .Tensor("blk.0.attn_norm.weight", GgmlType::kF32, {64}, std::string(64 * 4, '\0'));
  const std::string bytes = builder.Build();
  const auto file = GgufFile::Parse(std::as_bytes(std::span(bytes)), "t.gguf");
  if (!file.ok()) return file.status();
  return SpecFromGguf(*file, context);
}

std::string LayersOf(GgufBuilder builder) {
  const Result<ModelSpec> spec = SpecOf(builder);
  return spec.ok() ? spec->DescribeLayers() : spec.status().message();
}

TEST(SpecFromGguf, WeightsAreThoseOfTheFile) {
  GgufBuilder builder = PlanGguf("llama", 2);
  const Result<ModelSpec> spec = SpecOf(builder);
  ASSERT_TRUE(spec.ok()) << spec.status().ToString();
  EXPECT_EQ(spec->DescribeLayers(), "2 full 4 x 16");
  EXPECT_EQ(spec->params(), 64 * 32 + 64 * 64 + 64);
  size_t bytes = 0;
  for (const WeightGroup& g : spec->weights) bytes += g.stored_bytes;
  EXPECT_EQ(bytes, size_t{64} * 32 * 2 + 64 * 64 * 2 + 64 * 4);
  EXPECT_EQ(spec->vocab_size, 32);
  EXPECT_EQ(spec->file_types, "F16 (2), F32 (1)");
}

// 6-bit integers of the K types take a byte each once they are packed, and rows go by 16.
TEST(SpecFromGguf, WeightsAreCountedAsTheyAreLoaded) {
  GgufBuilder builder = PlanGguf("llama", 2);
  builder.Tensor("blk.1.ffn_up.weight", GgmlType::kQ4_K, {256, 40}, std::string(40 * 144, '\0'))
      .Tensor("blk.1.ffn_down.weight", GgmlType::kQ6_K, {256, 32}, std::string(32 * 210, '\0'));
  const Result<ModelSpec> spec = SpecOf(builder);
  ASSERT_TRUE(spec.ok()) << spec.status().ToString();
  const auto ffn = std::find_if(spec->weights.begin(), spec->weights.end(),
                                [](const WeightGroup& g) { return g.name == "feed forward"; });
  ASSERT_NE(ffn, spec->weights.end());
  EXPECT_EQ(ffn->stored_bytes, size_t{48} * 148 + 32 * 210);
}

TEST(SpecFromGguf, KindsOfLayers) {
  EXPECT_EQ(LayersOf(PlanGguf("qwen3", 2)
                         .U32("qwen3.attention.head_count_kv", 2)
                         .U32("qwen3.attention.key_length", 32)),
            "2 full 2 x 32");
  EXPECT_EQ(LayersOf(PlanGguf("gemma3", 6).U32("gemma3.attention.sliding_window", 512)),
            "5 window(512) 4 x 16, 1 full 4 x 16");
  EXPECT_EQ(LayersOf(PlanGguf("gpt-oss", 4).U32("gpt-oss.attention.sliding_window", 128)),
            "2 window(128) 4 x 16, 2 full 4 x 16");
  EXPECT_EQ(LayersOf(PlanGguf("llama", 3).I32s("llama.attention.head_count_kv", {4, 1, 4})),
            "2 full 4 x 16, 1 full 1 x 16");
  EXPECT_EQ(LayersOf(PlanGguf("deepseek2", 2)
                         .U32("deepseek2.attention.kv_lora_rank", 32)
                         .U32("deepseek2.rope.dimension_count", 8)
                         .U32("deepseek2.attention.key_length_mla", 24)
                         .U32("deepseek2.attention.value_length_mla", 16)),
            "2 latent 32 + 8");
  // 4 value heads of 16 x 16 float32 and (2 x 2 x 16 + 64) channels of 3 bf16: 4096 + 768.
  EXPECT_EQ(LayersOf(PlanGguf("qwen3next", 4)
                         .U32("qwen3next.ssm.conv_kernel", 4)
                         .U32("qwen3next.ssm.group_count", 2)
                         .U32("qwen3next.ssm.time_step_rank", 4)
                         .U32("qwen3next.ssm.state_size", 16)
                         .U32("qwen3next.ssm.inner_size", 64)),
            "3 state 4864 B, 1 full 4 x 16");
}

TEST(SpecFromGguf, AWindowOfTheTrainedLengthCutsBeyondIt) {
  const auto layers = [](int64_t context) {
    GgufBuilder builder = PlanGguf("phi3", 2);
    builder.U32("phi3.attention.sliding_window", 4096);
    const Result<ModelSpec> spec = SpecOf(builder, context);
    return spec.ok() ? spec->DescribeLayers() : spec.status().message();
  };
  EXPECT_EQ(layers(0), "2 full 4 x 16");
  EXPECT_EQ(layers(4096), "2 full 4 x 16");
  EXPECT_EQ(layers(4097), "2 window(4096) 4 x 16");
}

// A Hugging Face folder of one llama layer, all weights zero; with `tokenizer_kind`, a tokenizer.
// Returns its path, with no file of an earlier run.
std::string WriteFolder(const std::string& name, const std::string& tokenizer_kind = "") {
  const std::string path = testing::TempDir() + "/" + name;
  std::filesystem::remove_all(path);
  std::filesystem::create_directories(path);
  std::vector<SafetensorsSource> tensors;
  const auto add = [&](const std::string& tensor, int64_t rows, int64_t columns) {
    const auto size = static_cast<size_t>(rows * std::max<int64_t>(columns, 1));
    tensors.push_back({tensor,
                       columns > 0 ? std::vector<int64_t>{rows, columns} : std::vector{rows},
                       std::vector<float>(size), SafetensorsType::kBF16});
  };
  const std::string layer = "model.layers.0.";
  add("model.embed_tokens.weight", 2, 4);
  add("model.norm.weight", 4, 0);
  for (const char* norm : {"input_layernorm", "post_attention_layernorm"}) {
    add(layer + norm + ".weight", 4, 0);
  }
  for (const char* p : {"q", "k", "v", "o"}) add(layer + "self_attn." + p + "_proj.weight", 4, 4);
  add(layer + "mlp.gate_proj.weight", 8, 4);
  add(layer + "mlp.up_proj.weight", 8, 4);
  add(layer + "mlp.down_proj.weight", 4, 8);
  EXPECT_TRUE(WriteSafetensors(path + "/model.safetensors", tensors).ok());
  const nlohmann::json config = {{"model_type", "llama"},    {"max_position_embeddings", 64},
                                 {"rms_norm_eps", 1e-5},     {"rope_theta", 10000.0},
                                 {"num_hidden_layers", 1},   {"hidden_size", 4},
                                 {"intermediate_size", 8},   {"num_attention_heads", 2},
                                 {"num_key_value_heads", 2}, {"tie_word_embeddings", true},
                                 {"vocab_size", 2}};
  EXPECT_TRUE(WriteFileAtomic(path + "/config.json", config.dump()).ok());
  if (!tokenizer_kind.empty()) {
    const auto golden =
        nlohmann::json::parse(*ReadFile(TQ_SOURCE_DIR "/tests/golden/tokenizers.json"));
    const nlohmann::json& tokenizer = golden["tokenizers_of_kind"][tokenizer_kind]["json"];
    EXPECT_TRUE(WriteFileAtomic(path + "/tokenizer.json", tokenizer.dump()).ok());
  }
  return path;
}

size_t StoredBytes(const std::string& path) {
  const Result<ModelSpec> spec = SpecFromPath(path);
  EXPECT_TRUE(spec.ok()) << spec.status().ToString();
  size_t bytes = 0;
  for (const WeightGroup& g : spec->weights) bytes += g.stored_bytes;
  return bytes;
}

TEST(SpecFromFolder, CountsTheFilesThatAreLoaded) {
  const std::string path = WriteFolder("tq_counted");
  const size_t whole = size_t{2} * (2 * 4 + 3 * 4 + 4 * 16 + 3 * 32);
  EXPECT_EQ(StoredBytes(path), whole);
  // The same weights again, as some repositories have them.
  std::filesystem::copy_file(path + "/model.safetensors", path + "/consolidated.safetensors");
  EXPECT_EQ(StoredBytes(path), whole);
  // An index decides, whatever else there is.
  ASSERT_TRUE(WriteSafetensors(path + "/a.safetensors",
                               {{"model.norm.weight", {4}, {1, 2, 3, 4}, SafetensorsType::kF32}})
                  .ok());
  const std::string index = path + "/model.safetensors.index.json";
  ASSERT_TRUE(
      WriteFileAtomic(index, R"({"weight_map": {"model.norm.weight": "a.safetensors"}})").ok());
  EXPECT_EQ(StoredBytes(path), 16u);
  // What is not there is not counted in silence.
  std::filesystem::remove(path + "/a.safetensors");
  const Result<ModelSpec> missing = SpecFromPath(path);
  ASSERT_TRUE(missing.ok());
  ASSERT_FALSE(missing->notes.empty());
  EXPECT_EQ(missing->notes.back().rfind(
                "weights are counted as bf16 from config.json, since they cannot be read: ", 0),
            0u);
}

TEST(LoadTraffic, AFolderCountsWithItsTokenizer) {
  const std::string log = testing::TempDir() + "/tq_texts.jsonl";
  const std::string text = "one two three four five six";
  ASSERT_TRUE(WriteFileAtomic(log, R"({"prompt": ")" + text + "\"}\n").ok());
  const std::string path = WriteFolder("tq_counting", "gpt2");
  const Result<GgufFile> file = GgufFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  const auto tokenizer = Tokenizer::FromGguf(*file);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().ToString();
  const Result<Traffic> traffic = LoadTraffic(log, path);
  ASSERT_TRUE(traffic.ok()) << traffic.status().ToString();
  ASSERT_EQ(traffic->requests.size(), 1u);
  EXPECT_EQ(traffic->requests[0].prompt_tokens,
            static_cast<int64_t>((*tokenizer)->Encode(text).size()));
  // Without a tokenizer the numbers of the log still do, and it says why texts do not.
  std::filesystem::remove(path + "/tokenizer.json");
  EXPECT_EQ(LoadTraffic(log, path).status().code(), StatusCode::kInvalidArgument);
  ASSERT_TRUE(WriteFileAtomic(log, R"({"prompt": "one", "prompt_tokens": 1})").ok());
  const Result<Traffic> logged = LoadTraffic(log, path);
  ASSERT_TRUE(logged.ok()) << logged.status().ToString();
  ASSERT_FALSE(logged->notes.empty());
  EXPECT_NE(logged->notes.back().find("needs a tokenizer.json"), std::string::npos);
}

// One classification, and what it leads to: the planner's layers and bytes are those of a run.
TEST(SpecFromGguf, AgreesWithTheModelThatIsRun) {
  ThreadPool pool(1);
  int files = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(TQ_SOURCE_DIR "/tests/golden/architectures")) {
    if (entry.path().extension() != ".gguf") continue;
    ++files;
    const std::string path = entry.path().string();
    const Result<ModelSpec> spec = SpecFromPath(path);
    ASSERT_TRUE(spec.ok()) << spec.status().ToString();
    const auto model = Model::Load(path, pool);
    ASSERT_TRUE(model.ok()) << model.status().ToString();
    const Architecture& a = (*model)->arch();
    ASSERT_EQ(spec->num_layers(), a.num_layers);
    for (int l = 0; l < a.num_layers; ++l) {
      const LayerSpec& layer = spec->layers[static_cast<size_t>(l)];
      EXPECT_EQ(layer.kind == LayerKind::kWindow ? layer.window : 0, a.window(l)) << path << l;
      EXPECT_EQ(layer.head_dim, a.head_dim);
      EXPECT_EQ(layer.num_kv_heads, a.num_kv_heads);
    }
    const KvModel kv_model = {(*model)->MakeCacheConfig(), path, 0, nullptr};
    for (const char* kv : {"f16", "k8v4", "k3v2"}) {
      const Result<KvChoice> choice = ChooseKv(kv_model, Flags(kv), 8192);
      ASSERT_TRUE(choice.ok()) << choice.status().ToString();
      const Result<CachePlan> plan =
          CachePlan::Create(*spec, *CacheFormat::FromPreset(kv, CacheWindow{}));
      ASSERT_TRUE(plan.ok()) << plan.status().ToString();
      EXPECT_EQ(plan->quantized_layers(), NumQuantizedLayers(choice->config)) << path << kv;
      for (const int64_t tokens : {1, 64, 100, 1000, 5000}) {
        const CacheParts parts = plan->At(tokens, 128);
        const CacheBytes bytes = CacheFootprint(choice->config, tokens);
        EXPECT_EQ(parts.total() - parts.in_flight, bytes.total()) << path << kv << tokens;
        EXPECT_EQ(parts.windows, bytes.sliding) << path << kv << tokens;
        EXPECT_EQ(plan->F16Bytes(tokens), F16Footprint(choice->config, tokens)) << path << kv;
      }
    }
  }
  EXPECT_EQ(files, 13);
}

TEST(SpecFromGguf, ErrorsNameTheKey) {
  EXPECT_EQ(LayersOf(PlanGguf("rwkv9", 2)).rfind("general.architecture = 'rwkv9' is not a", 0), 0u);
  EXPECT_EQ(LayersOf(PlanGguf("llama", 0)), "llama.block_count = 0; expected 1 to 4096");
  EXPECT_EQ(LayersOf(PlanGguf("llama", 2).U32("llama.attention.value_length", 8)),
            "llama.attention.value_length = 8 differs from the key's 16: only equal lengths are "
            "planned");
  EXPECT_NE(LayersOf(PlanGguf("deepseek2", 2)).find("deepseek2.attention.kv_lora_rank"),
            std::string::npos);
}

TEST(Plan, WeightFormatsAreThoseOfTheFiles) {
  for (const WeightLayout& layout : kWeightLayouts) {
    std::string name = layout.name;
    std::transform(name.begin(), name.end(), name.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    const auto format = ParseWeightChoice(name);
    ASSERT_TRUE(format.ok()) << format.status().ToString();
    EXPECT_EQ(format->bits, 8.0 * layout.block_bytes / layout.block_len) << name;
  }
}

TEST(Plan, MemoryLimit) {
  EXPECT_EQ(*MemoryLimit("2GiB"), size_t{2} << 30);
  EXPECT_GT(*MemoryLimit(""), 0u);
  const Status bad = MemoryLimit("plenty").status();
  EXPECT_EQ(bad.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(bad.message().rfind("--memory-limit: 'plenty' is no size", 0), 0u);
}

TEST(Common, Numbers) {
  EXPECT_EQ(FormatCount(0), "0");
  EXPECT_EQ(FormatCount(999), "999");
  EXPECT_EQ(FormatCount(131072), "131,072");
  EXPECT_EQ(FormatCount(-1234567), "-1,234,567");
  EXPECT_EQ(FormatMiB(3 << 19), "1.50 MiB");
  EXPECT_EQ(FormatRatio(5.966), "5.97x");
  EXPECT_EQ(FormatRatio(0), "-");
}

TEST(Common, ExitCodes) {
  EXPECT_EQ(ExitCodeOf(OkStatus()), 0);
  EXPECT_EQ(ExitCodeOf(InvalidArgument("x")), 2);
  EXPECT_EQ(ExitCodeOf(NotFound("x")), 2);
  EXPECT_EQ(ExitCodeOf(DataLoss("x")), 2);
  EXPECT_EQ(ExitCodeOf(Unsupported("x")), 2);
  EXPECT_EQ(ExitCodeOf(ResourceExhausted("x")), 3);
  EXPECT_EQ(ExitCodeOf(Unavailable("x")), 3);
  EXPECT_EQ(ExitCodeOf(Cancelled("x")), 130);
}

TEST(Common, WritableBeforeTheWork) {
  const std::string folder = testing::TempDir();
  EXPECT_TRUE(CheckWritable(folder + "/new_report.html").ok());
  EXPECT_FALSE(std::filesystem::exists(folder + "/new_report.html"));
  const Status missing = CheckWritable(folder + "/no/such/report.html");
  EXPECT_EQ(missing.code(), StatusCode::kNotFound);
  EXPECT_NE(missing.message().find("there is no folder"), std::string::npos);
  EXPECT_EQ(CheckWritable(folder).code(), StatusCode::kInvalidArgument);
}

TEST(Common, SplitListTrims) {
  EXPECT_EQ(SplitList(" a, b ,,c", ','), (std::vector<std::string>{"a", "b", "", "c"}));
  EXPECT_EQ(SplitList("", ','), std::vector<std::string>{""});
}

}  // namespace
}  // namespace tq::cli
