#include "turboquant/cache/cache.h"

#include <algorithm>
#include <atomic>
#include <mutex>

#include "turboquant/codec/decode.h"

namespace tq {

Result<std::unique_ptr<KvCache>> KvCache::Create(CacheConfig config) {
  TQ_RETURN_IF_ERROR(config.Validate());
  return std::unique_ptr<KvCache>(new KvCache(std::move(config)));
}

KvCache::~KvCache() = default;

KvCache::KvCache(CacheConfig config) : config_(std::move(config)) {
  rule_.sink_blocks = DivCeil(config_.sink_len, kPageLen);
  rule_.recent_blocks = DivCeil(config_.recent_len, kPageLen);
  const int head_dim = config_.head_dim;
  bool need_rope = false, quantized = false;
  for (int layer = 0; layer < config_.num_layers; ++layer) {
    for (int head = 0; head < config_.num_kv_heads; ++head) {
      HeadLayout l;
      l.format = format(layer, head);
      l.open = OpenLayout::For(l.format, config_.recent, head_dim);
      l.record = RecordLayout::For(l.format, head_dim);
      l.window = config_.window(layer);
      if (l.window > 0) {
        window_ = l.window;
        l.open_offset = window_slot_bytes_;
        window_slot_bytes_ += l.open.bytes;
      } else {
        l.open_offset = open_slot_bytes_;
        l.record_offset = sealed_slot_bytes_;
        open_slot_bytes_ += l.open.bytes;
        sealed_slot_bytes_ += l.record.bytes;
        sealed_scale_bytes_ += ScaleBytes(l.format.k, head_dim) + ScaleBytes(l.format.v, head_dim);
        quantized |= !l.format.k.is_float() || !l.format.v.is_float();
      }
      const size_t index = static_cast<size_t>(layer) * config_.num_kv_heads + head;
      const HeadTensors* tensors = config_.tensors.empty() ? nullptr : &config_.tensors[index];
      // Tensors were validated.
      const auto rotation = [&](const Codec& codec, Side side) {
        return codec.rotate == Rotate::kMatrix
                   ? *Rotation::FromMatrix(side == Side::kK ? tensors->k_matrix : tensors->v_matrix,
                                           head_dim)
                   : Rotation(codec.rotate, head_dim, config_.seed, layer, head, side);
      };
      l.k_rotation = rotation(l.format.k, Side::kK);
      l.v_rotation = rotation(l.format.v, Side::kV);
      if (l.format.k.codebook == Codebook::kCalibrated) l.k_book = *MakeCodebook(tensors->k_levels);
      if (l.format.v.codebook == Codebook::kCalibrated) l.v_book = *MakeCodebook(tensors->v_levels);
      if (l.format.k.center == Center::kRopeMean) {
        l.center = config_.centers[index];
        need_rope |= !l.center.empty();
      }
      if (l.format.anchors > 0) {
        l.scorer = AnchorScorer(tensors->queries, config_.rope, head_dim, l.center,
                                rule_.recent_blocks * kPageLen);
        need_rope = true;
      }
      layouts_.push_back(std::move(l));
    }
  }
  // The side info of all heads lies behind the records of the slot.
  for (HeadLayout& l : layouts_) {
    if (l.window > 0) continue;
    l.side_offset = sealed_slot_bytes_;
    sealed_slot_bytes_ += SideInfoBytes(l.format);
    sealed_scale_bytes_ += SideInfoBytes(l.format);
  }
  // Without a window a block is sealed as soon as it is full; float rows are only copied.
  seals_ahead_ = rule_.recent_blocks > 0 && quantized;
  open_pool_ = BlockPool(open_slot_bytes_);
  sealed_pool_ = BlockPool(sealed_slot_bytes_);
  window_pool_ = BlockPool(window_slot_bytes_);
  if (need_rope) center_table_ = CenterTable(config_.rope);
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
    if (b.window != kNoSlot) window_pool_.AddRef(b.window);
  }
  const SeqId id = next_seq_++;
  sequences_[id] = std::move(child);
  return id;
}

