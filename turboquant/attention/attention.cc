#include "turboquant/attention/attention.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "turboquant/attention/attention_kernels.h"
#include "turboquant/attention/softmax_state.h"
#include "turboquant/base/isa.h"

namespace tq {
namespace {

// Blocks whose sums are made in one go; ranges are cut at absolute multiples and merged in order.
constexpr int64_t kRangeBlocks = 8;

// Consecutive queries of one item that lie in one block, and so read the same precision.
struct Tile {
  const AttentionItem* item = nullptr;
  int first_query = 0;  // index in the item
  int num_queries = 0;
  int64_t block = 0;  // of their positions
};

// The queries of one tile for one KV head, in the head's basis, as digits and as floats.
class TileHead {
 public:
  void Prepare(const KvCache& cache, int layer, int head, const AttentionParams& params,
               const Tile& tile) {
    cache_ = &cache;
    layout_ = &cache.layout(layer, head);
    tile_ = tile;
    const int head_dim = cache.config().head_dim;
    const int padded = PaddedDim(head_dim);
    const int group = params.num_q_heads / cache.config().num_kv_heads;
    const int num_rows = tile.num_queries * group;
    const float scale =
        (params.scale > 0 ? params.scale : 1.f / std::sqrt(static_cast<float>(head_dim))) *
        std::numbers::log2e_v<float>;
    const size_t num_pairs = layout_->center.pairs.size();
    q_.Reserve(static_cast<size_t>(num_rows) * padded);
    q8_.Reserve(static_cast<size_t>(num_rows) * padded);
    q16_.Reserve(static_cast<size_t>(num_rows) * padded);
    q8_scale_.resize(static_cast<size_t>(num_rows));
    q16_scale_.resize(static_cast<size_t>(num_rows));
    q8_sum_.resize(static_cast<size_t>(num_rows));
    center_ab_.resize(static_cast<size_t>(num_rows) * num_pairs * 2);
    visible_.resize(static_cast<size_t>(num_rows));
    softcap_ = params.softcap * std::numbers::log2e_v<float>;
    v_skip_ = layout_->window == 0 ? params.v_skip : 0;
    skip_reference_.resize(v_skip_ > 0 ? static_cast<size_t>(num_rows) : 0);
    skip_limit_.resize(skip_reference_.size());
    // The first token that the first query sees, and the last query.
    const int64_t first_pos = tile.item->first_pos + tile.first_query;
    first_block_ =
        layout_->window == 0 ? 0 : std::max<int64_t>(0, first_pos + 1 - layout_->window) / kPageLen;
    first_full_block_ =
        layout_->window == 0
            ? 0
            : DivCeil<int64_t>(std::max<int64_t>(0, first_pos + tile.num_queries - layout_->window),
                               kPageLen);
    for (int row = 0; row < num_rows; ++row) {
      const int query = tile.first_query + row / group;
      const float* source =
          tile.item->q +
          (static_cast<size_t>(query) * params.num_q_heads + head * group + row % group) * head_dim;
      float* q = &q_[static_cast<size_t>(row) * padded];
      for (int c = 0; c < head_dim; ++c) q[c] = source[c] * scale;
      for (int c = head_dim; c < padded; ++c) q[c] = 0;
      for (size_t p = 0; p < num_pairs; ++p) {
        const HeadCenter::Pair& pair = layout_->center.pairs[p];
        float* ab = &center_ab_[(static_cast<size_t>(row) * num_pairs + p) * 2];
        const float qj = pair.j == pair.i ? 0.f : q[pair.j];
        ab[0] = q[pair.i] * pair.mu_i + qj * pair.mu_j;
        ab[1] = qj * pair.mu_i - q[pair.i] * pair.mu_j;
      }
      layout_->k_rotation.ForwardQuery(q);
      int8_t* q8 = &q8_[static_cast<size_t>(row) * padded];
      int16_t* q16 = &q16_[static_cast<size_t>(row) * padded];
      const QueryDigits digits = UseReferenceKernels() ? MakeDigitsRef(q, padded, q8, q16)
                                                       : MakeDigitsSimd(q, padded, q8, q16);
      q8_scale_[row] = digits.scale8;
      q16_scale_[row] = digits.scale16;
      q8_sum_[row] = digits.sum8;
      visible_[row] = static_cast<int>((tile.item->first_pos + query) % kPageLen) + 1;
    }
    rows_ = {num_rows,
             head_dim,
             padded,
             q_.data(),
             q8_.data(),
             q8_scale_.data(),
             q8_sum_.data(),
             q16_.data(),
             q16_scale_.data(),
             num_pairs == 0 ? nullptr : &layout_->center,
             center_ab_.data()};
  }

