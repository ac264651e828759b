#include "turboquant/attention/v_skip.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "turboquant/attention/attention.h"
#include "turboquant/attention/attention_fixture_for_test.h"
#include "turboquant/attention/exact_attention_for_test.h"
#include "turboquant/base/isa.h"

namespace tq {
namespace {

using testing_util::CalibratedTensors;
using testing_util::Config;
using testing_util::Fixture;
using testing_util::Gaussian;
using testing_util::RelativeDistance;

// Queries that like blocks of a SkipFixture more or less.
std::vector<float> Queries(size_t n, unsigned seed) {
  std::vector<float> q = Gaussian(n, seed);
  for (float& x : q) x += 1;
  return q;
}

// Scores of every seventh block are about 0, of those behind it about -1, -2 to -6.
struct SkipFixture : Fixture {
  SkipFixture(CacheConfig config, int tokens) : Fixture(std::move(config), 0) {
    const size_t row = static_cast<size_t>(cache->config().num_kv_heads) * cache->config().head_dim;
    k = Gaussian(row * tokens, 11);
    v = Gaussian(row * tokens, 91);
    for (int t = 0; t < tokens; ++t) {
      const float shift = static_cast<float>(t / kPageLen % 7) /
                          std::sqrt(static_cast<float>(cache->config().head_dim));
      for (size_t i = 0; i < row; ++i) k[t * row + i] = 0.3f * k[t * row + i] - shift;
    }
    length = tokens;
    if (tokens > 0) Append(0, tokens);
  }
  struct Skipped {
    std::vector<float> out;
    std::vector<SkippedV> skipped;
  };
  Skipped Run(const std::vector<float>& q, AttentionParams params, float v_skip, int64_t first,
              int n) {
    Skipped r;
    r.out.resize(q.size());
    r.skipped.resize(static_cast<size_t>(n) * params.num_q_heads);
    params.v_skip = v_skip;
    const AttentionItem item{seq, first, n, q.data(), r.out.data(), r.skipped.data()};
    const Status s = Attend(*cache, 0, params, {&item, 1}, pool);
    EXPECT_TRUE(s.ok()) << s.ToString();
    return r;
  }
};

// What skips, in every form: |out - plain| <= share |out| + bound, up to the rounding of weights
// (digits of a block are relative to its largest weight, which skipping does not change; 1e-4 is
// left for sums in another order).
void ExpectWithinBound(const std::vector<float>& plain, const SkipFixture::Skipped& r, int dim,
                       const std::string& what) {
  for (size_t row = 0; row < r.skipped.size(); ++row) {
    double error = 0, length = 0;
    for (int c = 0; c < dim; ++c) {
      const double a = r.out[row * dim + c], b = plain[row * dim + c];
      error += (a - b) * (a - b), length += a * a;
    }
    const SkippedV& s = r.skipped[row];
    ASSERT_TRUE(s.share >= 0 && s.share < 1) << what << " share " << s.share;
    ASSERT_LE(std::sqrt(error),
              s.share * std::sqrt(length) + s.bound + 1e-4 * std::sqrt(length) + 1e-6)
        << what << " row " << row << " share " << s.share << " bound " << s.bound;
  }
}

TEST(SkipV, ErrorIsWithinItsBoundAndKernelsAgree) {
  struct Case {
    const char* preset;
    int dim, group, tokens;
    float softcap;
    bool sinks, center;
  };
  const std::vector<float> sinks = {0.5f, -3.f, 4.f, 30.f, 1.f, 0.f, 2.f, -1.f, 0.f, 1.f};
  for (const Case& c : std::initializer_list<Case>{{"k3v2", 64, 3, 2500, 0, false, true},
                                                   {"k4v4", 64, 1, 1500, 0, true, false},
                                                   {"k4v2", 59, 5, 1601, 5.f, true, true},
                                                   {"k2v2-anchor2", 64, 2, 1666, 0, false, true},
                                                   {"k8v8", 32, 2, 1000, 0, false, false},
                                                   {"f16", 32, 3, 1000, 0, false, false},
                                                   {"k3v2-trellis", 64, 2, 1300, 0, false, false},
                                                   {"k4v4-group32", 64, 3, 1300, 0, false, false},
                                                   {"k6v5", 128, 4, 1100, 0, false, false}}) {
    CacheConfig config = Config(*ParsePreset(c.preset), c.dim, 2);
    const std::vector<float> mean = Gaussian(static_cast<size_t>(c.dim), 3);
    config.tensors.assign(2, CalibratedTensors(config.formats[0]));
    for (HeadTensors& t : config.tensors) {
      t.queries.means = {Gaussian(static_cast<size_t>(c.dim), 44)};
    }
    if (c.center) {
      for (HeadFormat& f : config.formats) f.k = WithCenter(f.k, Center::kRopeMean);
      config.centers.assign(2, MakeHeadCenter(mean, config.rope));
    }
    SkipFixture f(config, c.tokens);
    const std::vector<float> q = Queries(static_cast<size_t>(2 * c.group) * c.dim, 9);
    const AttentionParams params = {.num_q_heads = 2 * c.group,
                                    .softcap = c.softcap,
                                    .sinks = c.sinks ? sinks.data() : nullptr};
    for (const float eps : {1e-30f, 0.02f, 0.3f}) {
      ASSERT_TRUE(ForceIsa("ref").ok());
      const SkipFixture::Skipped want = f.Run(q, params, eps, c.tokens - 1, 1);
      int blocks = 0;
      for (const SkippedV& s : want.skipped) blocks += s.blocks;
      EXPECT_TRUE(eps < 1e-3f ? blocks == 0 : blocks > (eps > 0.1f ? 20 : 0))
          << c.preset << " eps " << eps << ": " << blocks;
      for (const std::string& isa : AvailableIsas()) {
        const std::string what = StrCat(isa, " ", c.preset, " eps ", eps);
        ASSERT_TRUE(ForceIsa(isa).ok());
        const SkipFixture::Skipped got = f.Run(q, params, eps, c.tokens - 1, 1);
        ExpectWithinBound(f.Attention(q, params, c.tokens - 1, 1), got, c.dim, what);
        EXPECT_LT(RelativeDistance(got.out, want.out), 1e-3) << what;
        for (size_t i = 0; i < got.skipped.size(); ++i) {
          ASSERT_EQ(got.skipped[i].blocks, want.skipped[i].blocks) << what;
          ASSERT_NEAR(got.skipped[i].share, want.skipped[i].share, 1e-4) << what;
          ASSERT_NEAR(got.skipped[i].bound, want.skipped[i].bound, 1e-3) << what;
        }
      }
      ResetIsa();
    }
  }
}

// Skipped blocks are those that ExactAttention would mask: it is told which by their mass.
TEST(SkipV, WhatIsSkippedIsWhatTheRuleSays) {
  const int dim = 64, group = 3, tokens = 2000;
  SkipFixture f(Config(*ParsePreset("k8v8"), dim), tokens);
  const std::vector<float> q = Queries(static_cast<size_t>(group) * dim, 9);
  const AttentionParams params = {.num_q_heads = group};
  const float eps = 0.1f;
  const int64_t query_block = (tokens - 1) / kPageLen;
  const KvCache::HeadLayout& l = f.cache->layout(0, 0);
  std::vector<std::vector<double>> mass(group);  // [head][block]
  std::vector<double> open(group, 0.0);
  std::vector<float> kd(static_cast<size_t>(kPageLen) * dim), vd(kd.size());
  for (int g = 0; g < group; ++g) {
    std::vector<float> rotated(q.begin() + g * dim, q.begin() + (g + 1) * dim);
    l.k_rotation.ForwardQuery(rotated.data());
    for (int64_t b = 0; b <= query_block; ++b) {
      testing_util::DecodeBlock(*f.cache, f.seq, l, b, query_block, kd.data(), vd.data());
      double sum = 0;
      for (int t = 0; t < kPageLen && b * kPageLen + t < tokens; ++t) {
        double s = 0;
        for (int c = 0; c < dim; ++c) s += static_cast<double>(rotated[c]) * kd[t * dim + c];
        sum += std::exp(s / 8);
      }
      mass[g].push_back(sum);
      if (f.cache->rule().ReadsOpen(b, query_block)) open[g] += sum;
    }
  }
  std::vector<double> skipped(group, 0.0);
  int blocks = 0;
  for (int64_t b = 0; b <= query_block; ++b) {
    bool small = !f.cache->rule().ReadsOpen(b, query_block);
    for (int g = 0; g < group; ++g) small = small && mass[g][b] <= eps * open[g];
    blocks += small;
    for (int g = 0; small && g < group; ++g) skipped[g] += mass[g][b];
  }
  ASSERT_GT(blocks, 3);
  ASSERT_LT(blocks, query_block - 6);
  const SkipFixture::Skipped got = f.Run(q, params, eps, tokens - 1, 1);
  for (int g = 0; g < group; ++g) {
    double all = 0;
    for (const double m : mass[g]) all += m;
    EXPECT_EQ(got.skipped[g].blocks, blocks) << g;
    EXPECT_NEAR(got.skipped[g].share, skipped[g] / all, 1e-4) << g;
  }
}

// V codes of a skipped block stay unread: other codes there change nothing, and where the block is
// read they do.
TEST(SkipV, CodesOfSkippedBlocksAreNotRead) {
  const int dim = 64, tokens = 1500;
  SkipFixture f(Config(*ParsePreset("k3v2"), dim), tokens);
  const std::vector<float> q = Queries(3 * dim, 9);
  const AttentionParams params = {.num_q_heads = 3};
  const SkipFixture::Skipped before = f.Run(q, params, 0.3f, tokens - 1, 1);
  const std::vector<float> plain = f.Attention(q, params, tokens - 1, 1);
  ASSERT_GT(before.skipped[0].blocks, 5);
  const KvCache::HeadLayout& l = f.cache->layout(0, 0);
  int same = 0;
  for (int64_t b = 1; b < (tokens - 1) / kPageLen - f.cache->rule().recent_blocks; ++b) {
    auto* codes =
        const_cast<std::byte*>(f.cache->SealedSlot(f.seq, b)) + l.record_offset + l.record.v_codes;
    const size_t bytes = ValueBytes(2, dim);
    const std::vector<std::byte> kept(codes, codes + bytes);
    for (size_t i = 0; i < bytes; ++i) codes[i] = ~codes[i];
    EXPECT_NE(f.Attention(q, params, tokens - 1, 1), plain) << b;
    same += f.Run(q, params, 0.3f, tokens - 1, 1).out == before.out;
    std::copy(kept.begin(), kept.end(), codes);
  }
  EXPECT_EQ(same, before.skipped[0].blocks);
}

// Every query decides for itself, in a prompt as in decode.
TEST(SkipV, ChunksThreadsAndBatchesGiveTheSameBits) {
  for (const char* preset : {"k3v2", "k4v4", "k3v2-anchor1"}) {
    const int tokens = 1100, heads = 6, dim = 64;
    CacheConfig config = Config(*ParsePreset(preset), dim, 2);
    for (HeadTensors& t : (config.tensors = std::vector<HeadTensors>(2))) {
      t.queries.means = {Gaussian(dim, 44)};
    }
    const std::vector<float> q = Queries(static_cast<size_t>(tokens) * heads * dim, 8);
    const SkipFixture source(config, tokens);
    for (const std::string& isa : AvailableIsas()) {
      if (isa == "ref") continue;  // plain loops take the rows one by one
      ASSERT_TRUE(ForceIsa(isa).ok());
      std::vector<float> first;
      std::vector<int> first_blocks;
      for (const auto& [chunk, threads] :
           {std::pair(1100, 2), std::pair(1, 1), std::pair(1, 3), std::pair(37, 2)}) {
        auto cache = *KvCache::Create(config);
        ThreadPool pool(threads);
        const SeqId seq = cache->NewSequence();
        std::vector<float> out(q.size());
        std::vector<SkippedV> skipped(static_cast<size_t>(tokens) * heads);
        for (int from = 0; from < tokens; from += chunk) {
          const int n = std::min(chunk, tokens - from);
          const size_t at = static_cast<size_t>(from) * 2 * dim;
          ASSERT_TRUE(cache->BeginAppend(seq, n).ok());
          ASSERT_TRUE(cache->AppendLayer(seq, 0, &source.k[at], &source.v[at], pool).ok());
          const AttentionItem item{seq,
                                   from,
                                   n,
                                   &q[at * heads / 2],
                                   &out[at * heads / 2],
                                   &skipped[static_cast<size_t>(from) * heads]};
          std::vector<float> other(static_cast<size_t>(heads) * dim);
          const AttentionItem items[] = {item,
                                         {seq, from, 1, &q[at * heads / 2], other.data(), nullptr}};
          // Now and then, another item in the batch.
          ASSERT_TRUE(Attend(*cache, 0, {.num_q_heads = heads, .v_skip = 0.2f},
                             {items, from % 2 == 0 ? 1u : 2u}, pool)
                          .ok());
          ASSERT_TRUE(cache->CommitAppend(seq).ok());
        }
        std::vector<int> blocks;
        for (const SkippedV& s : skipped) blocks.push_back(s.blocks);
        if (first.empty()) first = out, first_blocks = blocks;
        EXPECT_EQ(first, out) << isa << " " << preset << " chunk " << chunk;
        EXPECT_EQ(first_blocks, blocks) << isa << " " << preset << " chunk " << chunk;
      }
      EXPECT_GT(*std::max_element(first_blocks.begin(), first_blocks.end()), 3) << preset;
    }
    ResetIsa();
  }
}

TEST(SkipV, LayersWithASlidingWindowSkipNothing) {
  CacheConfig config = Config(HeadFormat{}, 64);
  config.windows = {500};
  SkipFixture f(config, 1000);
  const std::vector<float> q = Queries(2 * 64, 9);
  const SkipFixture::Skipped r = f.Run(q, {.num_q_heads = 2}, 0.5f, 999, 1);
  EXPECT_EQ(r.out, f.Attention(q, 2, 999, 1));
  for (const SkippedV& s : r.skipped) EXPECT_EQ(s.blocks, 0);
}

TEST(SkipV, Errors) {
  SkipFixture f(Config(*ParsePreset("k4v4"), 64), 10);
  std::vector<float> q(64), out(64);
  const AttentionItem item{f.seq, 9, 1, q.data(), out.data()};
  for (const float bad : {-0.1f, 1.f, std::nanf("")}) {
    const Status s = Attend(*f.cache, 0, {.num_q_heads = 1, .v_skip = bad}, {&item, 1}, f.pool);
    EXPECT_EQ(s.code(), StatusCode::kInvalidArgument) << bad;
  }
  CacheConfig config = Config(*ParsePreset("k8v8"), 4);
  config.formats[0].v.rotate = Rotate::kMatrix;
  HeadTensors tensors;
  tensors.v_matrix = {2, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1};
  config.tensors = {tensors};
  SkipFixture g(config, 10);
  const AttentionItem matrix_item{g.seq, 9, 1, q.data(), out.data()};
  EXPECT_EQ(
      Attend(*g.cache, 0, {.num_q_heads = 1, .v_skip = 0.01f}, {&matrix_item, 1}, g.pool).message(),
      "attention: v_skip = 0.01, and the values of layer 0, KV head 0 are rotated by a "
      "matrix; supported: no rotation or hadamard, or v_skip = 0");
}

}  // namespace
}  // namespace tq
