// What a thread block works on: ranges of the work of a batch, units, tiles of queries.
#pragma once

#include "turboquant/attention/decode_params.h"
#include "turboquant/codec/record_layout.h"

namespace tq {
namespace {

// ---- Units --------------------------------------------------------------------------------------

// Queries of one sequence whose positions lie in one block (they read the same forms), and what
// they read: half open blocks ("open items") in front of sealed blocks.
struct Tile {
  int sequence = 0, first_token = 0, num_tokens = 0;  // of the batch's num_tokens
  int64_t first_pos = 0;
  int lowest = 0;  // position that the first query still sees
  int first_sink = 0, num_sinks = 0;
  int first_recent = 0, num_recent = 0;
  int first_sealed = 0, num_sealed = 0;
  int num_open_items = 0;
  int num_row_groups = 0;
};

template <int kRows>
__device__ __noinline__ Tile TileOf(const DecodeParams& p, int index) {
  const int tiles = p.num_tokens > 1 ? 2 : 1;
  Tile t;
  t.sequence = index / tiles;
  const int length = p.lengths[p.sequences[t.sequence]];
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

__device__ __forceinline__ int64_t CostOf(const DecodeParams& p, const Tile& t) {
  return t.num_row_groups * (static_cast<int64_t>(t.num_open_items) * p.open_cost +
                             static_cast<int64_t>(t.num_sealed) * p.sealed_cost);
}

// The work of the batch, cut into one range for each thread block.
struct Ranges {
  int64_t total = 0;
  int count = 0;
  double step = 0;  // total / count; 64-bit divisions would take microseconds

  // Does not fall with `range`, and is the same wherever it is asked for.
  __device__ __forceinline__ int64_t Begin(int range) const {
    return range >= count ? total : static_cast<int64_t>(range * step);
  }
  // The range in which cost x lies.
  __device__ __forceinline__ int Of(int64_t x) const {
    int range = min(static_cast<int>(static_cast<double>(x) / step), count - 1);
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

// One warp; all lanes get the same.
template <int kRows>
__device__ int64_t TotalCost(const DecodeParams& p, int num_tiles, int lane) {
  int64_t total = 0;
  for (int i = lane; i < num_tiles; i += 32) total += CostOf(p, TileOf<kRows>(p, i));
#pragma unroll
  for (int s = 16; s > 0; s /= 2) total += __shfl_xor_sync(0xffffffffu, total, s);
  return total;
}

// The unit in which x lies: tiles are the outer order, then heads, then row groups.
template <int kRows>
__device__ Unit FindUnit(const DecodeParams& p, const DecodeHeadIndex* index, int num_tiles,
                         int64_t x, int lane) {
  Unit u;
  int64_t before = 0;
  for (int first = 0; first < num_tiles; first += 32) {
    const int i = first + lane;
    const int64_t cost = i < num_tiles ? CostOf(p, TileOf<kRows>(p, i)) : 0;
    int64_t end = cost;  // inclusive sums
#pragma unroll
    for (int s = 1; s < 32; s *= 2) {
      const int64_t other = __shfl_up_sync(0xffffffffu, end, s);
      if (lane >= s) end += other;
    }
    const uint32_t found = __ballot_sync(0xffffffffu, before + end > x);
    if (found != 0) {
      const int at = __ffs(found) - 1;
      u.tile_index = first + at;
      u.begin = before + __shfl_sync(0xffffffffu, end - cost, at);
      break;
    }
    before += __shfl_sync(0xffffffffu, end, 31);
  }
  u.tile = TileOf<kRows>(p, u.tile_index);
  const auto head_begin = [&](int h) {
    return u.begin + u.tile.num_row_groups *
                         (static_cast<int64_t>(u.tile.num_open_items) * index[h].open_before +
                          static_cast<int64_t>(u.tile.num_sealed) * index[h].sealed_before);
  };
  for (int first = 0; first < p.num_kv_heads; first += 32) {
    const int h = first + lane;
    const uint32_t found = __ballot_sync(0xffffffffu, h < p.num_kv_heads && head_begin(h) <= x);
    if (found == 0) break;
    u.head = first + 31 - __clz(found);
  }
  u.begin = head_begin(u.head);
  u.SetCost(index[u.head]);
  while (u.row_group + 1 < u.tile.num_row_groups && x >= u.begin + (u.row_group + 1) * u.cost) {
    ++u.row_group;
  }
  u.begin += u.row_group * u.cost;
  return u;
}

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

}  // namespace
}  // namespace tq
