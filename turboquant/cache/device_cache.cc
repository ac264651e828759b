#include "turboquant/cache/device_cache.h"

#include <algorithm>

#include "turboquant/cache/append_tables.h"
#include "turboquant/cache/snapshot.h"
#include "turboquant/codec/fragment_layout.h"
#include "turboquant/codec/log8.h"

namespace tq {
namespace {

// Taken from the back: ascending.
std::vector<int32_t> FreeSlots(int64_t count) {
  std::vector<int32_t> slots(static_cast<size_t>(count));
  for (size_t i = 0; i < slots.size(); ++i) slots[i] = static_cast<int32_t>(slots.size() - 1 - i);
  return slots;
}

constexpr size_t kLog8Bytes = 256 * sizeof(float);
constexpr int kMaxAppend = 8;
constexpr int kMaxPrompt = 1 << 21;  // the blocks of a part are the second axis of a grid

}  // namespace

Result<std::unique_ptr<DeviceCache>> DeviceCache::Create(const CacheConfig& config,
                                                         const DeviceCacheOptions& options,
                                                         const DeviceStream& stream) {
  std::unique_ptr<DeviceCache> cache(new DeviceCache);
  TQ_ASSIGN_OR_RETURN(cache->schema_, KvCache::Create(config));
  for (int layer = 0; layer < config.num_layers; ++layer) {
    if (config.window(layer) > 0) {
      return Unsupported("device cache: layer ", layer, " has a sliding window of ",
                         config.window(layer),
                         " tokens; layers that keep all tokens are supported (attention takes a "
                         "window of its own)");
    }
  }
  if (options.max_sequences < 1 || options.max_tokens < 1 ||
      options.max_tokens > INT32_MAX - kPageLen || options.open_slots < 1 ||
      options.sealed_slots < 0 || options.open_slots > INT32_MAX ||
      options.sealed_slots > INT32_MAX) {
    return InvalidArgument("device cache: ", options.max_sequences, " sequences of ",
                           options.max_tokens, " tokens in ", options.open_slots, " open and ",
                           options.sealed_slots,
                           " sealed blocks; at least 1, 1, 1 and 0, below 2^31");
  }
  cache->options_ = options;
  cache->table_stride_ = DivCeil<int64_t>(options.max_tokens, kPageLen);
  const size_t sealed_slots = static_cast<size_t>(options.sealed_slots);
  const size_t open_slots = static_cast<size_t>(options.open_slots);
  LayerPart total;
  for (int layer = 0; layer < config.num_layers; ++layer) {
    LayerPart part = total;
    part.sealed_stride = part.side_stride = part.open_stride = 0;
    for (int h = 0; h < config.num_kv_heads; ++h) {
      const KvCache::HeadLayout& l = cache->layout(layer, h);
      cache->heads_.push_back({part.sealed_stride, part.side_stride, part.open_stride});
      part.sealed_stride += RoundUp(l.record.bytes, kDeviceRecordAlign);
      part.side_stride += RoundUp<size_t>(SideInfoBytes(l.format), kDeviceSideAlign);
      part.open_stride += l.open.bytes;
    }
    if (part.sealed_stride > UINT32_MAX || part.open_stride > UINT32_MAX) {
      return InvalidArgument("device cache: a block of a layer of ", part.open_stride, " bytes");
    }
    cache->layers_.push_back(part);
    total.sealed += sealed_slots * part.sealed_stride;
    total.sides += sealed_slots * part.side_stride;
    total.open += open_slots * part.open_stride;
  }
  TQ_ASSIGN_OR_RETURN(cache->sealed_, DeviceBuffer::Allocate(total.sealed));
  TQ_ASSIGN_OR_RETURN(cache->sides_, DeviceBuffer::Allocate(total.sides));
  TQ_ASSIGN_OR_RETURN(cache->open_, DeviceBuffer::Allocate(total.open));
  const size_t table_ints = 2 * cache->table_entries() + static_cast<size_t>(options.max_sequences);
  TQ_ASSIGN_OR_RETURN(cache->tables_, DeviceBuffer::Allocate(table_ints * sizeof(int32_t)));
  TQ_RETURN_IF_ERROR(cache->UploadCenterTable(stream));
  if (cache->CheckAppend().ok()) TQ_RETURN_IF_ERROR(cache->UploadAppendTables(stream));
  cache->free_sealed_ = FreeSlots(options.sealed_slots);
  cache->free_open_ = FreeSlots(options.open_slots);
  cache->sequences_.resize(static_cast<size_t>(options.max_sequences));
  for (int s = 0; s < options.max_sequences; ++s) {
    TQ_RETURN_IF_ERROR(cache->Clear(s, stream));
  }
  return cache;
}

Status DeviceCache::UploadCenterTable(const DeviceStream& stream) {
  if (schema_->center_table().empty()) return OkStatus();
  CenterTable table(config().rope);
  table.EnsureBlocks(table_stride_);
  const size_t offsets = table.num_slots() * 2 * kPageLen * sizeof(float);
  const size_t starts =
      static_cast<size_t>(table.num_blocks()) * table.num_slots() * 2 * sizeof(float);
  TQ_ASSIGN_OR_RETURN(center_, DeviceBuffer::Allocate(offsets + starts));
  TQ_RETURN_IF_ERROR(center_.Upload(table.CosOffsets(0), offsets, 0, stream));
  TQ_RETURN_IF_ERROR(center_.Upload(table.BlockStart(0), starts, offsets, stream));
  center_table_.offsets = center_.as<const float>();
  center_table_.starts = center_.as<const float>() + offsets / sizeof(float);
  center_table_.num_slots = static_cast<int32_t>(table.num_slots());
  center_table_.half = config().rope.rope_dim() / 2;
  center_table_.plain = 1.f / table.attention_scale();
  return stream.Synchronize();  // the source goes
}

Status DeviceCache::UploadAppendTables(const DeviceStream& stream) {
  const AppendTables tables = MakeAppendTables(*this);
  size_t end = 0;
  const auto next = [&end](size_t bytes) {
    const size_t offset = end;
    end += RoundUp<size_t>(bytes, 256);
    return offset;
  };
  const size_t head_bytes = tables.heads.size() * sizeof(AppendHead);
  const size_t center_bytes = tables.centers.size() * sizeof(AppendCenter);
  const size_t probe_bytes = tables.probes.size() * sizeof(float);
  const size_t heads = next(head_bytes), centers = next(center_bytes), probes = next(probe_bytes);
  const size_t log8 = next(kLog8Bytes), counters = next(sizeof(WriteCounters));
  TQ_ASSIGN_OR_RETURN(append_, DeviceBuffer::Allocate(counters + sizeof(WriteCounters)));
  TQ_RETURN_IF_ERROR(append_.Fill(0, stream));
  TQ_RETURN_IF_ERROR(append_.Upload(tables.heads.data(), head_bytes, heads, stream));
  TQ_RETURN_IF_ERROR(append_.Upload(tables.centers.data(), center_bytes, centers, stream));
  TQ_RETURN_IF_ERROR(append_.Upload(tables.probes.data(), probe_bytes, probes, stream));
  TQ_RETURN_IF_ERROR(append_.Upload(Log8Table(), kLog8Bytes, log8, stream));
  const std::byte* const base = append_.data();
  append_params_.heads = reinterpret_cast<const AppendHead*>(base + heads);
  append_params_.centers = reinterpret_cast<const AppendCenter*>(base + centers);
  append_params_.probes = reinterpret_cast<const float*>(base + probes);
  append_params_.log8 = reinterpret_cast<const float*>(base + log8);
  append_params_.counters = reinterpret_cast<unsigned long long*>(append_.data() + counters);
  append_params_.center_table = center_table_;
  TQ_RETURN_IF_ERROR(PrepareAppend(config().head_dim, &append_params_));
  return stream.Synchronize();  // the sources go
}

DeviceCache::LayerView DeviceCache::layer(int layer) const {
  const LayerPart& part = layers_[static_cast<size_t>(layer)];
  return {sealed_.data() + part.sealed, sides_.data() + part.sides, open_.data() + part.open,
          part.sealed_stride,           part.side_stride,           part.open_stride};
}

Status DeviceCache::UploadTables(int sequence, const DeviceStream& stream) {
  const Sequence& s = sequences_[static_cast<size_t>(sequence)];
  const size_t row = static_cast<size_t>(table_stride_) * sizeof(int32_t);
  const size_t at = static_cast<size_t>(sequence) * row;
  const int32_t length = static_cast<int32_t>(s.length);
  TQ_RETURN_IF_ERROR(tables_.Upload(s.sealed.data(), row, at, stream));
  TQ_RETURN_IF_ERROR(
      tables_.Upload(s.open.data(), row, table_entries() * sizeof(int32_t) + at, stream));
  TQ_RETURN_IF_ERROR(tables_.Upload(
      &length, sizeof(length),
      (2 * table_entries() + static_cast<size_t>(sequence)) * sizeof(int32_t), stream));
  return stream.Synchronize();  // the sources may go
}

Status DeviceCache::Clear(int sequence, const DeviceStream& stream) {
  if (sequence < 0 || sequence >= options_.max_sequences) {
    return NotFound("device cache: sequence ", sequence, " of ", options_.max_sequences);
  }
  Sequence& s = sequences_[static_cast<size_t>(sequence)];
  for (const int32_t slot : s.sealed) {
    if (slot >= 0) free_sealed_.push_back(slot);
  }
  for (const int32_t slot : s.open) {
    if (slot >= 0) free_open_.push_back(slot);
  }
  s.length = 0;
  s.sealed.assign(static_cast<size_t>(table_stride_), -1);
  s.open.assign(static_cast<size_t>(table_stride_), -1);
  return UploadTables(sequence, stream);
}

int64_t DeviceCache::FirstQuery(int64_t length) const {
  // The last token may be asked for again even where nothing is rolled back.
  return std::max<int64_t>(0, length - std::max(1, config().rollback_len));
}

bool DeviceCache::HasOpenFrom(int64_t b, int64_t first_query) const {
  return rule().ReadsOpen(b, std::max(b, first_query / kPageLen));
}

bool DeviceCache::HasOpen(int64_t b, int64_t length) const {
  return b * kPageLen < length && HasOpenFrom(b, FirstQuery(length));
}

bool DeviceCache::HasSealed(int64_t b, int64_t length) const {
  return b * kPageLen < length && !rule().ReadsOpen(b, (length - 1) / kPageLen);
}

Status DeviceCache::TakeSlots(Sequence* s, int64_t length, int64_t first_query, const char* what) {
  if (length > options_.max_tokens) {
    return ResourceExhausted("device cache: ", what, " of ", length, " tokens; max_tokens is ",
                             options_.max_tokens);
  }
  const int64_t num_blocks = DivCeil<int64_t>(length, kPageLen);
  for (int64_t b = 0; b < num_blocks; ++b) {
    for (const bool open : {false, true}) {
      std::vector<int32_t>& free = open ? free_open_ : free_sealed_;
      int32_t& slot = open ? s->open[static_cast<size_t>(b)] : s->sealed[static_cast<size_t>(b)];
      if (slot >= 0 || !(open ? HasOpenFrom(b, first_query) : HasSealed(b, length))) continue;
      if (free.empty()) {
        return ResourceExhausted("device cache: ", what, " of ", length,
                                 " tokens needs more than the ",
                                 open ? options_.open_slots : options_.sealed_slots,
                                 open ? " open" : " sealed", " blocks there are");
      }
      slot = free.back();
      free.pop_back();
    }
  }
  return OkStatus();
}

Status DeviceCache::Import(const KvCache& from, SeqId seq, int to, const DeviceStream& stream) {
  CacheConfig theirs = from.config();
  theirs.rollback_len = config().rollback_len;
  if (const std::string here = DescribeFormats(config()), there = DescribeFormats(theirs);
      here != there) {
    return InvalidArgument("device cache: the sequence to import lies in a cache of\n", there,
                           "this one is of\n", here, "both must be equal");
  }
  TQ_RETURN_IF_ERROR(Clear(to, stream));
  TQ_ASSIGN_OR_RETURN(const int64_t length, from.Length(seq));
  Sequence& s = sequences_[static_cast<size_t>(to)];
  if (const Status taken = TakeSlots(&s, length, FirstQuery(length), "a sequence"); !taken.ok()) {
    TQ_RETURN_IF_ERROR(Clear(to, stream));
    return taken;
  }
  s.length = length;
  s.first_query = FirstQuery(length);
  const int head_dim = config().head_dim;
  std::vector<std::byte> records, sides, open;
  for (int64_t b = 0; b * kPageLen < length; ++b) {
    const int32_t sealed_slot = s.sealed[static_cast<size_t>(b)];
    const int32_t open_slot = s.open[static_cast<size_t>(b)];
    const std::byte* const open_source = from.OpenSlot(seq, b);
    const std::byte* const sealed_source = from.SealedSlot(seq, b);
    if ((open_slot >= 0 && open_source == nullptr) ||
        (sealed_slot >= 0 && sealed_source == nullptr)) {
      TQ_RETURN_IF_ERROR(Clear(to, stream));
      return FailedPrecondition("device cache: block ", b, " of sequence ", seq,
                                " lacks a form that queries read");
    }
    for (int layer = 0; layer < config().num_layers; ++layer) {
      const LayerPart& part = layers_[static_cast<size_t>(layer)];
      records.resize(part.sealed_stride);
      sides.resize(part.side_stride);
      open.resize(part.open_stride);
      for (int h = 0; h < config().num_kv_heads; ++h) {
        const KvCache::HeadLayout& l = layout(layer, h);
        const HeadView view = head(layer, h);
        if (open_slot >= 0) {
          OpenToFragments(l.open, head_dim, open_source + l.open_offset, &open[view.open_offset]);
        }
        if (sealed_slot >= 0) {
          RecordToFragments(l.format, head_dim, sealed_source + l.record_offset,
                            &records[view.record_offset]);
          std::copy_n(sealed_source + l.side_offset, SideInfoBytes(l.format),
                      &sides[view.side_offset]);
        }
      }
      const auto at = [](size_t base, int32_t slot, size_t stride) {
        return base + static_cast<size_t>(slot) * stride;
      };
      if (open_slot >= 0) {
        TQ_RETURN_IF_ERROR(open_.Upload(open.data(), open.size(),
                                        at(part.open, open_slot, part.open_stride), stream));
      }
      if (sealed_slot >= 0) {
        TQ_RETURN_IF_ERROR(sealed_.Upload(records.data(), records.size(),
                                          at(part.sealed, sealed_slot, part.sealed_stride),
                                          stream));
        TQ_RETURN_IF_ERROR(sides_.Upload(sides.data(), sides.size(),
                                         at(part.sides, sealed_slot, part.side_stride), stream));
      }
      TQ_RETURN_IF_ERROR(stream.Synchronize());  // the staging memory is used again
    }
  }
  return UploadTables(to, stream);
}

Status DeviceCache::Export(int sequence, int64_t block, std::byte* open, std::byte* sealed,
                           const DeviceStream& stream) const {
  if (sequence < 0 || sequence >= options_.max_sequences || block < 0 || block >= table_stride_) {
    return NotFound("device cache: block ", block, " of sequence ", sequence);
  }
  const Sequence& s = sequences_[static_cast<size_t>(sequence)];
  const int32_t open_slot = s.open[static_cast<size_t>(block)];
  const int32_t sealed_slot = s.sealed[static_cast<size_t>(block)];
  if ((open != nullptr && open_slot < 0) || (sealed != nullptr && sealed_slot < 0)) {
    return NotFound("device cache: block ", block, " of sequence ", sequence, " is not ",
                    open != nullptr && open_slot < 0 ? "open" : "sealed");
  }
  const int head_dim = config().head_dim;
  std::vector<std::byte> bytes;
  const auto download = [&](const DeviceBuffer& from, size_t base, int32_t slot,
                            size_t stride) -> Status {
    bytes.resize(stride);
    TQ_RETURN_IF_ERROR(
        from.Download(bytes.data(), stride, base + static_cast<size_t>(slot) * stride, stream));
    return stream.Synchronize();
  };
  for (int layer = 0; layer < config().num_layers; ++layer) {
    const LayerPart& part = layers_[static_cast<size_t>(layer)];
    if (open != nullptr) {
      TQ_RETURN_IF_ERROR(download(open_, part.open, open_slot, part.open_stride));
      for (int h = 0; h < config().num_kv_heads; ++h) {
        const KvCache::HeadLayout& l = layout(layer, h);
        OpenFromFragments(l.open, head_dim, &bytes[head(layer, h).open_offset],
                          open + l.open_offset);
      }
    }
    if (sealed != nullptr) {
      TQ_RETURN_IF_ERROR(download(sealed_, part.sealed, sealed_slot, part.sealed_stride));
      for (int h = 0; h < config().num_kv_heads; ++h) {
        const KvCache::HeadLayout& l = layout(layer, h);
        RecordFromFragments(l.format, head_dim, &bytes[head(layer, h).record_offset],
                            sealed + l.record_offset);
      }
      TQ_RETURN_IF_ERROR(download(sides_, part.sides, sealed_slot, part.side_stride));
      for (int h = 0; h < config().num_kv_heads; ++h) {
        const KvCache::HeadLayout& l = layout(layer, h);
        std::copy_n(&bytes[head(layer, h).side_offset], SideInfoBytes(l.format),
                    sealed + l.side_offset);
      }
    }
  }
  return OkStatus();
}

void DeviceCache::ShuffleFreeSlots(uint64_t seed) {
  for (std::vector<int32_t>* slots : {&free_open_, &free_sealed_}) {
    for (size_t i = slots->size(); i > 1; --i) {
      std::swap((*slots)[i - 1], (*slots)[SplitMix64(seed) % i]);
    }
  }
}

Status DeviceCache::RepeatSlots(int64_t open, int64_t sealed, const DeviceStream& stream) {
  // Doubles what is filled.
  const auto repeat = [&](const DeviceBuffer& pool, size_t base, size_t stride, int64_t filled,
                          int64_t slots) -> Status {
    while (filled < slots) {
      const int64_t more = std::min(filled, slots - filled);
      TQ_RETURN_IF_ERROR(pool.Copy(pool, static_cast<size_t>(more) * stride, base,
                                   base + static_cast<size_t>(filled) * stride, stream));
      filled += more;
    }
    return OkStatus();
  };
  for (const LayerPart& l : layers_) {
    TQ_RETURN_IF_ERROR(repeat(sealed_, l.sealed, l.sealed_stride, sealed, options_.sealed_slots));
    TQ_RETURN_IF_ERROR(repeat(sides_, l.sides, l.side_stride, sealed, options_.sealed_slots));
    TQ_RETURN_IF_ERROR(repeat(open_, l.open, l.open_stride, open, options_.open_slots));
  }
  return stream.Synchronize();
}

Status DeviceCache::Claim(int to, int64_t length, const DeviceStream& stream) {
  TQ_RETURN_IF_ERROR(Clear(to, stream));
  Sequence& s = sequences_[static_cast<size_t>(to)];
  TQ_RETURN_IF_ERROR(TakeSlots(&s, length, FirstQuery(length), "a sequence"));
  s.length = length;
  s.first_query = FirstQuery(length);
  return UploadTables(to, stream);
}

Status DeviceCache::CheckAppend() const {
  const CacheConfig& c = config();
  const bool fits = c.head_dim == 64 || c.head_dim == 128 || c.head_dim == 256;
  const auto head = std::find_if(c.formats.begin(), c.formats.end(), [&](const HeadFormat& f) {
    return !fits || !CanAppend(f, c.recent);
  });
  if (head == c.formats.end()) return OkStatus();
  const auto index = head - c.formats.begin();
  return Unsupported("device cache: tokens of ", PresetName(*head), " (layer ",
                     index / c.num_kv_heads, ", KV head ", index % c.num_kv_heads, ") at head_dim ",
                     c.head_dim, c.recent == RecentType::kQ8 ? "" : " with a 16-bit window",
                     " cannot be appended on the device; supported: ", kDeviceFormats,
                     ", anchors beside 2 to 4 bits with a log8 scale a token; an 8-bit window, or "
                     "with floats a 16-bit one; head_dim 64, 128 and 256");
}

Status DeviceCache::Reserve(int sequence, int n, const DeviceStream& stream) {
  if (sequence < 0 || sequence >= options_.max_sequences || n < 1) {
    return InvalidArgument("device cache: ", n, " tokens of sequence ", sequence, " of ",
                           options_.max_sequences, "; at least 1");
  }
  Sequence& s = sequences_[static_cast<size_t>(sequence)];
  const int64_t length = s.length + n;
  // Every new token is a query, and its window is read from open rows.
  const int64_t first_query = std::min(s.length, FirstQuery(length));
  const Sequence before = s;
  const std::vector<int32_t> free_sealed = free_sealed_, free_open = free_open_;
  if (const Status taken = TakeSlots(&s, length, first_query, "a sequence"); !taken.ok()) {
    s = before;
    free_sealed_ = free_sealed;
    free_open_ = free_open;
    return taken;
  }
  for (int64_t b = 0; b * kPageLen < s.length; ++b) {
    int32_t& slot = s.open[static_cast<size_t>(b)];
    // Blocks that are sealed now are still read.
    if (slot < 0 || HasOpenFrom(b, first_query) || !HasSealed(b, s.length)) continue;
    free_open_.push_back(slot);
    slot = -1;
  }
  const bool changed = s.sealed != before.sealed || s.open != before.open;
  s.length = length;
  s.first_query = first_query;
  if (!changed) return OkStatus();
  const size_t row = static_cast<size_t>(table_stride_) * sizeof(int32_t);
  const size_t at = static_cast<size_t>(sequence) * row;
  TQ_RETURN_IF_ERROR(tables_.Upload(s.sealed.data(), row, at, stream));
  TQ_RETURN_IF_ERROR(
      tables_.Upload(s.open.data(), row, table_entries() * sizeof(int32_t) + at, stream));
  return stream.Synchronize();
}

Status DeviceCache::Advance(const int32_t* sequences, int batch, int n,
                            const DeviceStream& stream) const {
  return LaunchAdvance(lengths(), sequences, batch, n, stream.handle());
}

AppendParams DeviceCache::ParamsOf(int layer, const void* k, const void* v, DeviceIo io) const {
  const int heads = config().num_kv_heads;
  const LayerView view = this->layer(layer);
  AppendParams p = append_params_;
  p.sealed = reinterpret_cast<uint8_t*>(view.sealed);
  p.side_infos = reinterpret_cast<uint8_t*>(view.sides);
  p.open = reinterpret_cast<uint8_t*>(view.open);
  p.sealed_stride = static_cast<uint32_t>(view.sealed_stride);
  p.side_stride = static_cast<uint32_t>(view.side_stride);
  p.open_stride = static_cast<uint32_t>(view.open_stride);
  p.sealed_table = sealed_table();
  p.open_table = open_table();
  p.table_stride = table_stride_;
  p.num_sequences = options_.max_sequences;
  p.lengths = lengths();
  p.num_kv_heads = heads;
  p.sink_blocks = rule().sink_blocks;
  p.recent_blocks = rule().recent_blocks;
  p.heads += static_cast<size_t>(layer) * heads;
  p.k = k;
  p.v = v;
  p.io = io;
  return p;
}

Status DeviceCache::Append(int layer, const int32_t* sequences, int batch, int n, const void* k,
                           const void* v, DeviceIo io, const DeviceStream& stream) const {
  TQ_RETURN_IF_ERROR(CheckAppend());
  if (layer < 0 || layer >= config().num_layers || batch < 1 || n < 1 || n > kMaxAppend) {
    return InvalidArgument("device cache: append of ", n, " tokens of ", batch,
                           " sequences to layer ", layer, " of ", config().num_layers, "; 1 to ",
                           kMaxAppend, " tokens at a time (AppendPrompt takes more)");
  }
  AppendParams p = ParamsOf(layer, k, v, io);
  p.sequences = sequences;
  p.batch = batch;
  p.num_tokens = n;
  return LaunchAppend(config().head_dim, p, stream.handle());
}

Status DeviceCache::AppendPrompt(int layer, int sequence, int n, const void* k, const void* v,
                                 DeviceIo io, const DeviceStream& stream) const {
  TQ_RETURN_IF_ERROR(CheckAppend());
  if (layer < 0 || layer >= config().num_layers || sequence < 0 ||
      sequence >= options_.max_sequences || n < 1 || n > length(sequence) || n > kMaxPrompt) {
    return InvalidArgument("device cache: append of ", n, " tokens of sequence ", sequence, " of ",
                           options_.max_sequences, " to layer ", layer, " of ", config().num_layers,
                           "; at most ", kMaxPrompt, " at a time, and Reserve comes first");
  }
  if (reinterpret_cast<uintptr_t>(k) % 16 != 0 || reinterpret_cast<uintptr_t>(v) % 16 != 0) {
    return InvalidArgument("device cache: keys at ", k, " and values at ", v,
                           "; parts of a prompt begin at multiples of 16 bytes");
  }
  AppendParams p = ParamsOf(layer, k, v, io);
  p.num_tokens = n;
  p.prompt_sequence = sequence;
  p.prompt_length = static_cast<int32_t>(length(sequence));
  return LaunchAppendPrompt(config().head_dim, p, stream.handle());
}

Result<WriteCounters> DeviceCache::Counters(const DeviceStream& stream) const {
  WriteCounters counters;
  if (append_.size() == 0) return counters;
  TQ_RETURN_IF_ERROR(
      append_.Download(&counters, sizeof(counters), append_.size() - sizeof(counters), stream));
  TQ_RETURN_IF_ERROR(stream.Synchronize());
  return counters;
}

}  // namespace tq
