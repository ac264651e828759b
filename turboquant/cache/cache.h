// The quantized, paged KV cache.
//
// One KvCache holds all layers of one model for any number of sequences. A sequence is a table of
// blocks of 64 tokens. A token is written as an 8-bit row (an open block); a block that leaves the
// recent window is re-coded to the low bits of its format (sealed). Which of the two a query reads
// depends on positions only (PrecisionRule), so results do not depend on chunking, batching or
// sharing.
//
// Layers whose queries look back only so many tokens (sliding windows) are a group of their own:
// their blocks stay as they were written, in 16 or 8 bits, and are freed behind the window.
//
// A forward pass over n new tokens of a sequence:
//   TQ_RETURN_IF_ERROR(cache.BeginAppend(seq, n));
//   for each layer:  cache.AppendLayer(seq, layer, k, v, pool);   // then attention over the layer
//   cache.CommitAppend(seq);
// Between Begin and Commit the new tokens are visible to attention (attention/attention.h).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "turboquant/base/sinks.h"
#include "turboquant/base/status.h"
#include "turboquant/base/thread_pool.h"
#include "turboquant/cache/block_pool.h"
#include "turboquant/codec/anchor.h"
#include "turboquant/codec/center.h"
#include "turboquant/codec/codebook.h"
#include "turboquant/codec/codec.h"
#include "turboquant/codec/encode.h"
#include "turboquant/codec/record_layout.h"
#include "turboquant/codec/rotation.h"

namespace tq {

// What a profile knows of one head beyond its format; empty parts are not used.
struct HeadTensors {
  std::vector<float> k_matrix, v_matrix;  // rotate: matrix, [head_dim][head_dim] row-major
  std::vector<float> k_levels,
      v_levels;             // codebook: calibrated, [2^bits] in units of the row's rms
  QueryStatistics queries;  // anchors
};

struct CacheConfig {
  int num_layers = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  int recent_len = 256;   // tokens kept open behind the query's block; rounded up to blocks
  int sink_len = 4;       // first tokens kept open for good; rounded up to blocks (0 = none)
  int rollback_len = 64;  // truncation within this distance is exact; rounded up to blocks
  RecentType recent = RecentType::kQ8;
  std::vector<HeadFormat> formats;  // [num_layers * num_kv_heads], layer-major
  // Tokens that a query of a layer sees, itself included: [num_layers], 0 = all; empty: all layers
  // see all. Layers with a window have float or 8-bit formats without a centre, and one length.
  std::vector<int> windows;
  RopeFrequencies rope;              // needed when a format has center = rope_mean or anchors
  std::vector<HeadCenter> centers;   // [num_layers * num_kv_heads], or empty: no centre anywhere
  std::vector<HeadTensors> tensors;  // [num_layers * num_kv_heads], or empty
  uint64_t seed = 0;                 // of the rotation signs
  float v_skip = 0;                  // AttentionParams::v_skip of a model that reads the cache
  size_t max_bytes = 0;              // refuse to allocate more than this; 0 = no limit
  LogSink log;

  Status Validate() const;
  int window(int layer) const { return windows.empty() ? 0 : windows[static_cast<size_t>(layer)]; }

 private:
  Status ValidateWindows() const;
  Status ValidateTensors(size_t head) const;
};

// Which form a query reads, by block index. P = block of the query's position.
struct PrecisionRule {
  int sink_blocks = 1;
  int recent_blocks = 4;
  // True: block b is read from open rows by queries in block query_block (b <= query_block).
  bool ReadsOpen(int64_t b, int64_t query_block) const {
    return b < sink_blocks || b >= query_block - recent_blocks;
  }
};

using SeqId = int64_t;

// All bytes that the cache holds, as allocated.
struct CacheBytes {
  size_t payload = 0;  // codes (and f16 values) of sealed blocks, with their padding
  size_t scales = 0;   // log8 scales and side info of sealed blocks
  size_t window = 0;   // open blocks: recent window, sinks, blocks kept for rollback; and one block
                       // a sequence that is sealed ahead
  size_t sliding = 0;  // blocks of layers with a sliding window
  size_t tables = 0;   // centre tables and constants (page tables are not counted: 16 B a block)
  size_t total() const { return payload + scales + window + sliding + tables; }
};

struct TruncateResult {
  // True: the sequence equals one that was never longer, bit for bit. False: blocks whose open
  // rows were gone have been re-opened from their low-bit codes.
  bool exact = true;
};

class KvCache {
 public:
  static Result<std::unique_ptr<KvCache>> Create(CacheConfig config);
  ~KvCache();

  const CacheConfig& config() const { return config_; }
  const PrecisionRule& rule() const { return rule_; }
  const HeadFormat& format(int layer, int head) const {
    return config_.formats[static_cast<size_t>(layer) * config_.num_kv_heads + head];
  }

  SeqId NewSequence();
  // A second sequence with the same tokens; blocks are shared, the partial last one is copied at
  // the first append. kFailedPrecondition during an append.
  Result<SeqId> Fork(SeqId seq);
  Status Free(SeqId seq);
  // Committed tokens.
  Result<int64_t> Length(SeqId seq) const;
  // Keeps the first `len` tokens. Exact within rollback_len of the longest length that the sequence
  // has had: rows that were released then do not come back. Further back, layers with a sliding
  // window have lost what the next query would see: kFailedPrecondition (0 is always possible).
  Result<TruncateResult> Truncate(SeqId seq, int64_t len);

  // Reserves room for n more tokens. kResourceExhausted (with both numbers) leaves the sequence
  // as it was.
  Status BeginAppend(SeqId seq, int n);
  // k, v: [n][num_kv_heads][head_dim] float, K after RoPE. Writes open rows and seals every block
  // that a query of these tokens reads at low bits. Layers in any order, each once.
  Status AppendLayer(SeqId seq, int layer, const float* k, const float* v, ThreadPool& pool);
  Status CommitAppend(SeqId seq);
  // Forgets the tokens of an append that was not committed.
  Status AbortAppend(SeqId seq);

