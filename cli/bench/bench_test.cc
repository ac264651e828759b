#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "cli/bench/llama_bench.h"
#include "cli/bench/measure.h"
#include "cli/bench/random_model.h"
#include "cli/bench/synthetic_cache.h"
#include "cli/bench/timed_backend.h"
#include "runtime/model/llama.h"
#include "turboquant/attention/attention.h"
#include "turboquant/codec/decode.h"

namespace tq::cli {
namespace {

// --- Numbers ----------------------------------------------------------------------------------

TEST(Percentile, LiesBetweenNeighbours) {
  EXPECT_EQ(Percentile({}, 0.5), 0);
  EXPECT_EQ(Percentile({7}, 0.99), 7);
  EXPECT_EQ(Percentile({4, 1, 3, 2}, 0.5), 2.5);
  EXPECT_EQ(Percentile({4, 1, 3, 2}, 0), 1);
  EXPECT_EQ(Percentile({4, 1, 3, 2}, 1), 4);
  std::vector<double> hundred_and_one;
  for (int i = 0; i <= 100; ++i) hundred_and_one.push_back(i);
  EXPECT_DOUBLE_EQ(Percentile(hundred_and_one, 0.99), 99);
  EXPECT_EQ(Median({3, 1, 2}), 2);
}

TEST(ParseCounts, ListsAndThousands) {
  const auto counts = ParseCounts("--depth", "0, 1k,4096", 0, 1 << 20);
  ASSERT_TRUE(counts.ok()) << counts.status().ToString();
  EXPECT_EQ(*counts, (std::vector<int64_t>{0, 1024, 4096}));
}

TEST(ParseCounts, NamesWhatIsWrong) {
  const auto message = [](const std::string& list) {
    const auto counts = ParseCounts("--depth", list, 1, 4096);
    EXPECT_EQ(counts.status().code(), StatusCode::kInvalidArgument);
    return counts.status().message();
  };
  EXPECT_EQ(message("1k,x"), "--depth '1k,x': 'x' is no whole number");
  EXPECT_EQ(message("k"), "--depth 'k': 'k' is no whole number");
  EXPECT_EQ(message(""), "--depth '': '' is no whole number");
  EXPECT_EQ(message("8k"), "--depth '8k': 8k is outside 1..4096");
  EXPECT_EQ(message("0"), "--depth '0': 0 is outside 1..4096");
  EXPECT_EQ(message("-1"), "--depth '-1': -1 is outside 1..4096");
  EXPECT_EQ(message("99999999999999999999"),
            "--depth '99999999999999999999': '99999999999999999999' is no whole number");
}

TEST(MeasureReadBandwidth, ReadsEveryWord) {
  ThreadPool pool(2);
  const auto measured = MeasureReadBandwidth(1 << 20, 3, pool);
  ASSERT_TRUE(measured.ok());
  EXPECT_EQ(measured->bytes, size_t{1} << 20);
  const uint64_t words = (1 << 20) / 8;
  EXPECT_EQ(measured->checksum, words * (words - 1) / 2);
  EXPECT_LE(measured->lowest, measured->median);
  EXPECT_LE(measured->median, measured->highest);
}

TEST(InstructionCounter, CountsOrSaysWhyNot) {
  const auto counter = InstructionCounter::Open();
  if (!counter.ok()) {
    EXPECT_EQ(counter.status().code(), StatusCode::kUnavailable);
    EXPECT_FALSE(counter.status().message().empty());
    return;
  }
  (*counter)->Start();
  volatile int sum = 0;
  for (int i = 0; i < 1000; ++i) sum = sum + i;
  EXPECT_GT((*counter)->Stop(), 1000u);
}

// --- llama-bench ------------------------------------------------------------------------------

TEST(ParseLlamaBench, TakesTheResultThatGenerates) {
  const auto speed = ParseLlamaBench(R"([
    {"build_commit": "abc", "n_prompt": 512, "n_gen": 0, "avg_ts": 200.5, "samples_ts": [200.5]},
    {"build_commit": "0c1e57098", "build_number": 42, "n_prompt": 0, "n_gen": 32, "n_depth": 8192,
     "avg_ts": 12.5, "samples_ts": [12.0, 13.0]}])");
  ASSERT_TRUE(speed.ok()) << speed.status().ToString();
  EXPECT_EQ(speed->tokens_per_second, 12.5);
  EXPECT_EQ(speed->runs, (std::vector<double>{12, 13}));
  EXPECT_EQ(speed->build, "0c1e57098 (42)");
}

TEST(ParseLlamaBench, TakesTheResultThatReads) {
  const auto speed = ParseLlamaBench(R"([
    {"n_prompt": 0, "n_gen": 32, "avg_ts": 12.5},
    {"n_prompt": 512, "n_gen": 0, "avg_ts": 200.5}])",
                                     true);
  ASSERT_TRUE(speed.ok()) << speed.status().ToString();
  EXPECT_EQ(speed->tokens_per_second, 200.5);
  EXPECT_EQ(ParseLlamaBench("[]", true).status().message(),
            "llama-bench: none of its 0 results reads a prompt ('n_prompt')");
}

