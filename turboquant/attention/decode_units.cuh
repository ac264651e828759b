// What a thread block works on: ranges of the work of a batch, units, tiles of queries.
#pragma once

#include "turboquant/attention/decode_params.h"
#include "turboquant/cache/sequence_at.cuh"
#include "turboquant/codec/record_layout.h"

namespace tq {
namespace {

// ---- Units --------------------------------------------------------------------------------------

// Queries of one sequence whose positions lie in one block (they read the same forms), and what
// they read: half open blocks ("open items") in front of sealed blocks.
struct Tile {
  int sequence = 0, first_token = 0, num_tokens = 0;  // of the batch's num_tokens
  int table_row = 0;                                  // of the sequence in the page tables
  int64_t first_pos = 0;
  int lowest = 0;  // position that the first query still sees
  int first_sink = 0, num_sinks = 0;
  int first_recent = 0, num_recent = 0;
  int first_sealed = 0, num_sealed = 0;
  int num_open_items = 0;
  int num_row_groups = 0;
};

template <int kRows>
__device__ __forceinline__ Tile TileOf(const DecodeParams& p, int index, int table_row,
                                       int length) {
  const int tiles = p.num_tokens > 1 ? 2 : 1;
  Tile t;
  t.sequence = index / tiles;
  t.table_row = table_row;
  const int n = min(p.num_tokens, length);
  const int first = length - n;  // position of the first query
  const int block = first / kPageLen + index % tiles;
  const int from = max(first, block * kPageLen), to = min(length, (block + 1) * kPageLen);
  t.first_pos = from;
  t.first_token = p.num_tokens - n + from - first;
  t.num_tokens = max(0, to - from);
  if (index % tiles == 0) t.first_token -= p.num_tokens - n;  // queries before the sequence: zeros
  if (index % tiles == 0) t.num_tokens += p.num_tokens - n, t.first_pos -= p.num_tokens - n;
  if (t.num_tokens == 0) return t;
  t.num_row_groups = (t.num_tokens * p.group + kRows - 1) / kRows;
  t.lowest = p.sliding_window > 0 ? max(0, from - p.sliding_window + 1) : 0;
  const int lowest_block = t.lowest / kPageLen;
  const int num_blocks = n == 0 ? 0 : block + 1;
  const int sinks = min(p.sink_blocks, num_blocks);
  const int recent = min(num_blocks, max(sinks, block - p.recent_blocks));
  t.first_sink = min(lowest_block, sinks);
  t.num_sinks = sinks - t.first_sink;
  t.first_recent = max(recent, lowest_block);
  t.num_recent = num_blocks - t.first_recent;
  t.first_sealed = max(sinks, min(lowest_block, recent));
  t.num_sealed = recent - t.first_sealed;
  t.num_open_items = 2 * (t.num_sinks + t.num_recent);
  // The second half of the last block may have no token yet.
  if (t.num_open_items > 0 && (to - 1) % kPageLen < kPageLen / 2) --t.num_open_items;
  // An empty sequence still gets its zeros written.
  if (t.num_open_items + t.num_sealed == 0) t.num_open_items = 1;
  return t;
}

// Which of the batch's sequences a tile belongs to.
__device__ __forceinline__ int SequenceOf(const DecodeParams& p, int tile) {
  return p.num_tokens > 1 ? tile / 2 : tile;
}

template <int kRows>
__device__ __noinline__ Tile TileOf(const DecodeParams& p, int index) {
  SequenceAt at;
  at.Read(p, SequenceOf(p, index));
  return TileOf<kRows>(p, index, at.row, at.length);
}

__device__ __forceinline__ int64_t CostOf(const DecodeParams& p, const Tile& t) {
  return t.num_row_groups * (static_cast<int64_t>(t.num_open_items) * p.open_cost +
                             static_cast<int64_t>(t.num_sealed) * p.sealed_cost);
}

// The work of the batch, cut into one range for each thread block.
struct Ranges {
  int64_t total = 0;
  int count = 0;
  // total / count and about its inverse; 64-bit divisions would take microseconds.
  double step = 0;
  float inverse_step = 0;