  CacheBytes Bytes() const;
  // Of Bytes().window: blocks that are being sealed ahead, one for each sequence beyond its window.
  size_t ahead_bytes() const;
  // Bytes of an FP16 cache for the same committed tokens (shared prefixes counted once a sequence;
  // sliding windows hold no more than themselves).
  size_t F16Bytes() const;
  WriteCounters counters() const { return counters_; }
  // Mean bits per value of sealed blocks over the layers that keep every token, everything counted;
  // 0 when there are none.
  double BitsPerValue() const;

  // --- For attention and tests --------------------------------------------------------------
  struct HeadLayout {
    HeadFormat format;
    OpenLayout open;
    RecordLayout record;
    int window = 0;            // of the layer; 0 = all tokens
    size_t open_offset = 0;    // in an open slot, or a window slot
    size_t record_offset = 0;  // in a sealed slot
    size_t side_offset = 0;    // of RecordSideInfo, in a sealed slot
    Rotation k_rotation, v_rotation;
    HeadCenter center;             // empty: none
    CodebookTable k_book, v_book;  // calibrated books
    AnchorScorer scorer;
  };
  const HeadLayout& layout(int layer, int head) const {
    return layouts_[static_cast<size_t>(layer) * config_.num_kv_heads + head];
  }
  // Slots of block b; nullptr where that form does not exist. Open and sealed ones are of the
  // layers that keep every token, window slots of the others.
  const std::byte* OpenSlot(SeqId seq, int64_t block) const;
  const std::byte* SealedSlot(SeqId seq, int64_t block) const;
  const std::byte* WindowSlot(SeqId seq, int64_t block) const;
  // Committed plus pending tokens.
  int64_t VisibleLength(SeqId seq) const;
  bool Exists(SeqId seq) const { return sequences_.count(seq) != 0; }
  // False once a truncation re-opened blocks from their codes: the sequence may differ from one
  // that was never longer.
  bool IsExact(SeqId seq) const { return sequences_.at(seq).exact; }
  const CenterTable& center_table() const { return center_table_; }
  // Bytes of the slots of a block, as OpenSlot and SealedSlot of a cache with equal formats gave
  // them; nullptr: it has no such form.
  struct BlockBytes {
    const std::byte* open = nullptr;
    const std::byte* sealed = nullptr;
    const std::byte* window = nullptr;
  };
  // A sequence of copies of these blocks (snapshot.h). kDataLoss names a block that cannot be.
  Result<SeqId> Import(int64_t length, std::span<const BlockBytes> blocks, bool exact);
  size_t open_slot_bytes() const { return open_slot_bytes_; }
  size_t sealed_slot_bytes() const { return sealed_slot_bytes_; }
  size_t window_slot_bytes() const { return window_slot_bytes_; }
  int64_t num_open_slots() const { return open_pool_.used(); }
  int64_t num_sealed_slots() const { return sealed_pool_.used(); }
  int64_t num_window_slots() const { return window_pool_.used(); }

 private:
  struct Block {
    SlotId open = kNoSlot;
    SlotId sealed = kNoSlot;
    SlotId window = kNoSlot;
  };
  struct Sequence {
    std::vector<Block> blocks;
    int64_t length = 0;
    int64_t pending = 0;  // tokens of an append in progress
    bool exact = true;    // see IsExact
    // Of that append:
    std::vector<bool> layer_written;
    std::vector<int64_t> newly_sealed;  // blocks that got a sealed slot
    std::vector<int64_t> sealing;       // those whose codes are still to be made (no fork had them)
    std::vector<bool> sealed_ahead;     // layers of the first of these that were made ahead
    // The block that leaves the window next, made a few layers a token, so that no step of decoding
    // pays for a whole block. Its codes wait here until it gets a slot.
    struct Ahead {
      int64_t block = -1;
      std::vector<bool> layers;       // done
      AlignedBuffer<std::byte> slot;  // allocated for the life of the sequence
    } ahead;
  };

  explicit KvCache(CacheConfig config);
  Result<Sequence*> Find(SeqId seq);
  Result<const Sequence*> Find(SeqId seq) const;
  // First block whose open rows may still be read when the sequence has `len` tokens.
  int64_t FirstOpenBlock(int64_t len) const;
  void ReleaseBlocksFrom(Sequence& s, int64_t first);
  void ReleaseOpenBehind(Sequence& s);
  // First block that layers with a window may still read when the next token is at `len`.
  int64_t FirstWindowBlock(int64_t len) const;
  bool has_full_layers() const { return open_slot_bytes_ > 0; }
  // The block to be made ahead of a sequence of `len` tokens; -1: none.
  int64_t AheadBlock(int64_t len) const;
  void SealHead(const HeadLayout& l, int64_t block_index, const std::byte* open,
                std::byte* slot) const;
  void Reopen(Block& b);

  CacheConfig config_;
  PrecisionRule rule_;
  std::vector<HeadLayout> layouts_;
  size_t open_slot_bytes_ = 0, sealed_slot_bytes_ = 0, window_slot_bytes_ = 0;
  int window_ = 0;  // of all layers that have one
  bool seals_ahead_ = false;
  size_t sealed_scale_bytes_ = 0;  // of one sealed slot: scales and side info
  BlockPool open_pool_, sealed_pool_, window_pool_;
  CenterTable center_table_;
  std::map<SeqId, Sequence> sequences_;
  SeqId next_seq_ = 1;
  WriteCounters counters_;
};

}  // namespace tq
