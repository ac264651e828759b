#include "turboquant/cache/prefix_index.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <set>

#include "turboquant/cache/cache_test_util.h"

namespace tq {
namespace {

using testing_util::Driver;
using testing_util::SmallConfig;
using Tokens = std::vector<int32_t>;

Tokens Count(int32_t first, size_t n) {
  Tokens t;
  for (size_t i = 0; i < n; ++i) t.push_back(first + static_cast<int32_t>(i));
  return t;
}

Tokens Join(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// Appends what `seq` does not hold of `tokens` yet.
void Extend(Driver& d, SeqId seq, const Tokens& tokens) {
  std::vector<uint64_t>& h = d.history[seq];
  h.assign(tokens.begin(), tokens.end());
  const auto from = static_cast<size_t>(*d.cache->Length(seq));
  if (from == h.size()) return;
  const Status s = d.TryAppend(*d.cache, seq, h, from, h.size() - from);
  ASSERT_TRUE(s.ok()) << s.ToString();
}

SeqId NewSequence(Driver& d, const Tokens& tokens) {
  const SeqId seq = d.cache->NewSequence();
  Extend(d, seq, tokens);
  return seq;
}

// Computes `tokens` with what the index knows; returns the sequence and how much was known.
PrefixIndex::Hit Compute(Driver& d, PrefixIndex& index, const Tokens& tokens) {
  const int64_t match = index.Match(tokens);
  const auto found = index.Find(tokens);
  EXPECT_EQ(found ? found->length : 0, match);
  const PrefixIndex::Hit hit = found ? *found : PrefixIndex::Hit{d.cache->NewSequence(), 0};
  EXPECT_EQ(*d.cache->Length(hit.seq), hit.length);
  Extend(d, hit.seq, tokens);
  return hit;
}

size_t SlotBytes(const KvCache& cache) {
  const CacheBytes b = cache.Bytes();
  return b.total() - b.tables - cache.ahead_bytes();
}

TEST(PrefixIndex, AHitEqualsAMiss) {
  for (const char* preset : {"k3v2", "k4v8", "f16"}) {
    for (const size_t boundary : {1, 63, 64, 65, 300, 448}) {
      Driver d(SmallConfig(preset));
      PrefixIndex index(*d.cache, 1 << 30);
      const Tokens prompt = Count(0, boundary);
      const SeqId first = NewSequence(d, prompt);
      ASSERT_TRUE(index.Record(first, prompt).ok());
      Extend(d, first, Join(prompt, Count(1000, 500)));  // seals, and releases open blocks
      const Tokens other = Join(prompt, Count(5000, 400));
      const PrefixIndex::Hit hit = Compute(d, index, other);
      EXPECT_EQ(hit.length, static_cast<int64_t>(boundary));
      d.ExpectEqualToFresh(hit.seq);
      d.ExpectEqualToFresh(first);
      // Again, after the first user has gone.
      ASSERT_TRUE(d.cache->Free(first).ok());
      ASSERT_TRUE(d.cache->Free(hit.seq).ok());
      const PrefixIndex::Hit again = Compute(d, index, other);
      EXPECT_EQ(again.length, static_cast<int64_t>(boundary));
      d.ExpectEqualToFresh(again.seq);
    }
  }
}

TEST(PrefixIndex, TheLongestBoundaryIsFound) {
  Driver d(SmallConfig("k3v2"));
  PrefixIndex index(*d.cache, 1 << 30);
  const Tokens text = Count(0, 400);
  const auto first = [&](size_t n) {
    return Tokens(text.begin(), text.begin() + static_cast<long>(n));
  };
  for (const size_t n : {10, 64, 100, 110, 300}) {
    ASSERT_TRUE(index.Record(NewSequence(d, first(n)), first(n)).ok());
  }
  EXPECT_EQ(index.size(), 5);
  for (const auto& [n, want] : std::vector<std::pair<size_t, int64_t>>{
           {400, 300}, {300, 300}, {299, 110}, {109, 100}, {99, 64}, {63, 10}, {9, 0}, {0, 0}}) {
    EXPECT_EQ(index.Match(first(n)), want) << n;
  }
  EXPECT_EQ(index.Match(Join(first(105), Count(7000, 100))), 100);
  EXPECT_EQ(index.Match(Join(first(5), Count(7000, 400))), 0);
  EXPECT_FALSE(index.Find(Count(7000, 400)).has_value());
}

TEST(PrefixIndex, TokensDecideNotHashes) {
  Driver d(SmallConfig("k3v2"));
  PrefixIndex index(*d.cache, 1 << 30, 0);  // every hash is 0
  const Tokens a = Count(0, 200), b = Count(1000, 200);
  // The second block of `c` is that of `a`, behind another first one.
  Tokens c = Count(5000, 64);
  c.insert(c.end(), a.begin() + 64, a.end());
  ASSERT_TRUE(index.Record(NewSequence(d, a), a).ok());
  EXPECT_EQ(index.Match(b), 0);
  EXPECT_EQ(index.Match(c), 0);
  ASSERT_TRUE(index.Record(NewSequence(d, b), b).ok());
  ASSERT_TRUE(index.Record(NewSequence(d, c), c).ok());
  for (const Tokens& tokens : {a, b, c}) EXPECT_EQ(index.Match(Join(tokens, {1})), 200);
  index.Trim(0);
  EXPECT_EQ(index.bytes(), 0u);
  for (const Tokens& tokens : {a, b, c}) EXPECT_EQ(index.Match(tokens), 0);
}

TEST(PrefixIndex, SharedSlotsAndTokensCountOnce) {
  Driver d(SmallConfig("k3v2"));
  {
    PrefixIndex index(*d.cache, 1 << 30);
    const Tokens prompt = Count(0, 640);
    const SeqId seq = NewSequence(d, prompt);
    ASSERT_TRUE(index.Record(seq, prompt).ok());
    EXPECT_EQ(index.slot_bytes(), SlotBytes(*d.cache));
    EXPECT_EQ(index.token_bytes(), 640 * sizeof(int32_t));
    ASSERT_TRUE(index.Record(seq, prompt).ok());  // is there already
    EXPECT_EQ(index.size(), 1);
    EXPECT_EQ(index.slot_bytes(), SlotBytes(*d.cache));
    const Tokens more = Join(prompt, Count(1000, 10));
    Extend(d, seq, more);
    const size_t before = index.bytes();
    ASSERT_TRUE(index.Record(seq, more).ok());
    // Block 10 is new; block 7 has left the window and got codes.
    EXPECT_EQ(index.bytes() - before,
              d.cache->open_slot_bytes() + d.cache->sealed_slot_bytes() + 10 * sizeof(int32_t));
    ASSERT_TRUE(d.cache->Free(seq).ok());
    EXPECT_EQ(index.slot_bytes(), SlotBytes(*d.cache));
  }
  EXPECT_EQ(SlotBytes(*d.cache), 0u) << "the index gives its forks back";
}

TEST(PrefixIndex, WhatWasUsedLongestAgoMakesRoom) {
  Driver d(SmallConfig("k3v2"));
  const auto record = [&d](PrefixIndex& index, int32_t first) {
    const Tokens tokens = Count(first, 100);
    const SeqId seq = NewSequence(d, tokens);
    const Status s = index.Record(seq, tokens);
    EXPECT_TRUE(d.cache->Free(seq).ok());
    return s;
  };
  size_t each;
  {
    PrefixIndex one(*d.cache, 1 << 30);
    ASSERT_TRUE(record(one, 0).ok());
    each = one.bytes();
  }
  PrefixIndex index(*d.cache, 3 * each);
  for (const int32_t first : {1000, 2000, 3000}) ASSERT_TRUE(record(index, first).ok());
  EXPECT_EQ(index.bytes(), 3 * each);
  ASSERT_TRUE(d.cache->Free(index.Find(Count(1000, 150))->seq).ok());  // used
  ASSERT_TRUE(record(index, 2000).ok());                               // used
  ASSERT_TRUE(record(index, 4000).ok());
  EXPECT_EQ(index.size(), 3);
  for (const auto& [first, want] :
       std::vector<std::pair<int32_t, int64_t>>{{1000, 100}, {2000, 100}, {3000, 0}, {4000, 100}}) {
    EXPECT_EQ(index.Match(Count(first, 100)), want) << first;
  }
  index.Trim(each);
  EXPECT_EQ(index.size(), 1);
  EXPECT_EQ(index.Match(Count(4000, 100)), 100);

  PrefixIndex small(*d.cache, each - 1);
  const Status s = record(small, 5000);
  EXPECT_EQ(s.code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(s.message(), StrCat("prefix: a boundary at 100 tokens takes ", each,
                                " bytes; the limit is ", each - 1));
  EXPECT_EQ(small.size(), 0);
}

TEST(PrefixIndex, Errors) {
  Driver d(SmallConfig("k3v2"));
  PrefixIndex index(*d.cache, 1 << 30);
  EXPECT_EQ(index.Record(99, {}).code(), StatusCode::kNotFound);
  const SeqId seq = d.cache->NewSequence();
  EXPECT_EQ(index.Record(seq, {}).message(), "prefix: a sequence without tokens has no prefix");
  Tokens tokens = Count(0, 640);
  Extend(d, seq, tokens);
  EXPECT_EQ(index.Record(seq, Count(0, 10)).message(),
            "prefix: 10 token ids for a sequence of 640 tokens");
  ASSERT_TRUE(d.cache->BeginAppend(seq, 1).ok());
  EXPECT_EQ(index.Record(seq, tokens).code(), StatusCode::kFailedPrecondition);
  ASSERT_TRUE(d.cache->AbortAppend(seq).ok());
  tokens.resize(100);
  EXPECT_FALSE(d.Truncate(seq, 100).exact);
  const Status s = index.Record(seq, tokens);
  EXPECT_EQ(s.code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(s.message(),
            StrCat("prefix: sequence ", seq,
                   " has blocks that were re-opened from their codes, so going on from it would "
                   "not equal computing it again"));
  EXPECT_EQ(index.size(), 0);
}

// Texts that begin alike: some of an earlier one, then tokens of their own.
TEST(PrefixIndexProperty, HitsEqualMissesAndBytesAreCounted) {
  const bool ok = rc::check("record, find, extend, free, trim", [] {
    CacheConfig config = SmallConfig(*rc::gen::element("k3v2", "k4v8", "f16"));
    if (*rc::gen::arbitrary<bool>()) Driver::SetWindow(&config, 1, 70);
    config.recent_len = *rc::gen::element(0, 64, 128);
    config.sink_len = *rc::gen::element(0, 4);
    config.rollback_len = *rc::gen::element(0, 64);
    Driver d(config);
    const size_t slot = d.cache->open_slot_bytes();
    const size_t max_bytes = *rc::gen::element<size_t>(0, 5, 20, 100000) * slot;
    PrefixIndex index(*d.cache, max_bytes, *rc::gen::element(0, 1, 64));
    std::vector<Tokens> texts = {{}};
    std::set<Tokens> recorded;  // ever
    std::vector<SeqId> live;
    const auto record = [&](SeqId seq, const Tokens& tokens) {
      const Status s = index.Record(seq, tokens);
      RC_ASSERT(s.ok() || s.code() == StatusCode::kResourceExhausted);
      if (s.ok()) recorded.insert(tokens);
      if (s.ok()) RC_ASSERT(index.Match(tokens) == static_cast<int64_t>(tokens.size()));
    };
    const int steps = *rc::gen::inRange(1, 12);
    for (int step = 0; step < steps; ++step) {
      const Tokens& base = texts[*rc::gen::inRange<size_t>(0, texts.size())];
      const auto keep = *rc::gen::inRange<size_t>(0, base.size() + 1);
      Tokens text(base.begin(), base.begin() + static_cast<long>(keep));
      text = Join(text, Count(1000 * (step + 1), *rc::gen::element<size_t>(1, 63, 64, 150, 300)));
      const PrefixIndex::Hit hit = [&] {
        const auto found = index.Find(text);
        return found ? *found : PrefixIndex::Hit{d.cache->NewSequence(), 0};
      }();
      int64_t longest = 0;
      for (const Tokens& r : recorded) {
        if (r.size() <= text.size() && std::equal(r.begin(), r.end(), text.begin())) {
          longest = std::max(longest, static_cast<int64_t>(r.size()));
        }
      }
      // Without evictions nothing that was recorded is missed.
      RC_ASSERT(hit.length <= longest);
      if (max_bytes > 1000 * slot) RC_ASSERT(hit.length == longest);
      const Tokens known(text.begin(), text.begin() + hit.length);
      RC_ASSERT(hit.length == 0 || recorded.count(known) == 1);
      // A breakpoint inside, then the end.
      const auto middle = *rc::gen::inRange<size_t>(known.size(), text.size() + 1);
      const Tokens half(text.begin(), text.begin() + static_cast<long>(middle));
      Extend(d, hit.seq, half);
      if (middle > 0) record(hit.seq, half);
      Extend(d, hit.seq, text);
      if (*rc::gen::inRange(0, 3) > 0) record(hit.seq, text);
      d.ExpectEqualToFresh(hit.seq);
      RC_ASSERT(!testing::Test::HasFailure());
      texts.push_back(text);
      live.push_back(hit.seq);
      if (*rc::gen::inRange(0, 2) == 0) {
        RC_ASSERT(d.cache->Free(live.front()).ok());
        live.erase(live.begin());
      }
      RC_ASSERT(index.bytes() <= max_bytes);
    }
    for (const SeqId seq : live) RC_ASSERT(d.cache->Free(seq).ok());
    RC_ASSERT(index.slot_bytes() == SlotBytes(*d.cache));
    index.Trim(index.bytes() / 2);
    RC_ASSERT(index.slot_bytes() == SlotBytes(*d.cache));
    index.Trim(0);
    RC_ASSERT(index.bytes() == 0);
    RC_ASSERT(SlotBytes(*d.cache) == 0);
  });
  EXPECT_TRUE(ok);
}

}  // namespace
}  // namespace tq