  // even_units: that many units of equal cost are all the work; 0: costs differ.
  __device__ __forceinline__ void Cut(const DecodeParams& p, int64_t cost, int even_units) {
    total = cost;
    const int most = static_cast<int>(gridDim.x);
    const float wanted = static_cast<float>(total) * p.inverse_min_range_cost;
    count = wanted >= static_cast<float>(most) ? most : max(1, static_cast<int>(wanted));
    if (even_units > 0) count = AlignedCount(p, even_units);
    const double exact = static_cast<double>(total);
    step = count == most ? exact * p.inverse_num_blocks : exact / count;
    inverse_step = __fdividef(1.f, static_cast<float>(step));
  }
  // A few ranges less, so that each unit is a whole number of ranges or each range of units, if
  // ranges cost little more then: a block that begins a unit in the midst of its range ends later
  // than others.
  __device__ __forceinline__ int AlignedCount(const DecodeParams& p, int units) const {
    int aligned = 0;
    if (units <= count) {
      aligned = count / units * units;
    } else if (const int each = (units + count - 1) / count; units % each == 0) {
      aligned = units / each;
    }
    const auto whole = static_cast<float>(total);
    const float longer = whole / static_cast<float>(aligned) - whole / static_cast<float>(count);
    return aligned > 0 && longer <= p.most_longer ? aligned : count;
  }
  // Does not fall with `range`, and is the same wherever it is asked for. Rounded, so that where
  // units begin with ranges no range begins just in front of one.
  __device__ __forceinline__ int64_t Begin(int range) const {
    return range >= count ? total : static_cast<int64_t>(range * step + 0.5);
  }
  // The range in which cost x lies.
  __device__ __forceinline__ int Of(int64_t x) const {
    int range = min(static_cast<int>(static_cast<float>(x) * inverse_step), count - 1);
    while (range > 0 && Begin(range) > x) --range;
    while (range + 1 < count && Begin(range + 1) <= x) ++range;
    return range;
  }
};

// A piece of work that is merged as one, and where it begins in the order of the work.
struct Unit {
  int tile_index = 0, head = 0, row_group = 0;
  Tile tile;
  int64_t begin = 0, cost = 0;
  // The first item that starts at or behind `x` of the order of the work.
  __device__ __forceinline__ int ItemAt(const DecodeHeadIndex& h, int64_t x) const {
    if (x <= begin) return 0;
    const auto in = static_cast<uint32_t>(min(x - begin, cost));
    const uint32_t open = static_cast<uint32_t>(tile.num_open_items) * h.open_cost;
    if (in <= open) return static_cast<int>((in + h.open_cost - 1) / h.open_cost);
    return tile.num_open_items + static_cast<int>((in - open + h.sealed_cost - 1) / h.sealed_cost);
  }
  __device__ __forceinline__ int64_t LastItem(const DecodeHeadIndex& h) const {
    const int64_t open = static_cast<int64_t>(tile.num_open_items) * h.open_cost;
    return begin + (tile.num_sealed == 0
                        ? open - h.open_cost
                        : open + static_cast<int64_t>(tile.num_sealed - 1) * h.sealed_cost);
  }
  __device__ __forceinline__ void SetCost(const DecodeHeadIndex& h) {
    cost = static_cast<int64_t>(tile.num_open_items) * h.open_cost +
           static_cast<int64_t>(tile.num_sealed) * h.sealed_cost;
  }
};

// What a thread block does of a unit: items [begin, end); none at the end of its range. first_part,
// num_parts: the ranges that have items of the unit.
struct Work {
  Unit unit;
  int begin = 0, end = 0;
  int first_part = 0, num_parts = 0;

