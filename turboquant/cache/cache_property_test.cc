// Random append, fork, truncate, abort and free against a plain list of tokens per sequence.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <set>

#include "turboquant/cache/cache_test_util.h"

namespace tq {
namespace {

using testing_util::Driver;
using testing_util::SmallConfig;

// Slots that the live sequences hold, counted from the outside.
void CheckAccounting(const KvCache& cache, const std::vector<SeqId>& live) {
  std::set<const std::byte*> open, sealed, window;
  for (const SeqId seq : live) {
    const int64_t blocks = DivCeil<int64_t>(*cache.Length(seq), kPageLen);
    for (int64_t b = 0; b < blocks; ++b) {
      if (const std::byte* p = cache.OpenSlot(seq, b)) open.insert(p);
      if (const std::byte* p = cache.SealedSlot(seq, b)) sealed.insert(p);
      if (const std::byte* p = cache.WindowSlot(seq, b)) window.insert(p);
    }
  }
  RC_ASSERT(cache.num_open_slots() == static_cast<int64_t>(open.size()));
  RC_ASSERT(cache.num_sealed_slots() == static_cast<int64_t>(sealed.size()));
  RC_ASSERT(cache.num_window_slots() == static_cast<int64_t>(window.size()));
}

TEST(KvCacheProperty, RandomOperationsKeepContentsAndAccounts) {
  const bool ok = rc::check("append, fork, truncate, abort, free", [] {
    CacheConfig config = SmallConfig(*rc::gen::element("k3v2", "k4v8", "f16"));
    config.recent_len = *rc::gen::element(0, 64, 128);
    config.sink_len = *rc::gen::element(0, 4, 65);
    config.rollback_len = *rc::gen::element(0, 64, 100);
    // No window, one on either layer, or on both.
    const int windowed = *rc::gen::inRange(0, 4);
    const int window = *rc::gen::element(1, 40, 64, 130);
    for (int layer = 0; layer < 2; ++layer) {
      if ((windowed >> layer & 1) != 0) Driver::SetWindow(&config, layer, window);
    }
    Driver d(config);
    std::vector<SeqId> live;
    std::set<SeqId> inexact;  // truncated beyond what is exact: contents are not compared
    // Longest length of each sequence: rollback_len counts from there, as what was released then
    // does not come back.
    std::map<SeqId, int64_t> longest;
    const int steps = *rc::gen::inRange(1, 25);
    for (int step = 0; step < steps; ++step) {
      const int op = live.empty() ? 0 : *rc::gen::inRange(0, 10);
      const size_t pick = live.empty() ? 0 : *rc::gen::inRange<size_t>(0, live.size());
      if (op == 0) {
        live.push_back(d.cache->NewSequence());
      } else if (op <= 5) {
        d.Append(live[pick], *rc::gen::element(1, 2, 63, 64, 65, 150, 300));
        longest[live[pick]] = std::max(longest[live[pick]], *d.cache->Length(live[pick]));
      } else if (op == 6) {
        const SeqId child = d.Fork(live[pick]);
        longest[child] = longest[live[pick]];
        if (inexact.count(live[pick])) inexact.insert(child);
        live.push_back(child);
      } else if (op == 7) {
        const int64_t length = *d.cache->Length(live[pick]);
        const int64_t to = *rc::gen::inRange<int64_t>(0, length + 1);
        const bool near = longest[live[pick]] - to <= config.rollback_len;
        if (windowed != 0 && !near && to > 0) {
          // Refused and nothing changed, or exact in the window layers all the same.
          if (!d.cache->Truncate(live[pick], to).ok()) {
            RC_ASSERT(*d.cache->Length(live[pick]) == length);
          } else {
            d.history[live[pick]].resize(static_cast<size_t>(to));
            if (!d.cache->IsExact(live[pick])) inexact.insert(live[pick]);
          }
          continue;
        }
        const TruncateResult r = d.Truncate(live[pick], to);
        if (near) RC_ASSERT(r.exact);
        if (!r.exact) inexact.insert(live[pick]);
      } else if (op == 8) {
        const int n = *rc::gen::inRange(1, 200);
        RC_ASSERT(d.cache->BeginAppend(live[pick], n).ok());
        RC_ASSERT(d.cache->AbortAppend(live[pick]).ok());
      } else {
        RC_ASSERT(d.cache->Free(live[pick]).ok());
        live.erase(live.begin() + static_cast<long>(pick));
      }
      CheckAccounting(*d.cache, live);
    }
    for (const SeqId seq : live) {
      if (!inexact.count(seq)) d.ExpectEqualToFresh(seq);
    }
    RC_ASSERT(!testing::Test::HasFailure());
    for (const SeqId seq : live) RC_ASSERT(d.cache->Free(seq).ok());
    RC_ASSERT(d.cache->num_open_slots() == 0);
    RC_ASSERT(d.cache->num_sealed_slots() == 0);
    RC_ASSERT(d.cache->num_window_slots() == 0);
  });
  EXPECT_TRUE(ok);
}

}  // namespace
}  // namespace tq
