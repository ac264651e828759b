// The cache of cache.h in the memory of a CUDA device.
//
// Same blocks, same formats, same bytes, with codes in fragment order (codec/fragment_layout.h);
// records and side infos begin at multiples of what copies to shared memory want.
// Differences are in the pools: slots are laid out layer by layer, so that a kernel of one layer
// sees dense arrays, they are all allocated at once, and page tables and lengths lie in device
// memory too.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "turboquant/base/device.h"
#include "turboquant/base/status.h"
#include "turboquant/cache/append_params.h"
#include "turboquant/cache/cache.h"

namespace tq {

struct DeviceCacheOptions {
  int max_sequences = 1;
  int64_t max_tokens = 0;                    // of one sequence
  int64_t open_slots = 0, sealed_slots = 0;  // blocks of all sequences together
};

// Side infos begin at multiples of this, as copies to shared memory want it: 8 bytes a record more
// than on the CPU where there are no anchors.
inline constexpr size_t kDeviceSideAlign = 16;
// Records begin at multiples of this (docs/decisions/aligned-copies.md): few are longer for it.
inline constexpr size_t kDeviceRecordAlign = 128;

class DeviceCache {
 public:
  // kUnavailable without a device, kResourceExhausted when it is too small (both numbers).
  static Result<std::unique_ptr<DeviceCache>> Create(const CacheConfig& config,
                                                     const DeviceCacheOptions& options,
                                                     const DeviceStream& stream);

  const CacheConfig& config() const { return schema_->config(); }
  const PrecisionRule& rule() const { return schema_->rule(); }
  const DeviceCacheOptions& options() const { return options_; }

  // Forms of block b that a sequence of `length` tokens has: what its next query reads, and open
  // rows rollback_len tokens longer, as in KvCache.
  bool HasOpen(int64_t b, int64_t length) const;
  bool HasSealed(int64_t b, int64_t length) const;

  // Replaces sequence `to` (0 to max_sequences - 1) by a copy of one of a CPU cache with equal
  // formats; waits. kResourceExhausted when slots run out, then `to` is empty.
  Status Import(const KvCache& from, SeqId seq, int to, const DeviceStream& stream);
  // Copies the bytes of a block back, in the order of the CPU: [open_slot_bytes] and
  // [sealed_slot_bytes] of KvCache; nullptr for a form that is not wanted; waits.
  // kNotFound when the block does not have that form.
  Status Export(int sequence, int64_t block, std::byte* open, std::byte* sealed,
                const DeviceStream& stream) const;
  // Frees the blocks of a sequence.
  Status Clear(int sequence, const DeviceStream& stream);
  int64_t length(int sequence) const { return sequences_[static_cast<size_t>(sequence)].length; }
  // Queries from this position on find their open rows.
  int64_t first_query(int sequence) const {
    return sequences_[static_cast<size_t>(sequence)].first_query;
  }

  // A decode step of a batch: Reserve each sequence (host only, but for table entries that change),
  // Advance once, then for each layer Append and attention. Advance and Append are launches that
  // read lengths and tables when they run: a graph of them can be replayed. n: 1 to 8 tokens.
  // A part of a prompt: Reserve, Advance, then for each layer AppendPrompt and DevicePrefill.
  //
  // Slots for n more tokens, of which each may be a query, and for the blocks that leave the
  // window; frees open rows that neither they nor a truncation reach. kResourceExhausted leaves the
  // sequence as it was.
  Status Reserve(int sequence, int n, const DeviceStream& stream);
  // Lengths of `sequences` (device memory, [batch]) grow by n.
  Status Advance(const int32_t* sequences, int batch, int n, const DeviceStream& stream) const;
  // k, v: device memory, [batch][n][num_kv_heads][head_dim], K after RoPE: the last n tokens of
  // each sequence. Writes open rows and seals the block that leaves the window.
  Status Append(int layer, const int32_t* sequences, int batch, int n, const void* k, const void* v,
                DeviceIo io, const DeviceStream& stream) const;
  // The last n tokens, any number, of one sequence that has been reserved; k, v: device memory at
  // multiples of 16 bytes, [n][num_kv_heads][head_dim]. Writes open rows and seals every block that
  // the last token reads at low bits. The same bytes as Append.
  Status AppendPrompt(int layer, int sequence, int n, const void* k, const void* v, DeviceIo io,
                      const DeviceStream& stream) const;
  // OK when Append can write and seal every head, a centre included; else kUnsupported, naming what
  // is supported.
  Status CheckAppend() const;
  // Of all appends; waits.
  Result<WriteCounters> Counters(const DeviceStream& stream) const;