  __device__ __forceinline__ void SetItems(const DecodeHeadIndex& h, const Ranges& ranges,
                                           int range) {
    begin = unit.ItemAt(h, ranges.Begin(range));
    end = unit.ItemAt(h, ranges.Begin(range + 1));
    first_part = ranges.Of(unit.begin);
    num_parts = ranges.Of(unit.LastItem(h)) - first_part + 1;
  }
};

// The unit behind `u`; false at the end of the batch.
template <int kRows>
__device__ bool NextUnit(const DecodeParams& p, const DecodeHeadIndex* index, int num_tiles,
                         Unit* u) {
  u->begin += u->cost;
  if (++u->row_group == u->tile.num_row_groups) {
    u->row_group = 0;
    if (++u->head == p.num_kv_heads) {
      u->head = 0;
      do {
        if (++u->tile_index == num_tiles) return false;
        u->tile = TileOf<kRows>(p, u->tile_index);
      } while (u->tile.num_tokens == 0);
    }
    u->SetCost(index[u->head]);
  }
  return true;
}

// Work of a range behind that of `before`.
template <int kRows>
__device__ void NextWork(const DecodeParams& p, const DecodeHeadIndex* index, int num_tiles,
                         const Ranges& ranges, int range, const Work& before, Work* work) {
  *work = before;
  work->begin = work->end = 0;
  if (before.unit.begin + before.unit.cost >= ranges.Begin(range + 1)) return;
  if (!NextUnit<kRows>(p, index, num_tiles, &work->unit)) return;
  work->SetItems(index[work->unit.head], ranges, range);
}

// The number of units, if all of them cost the same; else 0, and of more than 32 tiles. A warp:
// each lane has a tile.
__device__ __forceinline__ int EvenUnits(const DecodeParams& p, int num_tiles, const Tile& tile,
                                         bool has_work) {
  const uint32_t with_work = __ballot_sync(0xffffffffu, has_work);
  if (num_tiles > 32 || with_work == 0 || p.even_heads == 0) return 0;
  const int any = __ffs(with_work) - 1;
  const int open = __shfl_sync(0xffffffffu, tile.num_open_items, any);
  const int sealed = __shfl_sync(0xffffffffu, tile.num_sealed, any);
  const int row_groups = __shfl_sync(0xffffffffu, tile.num_row_groups, any);
  const bool same = !has_work || (tile.num_open_items == open && tile.num_sealed == sealed &&
                                  tile.num_row_groups == row_groups);
  if (__ballot_sync(0xffffffffu, same) != 0xffffffffu) return 0;
  return __popc(with_work) * row_groups * p.num_kv_heads;
}

// Cuts the batch's work and finds the first of a range; one warp. Tiles are the outer order of the
// work, then heads, then row groups. A lane has a tile and a head, so that few of them are looked
// at once, and both are asked for at once. In a function of its own: inlined, the loop over pages
// that follows is up to 2 % slower. `seen`: the lane's last tile.
template <int kRows>
__device__ __noinline__ void FirstWork(const DecodeParams& p, int num_tiles, int range, int lane,
                                       Ranges* out_ranges, Work* work, SequenceAt* seen) {
  const auto head_at = [&](int h) {
    return h < p.num_kv_heads ? p.head_index[h] : DecodeHeadIndex();
  };
  DecodeHeadIndex head = head_at(lane);
  Tile tile;
  int64_t cost = 0, total = 0, before = 0;
  const auto look = [&](int index) {
    cost = 0;
    if (index >= num_tiles) return;
    seen->Read(p, SequenceOf(p, index));
    tile = TileOf<kRows>(p, index, seen->row, seen->length);
    cost = CostOf(p, tile);
  };
  for (int first = 0; first < num_tiles; first += 32) {
    look(first + lane);
    total += cost;
  }
#pragma unroll
  for (int s = 16; s > 0; s /= 2) total += __shfl_xor_sync(0xffffffffu, total, s);
  Ranges ranges;
  ranges.Cut(p, total, EvenUnits(p, num_tiles, tile, cost > 0));
  if (lane == 0) *out_ranges = ranges;
  if (range >= ranges.count || total == 0) {
    if (lane == 0) work->begin = work->end = 0;
    return;
  }
  const int64_t x = ranges.Begin(range);
  Unit u;
  int owner = 0;  // the lane that has the tile
  for (int first = 0; first < num_tiles; first += 32) {
    if (num_tiles > 32) look(first + lane);
    int64_t end = cost;  // inclusive sums
#pragma unroll
    for (int s = 1; s < 32; s *= 2) {
      const int64_t other = __shfl_up_sync(0xffffffffu, end, s);
      if (lane >= s) end += other;
    }
    const uint32_t found = __ballot_sync(0xffffffffu, before + end > x);
    if (found != 0) {
      owner = __ffs(found) - 1;
      u.tile_index = first + owner;
      u.begin = before + __shfl_sync(0xffffffffu, end - cost, owner);
      break;
    }
    before += __shfl_sync(0xffffffffu, end, 31);
  }
  const int num_row_groups = __shfl_sync(0xffffffffu, tile.num_row_groups, owner);
  u.tile.num_open_items = __shfl_sync(0xffffffffu, tile.num_open_items, owner);
  u.tile.num_sealed = __shfl_sync(0xffffffffu, tile.num_sealed, owner);
  const int64_t tile_begin = u.begin;
  DecodeHeadIndex of_head;  // its costs
  for (int first = 0; first < p.num_kv_heads; first += 32) {
    if (first > 0) head = head_at(first + lane);
    const int64_t begin =
        tile_begin +
        num_row_groups * (static_cast<int64_t>(u.tile.num_open_items) * head.open_before +
                          static_cast<int64_t>(u.tile.num_sealed) * head.sealed_before);
    const uint32_t found = __ballot_sync(0xffffffffu, first + lane < p.num_kv_heads && begin <= x);
    if (found == 0) break;
    const int at = 31 - __clz(found);
    u.head = first + at;
    u.begin = __shfl_sync(0xffffffffu, begin, at);
    of_head.open_cost = __shfl_sync(0xffffffffu, head.open_cost, at);
    of_head.sealed_cost = __shfl_sync(0xffffffffu, head.sealed_cost, at);
  }
  u.SetCost(of_head);
  while (u.row_group + 1 < num_row_groups && x >= u.begin + (u.row_group + 1) * u.cost) {
    ++u.row_group;
  }
  u.begin += u.row_group * u.cost;
  // Both ends at once: even lanes have the first item and range, odd ones the last.
  const int item = u.ItemAt(of_head, ranges.Begin(range + lane % 2));
  const int part = ranges.Of(lane % 2 == 0 ? u.begin : u.LastItem(of_head));
  const int begin = __shfl_sync(0xffffffffu, item, 0), end = __shfl_sync(0xffffffffu, item, 1);
  const int first_part = __shfl_sync(0xffffffffu, part, 0);
  const int last_part = __shfl_sync(0xffffffffu, part, 1);
  if (lane != owner) return;
  u.tile = tile;
  work->unit = u;
  work->begin = begin, work->end = end;
  work->first_part = first_part, work->num_parts = last_part - first_part + 1;
  if (begin >= end) {  // the range begins within a unit's last item
    const Work none = *work;
    NextWork<kRows>(p, p.head_index, num_tiles, ranges, range, none, work);
  }
}

}  // namespace
}  // namespace tq
