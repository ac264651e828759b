// Drives a KvCache with rows that depend only on (token value, position, layer), and compares a
// sequence with one that was built in a single append.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <vector>

#include "turboquant/cache/cache.h"

namespace tq::testing_util {

inline CacheConfig SmallConfig(const char* preset) {
  CacheConfig c;
  c.num_layers = 2;
  c.num_kv_heads = 2;
  c.head_dim = 32;
  c.recent_len = 128;
  c.formats.assign(4, *ParsePreset(preset));
  for (int i = 0; i < 16; ++i) c.rope.inv_freq.push_back(1.f / static_cast<float>(i + 1));
  return c;
}

struct Driver {
  explicit Driver(CacheConfig config) : cache(*KvCache::Create(std::move(config))) {}

  // Rows of tokens [from, from + n) of a history.
  void Rows(const std::vector<uint64_t>& tokens, size_t from, size_t n, int layer,
            std::vector<float>* k, std::vector<float>* v) const {
    const size_t row = static_cast<size_t>(cache->config().num_kv_heads) * cache->config().head_dim;
    k->resize(n * row);
    v->resize(n * row);
    for (size_t t = 0; t < n; ++t) {
      uint64_t state = tokens[from + t] * 1000003 + (from + t) * 17 + static_cast<uint64_t>(layer);
      for (size_t i = 0; i < row; ++i) {
        (*k)[t * row + i] = static_cast<float>(static_cast<int64_t>(SplitMix64(state))) * 0x1p-62f;
        (*v)[t * row + i] = static_cast<float>(static_cast<int64_t>(SplitMix64(state))) * 0x1p-62f;
      }
    }
  }

  Status TryAppend(KvCache& c, SeqId seq, const std::vector<uint64_t>& tokens, size_t from,
                   size_t n) {
    TQ_RETURN_IF_ERROR(c.BeginAppend(seq, static_cast<int>(n)));
    std::vector<float> k, v;
    for (int layer = 0; layer < c.config().num_layers; ++layer) {
      Rows(tokens, from, n, layer, &k, &v);
      TQ_RETURN_IF_ERROR(c.AppendLayer(seq, layer, k.data(), v.data(), pool));
    }
    return c.CommitAppend(seq);
  }

  void Append(SeqId seq, int n) {
    std::vector<uint64_t>& h = history[seq];
    h.resize(static_cast<size_t>(*cache->Length(seq)));
    const size_t from = h.size();
    for (int i = 0; i < n; ++i) h.push_back(next_token++);
    const Status s = TryAppend(*cache, seq, h, from, static_cast<size_t>(n));
    ASSERT_TRUE(s.ok()) << s.ToString();
  }

  SeqId Fork(SeqId seq) {
    const Result<SeqId> child = cache->Fork(seq);
    EXPECT_TRUE(child.ok()) << child.status().ToString();
    history[*child] = history[seq];
    return *child;
  }

  // Layer `layer` gets a sliding window and rows of 16 bits.
  static void SetWindow(CacheConfig* config, int layer, int window) {
    config->windows.resize(static_cast<size_t>(config->num_layers));
    config->windows[static_cast<size_t>(layer)] = window;
    for (int head = 0; head < config->num_kv_heads; ++head) {
      config->formats[static_cast<size_t>(layer) * config->num_kv_heads + head] = HeadFormat{};
    }
  }

  TruncateResult Truncate(SeqId seq, int64_t len) {
    const Result<TruncateResult> r = cache->Truncate(seq, len);
    EXPECT_TRUE(r.ok()) << r.status().ToString();
    history[seq].resize(static_cast<size_t>(len));
    return r.ok() ? *r : TruncateResult{};
  }

  // Every form that the last query reads equals that of a cache which saw the tokens at once. The
  // bytes of unwritten rows do not count.
  void ExpectEqualToFresh(SeqId seq) {
    std::vector<uint64_t> tokens = history[seq];
    const int64_t length = *cache->Length(seq);
    tokens.resize(static_cast<size_t>(length));
    if (length == 0) return;
    auto fresh = *KvCache::Create(cache->config());
    const SeqId other = fresh->NewSequence();
    ASSERT_TRUE(TryAppend(*fresh, other, tokens, 0, tokens.size()).ok());
    const int64_t query_block = (length - 1) / kPageLen;
    const int dim = cache->config().head_dim;
    for (int64_t b = 0; b <= query_block; ++b) {
      const bool open = cache->rule().ReadsOpen(b, query_block);
      const std::byte* x = open ? cache->OpenSlot(seq, b) : cache->SealedSlot(seq, b);
      const std::byte* y = open ? fresh->OpenSlot(other, b) : fresh->SealedSlot(other, b);
      // Cut at the end of a block, the next query is in the next block and reads this one sealed.
      const bool absent = x == nullptr && length % kPageLen == 0;
      if (!absent && cache->open_slot_bytes() > 0) {
        ASSERT_NE(x, nullptr) << "block " << b;
        ASSERT_NE(y, nullptr) << "block " << b;
      }
      const std::byte *xw = cache->WindowSlot(seq, b), *yw = fresh->WindowSlot(other, b);
      const int64_t rows = std::min<int64_t>(kPageLen, length - b * kPageLen);
      for (int layer = 0; layer < cache->config().num_layers; ++layer) {
        const int window = cache->config().window(layer);
        if (window > 0) {
          // What the next query sees.
          if ((b + 1) * kPageLen <= length + 1 - window) continue;
          ASSERT_NE(xw, nullptr) << "window block " << b;
          ASSERT_NE(yw, nullptr) << "window block " << b;
        } else if (absent) {
          continue;
        }
        for (int head = 0; head < cache->config().num_kv_heads; ++head) {
          const KvCache::HeadLayout& l = cache->layout(layer, head);
          if (window == 0 && !open) {
            ASSERT_EQ(0, std::memcmp(x + l.record_offset, y + l.record_offset, l.record.bytes));
            ASSERT_EQ(0,
                      std::memcmp(x + l.side_offset, y + l.side_offset, SideInfoBytes(l.format)));
            continue;
          }
          const std::byte* xs = (window > 0 ? xw : x) + l.open_offset;
          const std::byte* ys = (window > 0 ? yw : y) + l.open_offset;
          for (int64_t t = 0; t < rows; ++t) {
            for (int c = 0; c < dim; ++c) {
              ASSERT_EQ(OpenValue(xs, l.open.k_values, l.open.k_type, Side::kK, dim, t, c),
                        OpenValue(ys, l.open.k_values, l.open.k_type, Side::kK, dim, t, c));
              ASSERT_EQ(OpenValue(xs, l.open.v_values, l.open.v_type, Side::kV, dim, t, c),
                        OpenValue(ys, l.open.v_values, l.open.v_type, Side::kV, dim, t, c));
            }
          }
        }
      }
    }
  }

  static int OpenValue(const std::byte* slot, size_t offset, ValueType type, Side side, int dim,
                       int64_t t, int c) {
    const int lane = static_cast<int>(side == Side::kK ? t : c);
    const int depth = static_cast<int>(side == Side::kK ? c : t);
    const int lanes = NumLanes(side, dim);
    if (OpenBits(type) == 8) {
      return reinterpret_cast<const int8_t*>(slot + offset)[Int8Index(lane, depth, lanes)];
    }
    return reinterpret_cast<const f16_t*>(slot + offset)[F16Index(lane, depth, lanes)];
  }

  std::unique_ptr<KvCache> cache;
  ThreadPool pool{2};
  std::map<SeqId, std::vector<uint64_t>> history;
  uint64_t next_token = 1;
};

}  // namespace tq::testing_util