  int num_rows() const { return rows_.num_rows; }
  int padded_dim() const { return rows_.padded_dim; }
  const Tile& tile() const { return tile_; }
  // Blocks may be skipped: the open ones come first (RunOpen), ranges have the sealed ones alone.
  bool skips() const { return v_skip_ > 0; }
  // Ranges of blocks that some query sees: [first_range, num_ranges).
  int64_t first_range() const { return first_block_ / kRangeBlocks; }
  int64_t num_ranges() const { return tile_.block / kRangeBlocks + 1; }

  // state = attention over the open blocks, whose masses say what is small enough to be skipped.
  void RunOpen(SoftmaxState state, BlockScratch* scratch) {
    ResetState(rows_.num_rows, rows_.padded_dim, state);
    const auto run = [&](int64_t first, int64_t end) {
      RunBlocks(
          {this, 1}, first, end, [&](size_t) { return state; }, scratch);
    };
    run(0, std::min(FirstSealed(), tile_.block + 1));
    run(std::max(FirstSealed(), EndOfSealed()), tile_.block + 1);
    for (int row = 0; row < rows_.num_rows; ++row) {
      skip_reference_[row] = state.m[row];
      skip_limit_[row] = v_skip_ * state.l[row];
    }
  }

  // state = attention over the blocks of one range.
  void RunRange(int64_t range, SoftmaxState state, BlockScratch* scratch) const {
    RunRange(
        {this, 1}, range, [&](size_t) { return state; }, scratch);
  }

  // The same for several heads of one tile, each with its state: their records of a block lie side
  // by side.
  template <class StateOf>
  static void RunRange(std::span<const TileHead> heads, int64_t range, const StateOf& state_of,
                       BlockScratch* scratch) {
    for (size_t h = 0; h < heads.size(); ++h) {
      ResetState(heads[h].rows_.num_rows, heads[h].rows_.padded_dim, state_of(h));
    }
    const TileHead& any = heads[0];
    int64_t end = std::min((range + 1) * kRangeBlocks, any.tile_.block + 1);
    int64_t first = std::max(range * kRangeBlocks, any.first_block_);
    if (any.skips()) {
      first = std::max(first, any.FirstSealed());
      end = std::min(end, any.EndOfSealed());
    }
    RunBlocks(heads, first, end, state_of, scratch);
  }

  template <class StateOf>
  static void RunBlocks(std::span<const TileHead> heads, int64_t block, int64_t end,
                        const StateOf& state_of, BlockScratch* scratch) {
    if (block >= end) return;
    const TileHead& any = heads[0];
    for (BlockMemory here = any.MemoryOf(block); block < end; ++block) {
      const BlockMemory next = any.MemoryOf(block + 1);
      for (size_t h = 0; h < heads.size(); ++h) {
        const bool last = h + 1 == heads.size();
        heads[h].RunBlock(block, here, heads[last ? 0 : h + 1], last ? next : here, state_of(h),
                          scratch);
      }
      here = next;
    }
  }

  // o / l, back in the model's basis, to the item's output.
  void WriteOutput(const AttentionParams& params, int head, SoftmaxState state) const {
    const int head_dim = rows_.head_dim;
    const int group = params.num_q_heads / cache_->config().num_kv_heads;
    for (int row = 0; row < rows_.num_rows; ++row) {
      float* o = state.o + static_cast<size_t>(row) * rows_.padded_dim;
      float inverse = 1.f / state.l[row];
      if (params.sinks != nullptr) {
        // One more weight, of no value; the larger exponent is taken out.
        const float sink = params.sinks[head * group + row % group] * std::numbers::log2e_v<float>;
        const float top = std::max(sink, state.m[row]);
        const float kept = std::exp2(state.m[row] - top);
        inverse = kept / (state.l[row] * kept + std::exp2(sink - top));
      }
      for (int c = 0; c < head_dim; ++c) o[c] *= inverse;
      layout_->v_rotation.Inverse(o);
      const int query = tile_.first_query + row / group;
      std::copy_n(o, head_dim,
                  tile_.item->out + (static_cast<size_t>(query) * params.num_q_heads +
                                     head * group + row % group) *
                                        head_dim);
      if (tile_.item->skipped == nullptr || params.v_skip == 0) continue;
      SkippedV* to = tile_.item->skipped + static_cast<size_t>(query) * params.num_q_heads +
                     head * group + row % group;
      *to = {};
      if (!skips()) continue;
      *to = state.skipped[row];
      // What was not skipped, a sink included, in the same units.
      const float rest = std::exp2(state.m[row] - skip_reference_[row]) / inverse;
      to->share /= rest + state.skipped[row].share;
      to->bound /= rest + state.skipped[row].share;
    }
  }

