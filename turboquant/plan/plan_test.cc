// Published checks by hand, the well-known example, and what the planner promises of itself.
#include "turboquant/plan/plan.h"

#include <gtest/gtest.h>

#include "turboquant/plan/survey.h"

namespace tq {
namespace {

// 8 G weights, 32 layers, 32 KV heads of 128: the example everybody quotes.
ModelSpec Example() {
  ModelSpec spec;
  spec.name = "8B";
  LayerSpec layer;
  layer.num_kv_heads = 32;
  layer.head_dim = 128;
  spec.layers.assign(32, layer);
  spec.num_q_heads = 32;
  spec.q_head_dim = 128;
  spec.weights = {{.name = "all", .params = 8e9, .active = 8e9}};
  return spec;
}

CacheFormat Format(const std::string& preset) {
  const Result<CacheFormat> f = CacheFormat::FromPreset(preset, {});
  EXPECT_TRUE(f.ok()) << f.status().ToString();
  return *f;
}

Planner MakePlanner(const ModelSpec& spec, const std::string& preset, const std::string& device,
                    const std::string& weights = "bf16", int devices = 1) {
  PlanOptions options;
  const Result<Machine> machine = FindDevice(device);
  EXPECT_TRUE(machine.ok()) << machine.status().ToString();
  options.machine = *machine;
  options.num_devices = devices;
  options.weights = *ParseWeightChoice(weights);
  Result<Planner> planner = Planner::Create(spec, Format(preset), options);
  EXPECT_TRUE(planner.ok()) << planner.status().ToString();
  return *planner;
}

TEST(Example, PlainCacheOf131072Tokens) {
  const Planner f16 = MakePlanner(Example(), "f16", "h200");
  // 2 x 32 layers x 32 heads x 128 = 262,144 values a token; x 131,072 = 34.36 G values; x 2 bytes
  // = 68,719,476,736 bytes = 68.7 GB = exactly 64 GiB.
  EXPECT_EQ(f16.cache().values_per_token(), 262144);
  const Result<MemoryPlan> plan = f16.Memory(131072, 1);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->f16_bytes, size_t{64} << 30);
  EXPECT_EQ(plan->weights_bytes, 16'000'000'000u);
}

TEST(Example, SealedK3V2ToTheByte) {
  const Planner k3v2 = MakePlanner(Example(), "k3v2", "h200");
  const Result<MemoryPlan> plan = k3v2.Memory(131072, 1);
  ASSERT_TRUE(plan.ok());
  // A record: 64 tokens x 128 x (3 + 2) bits = 5120, 2 x 64 scales = 5248, 8 beside it = 5256.
  // 2048 blocks, of which the first is a sink and 4 + 1 are recent: 2042 sealed x 1024 heads.
  const CacheParts& one = plan->sequence;
  EXPECT_EQ(one.payload + one.scales, size_t{2042} * 1024 * 5256);
  EXPECT_NEAR(static_cast<double>(one.payload + one.scales), 11.0e9, 0.01e9);
  // An open block: 64 rows x 128 int8 and a float32 scale, K and V: 2 x (8192 + 256) = 16,896.
  EXPECT_EQ(one.sinks, size_t{1} * 1024 * 16896);
  // One block more is being sealed.
  EXPECT_EQ(one.recent, size_t{5} * 1024 * 16896 + size_t{1024} * 5256);
  EXPECT_EQ(plan->cache_bytes, one.payload + one.scales + one.sinks + one.recent);
  EXPECT_NEAR(k3v2.cache().bits_per_value(), 8.0 * 5256 / (2 * 64 * 128), 1e-12);
  EXPECT_NEAR(plan->ratio(), 6.19, 0.01);
}

// "74 GB -> 26 GB, 22 ms -> 3 ms" names two different configurations: 16 GB of weights and a
// 68.7 GB cache are 84.7 GB; 74 GB is what INT4 weights with an FP16 cache need, 26 GB what FP16
// weights with an 11 GB cache need.
TEST(Example, TheTwoConfigurationsOfTheClaim) {
  const auto step = [](const char* kv, const char* device, const char* weights) {
    return MakePlanner(Example(), kv, device, weights).Decode(131072, 1);
  };
  const auto bytes = [](const StepTime& s) { return s.weight_bytes + s.cache_bytes; };
  EXPECT_NEAR(bytes(step("f16", "h100", "bf16")), 84.7e9, 0.1e9);
  EXPECT_NEAR(bytes(step("f16", "h100", "q4_0")), 73.2e9, 0.1e9);
  EXPECT_NEAR(bytes(step("k3v2", "h100", "bf16")), 27.1e9, 0.1e9);
  // An H100 reads 3.35 TB/s: 22 ms is right for 73 GB, but 27 GB take 8.1 ms; 3 ms would need
  // 9 TB/s. INT4 weights with the 11 GB cache (15.6 GB) take 4.7 ms there.
  EXPECT_NEAR(*step("f16", "h100", "q4_0").ms, 21.9, 0.1);
  EXPECT_NEAR(*step("k3v2", "h100", "bf16").ms, 8.1, 0.1);
  EXPECT_NEAR(*step("k3v2", "h100", "q4_0").ms, 4.66, 0.05);
  // An H200 was measured at 4.54 TB/s.
  EXPECT_NEAR(*step("f16", "h200", "bf16").ms, 18.7, 0.1);    // nothing
  EXPECT_NEAR(*step("f16", "h200", "q4_0").ms, 16.1, 0.1);    // weights alone
  EXPECT_NEAR(*step("k3v2", "h200", "bf16").ms, 5.97, 0.05);  // cache alone
  EXPECT_NEAR(*step("k3v2", "h200", "q4_0").ms, 3.44, 0.05);  // both
}

TEST(Planner, LinesAddUpAndNameTheUncertain) {
  const Result<MemoryPlan> plan = MakePlanner(Example(), "k4v4", "a100-80g").Memory(10000, 3);
  ASSERT_TRUE(plan.ok());
  size_t sum = 0;
  for (const MemoryLine& l : plan->lines) sum += l.bytes;
  EXPECT_EQ(sum, plan->total_bytes);
  ASSERT_LT(plan->largest_uncertain, plan->lines.size());
  EXPECT_EQ(plan->lines[plan->largest_uncertain].name, "CUDA context");
  EXPECT_EQ(MakePlanner(Example(), "k4v4", "a100-80g").TotalBytes(10000, 3), plan->total_bytes);
}

TEST(Planner, LongestContextFitsAndTheNextDoesNot) {
  for (const char* preset : {"f16", "k8v4", "k3v2"}) {
    const Planner p = MakePlanner(Example(), preset, "h100");
    const size_t capacity = p.options().machine.memory_bytes;
    const int64_t longest = p.MaxContext(1, capacity);
    EXPECT_LE(p.TotalBytes(longest, 1), capacity) << preset;
    EXPECT_GT(p.TotalBytes(longest + 1, 1), capacity) << preset;
    const int64_t most = p.MaxSequences(8192, capacity);
    EXPECT_LE(p.TotalBytes(8192, most), capacity) << preset;
    EXPECT_GT(p.TotalBytes(8192, most + 1), capacity) << preset;
  }
  EXPECT_EQ(MakePlanner(Example(), "k3v2", "rtx4090").MaxContext(1, size_t{10} << 30), 0);
}

TEST(Planner, MoreTokensNeverNeedLess) {
  const Planner p = MakePlanner(Example(), "k3v2", "h100");
  for (int64_t n = 1; n < 2000; ++n) {
    EXPECT_LE(p.TotalBytes(n, 1), p.TotalBytes(n + 1, 1)) << n;
  }
}

TEST(Planner, AbsurdSizesDoNotOverflow) {
  ModelSpec spec = Example();
  spec.layers.assign(4096, spec.layers[0]);
  const Planner p = MakePlanner(spec, "f16", "h100");
  EXPECT_GT(p.TotalBytes(Planner::kMaxContext, Planner::kMaxBatch), size_t{1} << 57);
  EXPECT_LT(p.MaxContext(1, size_t{80} << 30), 2000);
  EXPECT_LE(p.MaxSequences(64, size_t{80} << 30), 64);
  for (LayerSpec& l : spec.layers) l.num_kv_heads = 4096;
  EXPECT_EQ(spec.Validate().message(),
            "num_layers = 4096: all layers together keep 4294967296 values a token; expected up to "
            "67108864");
}

TEST(Planner, SharedPrefixIsHeldOnce) {
  PlanOptions options;
  options.machine = *FindDevice("h100");
  const Result<Planner> apart = Planner::Create(Example(), Format("k4v4"), options);
  options.shared_prefix = 6400;
  const Result<Planner> shared = Planner::Create(Example(), Format("k4v4"), options);
  ASSERT_TRUE(apart.ok() && shared.ok());
  // 100 blocks: one is a sink, 99 sealed, saved by 7 of 8 sequences. K4V4 at 128: 8192 + 128 + 8.
  const size_t saved = 7 * 1024 * (size_t{99} * 8328 + 16896);
  EXPECT_EQ(apart->Memory(8192, 8)->cache_bytes - shared->Memory(8192, 8)->cache_bytes, saved);
  EXPECT_EQ(apart->Memory(8192, 1)->cache_bytes, shared->Memory(8192, 1)->cache_bytes);
}

TEST(Planner, DevicesShareHeadsAndWeights) {
  const Result<MemoryPlan> one = MakePlanner(Example(), "k3v2", "h100").Memory(32768, 1);
  const Result<MemoryPlan> four =
      MakePlanner(Example(), "k3v2", "h100", "bf16", 4).Memory(32768, 1);
  EXPECT_EQ(four->cache_bytes * 4, one->cache_bytes);
  EXPECT_EQ(four->weights_bytes * 4, one->weights_bytes);
  // Fewer heads than devices: each keeps one.
  ModelSpec narrow = Example();
  for (LayerSpec& l : narrow.layers) l.num_kv_heads = 2;
  EXPECT_EQ(MakePlanner(narrow, "k3v2", "h100", "bf16", 8).Memory(32768, 1)->cache_bytes * 2,
            MakePlanner(narrow, "k3v2", "h100").Memory(32768, 1)->cache_bytes);
}

TEST(Planner, BreakEvenGrowsWithTheWeights) {
  const Result<BreakEven> small = MakePlanner(Example(), "k3v2", "h200", "q4_0").FindBreakEven(1);
  const Result<BreakEven> large = MakePlanner(Example(), "k3v2", "h200", "bf16").FindBreakEven(1);
  const Result<BreakEven> batch = MakePlanner(Example(), "k3v2", "h200", "bf16").FindBreakEven(16);
  ASSERT_TRUE(small->context && large->context && batch->context);
  EXPECT_LT(*small->context, *large->context);
  EXPECT_LT(*batch->context, *large->context);
  EXPECT_NE(large->reason.find("weights are over"), std::string::npos) << large->reason;
  const Result<BreakEven> plain = MakePlanner(Example(), "f16", "h200").FindBreakEven(1);
  EXPECT_FALSE(plain->context);
  EXPECT_EQ(plain->reason, "nothing is quantized");
}

TEST(Planner, OverflowIsPriced) {
  const Planner p = MakePlanner(Example(), "f16", "h100");
  const size_t capacity = size_t{80} * 1000 * 1000 * 1000;
  const Overflow over = p.PriceOverflow(131072, 1, capacity);
  EXPECT_EQ(over.bytes, p.TotalBytes(131072, 1) - capacity);
  // PCIe 5 x16: 64 GB/s.
  EXPECT_NEAR(*over.swap_ms, 1e3 * static_cast<double>(over.bytes) / 64e9, 1e-6);
  EXPECT_GT(*over.recompute_ms, *over.resident_ms);
  EXPECT_EQ(p.PriceOverflow(1024, 1, capacity).bytes, 0u);
}

TEST(Planner, RefusesByName) {
  const Planner p = MakePlanner(Example(), "f16", "h100");
  EXPECT_EQ(p.Memory(0, 1).status().message(), "context = 0 tokens; expected 1 to 1073741824");
  EXPECT_EQ(p.Memory(1, 0).status().message(), "batch = 0 sequences; expected 1 to 1048576");
  PlanOptions options;
  options.num_devices = 0;
  EXPECT_EQ(Planner::Create(Example(), Format("f16"), options).status().message(),
            "devices = 0; expected 1 to 1024");
  CacheFormat wrong = Format("f16");
  wrong.formats.resize(7);
  EXPECT_EQ(Planner::Create(Example(), wrong, {}).status().message(),
            "cache format 'f16' is for 7 KV heads; the model has 1024 in layers with keys "
            "and values");
  EXPECT_EQ(ParseWeightChoice("q3").status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(ParseWeightChoice("4.25")->bits, 4.25);
}

TEST(Devices, SizesAndNames) {
  EXPECT_EQ(*ParseSize("24GiB"), size_t{24} << 30);
  EXPECT_EQ(*ParseSize("80 gb"), 80'000'000'000u);
  EXPECT_EQ(*ParseSize("1.5k"), 1536u);
  EXPECT_EQ(*ParseSize("123"), 123u);
  for (const char* bad : {"", "GiB", "12x", "1.2.3G", "-4G", "99999999T", "0"}) {
    EXPECT_EQ(ParseSize(bad).status().code(), StatusCode::kInvalidArgument) << bad;
  }
  EXPECT_EQ(FindDevice("H200")->read_bytes_per_second, 4.54e12);
  const Status unknown = FindDevice("h300").status();
  EXPECT_EQ(unknown.code(), StatusCode::kNotFound);
  EXPECT_EQ(unknown.message().rfind("device 'h300' is not in the table; known: h200, h100", 0), 0u);
  for (const DeviceInfo& d : Devices()) {
    EXPECT_GT(d.memory_mib, 0u);
    EXPECT_LE(d.read_gb_per_second, d.peak_gb_per_second);
    EXPECT_STRNE(d.source, "");
  }
}

TEST(Survey, SaysWhatFitsAndWhy) {
  SurveyGrid grid;
  grid.contexts = {131072};
  grid.batches = {1};
  grid.weights = {*ParseWeightChoice("bf16")};
  grid.formats = {Format("f16"), Format("k4v4"), Format("k3v2")};
  PlanOptions options;
  options.machine = *FindDevice("h100");
  Result<Survey> survey = MakeSurvey(Example(), grid, options);
  ASSERT_TRUE(survey.ok()) << survey.status().ToString();
  EXPECT_TRUE(survey->all_fit());
  EXPECT_EQ(survey->verdicts[0].best, "k4v4");
  EXPECT_EQ(survey->verdicts[0].text.rfind("fits with k4v4 or fewer bits", 0), 0u)
      << survey->verdicts[0].text;
  options.machine = *FindDevice("rtx4090");
  survey = MakeSurvey(Example(), grid, options);
  EXPECT_FALSE(survey->all_fit());
  EXPECT_EQ(survey->verdicts[0].text.rfind("does not fit: even k3v2 needs", 0), 0u)
      << survey->verdicts[0].text;
  grid.weights = {*ParseWeightChoice("f32")};
  survey = MakeSurvey(Example(), grid, options);
  EXPECT_EQ(survey->verdicts[0].text.rfind("does not fit: the weights alone take 29.80 GiB", 0), 0u)
      << survey->verdicts[0].text;
  grid.formats.clear();
  EXPECT_EQ(MakeSurvey(Example(), grid, options).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace tq