  // One layer as its kernels see it.
  struct LayerView {
    std::byte* sealed = nullptr;  // [slot][sealed_stride]: the records of the heads
    std::byte* sides = nullptr;   // [slot][side_stride]: their side infos
    std::byte* open = nullptr;    // [slot][open_stride]
    size_t sealed_stride = 0, side_stride = 0, open_stride = 0;
  };
  struct HeadView {
    size_t record_offset = 0, side_offset = 0, open_offset = 0;  // in the layer's part of a slot
  };
  LayerView layer(int layer) const;
  HeadView head(int layer, int head) const {
    return heads_[static_cast<size_t>(layer) * config().num_kv_heads + head];
  }
  const KvCache::HeadLayout& layout(int layer, int head) const {
    return schema_->layout(layer, head);
  }
  // [max_sequences][table_stride] slots by block, -1: none; [max_sequences] lengths.
  const int32_t* sealed_table() const { return tables_.as<int32_t>(); }
  const int32_t* open_table() const { return sealed_table() + table_entries(); }
  int32_t* lengths() const { return tables_.as<int32_t>() + 2 * table_entries(); }
  int64_t table_stride() const { return table_stride_; }

  // Of the centres; num_slots 0: no head has one.
  const DeviceCenterTable& center_table() const { return center_table_; }

  // Device memory in all.
  size_t bytes() const {
    return sealed_.size() + sides_.size() + open_.size() + tables_.size() + center_.size() +
           append_.size();
  }
  // For tests and benchmarks: free slots are handed out in a random order from now on. Before that
  // they come in ascending order.
  void ShuffleFreeSlots(uint64_t seed);
  // For benchmarks: every slot becomes a copy of one of the first ones of its pool; waits.
  Status RepeatSlots(int64_t open, int64_t sealed, const DeviceStream& stream);
  // For benchmarks: sequence `to` of `length` tokens in slots of its own; open and sealed rows are
  // whatever its slots hold.
  Status Claim(int to, int64_t length, const DeviceStream& stream);

 private:
  struct Sequence {
    int64_t length = 0;
    int64_t first_query = 0;            // whose window is still open
    std::vector<int32_t> sealed, open;  // by block; -1: none
  };
  struct LayerPart {  // of each pool, in bytes
    size_t sealed = 0, sides = 0, open = 0;
    size_t sealed_stride = 0, side_stride = 0, open_stride = 0;
  };

  size_t table_entries() const {
    return static_cast<size_t>(options_.max_sequences) * static_cast<size_t>(table_stride_);
  }
  Status UploadTables(int sequence, const DeviceStream& stream);
  Status UploadCenterTable(const DeviceStream& stream);
  Status UploadAppendTables(const DeviceStream& stream);
  // What queries from position `first_query` on read, besides what is sealed.
  bool HasOpenFrom(int64_t b, int64_t first_query) const;
  // The first position that may be a query again in a sequence of `length` tokens.
  int64_t FirstQuery(int64_t length) const;
  Status TakeSlots(Sequence* s, int64_t length, int64_t first_query, const char* what);
  AppendParams ParamsOf(int layer, const void* k, const void* v, DeviceIo io) const;

  std::unique_ptr<KvCache> schema_;  // without sequences: layouts and the rule
  DeviceCacheOptions options_;
  int64_t table_stride_ = 0;
  std::vector<LayerPart> layers_;
  std::vector<HeadView> heads_;
  DeviceBuffer sealed_, sides_, open_, tables_;
  DeviceBuffer center_;
  DeviceCenterTable center_table_;
  DeviceBuffer append_;         // what append_params_ points to; empty: not supported
  AppendParams append_params_;  // what all layers share
  std::vector<int32_t> free_sealed_, free_open_;  // taken from the back
  std::vector<Sequence> sequences_;
};

}  // namespace tq
