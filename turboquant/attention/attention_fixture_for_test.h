// A small cache of random keys and values, and attention to it.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "turboquant/attention/attention.h"
#include "turboquant/attention/exact_attention_for_test.h"
#include "turboquant/codec/codec_grid_for_test.h"
#include "turboquant/codec/rope_for_test.h"

namespace tq::testing_util {

inline CacheConfig Config(const HeadFormat& format, int head_dim, int kv_heads = 1,
                          int layers = 1) {
  CacheConfig c;
  c.num_layers = layers;
  c.num_kv_heads = kv_heads;
  c.head_dim = head_dim;
  c.recent_len = 64;
  c.rope = TestRope(head_dim / 2 * 2);
  c.formats.assign(static_cast<size_t>(kv_heads) * layers, format);
  return c;
}

// A one-layer cache with tokens of random K and V.
struct Fixture {
  Fixture(CacheConfig config, int tokens, unsigned seed = 1)
      : cache(*KvCache::Create(std::move(config))), seq(cache->NewSequence()), length(tokens) {
    const size_t row = static_cast<size_t>(cache->config().num_kv_heads) * cache->config().head_dim;
    k = Gaussian(row * tokens, seed);
    v = Gaussian(row * tokens, seed + 1);
    if (tokens > 0) Append(0, tokens);
  }
  void Append(int from, int n) {
    const size_t row = static_cast<size_t>(cache->config().num_kv_heads) * cache->config().head_dim;
    ASSERT_TRUE(cache->BeginAppend(seq, n).ok());
    ASSERT_TRUE(cache->AppendLayer(seq, 0, &k[from * row], &v[from * row], pool).ok());
    ASSERT_TRUE(cache->CommitAppend(seq).ok());
  }
  std::vector<float> Attention(const std::vector<float>& q, int q_heads, int64_t first, int n) {
    return Attention(q, AttentionParams{.num_q_heads = q_heads}, first, n);
  }
  std::vector<float> Attention(const std::vector<float>& q, const AttentionParams& params,
                               int64_t first, int n) {
    std::vector<float> out(q.size());
    const AttentionItem item{seq, first, n, q.data(), out.data()};
    const Status s = Attend(*cache, 0, params, {&item, 1}, pool);
    EXPECT_TRUE(s.ok()) << s.ToString();
    return out;
  }
  std::unique_ptr<KvCache> cache;
  SeqId seq;
  int length;
  std::vector<float> k, v;
  ThreadPool pool{2};
};

// Books and mean queries for whatever a format asks for.
inline HeadTensors CalibratedTensors(const HeadFormat& f) {
  HeadTensors t;
  if (f.k.codebook == Codebook::kCalibrated) t.k_levels = SkewedLevels(f.k.bits);
  if (f.v.codebook == Codebook::kCalibrated) t.v_levels = SkewedLevels(f.v.bits);
  return t;
}

}  // namespace tq::testing_util