TEST(ParseLlamaBench, RefusesWhatIsNoResult) {
  const auto message = [](const char* text) {
    const auto speed = ParseLlamaBench(text);
    EXPECT_EQ(speed.status().code(), StatusCode::kDataLoss) << text;
    return speed.status().message();
  };
  EXPECT_EQ(message("error"), "llama-bench: 5 bytes of output are no JSON array");
  EXPECT_EQ(message("{}"), "llama-bench: 2 bytes of output are no JSON array");
  EXPECT_EQ(message("[]"), "llama-bench: none of its 0 results generates tokens ('n_gen')");
  EXPECT_EQ(message("[1, {\"n_gen\": \"x\"}]"),
            "llama-bench: none of its 2 results generates tokens ('n_gen')");
  EXPECT_EQ(message("[{\"n_gen\": 32, \"avg_ts\": 0}]"),
            "llama-bench: a result without tokens per second ('avg_ts')");
}

TEST(LlamaBenchCommand, HasFlashAttentionAndBothCacheTypes) {
  const PeerSettings settings = {.program = "llama-bench",
                                 .model = "m.gguf",
                                 .cache_type = "q4_0",
                                 .threads = 2,
                                 .tokens = 32,
                                 .runs = 1,
                                 .depth = 8192,
                                 .most_seconds = 1};
  std::string line;
  for (const std::string& word : LlamaBenchCommand(settings)) line += word + " ";
  EXPECT_EQ(
      line,
      "llama-bench -m m.gguf -t 2 -fa 1 -ctk q4_0 -ctv q4_0 -p 0 -n 32 -d 8192 -r 1 -o json ");
}

TEST(FindLlamaBench, SaysHowToGetIt) {
  const auto found = FindLlamaBench("/nowhere/llama-bench");
  EXPECT_EQ(found.status().code(), StatusCode::kNotFound);
  EXPECT_EQ(found.status().message(),
            "--llama-bench '/nowhere/llama-bench' is no program; bench/peers/build_llama_cpp.sh "
            "builds it, or name one with --llama-bench FILE");
}

TEST(RunProgram, OutputExitCodeAndTime) {
  const auto good = RunProgram({"/bin/sh", "-c", "echo out; echo err >&2; exit 3"}, 60);
  ASSERT_TRUE(good.ok()) << good.status().ToString();
  EXPECT_EQ(good->exit_code, 3);
  EXPECT_EQ(good->out, "out\n");
  EXPECT_EQ(good->err, "err\n");
  EXPECT_FALSE(good->timed_out);
  const auto slow = RunProgram({"/bin/sleep", "60"}, 0.05);
  ASSERT_TRUE(slow.ok());
  EXPECT_TRUE(slow->timed_out);
  EXPECT_EQ(slow->exit_code, 128 + 9);
  EXPECT_EQ(RunProgram({"/nowhere/program"}, 1).status().code(), StatusCode::kUnavailable);
}

// --- Synthetic caches -------------------------------------------------------------------------

CacheConfig Config(const std::string& preset, int head_dim = 32) {
  CacheConfig config;
  config.num_layers = 2;
  config.num_kv_heads = 2;
  config.head_dim = head_dim;
  config.recent_len = 64;
  config.formats.assign(4, *ParsePreset(preset));
  return config;
}

