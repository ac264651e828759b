#include "turboquant/cache/cache.h"

#include <algorithm>
#include <atomic>
#include <mutex>

#include "turboquant/codec/decode.h"

namespace tq {

Status CacheConfig::Validate() const {
  const auto range = [](const char* what, int64_t value, int64_t low, int64_t high) -> Status {
    if (value >= low && value <= high) return OkStatus();
    return InvalidArgument("cache: ", what, " = ", value, "; it must be ", low, " to ", high);
  };
  TQ_RETURN_IF_ERROR(range("num_layers", num_layers, 1, 4096));
  TQ_RETURN_IF_ERROR(range("num_kv_heads", num_kv_heads, 1, 1024));
  TQ_RETURN_IF_ERROR(range("head_dim", head_dim, kMinHeadDim, kMaxHeadDim));
  TQ_RETURN_IF_ERROR(range("recent_len", recent_len, 0, 1 << 24));
  TQ_RETURN_IF_ERROR(range("sink_len", sink_len, 0, 1 << 24));
  TQ_RETURN_IF_ERROR(range("rollback_len", rollback_len, 0, 1 << 24));
  const size_t heads = static_cast<size_t>(num_layers) * num_kv_heads;
  if (formats.size() != heads) {
    return InvalidArgument("cache: ", formats.size(), " head formats for ", num_layers,
                           " layers x ", num_kv_heads, " KV heads = ", heads);
  }
  if (!centers.empty() && centers.size() != heads) {
    return InvalidArgument("cache: ", centers.size(), " centres for ", num_layers, " layers x ",
                           num_kv_heads, " KV heads = ", heads);
  }
  if (rope.rope_dim() > head_dim) {
    return InvalidArgument("cache: RoPE turns ", rope.rope_dim(), " channels of head_dim ",
                           head_dim);
  }
  for (size_t i = 0; i < heads; ++i) {
    const std::string where = StrCat("layer ", i / num_kv_heads, ", KV head ", i % num_kv_heads);
    TQ_RETURN_IF_ERROR(ValidateCodec(formats[i].k, Side::kK).WithContext(where + ", K"));
    TQ_RETURN_IF_ERROR(ValidateCodec(formats[i].v, Side::kV).WithContext(where + ", V"));
    if (formats[i].k.center != Center::kNone && centers.empty()) {
      return InvalidArgument(where,
                             ": center 'rope_mean' needs a mean; give centers, from a k bias "
                             "or a profile");
    }
    if (centers.empty()) continue;
    for (const HeadCenter::Pair& p : centers[i].pairs) {
      if (p.i < 0 || p.j < 0 || p.i >= head_dim || p.j >= head_dim || p.freq < -1 ||
          p.freq >= rope.rope_dim() / 2) {
        return InvalidArgument(where, ": centre pair (", p.i, ", ", p.j, ") at frequency ", p.freq,
                               " is outside head_dim ", head_dim, " or RoPE dimension ",
                               rope.rope_dim());
      }
    }
  }
  return OkStatus();
}

Result<std::unique_ptr<KvCache>> KvCache::Create(CacheConfig config) {
  TQ_RETURN_IF_ERROR(config.Validate());
  return std::unique_ptr<KvCache>(new KvCache(std::move(config)));
}

KvCache::~KvCache() = default;

KvCache::KvCache(CacheConfig config) : config_(std::move(config)) {
  rule_.sink_blocks = DivCeil(config_.sink_len, kPageLen);
  rule_.recent_blocks = DivCeil(config_.recent_len, kPageLen);
  const int head_dim = config_.head_dim;
  bool any_center = false;
  for (int layer = 0; layer < config_.num_layers; ++layer) {
    for (int head = 0; head < config_.num_kv_heads; ++head) {
      HeadLayout l;
      l.format = format(layer, head);
      l.open = OpenLayout::For(l.format, config_.recent, head_dim);
      l.record = RecordLayout::For(l.format, head_dim);
      l.open_offset = open_slot_bytes_;
      l.record_offset = sealed_slot_bytes_;
      open_slot_bytes_ += l.open.bytes;
      sealed_slot_bytes_ += l.record.bytes;
      sealed_scale_bytes_ += ScaleBytes(l.format.k) + ScaleBytes(l.format.v);
      l.k_rotation = Rotation(l.format.k.rotate, head_dim, config_.seed, layer, head, Side::kK);
      l.v_rotation = Rotation(l.format.v.rotate, head_dim, config_.seed, layer, head, Side::kV);
      if (l.format.k.center == Center::kRopeMean) {
        l.center = config_.centers[static_cast<size_t>(layer) * config_.num_kv_heads + head];
        any_center |= !l.center.empty();
      }
      layouts_.push_back(std::move(l));
    }
  }
  // The side info of all heads lies behind the records of the slot.
  for (HeadLayout& l : layouts_) {
    l.side_offset = sealed_slot_bytes_;
    sealed_slot_bytes_ += sizeof(RecordSideInfo);
    sealed_scale_bytes_ += sizeof(RecordSideInfo);
  }
  open_pool_ = BlockPool(open_slot_bytes_);
  sealed_pool_ = BlockPool(sealed_slot_bytes_);
  if (any_center) center_table_ = CenterTable(config_.rope);
}

Result<KvCache::Sequence*> KvCache::Find(SeqId seq) {
  const auto it = sequences_.find(seq);
  if (it == sequences_.end()) return NotFound("cache: there is no sequence ", seq);
  return &it->second;
}

Result<const KvCache::Sequence*> KvCache::Find(SeqId seq) const {
  const auto it = sequences_.find(seq);
  if (it == sequences_.end()) return NotFound("cache: there is no sequence ", seq);
  return &it->second;
}

SeqId KvCache::NewSequence() {
  const SeqId id = next_seq_++;
  sequences_[id];
  return id;
}

Result<SeqId> KvCache::Fork(SeqId seq) {
  TQ_ASSIGN_OR_RETURN(const Sequence* parent, Find(seq));
  if (parent->pending > 0) {
    return FailedPrecondition("cache: sequence ", seq, " cannot be forked during an append of ",
                              parent->pending, " tokens");
  }
  Sequence child;
  child.length = parent->length;
  child.blocks = parent->blocks;
  child.exact = parent->exact;
  for (const Block& b : child.blocks) {
    if (b.open != kNoSlot) open_pool_.AddRef(b.open);
    if (b.sealed != kNoSlot) sealed_pool_.AddRef(b.sealed);
  }
  const SeqId id = next_seq_++;
  sequences_[id] = std::move(child);
  return id;
}

void KvCache::ReleaseBlocksFrom(Sequence& s, int64_t first) {
  for (size_t b = static_cast<size_t>(first); b < s.blocks.size(); ++b) {
    if (s.blocks[b].open != kNoSlot) open_pool_.Release(s.blocks[b].open);
    if (s.blocks[b].sealed != kNoSlot) sealed_pool_.Release(s.blocks[b].sealed);
  }
  s.blocks.resize(std::min(s.blocks.size(), static_cast<size_t>(first)));
}

Status KvCache::Free(SeqId seq) {
  TQ_ASSIGN_OR_RETURN(Sequence * s, Find(seq));
  ReleaseBlocksFrom(*s, 0);
  sequences_.erase(seq);
  return OkStatus();
}

Result<int64_t> KvCache::Length(SeqId seq) const {
  TQ_ASSIGN_OR_RETURN(const Sequence* s, Find(seq));
  return s->length;
}

int64_t KvCache::VisibleLength(SeqId seq) const {
  const auto it = sequences_.find(seq);
  return it == sequences_.end() ? 0 : it->second.length + it->second.pending;
}

const std::byte* KvCache::OpenSlot(SeqId seq, int64_t block) const {
  const SlotId id = sequences_.at(seq).blocks[static_cast<size_t>(block)].open;
  return id == kNoSlot ? nullptr : open_pool_.data(id);
}

const std::byte* KvCache::SealedSlot(SeqId seq, int64_t block) const {
  const SlotId id = sequences_.at(seq).blocks[static_cast<size_t>(block)].sealed;
  return id == kNoSlot ? nullptr : sealed_pool_.data(id);
}

int64_t KvCache::FirstOpenBlock(int64_t len) const {
  const int64_t query_block = std::max<int64_t>(0, len - config_.rollback_len) / kPageLen;
  return std::max<int64_t>(0, query_block - rule_.recent_blocks);
}

Status KvCache::BeginAppend(SeqId seq, int n) {
  TQ_ASSIGN_OR_RETURN(Sequence * s, Find(seq));
  if (n <= 0) return InvalidArgument("cache: cannot append ", n, " tokens");
  if (s->pending > 0) {
    return FailedPrecondition("cache: sequence ", seq, " has an append of ", s->pending,
                              " tokens in progress");
  }
  const int64_t new_len = s->length + n;
  const int64_t num_blocks = DivCeil<int64_t>(new_len, kPageLen);
  const int64_t last_query_block = (new_len - 1) / kPageLen;

  // What is needed, before anything changes: new open slots, a private copy of a shared partial
  // block, sealed slots for blocks that leave the window.
  const int64_t old_blocks = static_cast<int64_t>(s->blocks.size());
  const bool partial = s->length % kPageLen != 0;
  const bool copy_last = partial && open_pool_.refs(s->blocks.back().open) > 1;
  std::vector<int64_t> to_seal;
  for (int64_t b = rule_.sink_blocks; b < last_query_block - rule_.recent_blocks; ++b) {
    if (b < old_blocks && s->blocks[static_cast<size_t>(b)].sealed != kNoSlot) continue;
    to_seal.push_back(b);
  }
  const size_t open_slots = static_cast<size_t>(num_blocks - old_blocks) + (copy_last ? 1 : 0);
  const size_t more = open_slots * open_slot_bytes_ + to_seal.size() * sealed_slot_bytes_;
  const size_t held = Bytes().total();
  if (config_.max_bytes != 0 && held + more > config_.max_bytes) {
    return ResourceExhausted("cache: ", n, " more tokens need ", more, " bytes beside ", held,
                             " in use; the limit is ", config_.max_bytes,
                             "; use fewer tokens or a format with fewer bits");
  }
  std::vector<SlotId> opened, sealed;
  const auto undo = [&] {
    for (const SlotId id : opened) open_pool_.Release(id);
    for (const SlotId id : sealed) sealed_pool_.Release(id);
    return ResourceExhausted("cache: out of memory for ", n, " more tokens (", more,
                             " bytes beside ", held,
                             " in use); use fewer tokens or a format with fewer bits");
  };
  for (size_t i = 0; i < open_slots; ++i) {
    const SlotId id = open_pool_.Allocate();
    if (id == kNoSlot) return undo();
    opened.push_back(id);
  }
  // A fork that shares the open block may have sealed it already; not one that is written to now.
  const int64_t full_blocks = s->length / kPageLen;
  const auto twin_of = [&](int64_t b) -> SlotId {
    if (b >= full_blocks) return kNoSlot;
    const SlotId open = s->blocks[static_cast<size_t>(b)].open;
    const BlockPool::Twin& twin = open_pool_.twin(open);
    return sealed_pool_.alive(twin.id) && sealed_pool_.generation(twin.id) == twin.generation
               ? twin.id
               : kNoSlot;
  };
  s->sealing.clear();
  for (const int64_t b : to_seal) {
    SlotId id = twin_of(b);
    if (id != kNoSlot) {
      sealed_pool_.AddRef(id);
    } else {
      id = sealed_pool_.Allocate();
      if (id == kNoSlot) {
        s->sealing.clear();
        return undo();
      }
      s->sealing.push_back(b);
    }
    sealed.push_back(id);
  }

  // Rows written into a slot make codes that were sealed from it before a truncation void.
  if (partial && !copy_last) open_pool_.twin(s->blocks.back().open) = {};
  size_t next_open = 0;
  if (copy_last) {
    Block& last = s->blocks.back();
    const SlotId copy = opened[next_open++];
    std::copy_n(open_pool_.data(last.open), open_slot_bytes_, open_pool_.data(copy));
    open_pool_.Release(last.open);
    last.open = copy;
  }
  s->blocks.resize(static_cast<size_t>(num_blocks));
  for (int64_t b = old_blocks; b < num_blocks; ++b) {
    s->blocks[static_cast<size_t>(b)].open = opened[next_open++];
  }
  for (size_t i = 0; i < to_seal.size(); ++i) {
    s->blocks[static_cast<size_t>(to_seal[i])].sealed = sealed[i];
  }
  s->newly_sealed = std::move(to_seal);
  s->pending = n;
  s->layer_written.assign(static_cast<size_t>(config_.num_layers), false);
  if (!center_table_.empty()) center_table_.EnsureBlocks(num_blocks);
  return OkStatus();
}

Status KvCache::AppendLayer(SeqId seq, int layer, const float* k, const float* v,
                            ThreadPool& pool) {
  TQ_ASSIGN_OR_RETURN(Sequence * s, Find(seq));
  if (s->pending == 0) {
    return FailedPrecondition("cache: sequence ", seq,
                              " has no append in progress; call BeginAppend");
  }
  if (layer < 0 || layer >= config_.num_layers || s->layer_written[static_cast<size_t>(layer)]) {
    return InvalidArgument("cache: layer ", layer, " of ", config_.num_layers,
                           " is out of range or was written in this append already");
  }
  const int heads = config_.num_kv_heads, head_dim = config_.head_dim;
  const int64_t first = s->length, end = s->length + s->pending;
  const size_t stride = static_cast<size_t>(heads) * head_dim;
  const int64_t first_block = first / kPageLen;
  const int64_t num_blocks = (end - 1) / kPageLen - first_block + 1;

  std::vector<WriteCounters> counters(static_cast<size_t>(heads * num_blocks));
  const auto write = [&](size_t task, int) {
    const int head = static_cast<int>(task % heads);
    const int64_t block = first_block + static_cast<int64_t>(task) / heads;
    const int64_t from = std::max(first, block * kPageLen);
    const int64_t to = std::min(end, (block + 1) * kPageLen);
    const HeadLayout& l = layout(layer, head);
    std::byte* base = open_pool_.data(s->blocks[static_cast<size_t>(block)].open) + l.open_offset;
    const size_t source =
        static_cast<size_t>(from - first) * stride + static_cast<size_t>(head) * head_dim;
    const int row = static_cast<int>(from % kPageLen), rows = static_cast<int>(to - from);
    const RowWriter kw{Side::kK, head_dim, l.open.k_bits, &l.k_rotation, &l.center, &center_table_};
    WriteOpenRows(kw, k + source, stride, from, row, rows, base + l.open.k_values,
                  reinterpret_cast<float*>(base + l.open.k_scales), &counters[task]);
    const RowWriter vw{Side::kV, head_dim, l.open.v_bits, &l.v_rotation, nullptr, nullptr};
    WriteOpenRows(vw, v + source, stride, from, row, rows, base + l.open.v_values,
                  reinterpret_cast<float*>(base + l.open.v_scales), &counters[task]);
  };
  const size_t num_writes = counters.size();
  // A single token is less work than waking a thread.
  if (s->pending < 8) {
    for (size_t task = 0; task < num_writes; ++task) write(task, 0);
  } else {
    pool.ParallelFor(num_writes, write);
  }
  for (size_t task = 0; task < num_writes; ++task) {
    if (counters_.nonfinite_values == 0 && counters[task].nonfinite_values > 0) {
      Log(config_.log, LogLevel::kWarning,
          StrCat("cache: a key or value of layer ", layer, ", KV head ", task % heads,
                 " at position ",
                 std::max(first, (first_block + static_cast<int64_t>(task) / heads) * kPageLen),
                 " or up to 63 later is not finite; it was stored as 0 (reported once, counted in "
                 "nonfinite_values)"));
    }
    counters_ += counters[task];
  }

  pool.ParallelFor(s->sealing.size() * heads, [&](size_t task, int) {
    const int head = static_cast<int>(task % heads);
    const Block& block = s->blocks[static_cast<size_t>(s->sealing[task / heads])];
    const HeadLayout& l = layout(layer, head);
    const std::byte* open = open_pool_.data(block.open) + l.open_offset;
    std::byte* slot = sealed_pool_.data(block.sealed);
    auto* record = reinterpret_cast<uint8_t*>(slot + l.record_offset);
    auto* info = reinterpret_cast<RecordSideInfo*>(slot + l.side_offset);
    SealSide(l.format.k, Side::kK, head_dim, l.open.k_bits, open + l.open.k_values,
             reinterpret_cast<const float*>(open + l.open.k_scales), record + l.record.k_codes,
             record + l.record.k_scales, &info->k_base, nullptr);
    SealSide(l.format.v, Side::kV, head_dim, l.open.v_bits, open + l.open.v_values,
             reinterpret_cast<const float*>(open + l.open.v_scales), record + l.record.v_codes,
             record + l.record.v_scales, &info->v_base, &info->v_bound);
    info->flags = 1;
  });
  s->layer_written[static_cast<size_t>(layer)] = true;
  return OkStatus();
}

Status KvCache::CommitAppend(SeqId seq) {
  TQ_ASSIGN_OR_RETURN(Sequence * s, Find(seq));
  if (s->pending == 0)
    return FailedPrecondition("cache: sequence ", seq, " has no append to commit");
  for (size_t layer = 0; layer < s->layer_written.size(); ++layer) {
    if (!s->layer_written[layer]) {
      return FailedPrecondition("cache: layer ", layer, " of ", config_.num_layers,
                                " was not written in this append");
    }
  }
  for (const int64_t b : s->sealing) {
    const Block& block = s->blocks[static_cast<size_t>(b)];
    open_pool_.twin(block.open) = {block.sealed, sealed_pool_.generation(block.sealed)};
  }
  s->length += s->pending;
  s->pending = 0;
  s->sealing.clear();
  s->newly_sealed.clear();
  ReleaseOpenBehind(*s);
  return OkStatus();
}

void KvCache::ReleaseOpenBehind(Sequence& s) {
  const int64_t end = std::min(FirstOpenBlock(s.length), static_cast<int64_t>(s.blocks.size()));
  // Blocks in front of these were released before: stop at the first that is gone.
  for (int64_t b = end - 1; b >= rule_.sink_blocks; --b) {
    Block& block = s.blocks[static_cast<size_t>(b)];
    if (block.open == kNoSlot) break;
    if (block.sealed == kNoSlot) continue;
    open_pool_.Release(block.open);
    block.open = kNoSlot;
  }
}

Status KvCache::AbortAppend(SeqId seq) {
  TQ_ASSIGN_OR_RETURN(Sequence * s, Find(seq));
  if (s->pending == 0) return OkStatus();
  for (const int64_t b : s->newly_sealed) {
    Block& block = s->blocks[static_cast<size_t>(b)];
    sealed_pool_.Release(block.sealed);
    block.sealed = kNoSlot;
  }
  s->pending = 0;
  s->sealing.clear();
  s->newly_sealed.clear();
  ReleaseBlocksFrom(*s, DivCeil<int64_t>(s->length, kPageLen));
  return OkStatus();
}

Result<TruncateResult> KvCache::Truncate(SeqId seq, int64_t len) {
  TQ_ASSIGN_OR_RETURN(Sequence * s, Find(seq));
  if (s->pending > 0) {
    return FailedPrecondition("cache: sequence ", seq, " cannot be truncated during an append");
  }
  if (len < 0 || len > s->length) {
    return InvalidArgument("cache: cannot truncate sequence ", seq, " of ", s->length,
                           " tokens to ", len);
  }
  TruncateResult result;
  if (len == s->length) return result;
  // Slots first, so that running out of memory changes nothing.
  const int64_t keep = DivCeil<int64_t>(len, kPageLen);
  const int64_t query_block = len / kPageLen;
  const int64_t first_needed =
      std::max<int64_t>(rule_.sink_blocks, query_block - rule_.recent_blocks);
  std::vector<std::pair<int64_t, SlotId>> reopened;
  for (int64_t b = first_needed; b < keep; ++b) {
    if (s->blocks[static_cast<size_t>(b)].open != kNoSlot) continue;
    const SlotId id = open_pool_.Allocate();
    if (id == kNoSlot) {
      for (const auto& r : reopened) open_pool_.Release(r.second);
      return ResourceExhausted("cache: out of memory for re-opening ", keep - first_needed,
                               " blocks of ", open_slot_bytes_, " bytes");
    }
    reopened.emplace_back(b, id);
  }
  ReleaseBlocksFrom(*s, keep);
  for (const auto& [b, id] : reopened) {
    s->blocks[static_cast<size_t>(b)].open = id;
    Reopen(s->blocks[static_cast<size_t>(b)]);
  }
  if (!reopened.empty()) {
    // f16 codes are the f16 rows, so nothing was lost there.
    result.exact = std::all_of(config_.formats.begin(), config_.formats.end(),
                               [](const HeadFormat& f) { return f.k.is_f16() && f.v.is_f16(); });
  }
  if (len % kPageLen != 0) {
    // The partial block will change: its sealed form is void.
    Block& last = s->blocks.back();
    if (last.sealed != kNoSlot) {
      sealed_pool_.Release(last.sealed);
      last.sealed = kNoSlot;
    }
  }
  s->length = len;
  s->exact = (s->exact && result.exact) || len == 0;
  return result;
}

void KvCache::Reopen(Block& b) {
  const int head_dim = config_.head_dim;
  std::vector<float> rows(static_cast<size_t>(kPageLen) * head_dim);
  const Rotation none;  // the rows are rotated and centred already
  WriteCounters ignored;
  const std::byte* slot = sealed_pool_.data(b.sealed);
  for (const HeadLayout& l : layouts_) {
    const auto* record = reinterpret_cast<const uint8_t*>(slot + l.record_offset);
    const auto* info = reinterpret_cast<const RecordSideInfo*>(slot + l.side_offset);
    std::byte* open = open_pool_.data(b.open) + l.open_offset;
    DecodeSealedSide(l.format.k, Side::kK, head_dim, record + l.record.k_codes,
                     record + l.record.k_scales, info->k_base, rows.data());
    WriteOpenRows({Side::kK, head_dim, l.open.k_bits, &none, nullptr, nullptr}, rows.data(),
                  head_dim, 0, 0, kPageLen, open + l.open.k_values,
                  reinterpret_cast<float*>(open + l.open.k_scales), &ignored);
    DecodeSealedSide(l.format.v, Side::kV, head_dim, record + l.record.v_codes,
                     record + l.record.v_scales, info->v_base, rows.data());
    WriteOpenRows({Side::kV, head_dim, l.open.v_bits, &none, nullptr, nullptr}, rows.data(),
                  head_dim, 0, 0, kPageLen, open + l.open.v_values,
                  reinterpret_cast<float*>(open + l.open.v_scales), &ignored);
  }
}

CacheBytes KvCache::Bytes() const {
  CacheBytes bytes;
  const size_t sealed = sealed_pool_.allocated_bytes();
  bytes.scales = static_cast<size_t>(sealed_pool_.used()) * sealed_scale_bytes_;
  bytes.payload = sealed - bytes.scales;
  bytes.window = open_pool_.allocated_bytes();
  bytes.tables = center_table_.bytes();
  return bytes;
}

size_t KvCache::F16Bytes() const {
  size_t tokens = 0;
  for (const auto& [id, s] : sequences_) tokens += static_cast<size_t>(s.length);
  return tokens * 2 * 2 * config_.num_layers * config_.num_kv_heads * config_.head_dim;
}

double KvCache::BitsPerValue() const {
  const double values = 2.0 * kPageLen * config_.head_dim * static_cast<double>(layouts_.size());
  return 8.0 * static_cast<double>(sealed_slot_bytes_) / values;
}

}  // namespace tq
