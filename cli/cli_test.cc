#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>

#include "cli/common.h"
#include "cli/kv_choice.h"
#include "cli/table.h"

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

TEST(ChooseKv, PresetForAllHeads) {
  const Result<KvChoice> choice = ChooseKv(TestModel(), Flags("K4V4"), 8192);
  ASSERT_TRUE(choice.ok()) << choice.status().ToString();
  EXPECT_EQ(choice->name, "k4v4");
  EXPECT_EQ(NameAt(*choice, 11, 2), "k4v4");
  EXPECT_EQ(choice->reasons[0], "--kv k4v4");
  EXPECT_TRUE(choice->notes.empty());
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
      {"1=k5v5", StatusCode::kUnsupported, "--pin '1=k5v5': "},
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
