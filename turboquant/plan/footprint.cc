#include "turboquant/plan/footprint.h"

#include <algorithm>

#include "turboquant/base/numeric.h"

namespace tq {
namespace {

// Blocks of the newest query, of the sinks, and the first that it reads as open rows.
struct QueryView {
  int64_t last = 0, sinks = 0, first_recent = 0;
};

QueryView ViewAt(const CacheWindow& window, int64_t tokens) {
  QueryView v;
  v.last = (tokens - 1) / kPageLen;
  v.sinks = std::min<int64_t>(DivCeil(window.sink_len, kPageLen), v.last + 1);
  v.first_recent = std::max(v.sinks, v.last - DivCeil(window.recent_len, kPageLen));
  return v;
}

size_t BytesOf(const BlockCounts& n, const BlockBytes& block) {
  return static_cast<size_t>(n.sealed) * block.sealed + static_cast<size_t>(n.open()) * block.open +
         static_cast<size_t>(n.ahead) * block.ahead();
}

}  // namespace

void BlockBytes::Add(const HeadFormat& format, RecentType recent, int head_dim, size_t num_heads) {
  const size_t side = SideInfoBytes(format);
  quantized |= !(format.k.is_float() && format.v.is_float());
  open += num_heads * OpenLayout::For(format, recent, head_dim).bytes;
  sealed += num_heads * (RecordLayout::For(format, head_dim).bytes + side);
  sealed_scales +=
      num_heads * (ScaleBytes(format.k, head_dim) + ScaleBytes(format.v, head_dim) + side);
}

BlockCounts CountBlocks(const CacheWindow& window, int64_t tokens) {
  if (tokens <= 0) return {};
  const QueryView v = ViewAt(window, tokens);
  // Blocks [sinks, first_recent) are read at low bits; those that a query within the rollback
  // distance would read as open rows keep them as well.
  const int64_t recent = DivCeil(window.recent_len, kPageLen);
  const int64_t rollback_query = std::max<int64_t>(0, tokens - window.rollback_len) / kPageLen;
  const int64_t first_open = std::clamp(rollback_query - recent, v.sinks, v.first_recent);
  const bool ahead = recent > 0 && v.last - recent >= DivCeil(window.sink_len, kPageLen);
  return {v.first_recent - v.sinks, v.sinks, v.last + 1 - first_open, ahead ? 1 : 0};
}

BlockCounts CountBlocksRead(const CacheWindow& window, int64_t tokens) {
  if (tokens <= 0) return {};
  const QueryView v = ViewAt(window, tokens);
  return {v.first_recent - v.sinks, v.sinks, v.last + 1 - v.first_recent};
}

BlockCounts CountBlocksPeak(const CacheWindow& window, int64_t tokens, int chunk_len,
                            const BlockBytes& block) {
  BlockCounts peak = CountBlocks(window, tokens);
  const auto append = [&](int64_t from, int64_t to) {
    if (from < 0 || to > tokens || from >= to) return;
    BlockCounts during = CountBlocks(window, from);
    const int64_t new_blocks =
        DivCeil<int64_t>(to, kPageLen) - DivCeil<int64_t>(std::max<int64_t>(from, 0), kPageLen);
    during.recent += new_blocks;
    during.sealed = CountBlocks(window, to).sealed;
    during.ahead = CountBlocks(window, to).ahead;
    if (BytesOf(during, block) > BytesOf(peak, block)) peak = during;
  };
  // The last chunks hold the most: sealed blocks only grow, open ones depend on the remainder.
  const int64_t whole = tokens / chunk_len * chunk_len;
  append(whole, tokens);
  append(whole - chunk_len, whole);
  // Token by token: right behind a block boundary nothing was released yet.
  const int64_t boundary = (tokens - 1) / kPageLen * kPageLen;
  append(boundary, boundary + 1);
  append(boundary - kPageLen, boundary - kPageLen + 1);
  return peak;
}

namespace {

int64_t FirstWindowBlock(int64_t window, int64_t rollback_len, int64_t tokens) {
  const int64_t next = std::max<int64_t>(0, tokens - rollback_len);
  return std::max<int64_t>(0, next + 1 - window) / kPageLen;
}

}  // namespace

int64_t CountWindowBlocks(int64_t window, int64_t rollback_len, int64_t tokens) {
  if (tokens <= 0) return 0;
  return DivCeil<int64_t>(tokens, kPageLen) - FirstWindowBlock(window, rollback_len, tokens);
}

int64_t CountWindowBlocksPeak(int64_t window, int64_t rollback_len, int64_t tokens, int chunk_len) {
  int64_t peak = CountWindowBlocks(window, rollback_len, tokens);
  const auto append = [&](int64_t from, int64_t to) {
    if (from < 0 || from >= to) return;
    peak = std::max(peak,
                    DivCeil<int64_t>(to, kPageLen) - FirstWindowBlock(window, rollback_len, from));
  };
  // The last two chunks see every remainder that earlier ones see; then token by token.
  const int64_t whole = tokens / chunk_len * chunk_len;
  append(whole, tokens);
  append(whole - chunk_len, whole);
  const int64_t boundary = (tokens - 1) / kPageLen * kPageLen;
  append(boundary, boundary + 1);
  return peak;
}

size_t CenterTableBytes(size_t num_freq, int64_t tokens) {
  if (tokens <= 0) return 0;
  const size_t blocks = static_cast<size_t>(DivCeil<int64_t>(tokens, kPageLen));
  return (num_freq + 1) * 2 * (kPageLen + blocks) * sizeof(float);
}

}  // namespace tq