 private:
  // Where a block of this layer lies; all heads have theirs in one slot.
  struct BlockMemory {
    const std::byte* slot = nullptr;
    bool is_sealed = false;
  };
  // Sealed blocks are [FirstSealed(), EndOfSealed()), if there are any.
  int64_t FirstSealed() const { return cache_->rule().sink_blocks; }
  int64_t EndOfSealed() const { return tile_.block - cache_->rule().recent_blocks; }

  // Empty for a block behind the tile's.
  BlockMemory MemoryOf(int64_t block) const {
    if (block > tile_.block) return {};
    const SeqId seq = tile_.item->seq;
    if (layout_->window > 0) return {cache_->WindowSlot(seq, block), false};
    if (cache_->rule().ReadsOpen(block, tile_.block)) return {cache_->OpenSlot(seq, block), false};
    return {cache_->SealedSlot(seq, block), true};
  }

  // One block, while the record of another head or block is fetched.
  void RunBlock(int64_t block, const BlockMemory& memory, const TileHead& next,
                const BlockMemory& next_memory, SoftmaxState state, BlockScratch* scratch) const {
    BlockArgs args;
    args.rows = &rows_;
    args.use_vnni = UseVnni();
    args.block = block;
    args.center_table = &cache_->center_table();
    args.softcap = softcap_;
    if (block == tile_.block) args.num_visible = visible_.data();
    if (block < first_full_block_) {
      FillFirstVisible(block, &scratch->first_visible);
      args.first_visible = scratch->first_visible.data();
    }
    FillSides(memory, &args);
    if (skips() && memory.is_sealed) {
      const auto* info =
          reinterpret_cast<const RecordSideInfo*>(memory.slot + layout_->side_offset);
      args.skip = {skip_reference_.data(), skip_limit_.data(), rows_.num_rows / tile_.num_queries,
                   SkipBound(*info, layout_->format.anchors)};
    }
    next.FillAhead(next_memory, &args);
    UseReferenceKernels() ? AttendBlockRef(args, state, scratch)
                          : AttendBlockSimd(args, state, scratch);
  }

  // The record that will be read next, for the kernel to fetch: records are too short for the
  // hardware to notice that they are read whole.
  void FillAhead(const BlockMemory& memory, BlockArgs* args) const {
    if (!memory.is_sealed || memory.slot == nullptr) return;
    args->ahead = memory.slot + layout_->record_offset;
    args->ahead_bytes = skips() ? layout_->record.v_codes : layout_->record.bytes;
    args->ahead_info = memory.slot + layout_->side_offset;
  }

  // Of a block where some window begins.
  void FillFirstVisible(int64_t block, std::vector<int>* first) const {
    const int group = rows_.num_rows / tile_.num_queries;
    first->resize(static_cast<size_t>(rows_.num_rows));
    for (int row = 0; row < rows_.num_rows; ++row) {
      const int64_t position = tile_.item->first_pos + tile_.first_query + row / group;
      (*first)[static_cast<size_t>(row)] = static_cast<int>(
          std::clamp<int64_t>(position + 1 - layout_->window - block * kPageLen, 0, kPageLen));
    }
  }