// Softmax attention in double over the decoded rows of layer 1.
std::vector<double> Exact(const KvCache& cache, SeqId seq, const std::vector<float>& q, int q_heads,
                          int64_t position) {
  const int dim = cache.config().head_dim, group = q_heads / cache.config().num_kv_heads;
  std::vector<double> out;
  for (int h = 0; h < q_heads; ++h) {
    const KvCache::HeadLayout& l = cache.layout(1, h / group);
    std::vector<float> qr(static_cast<size_t>(PaddedDim(dim)));
    std::copy_n(q.begin() + h * dim, dim, qr.begin());
    l.k_rotation.ForwardQuery(qr.data());
    std::vector<float> k(static_cast<size_t>(kPageLen) * dim), v(k.size()), mean(qr.size());
    std::vector<double> sum(static_cast<size_t>(dim));
    double total = 0;
    for (int64_t b = 0; b <= position / kPageLen; ++b) {
      if (cache.rule().ReadsOpen(b, position / kPageLen)) {
        const std::byte* s = cache.OpenSlot(seq, b) + l.open_offset;
        DecodeOpenSide({Side::kK, dim, l.open.k_type, s + l.open.k_values,
                        reinterpret_cast<const float*>(s + l.open.k_scales)},
                       k.data());
        DecodeOpenSide({Side::kV, dim, l.open.v_type, s + l.open.v_values,
                        reinterpret_cast<const float*>(s + l.open.v_scales)},
                       v.data());
      } else {
        const std::byte* s = cache.SealedSlot(seq, b);
        const auto* r = reinterpret_cast<const uint8_t*>(s + l.record_offset);
        const auto* info = reinterpret_cast<const RecordSideInfo*>(s + l.side_offset);
        DecodeSealedSide(l.format.k, &l.k_book, Side::kK, dim, r + l.record.k_codes,
                         r + l.record.k_scales, info->k_base, k.data());
        DecodeSealedSide(l.format.v, &l.v_book, Side::kV, dim, r + l.record.v_codes,
                         r + l.record.v_scales, info->v_base, v.data());
      }
      for (int t = 0; t < kPageLen && b * kPageLen + t <= position; ++t) {
        double score = 0;
        for (int c = 0; c < dim; ++c) score += double{qr[c]} * k[t * dim + c];
        const double p = std::exp(score / std::sqrt(dim));
        total += p;
        for (int c = 0; c < dim; ++c) sum[c] += p * v[t * dim + c];
      }
    }
    for (int c = 0; c < dim; ++c) mean[c] = static_cast<float>(sum[c] / total);
    l.v_rotation.Inverse(mean.data());
    out.insert(out.end(), mean.begin(), mean.begin() + dim);
  }
  return out;
}

class SyntheticCache : public testing::TestWithParam<const char*> {};

TEST_P(SyntheticCache, AttentionIsThatOfItsRows) {
  ThreadPool pool(2);
  const CacheConfig config = Config(GetParam());
  const auto filler = SyntheticFiller::Create(config, 1, pool);
  ASSERT_TRUE(filler.ok()) << filler.status().ToString();
  const auto cache = *KvCache::Create(config);
  std::vector<float> q(4 * 32);
  uint64_t state = 3;
  for (float& x : q) x = static_cast<float>(SplitMix64(state) >> 40) * 0x1p-22f - 2;
  for (const int64_t length : {1, 63, 64, 65, 200, 700, 768}) {
    const auto seq = filler->Fill(*cache, length);
    ASSERT_TRUE(seq.ok()) << seq.status().ToString();
    EXPECT_EQ(*cache->Length(*seq), length);
    std::vector<float> out(q.size());
    const AttentionItem item = {*seq, length - 1, 1, q.data(), out.data()};
    const Status status = Attend(*cache, 1, {.num_q_heads = 4}, {&item, 1}, pool);
    ASSERT_TRUE(status.ok()) << status.ToString();
    const std::vector<double> exact = Exact(*cache, *seq, q, 4, length - 1);
    double error = 0, size = 0;
    for (size_t i = 0; i < out.size(); ++i) {
      error += (out[i] - exact[i]) * (out[i] - exact[i]);
      size += exact[i] * exact[i];
    }
    EXPECT_LT(std::sqrt(error / size), 0.02) << "length " << length;
  }
}

TEST_P(SyntheticCache, TakesMoreTokensAndSealsThem) {
  ThreadPool pool(1);
  const CacheConfig config = Config(GetParam());
  const auto filler = SyntheticFiller::Create(config, 1, pool);
  ASSERT_TRUE(filler.ok());
  const auto cache = *KvCache::Create(config);
  const auto seq = filler->Fill(*cache, 512);
  ASSERT_TRUE(seq.ok());
  const int64_t sealed = cache->num_sealed_slots();
  const std::vector<float> row(2 * 32, 0.5f);
  for (int t = 0; t < 130; ++t) {
    ASSERT_TRUE(cache->BeginAppend(*seq, 1).ok());
    for (int layer = 0; layer < 2; ++layer) {
      ASSERT_TRUE(cache->AppendLayer(*seq, layer, row.data(), row.data(), pool).ok());
    }
    ASSERT_TRUE(cache->CommitAppend(*seq).ok());
  }
  EXPECT_EQ(*cache->Length(*seq), 642);
  EXPECT_GT(cache->num_sealed_slots(), sealed);
}