void KvCache::ReleaseBlocksFrom(Sequence& s, int64_t first) {
  for (size_t b = static_cast<size_t>(first); b < s.blocks.size(); ++b) {
    if (s.blocks[b].open != kNoSlot) open_pool_.Release(s.blocks[b].open);
    if (s.blocks[b].sealed != kNoSlot) sealed_pool_.Release(s.blocks[b].sealed);
    if (s.blocks[b].window != kNoSlot) window_pool_.Release(s.blocks[b].window);
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

const std::byte* KvCache::WindowSlot(SeqId seq, int64_t block) const {
  const SlotId id = sequences_.at(seq).blocks[static_cast<size_t>(block)].window;
  return id == kNoSlot ? nullptr : window_pool_.data(id);
}

int64_t KvCache::FirstWindowBlock(int64_t len) const {
  return std::max<int64_t>(0, len + 1 - window_) / kPageLen;
}

int64_t KvCache::FirstOpenBlock(int64_t len) const {
  const int64_t query_block = std::max<int64_t>(0, len - config_.rollback_len) / kPageLen;
  return std::max<int64_t>(0, query_block - rule_.recent_blocks);
}

int64_t KvCache::AheadBlock(int64_t len) const {
  const int64_t block = (len - 1) / kPageLen - rule_.recent_blocks;
  return seals_ahead_ && block >= rule_.sink_blocks ? block : -1;
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
  const bool has_full = has_full_layers(), has_windows = window_ > 0;
  const auto shared = [&](BlockPool& pool, SlotId Block::*slot) {
    return partial && pool.refs(s->blocks.back().*slot) > 1;
  };
  const bool copy_last = has_full && shared(open_pool_, &Block::open);
  const bool copy_window = has_windows && shared(window_pool_, &Block::window);
  std::vector<int64_t> to_seal;
  const int64_t seal_end = has_full ? last_query_block - rule_.recent_blocks : 0;
  for (int64_t b = rule_.sink_blocks; b < seal_end; ++b) {
    if (b < old_blocks && s->blocks[static_cast<size_t>(b)].sealed != kNoSlot) continue;
    to_seal.push_back(b);
  }
  const auto new_blocks = static_cast<size_t>(num_blocks - old_blocks);
  const size_t open_slots = has_full ? new_blocks + (copy_last ? 1 : 0) : 0;
  const size_t window_slots = has_windows ? new_blocks + (copy_window ? 1 : 0) : 0;
  const int64_t ahead_block = AheadBlock(new_len);
  const bool new_ahead = ahead_block >= 0 && s->ahead.slot.size() == 0;
  const size_t more = open_slots * open_slot_bytes_ + window_slots * window_slot_bytes_ +
                      (to_seal.size() + (new_ahead ? 1 : 0)) * sealed_slot_bytes_;
  const size_t held = Bytes().total();
  if (config_.max_bytes != 0 && held + more > config_.max_bytes) {
    return ResourceExhausted("cache: ", n, " more tokens need ", more, " bytes beside ", held,
                             " in use; the limit is ", config_.max_bytes,
                             "; use fewer tokens or a format with fewer bits");
  }
  std::vector<SlotId> opened, windows, sealed;
  const auto undo = [&] {
    for (const SlotId id : opened) open_pool_.Release(id);
    for (const SlotId id : windows) window_pool_.Release(id);
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
  for (size_t i = 0; i < window_slots; ++i) {
    const SlotId id = window_pool_.Allocate();
    if (id == kNoSlot) return undo();
    windows.push_back(id);
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
  if (partial && has_full && !copy_last) open_pool_.twin(s->blocks.back().open) = {};
  const auto hand_out = [&](BlockPool& pool, const std::vector<SlotId>& slots, bool copy,
                            SlotId Block::*slot) {
    size_t next = 0;
    if (copy) {
      SlotId& last = s->blocks[static_cast<size_t>(old_blocks) - 1].*slot;
      std::copy_n(pool.data(last), pool.slot_bytes(), pool.data(slots[next]));
      pool.Release(last);
      last = slots[next++];
    }
    for (int64_t b = old_blocks; next < slots.size(); ++b) {
      s->blocks[static_cast<size_t>(b)].*slot = slots[next++];
    }
  };
  s->blocks.resize(static_cast<size_t>(num_blocks));
  hand_out(open_pool_, opened, copy_last, &Block::open);
  hand_out(window_pool_, windows, copy_window, &Block::window);
  for (size_t i = 0; i < to_seal.size(); ++i) {
    s->blocks[static_cast<size_t>(to_seal[i])].sealed = sealed[i];
  }
  s->newly_sealed = std::move(to_seal);
  Sequence::Ahead& ahead = s->ahead;
  s->sealed_ahead.clear();
  if (!s->sealing.empty() && s->sealing.front() == ahead.block) {
    const SlotId slot = s->blocks[static_cast<size_t>(ahead.block)].sealed;
    std::copy_n(ahead.slot.data(), sealed_slot_bytes_, sealed_pool_.data(slot));
    s->sealed_ahead = ahead.layers;
  }
  if (ahead.block != ahead_block) {
    ahead.block = ahead_block;
    ahead.layers.assign(static_cast<size_t>(config_.num_layers), false);
    if (ahead_block >= 0) ahead.slot.Reserve(sealed_slot_bytes_);
  }
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
    const Block& slots = s->blocks[static_cast<size_t>(block)];
    std::byte* base =
        (l.window > 0 ? window_pool_.data(slots.window) : open_pool_.data(slots.open)) +
        l.open_offset;
    const size_t source =
        static_cast<size_t>(from - first) * stride + static_cast<size_t>(head) * head_dim;
    const int row = static_cast<int>(from % kPageLen), rows = static_cast<int>(to - from);
    const RowWriter kw{Side::kK, head_dim, l.open.k_type, &l.k_rotation, &l.center, &center_table_};
    WriteOpenRows(kw, k + source, stride, from, row, rows, base + l.open.k_values,
                  reinterpret_cast<float*>(base + l.open.k_scales), &counters[task]);
    const RowWriter vw{Side::kV, head_dim, l.open.v_type, &l.v_rotation, nullptr, nullptr};
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

  const size_t at = static_cast<size_t>(layer);
  s->layer_written[at] = true;
  if (config_.window(layer) > 0) return OkStatus();
  const size_t made =
      !s->sealed_ahead.empty() && s->sealed_ahead[at] ? 1 : 0;  // of the first block
  pool.ParallelFor((s->sealing.size() - made) * heads, [&](size_t task, int) {
    const int head = static_cast<int>(task % heads);
    const int64_t index = s->sealing[made + task / heads];
    const Block& block = s->blocks[static_cast<size_t>(index)];
    SealHead(layout(layer, head), index, open_pool_.data(block.open),
             sealed_pool_.data(block.sealed));
  });
  // Each layer of the next block has its turn at one of the 64 tokens before.
  Sequence::Ahead& ahead = s->ahead;
  const int64_t turn = static_cast<int64_t>(layer) * kPageLen / config_.num_layers;
  const int64_t in_block = (end - 1) / kPageLen * kPageLen;
  if (ahead.block >= 0 && !ahead.layers[at] && in_block + turn >= first && in_block + turn < end) {
    const std::byte* open = open_pool_.data(s->blocks[static_cast<size_t>(ahead.block)].open);
    pool.ParallelFor(static_cast<size_t>(heads), [&](size_t head, int) {
      SealHead(layout(layer, static_cast<int>(head)), ahead.block, open, ahead.slot.data());
    });
    ahead.layers[at] = true;
  }
  return OkStatus();
}

void KvCache::SealHead(const HeadLayout& l, int64_t block_index, const std::byte* open_slot,
                       std::byte* slot) const {
  const int head_dim = config_.head_dim;
  const std::byte* base = open_slot + l.open_offset;
  auto* record = reinterpret_cast<uint8_t*>(slot + l.record_offset);
  auto* info = reinterpret_cast<RecordSideInfo*>(slot + l.side_offset);
  const OpenSide k{Side::kK, head_dim, l.open.k_type, base + l.open.k_values,
                   reinterpret_cast<const float*>(base + l.open.k_scales)};
  const OpenSide v{Side::kV, head_dim, l.open.v_type, base + l.open.v_values,
                   reinterpret_cast<const float*>(base + l.open.v_scales)};
  SealSide(l.format.k, &l.k_book, k, record + l.record.k_codes, record + l.record.k_scales,
           &info->k_base, nullptr);
  SealSide(l.format.v, &l.v_book, v, record + l.record.v_codes, record + l.record.v_scales,
           &info->v_base, &info->v_bound);
  info->flags = 1;
  if (l.format.anchors == 0) return;
  std::vector<float> k_rows(static_cast<size_t>(kPageLen) * head_dim), v_rows(k_rows.size());
  DecodeSealedSide(l.format.k, &l.k_book, Side::kK, head_dim, record + l.record.k_codes,
                   record + l.record.k_scales, info->k_base, k_rows.data());
  DecodeSealedSide(l.format.v, &l.v_book, Side::kV, head_dim, record + l.record.v_codes,
                   record + l.record.v_scales, info->v_base, v_rows.data());
  SealAnchors({&l.format, &l.scorer, &l.k_rotation, &center_table_, block_index * kPageLen, k, v,
               k_rows.data(), v_rows.data()},
              record + l.record.k_anchors, record + l.record.v_anchors,
              reinterpret_cast<AnchorInfo*>(info + 1));
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
  // Of the windows, what a truncation within rollback_len needs is kept as well.
  for (int64_t b = FirstWindowBlock(std::max<int64_t>(0, s.length - config_.rollback_len)) - 1;
       b >= 0; --b) {
    SlotId& slot = s.blocks[static_cast<size_t>(b)].window;
    if (slot == kNoSlot) break;
    window_pool_.Release(slot);
    slot = kNoSlot;
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
  // What was made from rows that are forgotten now, or given away to a slot, is void.
  s->ahead.block = -1;
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
  if (const int64_t first = FirstWindowBlock(len);
      window_ > 0 && first < keep && s->blocks[static_cast<size_t>(first)].window == kNoSlot) {
    return FailedPrecondition(
        "cache: sequence ", seq, " of ", s->length, " tokens cannot be truncated to ", len,
        ": its layers with a sliding window of ", window_,
        " tokens have released what the next token would see; at most ", config_.rollback_len,
        " tokens (rollback_len) can be taken back, or all");
  }
  const int64_t query_block = len / kPageLen;
  const int64_t first_needed =
      std::max<int64_t>(rule_.sink_blocks, query_block - rule_.recent_blocks);
  std::vector<std::pair<int64_t, SlotId>> reopened;
  for (int64_t b = first_needed; has_full_layers() && b < keep; ++b) {
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
    // Float codes are the rows themselves, so nothing was lost there.
    result.exact = std::all_of(layouts_.begin(), layouts_.end(), [](const HeadLayout& l) {
      return l.window > 0 || (l.format.k.is_float() && l.format.v.is_float());
    });
  }
  if (len % kPageLen != 0) {
    // The partial block will change: its sealed form is void.
    Block& last = s->blocks.back();
    if (last.sealed != kNoSlot) {
      sealed_pool_.Release(last.sealed);
      last.sealed = kNoSlot;
    }
  }
  if ((s->ahead.block + 1) * kPageLen > len) s->ahead.block = -1;  // its rows will change
  s->length = len;
  s->exact = (s->exact && result.exact) || len == 0;
  return result;
}

void KvCache::Reopen(Block& b) {
  const int head_dim = config_.head_dim;
  std::vector<float> rows(static_cast<size_t>(kPageLen) * head_dim);
  float residual[kMaxHeadDim];
  const Rotation none;  // the rows are rotated and centred already
  WriteCounters ignored;
  const std::byte* slot = sealed_pool_.data(b.sealed);
  for (const HeadLayout& l : layouts_) {
    if (l.window > 0) continue;
    const auto* record = reinterpret_cast<const uint8_t*>(slot + l.record_offset);
    const auto* info = reinterpret_cast<const RecordSideInfo*>(slot + l.side_offset);
    std::byte* open = open_pool_.data(b.open) + l.open_offset;
    const auto* anchors = reinterpret_cast<const AnchorInfo*>(info + 1);
    const auto reopen = [&](Side side) {
      const bool is_k = side == Side::kK;
      DecodeSealedSide(is_k ? l.format.k : l.format.v, is_k ? &l.k_book : &l.v_book, side, head_dim,
                       record + (is_k ? l.record.k_codes : l.record.v_codes),
                       record + (is_k ? l.record.k_scales : l.record.v_scales),
                       is_k ? info->k_base : info->v_base, rows.data());
      for (int a = 0; a < l.format.anchors; ++a) {
        const size_t bytes = AnchorBytes(l.format, head_dim) / l.format.anchors;
        DecodeAnchorRow(l.format.anchor_bits,
                        record + (is_k ? l.record.k_anchors : l.record.v_anchors) + a * bytes,
                        is_k ? anchors[a].k_scale : anchors[a].v_scale, PaddedDim(head_dim),
                        residual);
        float* row = &rows[static_cast<size_t>(anchors[a].token) * head_dim];
        for (int c = 0; c < head_dim; ++c) row[c] += residual[c];
      }
      WriteOpenRows({side, head_dim, is_k ? l.open.k_type : l.open.v_type, &none, nullptr, nullptr},
                    rows.data(), static_cast<size_t>(head_dim), 0, 0, kPageLen,
                    open + (is_k ? l.open.k_values : l.open.v_values),
                    reinterpret_cast<float*>(open + (is_k ? l.open.k_scales : l.open.v_scales)),
                    &ignored);
    };
    reopen(Side::kK);
    reopen(Side::kV);
  }
}

CacheBytes KvCache::Bytes() const {
  CacheBytes bytes;
  const size_t sealed = sealed_pool_.allocated_bytes();
  bytes.scales = static_cast<size_t>(sealed_pool_.used()) * sealed_scale_bytes_;
  bytes.payload = sealed - bytes.scales;
  bytes.window = open_pool_.allocated_bytes();
  bytes.window += ahead_bytes();
  bytes.sliding = window_pool_.allocated_bytes();
  bytes.tables = center_table_.bytes();
  return bytes;
}

size_t KvCache::ahead_bytes() const {
  size_t bytes = 0;
  for (const auto& [id, s] : sequences_) bytes += s.ahead.slot.size();
  return bytes;
}

size_t KvCache::F16Bytes() const {
  size_t tokens = 0;  // times layers
  for (const auto& [id, s] : sequences_) {
    for (int layer = 0; layer < config_.num_layers; ++layer) {
      const int64_t window = config_.window(layer);
      tokens += static_cast<size_t>(window > 0 ? std::min(s.length, window) : s.length);
    }
  }
  return tokens * 2 * 2 * config_.num_kv_heads * config_.head_dim;
}

double KvCache::BitsPerValue() const {
  const auto heads = std::count_if(layouts_.begin(), layouts_.end(),
                                   [](const HeadLayout& l) { return l.window == 0; });
  if (heads == 0) return 0;
  const double values = 2.0 * kPageLen * config_.head_dim * static_cast<double>(heads);
  return 8.0 * static_cast<double>(sealed_slot_bytes_) / values;
}

}  // namespace tq