  void FillSides(const BlockMemory& memory, BlockArgs* args) const {
    const KvCache::HeadLayout& l = *layout_;
    if (!memory.is_sealed) {
      const std::byte* slot = memory.slot + l.open_offset;
      const auto side = [&](ValueType type, size_t values, size_t scales) {
        BlockSide s;
        s.type = type;
        s.bits = OpenBits(type);
        s.values = reinterpret_cast<const uint8_t*>(slot + values);
        if (type == ValueType::kInt) s.scales = reinterpret_cast<const float*>(slot + scales);
        return s;
      };
      args->k = side(l.open.k_type, l.open.k_values, l.open.k_scales);
      args->v = side(l.open.v_type, l.open.v_values, l.open.v_scales);
      return;
    }
    const std::byte* slot = memory.slot;
    const auto* record = reinterpret_cast<const uint8_t*>(slot + l.record_offset);
    const auto* info = reinterpret_cast<const RecordSideInfo*>(slot + l.side_offset);
    const auto side = [&](const Codec& codec, const CodebookTable& calibrated, size_t codes,
                          size_t scales, bf16_t base) {
      BlockSide s;
      s.type = codec.type;
      s.bits = codec.bits;
      s.values = record + codes;
      s.base = F32FromBF16(base);
      s.trellis = codec.codebook == Codebook::kTrellis;
      if (codec.is_grouped()) {
        s.grouped = &codec;
        s.group_scales = record + scales;
      } else if (codec.scale == ScaleType::kLog8) {
        s.log8 = record + scales;
      }
      if (!codec.is_float() && codec.bits <= 6 && !s.trellis) s.book = &BookOf(codec, &calibrated);
      return s;
    };
    args->k = side(l.format.k, l.k_book, l.record.k_codes, l.record.k_scales, info->k_base);
    args->v = side(l.format.v, l.v_book, l.record.v_codes, l.record.v_scales, info->v_base);
    args->num_anchors = l.format.anchors;
    args->anchor_bits = l.format.anchor_bits;
    args->anchors = reinterpret_cast<const AnchorInfo*>(info + 1);
    args->k_anchors = record + l.record.k_anchors;
    args->v_anchors = record + l.record.v_anchors;
  }

  const KvCache* cache_ = nullptr;
  const KvCache::HeadLayout* layout_ = nullptr;
  Tile tile_;
  AlignedBuffer<float> q_;
  AlignedBuffer<int8_t> q8_;
  AlignedBuffer<int16_t> q16_;
  std::vector<float> q8_scale_, q16_scale_, center_ab_;
  std::vector<int32_t> q8_sum_;
  std::vector<int> visible_;
  float softcap_ = 0, v_skip_ = 0;
  std::vector<float> skip_reference_, skip_limit_;  // of the rows, BlockSkip
  // The first block that some query sees, and the first from which on all see all.
  int64_t first_block_ = 0, first_full_block_ = 0;
  QueryRows rows_;
};

// Memory of a state for num_rows rows, and views into it.
class StateBuffer {
 public:
  SoftmaxState Get(const TileHead& th, size_t count = 1) {
    rows_ = static_cast<size_t>(th.num_rows());
    dim_ = static_cast<size_t>(th.padded_dim());
    buffer_.Reserve(count * Stride());
    skipped_.resize(th.skips() ? count * rows_ : 0);
    return At(0);
  }
  SoftmaxState At(size_t i) {
    float* p = buffer_.data() + i * Stride();
    return {p, p + RoundUp<size_t>(rows_, 16), p + 2 * RoundUp<size_t>(rows_, 16),
            skipped_.empty() ? nullptr : skipped_.data() + i * rows_};
  }