INSTANTIATE_TEST_SUITE_P(Formats, SyntheticCache,
                         testing::Values("f16", "fp8", "k8v8", "k4v4", "k3v2", "k4v4-group32",
                                         "k3v2-trellis"),
                         [](const auto& format) {
                           std::string name = format.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(SyntheticFiller, RefusesAnotherFormat) {
  ThreadPool pool(1);
  const auto filler = SyntheticFiller::Create(Config("k4v4"), 1, pool);
  ASSERT_TRUE(filler.ok());
  const auto cache = *KvCache::Create(Config("k3v2"));
  EXPECT_EQ(filler->Fill(*cache, 100).status().message(),
            "synthetic blocks of another format than the cache's");
}

TEST(ReadBytes, CountsOpenAndSealedBlocks) {
  const auto cache = *KvCache::Create(Config("k4v4", 64));
  // One block of sinks, one of recent tokens and that of the query are open: int8 and a scale.
  const size_t open = 2 * (2 * 64 * 64 + 2 * 64 * 4);
  const size_t sealed = 2 * (64 * 64 + 2 * 64 + 8);
  EXPECT_EQ(ReadBytes(*cache, 0, 1), open);
  EXPECT_EQ(ReadBytes(*cache, 0, 192), 3 * open);
  EXPECT_EQ(ReadBytes(*cache, 0, 193), 3 * open + sealed);
  EXPECT_EQ(ReadBytes(*cache, 0, 640), 3 * open + 7 * sealed);
}

// --- Random models ----------------------------------------------------------------------------

TEST(RandomModelShape, RefusesWhatCannotBe) {
  const auto message = [](const char* text) {
    const auto shape = RandomModelShape::Parse(text);
    EXPECT_EQ(shape.status().code(), StatusCode::kInvalidArgument) << text;
    return shape.status().message();
  };
  const std::string form = "; --shape is LAYERS,HIDDEN,FFN,Q_HEADS,KV_HEADS,HEAD_DIM,VOCAB";
  EXPECT_EQ(message("1,2,3"), "--shape '1,2,3' has 3 numbers, not 7" + form);
  EXPECT_EQ(message("2,64,x,4,2,16,50"),
            "--shape '2,64,x,4,2,16,50': 'x' is no whole number" + form);
  EXPECT_EQ(message("2,60,96,4,2,16,50"),
            "--shape: HIDDEN = 60 is no multiple of 32, a block of Q4_0");
  EXPECT_EQ(message("2,64,96,4,3,16,50"),
            "--shape: 4 query heads are not a multiple of 3 KV heads");
  EXPECT_EQ(message("2,64,96,4,2,1024,50"), "--shape: HEAD_DIM = 1024 is odd or above 512");
}

TEST(RandomModel, LoadsAndItsTimeIsSeen) {
  const auto shape = RandomModelShape::Parse("2,64,96,4,2,16,50");
  ASSERT_TRUE(shape.ok()) << shape.status().ToString();
  std::string path;
  {
    const auto file = TemporaryFile::Create(".gguf");
    ASSERT_TRUE(file.ok()) << file.status().ToString();
    path = file->path();
    ASSERT_TRUE(WriteRandomModel(*shape, path).ok());
    auto gguf = GgufFile::Open(path);
    ASSERT_TRUE(gguf.ok()) << gguf.status().ToString();
    ThreadPool pool(1);
    StepSeconds seconds;
    const auto model = LlamaModel::Create(std::make_unique<GgufFile>(std::move(*gguf)),
                                          MakeTimedBackend(MakeCpuBackend(pool), &seconds), {});
    ASSERT_TRUE(model.ok()) << model.status().ToString();
    EXPECT_EQ((*model)->arch().num_layers, 2);
    EXPECT_EQ((*model)->arch().vocab_size, 50);
    EXPECT_FALSE((*model)->arch().tied_embeddings);
    const auto cache = *KvCache::Create((*model)->MakeCacheConfig());
    const int32_t tokens[] = {1, 2, 3};
    const ForwardItem item = {.seq = cache->NewSequence(), .tokens = tokens};
    std::vector<float> logits;
    ASSERT_TRUE((*model)->Forward(*cache, {&item, 1}, &logits).ok());
    ASSERT_EQ(logits.size(), 50u);
    for (const float x : logits) EXPECT_TRUE(std::isfinite(x));
    EXPECT_GT(seconds.attention, 0);
    EXPECT_GT(seconds.append, 0);
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

}  // namespace
}  // namespace tq::cli
