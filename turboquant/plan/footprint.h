// What the blocks of a cache take at a length: the sizes of record_layout.h under the rule of
// precision, without allocating anything. The one arithmetic of planner, reports and admission;
// runtime/evaluate/footprint_test.cc holds it to KvCache::Bytes(), byte by byte.
#pragma once

#include <cstddef>
#include <cstdint>

#include "turboquant/codec/codec.h"
#include "turboquant/codec/record_layout.h"

namespace tq {

// Which tokens stay open; the fields of CacheConfig of the same names.
struct CacheWindow {
  int recent_len = 256;
  int sink_len = 4;
  int rollback_len = 64;
  RecentType recent = RecentType::kQ8;
};

// Bytes of one block, summed over the heads that were added.
struct BlockBytes {
  size_t open = 0;           // as 8- or 16-bit rows
  size_t sealed = 0;         // as records, side information included
  size_t sealed_scales = 0;  // of which scales and side information
  bool quantized = false;    // some head has an integer format
  // Of the block that is sealed ahead: float rows are only copied, when they are due.
  size_t ahead() const { return quantized ? sealed : 0; }
  void Add(const HeadFormat& format, RecentType recent, int head_dim, size_t num_heads = 1);
};

// Blocks of one sequence, by form. A block that may be rolled back to is in both.
struct BlockCounts {
  int64_t sealed = 0;
  int64_t sinks = 0;   // open for good
  int64_t recent = 0;  // other open blocks
  int64_t ahead = 0;   // 1: the block that leaves the window next is being sealed
  int64_t open() const { return sinks + recent; }
};

// Of a sequence of `tokens` committed tokens.
BlockCounts CountBlocks(const CacheWindow& window, int64_t tokens);

// Open and sealed blocks that a decode step at that length reads.
BlockCounts CountBlocksRead(const CacheWindow& window, int64_t tokens);

// The most that a sequence held at any moment while it grew to `tokens`, read in chunks of
// `chunk_len` and then token by token: an append opens its blocks before it releases others.
BlockCounts CountBlocksPeak(const CacheWindow& window, int64_t tokens, int chunk_len,
                            const BlockBytes& block);

// Blocks of layers with a sliding window of `window` tokens: what the next token sees, and what it
// would see after a truncation by rollback_len.
int64_t CountWindowBlocks(int64_t window, int64_t rollback_len, int64_t tokens);
// The most of them at any moment, as for CountBlocksPeak.
int64_t CountWindowBlocksPeak(int64_t window, int64_t rollback_len, int64_t tokens, int chunk_len);

// Tables of centred keys: num_freq RoPE frequencies; 1/64 of a row for each position.
size_t CenterTableBytes(size_t num_freq, int64_t tokens);

}  // namespace tq