 private:
  size_t Stride() const { return 2 * RoundUp<size_t>(rows_, 16) + rows_ * dim_; }
  AlignedBuffer<float> buffer_;
  std::vector<SkippedV> skipped_;  // where blocks may be skipped
  size_t rows_ = 0, dim_ = 0;
};

// Buffers that stay with a thread, so that a decode step allocates nothing.
struct Scratch {
  TileHead tile_head;
  StateBuffer total, part;
  BlockScratch block;
};
Scratch& ThreadScratch() {
  static thread_local Scratch scratch;
  return scratch;
}

Status CheckItem(const KvCache& cache, int layer, const AttentionItem& item) {
  if (!cache.Exists(item.seq)) return NotFound("attention: there is no sequence ", item.seq);
  const int64_t visible = cache.VisibleLength(item.seq);
  if (item.num_tokens < 0 || item.first_pos < 0 || item.first_pos + item.num_tokens > visible) {
    return InvalidArgument("attention: queries at positions ", item.first_pos, " to ",
                           item.first_pos + item.num_tokens - 1, "; sequence ", item.seq, " has ",
                           visible, " tokens");
  }
  if (const int64_t window = cache.config().window(layer); window > 0) {
    const int64_t first = std::max<int64_t>(0, item.first_pos + 1 - window) / kPageLen;
    if (item.num_tokens == 0 || cache.WindowSlot(item.seq, first) != nullptr) return OkStatus();
    return FailedPrecondition("attention: layer ", layer, " has a window of ", window,
                              " tokens, and what position ", item.first_pos, " of sequence ",
                              item.seq, " sees of it is gone");
  }
  // Queries further back than the open rows would read blocks in a form that is gone.
  for (int64_t p = item.first_pos / kPageLen;
       item.num_tokens > 0 && p <= (item.first_pos + item.num_tokens - 1) / kPageLen; ++p) {
    const PrecisionRule& rule = cache.rule();
    for (int64_t b = std::max<int64_t>(0, p - rule.recent_blocks); b <= p; ++b) {
      if (cache.OpenSlot(item.seq, b) == nullptr) {
        return FailedPrecondition("attention: query block ", p, " reads block ", b, " of sequence ",
                                  item.seq,
                                  " at full precision, but its open rows are gone; truncate first");
      }
    }
  }
  return OkStatus();
}

}  // namespace

Status Attend(const KvCache& cache, int layer, const AttentionParams& params,
              std::span<const AttentionItem> items, ThreadPool& pool) {
  const CacheConfig& config = cache.config();
  if (layer < 0 || layer >= config.num_layers) {
    return InvalidArgument("attention: layer ", layer, " of ", config.num_layers);
  }
  if (params.num_q_heads <= 0 || params.num_q_heads % config.num_kv_heads != 0) {
    return InvalidArgument("attention: ", params.num_q_heads, " query heads are not a multiple of ",
                           config.num_kv_heads, " KV heads");
  }
  if (!(params.v_skip >= 0 && params.v_skip < 1)) {
    return InvalidArgument("attention: v_skip = ", params.v_skip,
                           "; it must be 0 (off) to below 1");
  }
  for (int h = 0; params.v_skip > 0 && h < config.num_kv_heads; ++h) {
    if (cache.layout(layer, h).format.v.rotate == Rotate::kMatrix) {
      return Unsupported("attention: v_skip = ", params.v_skip, ", and the values of layer ", layer,
                         ", KV head ", h,
                         " are rotated by a matrix; supported: no rotation or hadamard, or v_skip "
                         "= 0");
    }
  }
  std::vector<Tile> tiles;
  int64_t num_ranges = 0;
  for (const AttentionItem& item : items) {
    TQ_RETURN_IF_ERROR(CheckItem(cache, layer, item));
    for (int i = 0; i < item.num_tokens;) {
      Tile tile{&item, i, 0, (item.first_pos + i) / kPageLen};
      const int64_t end = std::min(item.first_pos + item.num_tokens, (tile.block + 1) * kPageLen);
      tile.num_queries = static_cast<int>(end - item.first_pos) - i;
      i += tile.num_queries;
      const int64_t window = config.window(layer);
      const int64_t first =
          window == 0 ? 0 : std::max<int64_t>(0, item.first_pos + tile.first_query + 1 - window);
      num_ranges += tile.block / kRangeBlocks - first / kPageLen / kRangeBlocks + 1;
      tiles.push_back(tile);
    }
  }
  const auto heads = static_cast<size_t>(config.num_kv_heads);
  const size_t num_tasks = tiles.size() * heads;
  if (num_tasks == 0) return OkStatus();

  if (num_tasks >= 4 * static_cast<size_t>(pool.num_threads()) ||
      num_ranges == static_cast<int64_t>(tiles.size())) {
    pool.ParallelFor(num_tasks, [&](size_t task, int) {
      Scratch& s = ThreadScratch();
      const int head = static_cast<int>(task % heads);
      // Late tiles are the longest: they go first.
      s.tile_head.Prepare(cache, layer, head, params, tiles[tiles.size() - 1 - task / heads]);
      const int rows = s.tile_head.num_rows(), dim = s.tile_head.padded_dim();
      const SoftmaxState total = s.total.Get(s.tile_head), part = s.part.Get(s.tile_head);
      if (s.tile_head.skips()) {
        s.tile_head.RunOpen(total, &s.block);
      } else {
        ResetState(rows, dim, total);
      }
      for (int64_t range = s.tile_head.first_range(); range < s.tile_head.num_ranges(); ++range) {
        s.tile_head.RunRange(range, part, &s.block);
        MergeState(rows, dim, total, part);
      }
      s.tile_head.WriteOutput(params, head, total);
    });
    return OkStatus();
  }

  // Few tiles (decode): the ranges of each are tasks of their own, merged in order afterwards. A
  // task has several heads where enough tasks remain for all threads.
  struct RangeTask {
    size_t tile_head;
    size_t num_heads;
    int64_t range;
  };
  static thread_local std::vector<TileHead> tile_heads;
  static thread_local std::vector<StateBuffer> parts;
  static thread_local std::vector<RangeTask> tasks;
  if (tile_heads.size() < num_tasks) {
    tile_heads.resize(num_tasks);
    parts.resize(num_tasks);
  }
  constexpr int64_t kTasksPerThread = 4, kMaxHeadsOfTask = 4;
  const auto heads_of_task = static_cast<size_t>(
      std::clamp<int64_t>(num_ranges * heads / (kTasksPerThread * pool.num_threads()), 1,
                          std::min<int64_t>(heads, kMaxHeadsOfTask)));
  tasks.clear();
  for (size_t i = 0; i < num_tasks; ++i) {
    TileHead& th = tile_heads[i];
    const size_t head = i % heads;
    th.Prepare(cache, layer, static_cast<int>(head), params, tiles[i / heads]);
    // Open blocks that come first have a part of their own, behind those of the ranges.
    parts[i].Get(th, static_cast<size_t>(th.num_ranges() - th.first_range()) + th.skips());
    if (head % heads_of_task != 0) continue;
    const size_t num_heads = std::min(heads_of_task, heads - head);
    for (int64_t range = th.first_range(); range < th.num_ranges(); ++range) {
      tasks.push_back({i, num_heads, range});
    }
  }
  // The workers see the calling thread's vectors, not their own thread-local ones.
  TileHead* const all_heads = tile_heads.data();
  StateBuffer* const all_parts = parts.data();
  const RangeTask* const all_tasks = tasks.data();
  const auto open_part = [&](size_t i) {
    return all_parts[i].At(
        static_cast<size_t>(all_heads[i].num_ranges() - all_heads[i].first_range()));
  };
  if (all_heads[0].skips()) {
    pool.ParallelFor(num_tasks, [&](size_t i, int) {
      all_heads[i].RunOpen(open_part(i), &ThreadScratch().block);
    });
  }
  pool.ParallelFor(tasks.size(), [&](size_t task, int) {
    const RangeTask& t = all_tasks[task];
    const std::span<const TileHead> group{all_heads + t.tile_head, t.num_heads};
    const auto part = static_cast<size_t>(t.range - group[0].first_range());
    TileHead::RunRange(
        group, t.range, [&](size_t h) { return all_parts[t.tile_head + h].At(part); },
        &ThreadScratch().block);
  });
  for (size_t i = 0; i < num_tasks; ++i) {
    const TileHead& th = tile_heads[i];
    const SoftmaxState total = th.skips() ? open_part(i) : ThreadScratch().total.Get(th);
    if (!th.skips()) ResetState(th.num_rows(), th.padded_dim(), total);
    for (int64_t range = th.first_range(); range < th.num_ranges(); ++range) {
      MergeState(th.num_rows(), th.padded_dim(), total,
                 parts[i].At(static_cast<size_t>(range - th.first_range())));
    }
    th.WriteOutput(params, static_cast<int>(i % heads), total);
  }
  return OkStatus();
}

std::string DescribeKernel(const HeadFormat& format) {
  const auto side = [](const Codec& c, const char* name, const char* digit) {
    if (c.is_float()) return StrCat(name, " ", Name(c.type), " x ", digit, " f32");
    if (c.is_grouped()) return StrCat(name, " int", c.bits, " as f32 x ", digit, " f32");
    return StrCat(name, " int", c.bits, c.codebook == Codebook::kTrellis ? " trellis" : "", " x ",
                  digit, c.bits == 8 ? " int16" : " int8");
  };
  return StrCat(side(format.k, "K", "q"), ", ", side(format.v, "V", "p"), ", ", CurrentIsa());
}

}  // namespace tq
