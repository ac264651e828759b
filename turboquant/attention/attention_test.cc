#include "turboquant/attention/attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "turboquant/attention/attention_fixture_for_test.h"
#include "turboquant/attention/attention_kernels.h"
#include "turboquant/attention/exact_attention_for_test.h"
#include "turboquant/base/isa.h"
#include "turboquant/codec/codec_grid_for_test.h"

namespace tq {
namespace {

using testing_util::CalibratedTensors;
using testing_util::Config;
using testing_util::Fixture;
using testing_util::Gaussian;

std::vector<float> Exact(Fixture& f, const std::vector<float>& q, const AttentionParams& params,
                         int64_t position) {
  return testing_util::ExactAttention(*f.cache, f.seq, 0, params, q, position,
                                      f.cache->config().window(0));
}

std::vector<float> Exact(Fixture& f, const std::vector<float>& q, int q_heads, int64_t position) {
  return Exact(f, q, AttentionParams{.num_q_heads = q_heads}, position);
}

using testing_util::RelativeDistance;

// Every K x V pair of registered formats, every ISA, odd lengths. Bound: query digits are rounded
// to 1/127 of their largest and weights to 1/255: about 1 % of the output for random data, 2.5 % is
// stated; 8-bit and f16 values have 16-bit or float digits: 0.1 %.
TEST(Attend, MatchesExactAttentionOverTheStoredRows) {
  for (const FormatInfo& kf : RegisteredFormats()) {
    for (const FormatInfo& vf : RegisteredFormats()) {
      const HeadFormat format = *ParsePreset(StrCat("k", kf.token, "v", vf.token));
      const auto small_digits = [](const FormatInfo& f) {
        return f.type == ValueType::kInt && f.bits < 8;
      };
      const double bound = small_digits(kf) || small_digits(vf) ? 2.5e-2 : 1e-3;
      for (const int tokens : {1, 63, 64, 65, 200, 577}) {
        Fixture f(Config(format, 64), tokens);
        const std::vector<float> q = Gaussian(3 * 64, 9);
        const std::vector<float> want = Exact(f, q, 3, tokens - 1);
        for (const std::string& isa : AvailableIsas()) {
          ASSERT_TRUE(ForceIsa(isa).ok());
          EXPECT_LT(RelativeDistance(f.Attention(q, 3, tokens - 1, 1), want), bound)
              << isa << " " << PresetName(format) << " tokens " << tokens;
        }
        ResetIsa();
      }
    }
  }
}

// Every codec of the registry on either side, with an 8-bit partner, at two head_dims; reference
// and vectors.
TEST(Attend, EveryCodec) {
  for (const testing_util::GridCodec& g : testing_util::AllCodecs()) {
    for (const Side side : {Side::kK, Side::kV}) {
      for (const int dim : {59, 64}) {
        HeadFormat format{*DefaultCodec(8), *DefaultCodec(8)};
        (side == Side::kK ? format.k : format.v) = g.codec;
        CacheConfig config = Config(format, dim);
        config.tensors = {CalibratedTensors(format)};
        Fixture f(config, 333);
        const std::vector<float> q = Gaussian(3 * static_cast<size_t>(dim), 9);
        const std::vector<float> want = Exact(f, q, 3, 332);
        for (const std::string& isa : AvailableIsas()) {
          ASSERT_TRUE(ForceIsa(isa).ok());
          EXPECT_LT(RelativeDistance(f.Attention(q, 3, 332, 1), want),
                    g.codec.is_grouped() || g.codec.is_float() ? 1e-3 : 2.5e-2)
              << isa << " " << g.name << " dim " << dim;
        }
        ResetIsa();
      }
    }
  }
}

TEST(Attend, MatrixKeepsScores) {
  const int dim = 32;
  HeadFormat format = *ParsePreset("k8v8");
  format.k.rotate = format.v.rotate = Rotate::kMatrix;
  CacheConfig config = Config(format, dim);
  HeadTensors tensors;
  tensors.k_matrix = Gaussian(static_cast<size_t>(dim) * dim, 33);
  for (size_t i = 0; i < tensors.k_matrix.size(); ++i) {
    tensors.k_matrix[i] = 0.1f * tensors.k_matrix[i] + (i % (dim + 1) == 0 ? 1.f : 0.f);
  }
  tensors.v_matrix = tensors.k_matrix;
  config.tensors = {tensors};
  Fixture f(config, 300);
  Fixture plain(Config(HeadFormat{}, dim), 300);  // f16 rows of the same K and V
  const std::vector<float> q = Gaussian(static_cast<size_t>(dim), 9);
  EXPECT_LT(RelativeDistance(f.Attention(q, 1, 299, 1), plain.Attention(q, 1, 299, 1)), 0.05);
  config.tensors[0].k_matrix.assign(static_cast<size_t>(dim) * dim, 1.f);
  EXPECT_EQ(KvCache::Create(config).status().message(),
            "layer 0, KV head 0: K: rotation matrix: it is singular");
  config.tensors.clear();
  EXPECT_EQ(
      KvCache::Create(config).status().message(),
      "layer 0, KV head 0: K: rotate 'matrix' needs a matrix of 32 x 32 from a profile; found "
      "0 numbers");
}

// Anchor rows are part of the scores and of the output, at every number and width of rows.
TEST(Attend, Anchors) {
  for (const int dim : {59, 64, 128}) {
    for (const int count : {1, 2, 4}) {
      for (const int bits : {4, 8}) {
        HeadFormat format = *ParsePreset(StrCat("k2v2-anchor", count));
        format.anchor_bits = bits;
        format.k = WithCenter(format.k, Center::kRopeMean);
        CacheConfig config = Config(format, dim);
        config.centers = {MakeHeadCenter(Gaussian(static_cast<size_t>(dim), 3), config.rope)};
        config.tensors = {CalibratedTensors(format)};
        config.tensors[0].queries.means = {Gaussian(static_cast<size_t>(dim), 44),
                                           Gaussian(static_cast<size_t>(dim), 45)};
        Fixture f(config, 500);
        const std::vector<float> q = Gaussian(2 * static_cast<size_t>(dim), 9);
        const std::vector<float> want = Exact(f, q, 2, 499);
        for (const std::string& isa : AvailableIsas()) {
          ASSERT_TRUE(ForceIsa(isa).ok());
          EXPECT_LT(RelativeDistance(f.Attention(q, 2, 499, 1), want), 2.5e-2)
              << isa << " dim " << dim << " anchors " << count << " bits " << bits;
        }
        ResetIsa();
      }
    }
  }
}

TEST(Attend, EveryHeadDimAndGroup) {
  for (const int dim : {2, 59, 64, 80, 96, 112, 128, 160, 256, 512}) {
    for (const char* preset : {"k3v2", "k4v8", "f16", "k5v6", "fp8", "k4v4-group32"}) {
      for (const int group : {1, 3, 4, 5, 7}) {
        Fixture f(Config(*ParsePreset(preset), dim, 2), 300);
        const std::vector<float> q = Gaussian(static_cast<size_t>(2 * group) * dim, 4);
        const std::vector<float> want = Exact(f, q, 2 * group, 299);
        for (const std::string& isa : AvailableIsas()) {
          ASSERT_TRUE(ForceIsa(isa).ok());
          EXPECT_LT(RelativeDistance(f.Attention(q, 2 * group, 299, 1), want), 3e-2)
              << isa << " " << preset << " dim " << dim << " group " << group;
        }
        ResetIsa();
      }
    }
  }
}

// SIMD against the reference on the same integer digits: only float rounding and, rarely, a weight
// digit that falls on the other side of a half step (1/255 of one weight) differ.
TEST(Attend, EveryIsaIsCloseToTheReference) {
  for (const FormatInfo& kf : RegisteredFormats()) {
    for (const FormatInfo& vf : RegisteredFormats()) {
      const HeadFormat format = *ParsePreset(StrCat("k", kf.token, "v", vf.token));
      Fixture f(Config(format, 64), 500);
      const std::vector<float> q = Gaussian(4 * 64, 5);
      ASSERT_TRUE(ForceIsa("ref").ok());
      const std::vector<float> want = f.Attention(q, 4, 499, 1);
      for (const std::string& isa : AvailableIsas()) {
        ASSERT_TRUE(ForceIsa(isa).ok());
        EXPECT_LT(RelativeDistance(f.Attention(q, 4, 499, 1), want), 1e-3)
            << isa << " " << PresetName(format);
      }
      ResetIsa();
    }
  }
}

TEST(Attend, CentreIsPutBack) {
  for (const int dim : {64, 59}) {
    CacheConfig config = Config(*ParsePreset("k3v8"), dim);  // V is not the question
    config.formats[0].k = WithCenter(config.formats[0].k, Center::kRopeMean);
    std::vector<float> mean = Gaussian(static_cast<size_t>(dim), 3);
    for (float& m : mean) m *= 5;  // a bias far above the signal
    config.centers = {MakeHeadCenter(mean, config.rope, 1000)};
    Fixture f(config, 0);
    // K = turned mean + signal.
    const int tokens = 400;
    f.k = Gaussian(static_cast<size_t>(tokens) * dim, 1);
    f.v = Gaussian(static_cast<size_t>(tokens) * dim, 2);
    std::vector<float> k_plain = f.k;
    CenterTable table(config.rope);
    table.EnsureBlocks(100);
    for (int t = 0; t < tokens; ++t) {
      std::vector<float> turned(static_cast<size_t>(dim), 0.f);
      table.Subtract(config.centers[0], t, turned.data());
      for (int c = 0; c < dim; ++c) f.k[t * dim + c] -= turned[c];
    }
    f.Append(0, tokens);
    std::vector<float> q = Gaussian(static_cast<size_t>(dim), 6);
    for (float& x : q) x *= 0.1f;  // or the bias alone decides the softmax
    const std::vector<float> exact = Exact(f, q, 1, tokens - 1);
    std::vector<float> got;
    for (const std::string& isa : AvailableIsas()) {
      ASSERT_TRUE(ForceIsa(isa).ok());
      got = f.Attention(q, 1, tokens - 1, 1);
      EXPECT_LT(RelativeDistance(got, exact), 2.5e-2) << isa;
    }
    ResetIsa();
    // Without the centre the bias takes all the levels: the error is several times larger.
    CacheConfig plain = config;
    plain.formats[0].k = WithCenter(plain.formats[0].k, Center::kNone);
    Fixture g(plain, 0);
    g.k = f.k;
    g.v = f.v;
    g.Append(0, tokens);
    CacheConfig f16 = Config(HeadFormat{}, dim);
    Fixture h(f16, 0);
    h.k = f.k;
    h.v = f.v;
    h.Append(0, tokens);
    const std::vector<float> truth = h.Attention(q, 1, tokens - 1, 1);
    EXPECT_LT(2 * RelativeDistance(got, truth),
              RelativeDistance(g.Attention(q, 1, tokens - 1, 1), truth));
  }
}

// One arithmetic: any chunking of appends and queries, any number of threads, the same bits.
TEST(Attend, ChunksAndThreadsGiveTheSameBits) {
  for (const char* preset :
       {"k3v2", "k4v4", "k8v8", "f16", "k2v8", "k3v2-trellis", "k6v5", "bf16", "k4v4-group32"}) {
    const int tokens = 700, heads = 4, dim = 64;
    CacheConfig config = Config(*ParsePreset(preset), dim, 2);
    const std::vector<float> q = Gaussian(static_cast<size_t>(tokens) * heads * dim, 8);
    std::vector<std::vector<float>> results;
    for (const int chunk : {700, 1, 37, 64, 128}) {
      for (const int threads : {1, 2, 3}) {
        if (chunk == 1 && threads != 2) continue;
        auto cache = *KvCache::Create(config);
        ThreadPool pool(threads);
        const SeqId seq = cache->NewSequence();
        const std::vector<float> k = Gaussian(static_cast<size_t>(tokens) * 2 * dim, 1);
        const std::vector<float> v = Gaussian(static_cast<size_t>(tokens) * 2 * dim, 2);
        std::vector<float> out(q.size());
        for (int from = 0; from < tokens; from += chunk) {
          const int n = std::min(chunk, tokens - from);
          ASSERT_TRUE(cache->BeginAppend(seq, n).ok());
          ASSERT_TRUE(cache
                          ->AppendLayer(seq, 0, &k[static_cast<size_t>(from) * 2 * dim],
                                        &v[static_cast<size_t>(from) * 2 * dim], pool)
                          .ok());
          const AttentionItem item{seq, from, n, &q[static_cast<size_t>(from) * heads * dim],
                                   &out[static_cast<size_t>(from) * heads * dim]};
          ASSERT_TRUE(Attend(*cache, 0, {heads, 0}, {&item, 1}, pool).ok());
          ASSERT_TRUE(cache->CommitAppend(seq).ok());
        }
        results.push_back(std::move(out));
      }
    }
    for (size_t i = 1; i < results.size(); ++i)
      EXPECT_EQ(results[0], results[i]) << preset << " run " << i;
  }
}

// 131,072 equal weights, V = 1 + noise: the sums over 2048 blocks keep the mean of the stored rows
// to 1e-3 (and f16 rows, which store V itself, that of V).
TEST(Attend, LongSumsStayExact) {
  const int tokens = 131072, dim = 16;
  for (const char* preset : {"k3v2", "k3v4", "k8v8", "f16"}) {
    Fixture f(Config(*ParsePreset(preset), dim), 0);
    f.k.assign(static_cast<size_t>(tokens) * dim, 0.f);
    f.v = Gaussian(f.k.size(), 7);
    std::vector<double> mean(dim, 0.0);
    for (size_t i = 0; i < f.v.size(); ++i) {
      f.v[i] = 1 + 0.1f * f.v[i];
      mean[i % dim] += f.v[i] / tokens;
    }
    f.Append(0, tokens);
    const std::vector<float> q = Gaussian(dim, 8);
    const std::vector<float> stored = Exact(f, q, 1, tokens - 1);
    const std::vector<float> out = f.Attention(q, 1, tokens - 1, 1);
    for (int c = 0; c < dim; ++c) {
      EXPECT_NEAR(out[c], stored[c], 1e-3) << preset;
      if (std::string(preset) == "f16") {
        EXPECT_NEAR(out[c], mean[c], 1e-3);
      }
    }
  }
}

// What some models ask of attention, alone and together, at bounds as above.
TEST(Attend, SlidingWindowsSoftcapsAndSinks) {
  const std::vector<float> sinks = {0.5f, -3.f, 4.f, 30.f};
  struct Case {
    const char* preset;
    int window;
    float scale, softcap;
    bool sinks;
  };
  for (const Case& c : std::initializer_list<Case>{{"f16", 1, 0, 0, false},
                                                   {"f16", 40, 0, 0, false},
                                                   {"f16", 64, 0, 0, true},
                                                   {"k8v8", 100, 0.3f, 2.f, true},
                                                   {"bf16", 129, 0, 5.f, false},
                                                   {"f16", 100000, 0, 0, false},
                                                   {"f16", 0, 0, 3.f, true},
                                                   {"k8v8", 0, 0, 1.f, false},
                                                   {"k4v4", 0, 0.2f, 4.f, true},
                                                   {"k3v2", 0, 0, 0, true}}) {
    for (const int tokens : {1, 64, 65, 130, 777}) {
      CacheConfig config = Config(*ParsePreset(c.preset), 64, 2);
      config.rollback_len = 1;  // the last token is asked for again
      if (c.window > 0) config.windows = {c.window};
      Fixture f(config, tokens);
      const std::vector<float> q = Gaussian(4 * 64, 9);
      const AttentionParams params = {.num_q_heads = 4,
                                      .scale = c.scale,
                                      .softcap = c.softcap,
                                      .sinks = c.sinks ? sinks.data() : nullptr};
      const std::vector<float> want = Exact(f, q, params, tokens - 1);
      for (const std::string& isa : AvailableIsas()) {
        ASSERT_TRUE(ForceIsa(isa).ok());
        const bool digits = config.formats[0].k.bits < 8;
        EXPECT_LT(RelativeDistance(f.Attention(q, params, tokens - 1, 1), want),
                  digits ? 2.5e-2 : 1e-3)
            << isa << " " << c.preset << " window " << c.window << " tokens " << tokens;
      }
      ResetIsa();
    }
  }
}

// Queries of one block that see different beginnings of a window, one by one and together.
TEST(Attend, WindowsGiveTheSameBitsInAnyChunks) {
  for (const char* preset : {"f16", "k8v8"}) {
    for (const int window : {1, 5, 64, 100, 600}) {
      const int tokens = 300, heads = 4, dim = 32;
      CacheConfig config = Config(*ParsePreset(preset), dim, 2);
      config.windows = {window};
      const std::vector<float> q = Gaussian(static_cast<size_t>(tokens) * heads * dim, 8);
      const std::vector<float> k = Gaussian(static_cast<size_t>(tokens) * 2 * dim, 1);
      const std::vector<float> v = Gaussian(static_cast<size_t>(tokens) * 2 * dim, 2);
      for (const std::string& isa : AvailableIsas()) {
        ASSERT_TRUE(ForceIsa(isa).ok());
        std::vector<float> first;
        for (const int chunk : {300, 1, 37, 64}) {
          auto cache = *KvCache::Create(config);
          ThreadPool pool(2);
          const SeqId seq = cache->NewSequence();
          std::vector<float> out(q.size());
          for (int from = 0; from < tokens; from += chunk) {
            const int n = std::min(chunk, tokens - from);
            const size_t at = static_cast<size_t>(from) * dim;
            ASSERT_TRUE(cache->BeginAppend(seq, n).ok());
            ASSERT_TRUE(cache->AppendLayer(seq, 0, &k[at * 2], &v[at * 2], pool).ok());
            const AttentionItem item{seq, from, n, &q[at * heads], &out[at * heads]};
            ASSERT_TRUE(Attend(*cache, 0, {heads, 0, 10.f}, {&item, 1}, pool).ok());
            ASSERT_TRUE(cache->CommitAppend(seq).ok());
          }
          if (first.empty()) first = out;
          EXPECT_EQ(first, out) << isa << " " << preset << " window " << window << " chunk "
                                << chunk;
        }
      }
      ResetIsa();
    }
  }
}

TEST(Attend, BatchesOfUnevenSequences) {
  CacheConfig config = Config(*ParsePreset("k4v4"), 64, 2);
  auto cache = *KvCache::Create(config);
  ThreadPool pool(2);
  std::vector<SeqId> seqs;
  const std::vector<int> lengths = {1, 130, 64, 700};
  std::vector<std::vector<float>> q, alone, together;
  for (size_t i = 0; i < lengths.size(); ++i) {
    seqs.push_back(cache->NewSequence());
    const size_t n = static_cast<size_t>(lengths[i]) * 2 * 64;
    const std::vector<float> k = Gaussian(n, static_cast<unsigned>(i) + 20);
    ASSERT_TRUE(cache->BeginAppend(seqs[i], lengths[i]).ok());
    ASSERT_TRUE(cache->AppendLayer(seqs[i], 0, k.data(), k.data(), pool).ok());
    ASSERT_TRUE(cache->CommitAppend(seqs[i]).ok());
    q.push_back(Gaussian(6 * 64, static_cast<unsigned>(i)));
    alone.emplace_back(q[i].size());
    together.emplace_back(q[i].size());
    const AttentionItem item{seqs[i], lengths[i] - 1, 1, q[i].data(), alone[i].data()};
    ASSERT_TRUE(Attend(*cache, 0, {6, 0}, {&item, 1}, pool).ok());
  }
  std::vector<AttentionItem> items;
  for (size_t i = 0; i < lengths.size(); ++i) {
    items.push_back({seqs[i], lengths[i] - 1, 1, q[i].data(), together[i].data()});
  }
  ASSERT_TRUE(Attend(*cache, 0, {6, 0}, items, pool).ok());
  EXPECT_EQ(alone, together);
}

TEST(Attend, ZeroKeysAndValues) {
  for (const char* preset : {"k3v2", "k8v8", "f16"}) {
    Fixture f(Config(*ParsePreset(preset), 64), 0);
    f.k.assign(300 * 64, 0.f);
    f.v.assign(300 * 64, 0.f);
    f.Append(0, 300);
    const std::vector<float> out = f.Attention(Gaussian(64, 1), 1, 299, 1);
    for (const float o : out) EXPECT_EQ(o, 0.f) << preset;
  }
}

TEST(Attend, Errors) {
  Fixture f(Config(*ParsePreset("k4v4"), 64, 2), 10);
  std::vector<float> q(3 * 64), out(3 * 64);
  AttentionItem item{f.seq, 9, 1, q.data(), out.data()};
  EXPECT_EQ(Attend(*f.cache, 0, {3, 0}, {&item, 1}, f.pool).message(),
            "attention: 3 query heads are not a multiple of 2 KV heads");
  EXPECT_EQ(Attend(*f.cache, 1, {2, 0}, {&item, 1}, f.pool).message(), "attention: layer 1 of 1");
  item.first_pos = 10;
  EXPECT_EQ(Attend(*f.cache, 0, {2, 0}, {&item, 1}, f.pool).message(),
            StrCat("attention: queries at positions 10 to 10; sequence ", f.seq, " has 10 tokens"));
  item.seq = 99;
  EXPECT_EQ(Attend(*f.cache, 0, {2, 0}, {&item, 1}, f.pool).code(), StatusCode::kNotFound);
  // Far back, the open rows are gone.
  Fixture g(Config(*ParsePreset("k4v4"), 64), 1000);
  AttentionItem old{g.seq, 300, 1, q.data(), out.data()};
  EXPECT_EQ(Attend(*g.cache, 0, {1, 0}, {&old, 1}, g.pool).code(), StatusCode::kFailedPrecondition);
  CacheConfig windowed = Config(HeadFormat{}, 64);
  windowed.windows = {100};
  Fixture w(windowed, 1000);
  old.seq = w.seq;
  EXPECT_EQ(Attend(*w.cache, 0, {1, 0}, {&old, 1}, w.pool).message(),
            StrCat("attention: layer 0 has a window of 100 tokens, and what position 300 of "
                   "sequence ",
                   w.seq, " sees of it is gone"));
}

}  // namespace
}  // namespace tq
