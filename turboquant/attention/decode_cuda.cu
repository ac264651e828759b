// Decode attention over quantized pages on the INT8 tensor cores.
//
// Codes never become floats. A page of 64 tokens of one KV head is a row-major operand A of small
// integers: tokens x channels for QK, channels x tokens for PV, stored in fragment order
// (codec/fragment_layout.h), so that a lane's 16-byte loads are its registers. Codes become levels
// by byte permute, 4 at a time. The operand B has the 8 columns of 4 query rows x 2 digits: queries
// and softmax weights are 16-bit integers, high and low byte in neighbouring columns, which costs
// nothing as one digit would fill the columns no better. A lane therefore ends up with 2 tokens of
// one row for each 16 tokens, and both digits of it.
//
// A thread block owns a contiguous range of the work of the whole batch, in bytes, whatever the
// lengths and formats are. Within a unit (sequence, head) its four warps take turns at the pages;
// each has a ring of two pages and its own softmax state, so that nothing waits in the loop. The
// states of the warps are merged in shared memory at the end of a unit; a unit that more blocks
// worked on is merged by the block that arrives last, in the order of the blocks. So a result does
// not depend on timing; it does depend on the batch, which decides where ranges are cut.
//
// Read: PageScores and PageValues (a sealed page), OpenItem (half an open page), Worker::Run (the
// loop), DecodeKernel (units).
#include <cuda_runtime_api.h>

#include "turboquant/attention/decode_params.h"
#include "turboquant/base/device.h"
#include "turboquant/base/device_status.h"
#include "turboquant/base/ptx.cuh"
#include "turboquant/codec/record_layout.h"

namespace tq {
namespace {

using ptx::kAllLanes;

// 1.5 x 2^23 as bits: added to an integer below 2^22 in size, the sum is a float with that value.
constexpr int kMagicBits = 0x4B400000;
constexpr float kMagic = 12582912.f;
constexpr float kTwo23 = 8388608.f;
constexpr float kSmallest = -1e30f;  // a score that no key has; -inf would make NaN of a difference
// A state's scale is raised when a page exceeds it by more than this (powers of two).
constexpr float kSlack = 24.f;
constexpr float kRowDigit = 32512.f;  // 127 * 256: the high byte stays signed
constexpr float kRowWeight = 65000.f;

// ---- Codes to levels ----------------------------------------------------------------------------

// 4-bit levels are multiplied + 64 (kWideOffset), so that a table of non-negative bytes can be
// looked up in halves: where bit 3 of a selector is set, the permute repeats the sign of the byte,
// which is 0. Uniform 2-bit codes c are multiplied as they are, level = 2 c - 3, and those of the
// second half of a fragment's depth as 4 c, in place: the digits of the first half are 4 times as
// large instead.
constexpr float kInPlaceFactor = 4;

constexpr int BitsOf(DecodeCodes kind) {
  return kind == DecodeCodes::kTable4 ? 4 : kind == DecodeCodes::kTable3 ? 3 : 2;
}

// 8 fragments of a lane's stream: 32 registers of 4 levels.
template <DecodeCodes kKind>
struct Group {
  static constexpr int kBits = BitsOf(kKind);
  static constexpr int kWords = 4 * kBits;
  uint32_t words[kWords];

  __device__ __forceinline__ void Load(const uint8_t* codes, int group, int lane) {
#pragma unroll
    for (int i = 0; i < kBits; ++i) {
      const uint4 v =
          *reinterpret_cast<const uint4*>(codes + ((group * kBits + i) * 32 + lane) * 16);
      words[4 * i] = v.x, words[4 * i + 1] = v.y, words[4 * i + 2] = v.z, words[4 * i + 3] = v.w;
    }
  }
  // Two registers from a word of nibbles.
  static __device__ __forceinline__ void Pair(uint32_t nibbles, const DecodeTable& t, uint32_t* a,
                                              uint32_t* b) {
    if constexpr (kBits == 4) {
      const uint32_t other = nibbles ^ 0x88888888u;
      *a = ptx::Permute(t.words[0], t.words[1], nibbles) |
           ptx::Permute(t.words[2], t.words[3], other);
      *b = ptx::Permute(t.words[0], t.words[1], nibbles >> 16) |
           ptx::Permute(t.words[2], t.words[3], other >> 16);
    } else {
      *a = ptx::Permute(t.words[0], t.words[1], nibbles);
      *b = ptx::Permute(t.words[0], t.words[1], nibbles >> 16);
    }
  }
  // Fragment f of the 8.
  __device__ __forceinline__ void Fragment(int f, const DecodeTable& t, uint32_t (&a)[4]) const {
    if constexpr (kKind == DecodeCodes::kInPlace2) {
      const uint32_t shifted = words[f] >> 4;
      a[0] = words[f] & 0x03030303u, a[2] = words[f] & 0x0c0c0c0cu;
      a[1] = shifted & 0x03030303u, a[3] = shifted & 0x0c0c0c0cu;
    } else if constexpr (kKind == DecodeCodes::kTable2) {
      Pair(words[f] & 0x33333333u, t, &a[0], &a[1]);
      Pair(words[f] >> 2 & 0x33333333u, t, &a[2], &a[3]);
    } else if constexpr (kKind == DecodeCodes::kTable3) {
      const uint32_t* w = words + f / 2 * 3;
      if (f % 2 == 0) {
        Pair(w[0] & 0x77777777u, t, &a[0], &a[1]);
        Pair(w[1] & 0x77777777u, t, &a[2], &a[3]);
      } else {
        Pair(w[2] & 0x77777777u, t, &a[0], &a[1]);
        const uint32_t spread = ptx::AndOr(
            w[2] >> 1, 0x44444444u, ptx::AndOr(w[1] >> 2, 0x22222222u, w[0] >> 3 & 0x11111111u));
        Pair(spread, t, &a[2], &a[3]);
      }
    } else {
      Pair(words[2 * f], t, &a[0], &a[1]);
      Pair(words[2 * f + 1], t, &a[2], &a[3]);
    }
  }
};

// {0, 1.5 x 2^23, 0, 1.5 x 2^23}: what sums of (high, low) digits start from. It lies in shared
// memory, so that it is 4 registers and not 4 moves in front of every sum.
struct SumStart {
  int values[4];
};

// ---- A lane's share of the queries and of the state ---------------------------------------------

// Columns 8 n .. 8 n + 7 of B: rows 4 n .. 4 n + 3. A lane's row in the results is 4 n + lane % 4.
template <int kDim, int kTiles>
struct Queries {
  uint32_t digits[kTiles][kDim / 32][2];
  float scale[kTiles];   // of the row
  float offset[kTiles];  // kMagic + what stored levels add to every sum
};

template <int kDim, int kTiles>
struct State {
  float m[kTiles], l[kTiles];  // l: of the lane's own tokens
  float o[kTiles][kDim / 16][2];
  // Of in-place codes: the lane's weights, as the levels' common part is taken off at the end.
  // (Wide levels have a part that is too large for that.)
  float z[kTiles];

  __device__ __forceinline__ void Reset() {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      m[n] = kSmallest, l[n] = z[n] = 0;
#pragma unroll
      for (int i = 0; i < kDim / 16; ++i) o[n][i][0] = o[n][i][1] = 0;
    }
  }
  // Makes room for scores up to `top`; returns the factor of weights relative to it.
  __device__ __forceinline__ float Raise(int n, float top) {
    if (__any_sync(kAllLanes, top > m[n] + kSlack)) {
      const float raised = fmaxf(m[n], top), factor = ptx::Exp2(m[n] - raised);
      m[n] = raised;
      l[n] *= factor, z[n] *= factor;
#pragma unroll
      for (int i = 0; i < kDim / 16; ++i) o[n][i][0] *= factor, o[n][i][1] *= factor;
    }
    return ptx::Exp2(top - m[n]);
  }
};

// The largest of a row: lanes with equal lane % 4 hold its tokens.
__device__ __forceinline__ float RowMax(float x) {
  x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, 4));
  x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, 8));
  return fmaxf(x, __shfl_xor_sync(kAllLanes, x, 16));
}
template <typename T>
__device__ __forceinline__ T RowSum(T x) {
  x += __shfl_xor_sync(kAllLanes, x, 4);
  x += __shfl_xor_sync(kAllLanes, x, 8);
  return x + __shfl_xor_sync(kAllLanes, x, 16);
}

// The weights of tokens r and r + 8 of 16 (as 2^23 + digit, so the digit is in the low half) to a
// register of B: tokens {2 c, 2 c + 1, 2 c + 8, 2 c + 9}, column r.
__device__ __forceinline__ uint32_t WeightsToColumns(float low, float high, uint32_t selector) {
  const uint32_t pair = __byte_perm(__float_as_uint(low), __float_as_uint(high), 0x5410);
  const uint32_t own = ptx::Transpose8x8(pair);
  return __byte_perm(own, __shfl_xor_sync(kAllLanes, own, 4), selector);
}
// Even columns take the high bytes of the digits, odd ones the low bytes.
__device__ __forceinline__ uint32_t ColumnSelector(int lane) {
  return lane & 4 ? 0x2064u : 0x7531u;
}

// ---- A sealed page ------------------------------------------------------------------------------

// scores[n][2 t + h] of tokens 16 t + 8 h + r, in units of q scale x K base.
template <DecodeCodes kKind, int kDim, int kTiles>
__device__ __forceinline__ void PageScores(const uint8_t* codes, const float* scales,
                                           const DecodeTable& table, const SumStart& start,
                                           const Queries<kDim, kTiles>& q, int lane,
                                           float (&scores)[kTiles][8]) {
  constexpr int kSteps = kDim / 32;  // fragments of 16 tokens
  float scale[8];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float4 v = *reinterpret_cast<const float4*>(scales + lane / 4 * 8 + 4 * i);
    scale[4 * i] = v.x, scale[4 * i + 1] = v.y, scale[4 * i + 2] = v.z, scale[4 * i + 3] = v.w;
  }
  int sums[kTiles][4];
#pragma unroll
  for (int g = 0; g < kDim / 64; ++g) {
    Group<kKind> group;
    group.Load(codes, g, lane);
#pragma unroll
    for (int f = 0; f < 8; ++f) {
      const int t = (8 * g + f) / kSteps, j = (8 * g + f) % kSteps;
      uint32_t a[4];
      group.Fragment(f, table, a);
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        if (j == 0) {
          ptx::MmaS8S8(sums[n], a, q.digits[n][j][0], q.digits[n][j][1], start.values);
        } else {
          ptx::MmaS8S8(sums[n], a, q.digits[n][j][0], q.digits[n][j][1], sums[n]);
        }
        if (j == kSteps - 1) {
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            const int sum = sums[n][2 * h] * 256 + sums[n][2 * h + 1];
            scores[n][2 * t + h] = (__int_as_float(sum) - q.offset[n]) * scale[2 * t + h];
          }
        }
      }
    }
  }
}

// o += V^T x weights. columns[n][i]: tokens 16 i .. 16 i + 15. `unit`: of a weight digit.
template <DecodeCodes kKind, int kDim, int kTiles>
__device__ __forceinline__ void PageValues(const uint8_t* codes, const DecodeTable& table,
                                           const SumStart& start,
                                           const uint32_t (&columns)[kTiles][4],
                                           const float (&offset)[kTiles],
                                           const float (&unit)[kTiles], int lane,
                                           State<kDim, kTiles>* state) {
#pragma unroll
  for (int g = 0; g < kDim / 64; ++g) {
    Group<kKind> group;
    group.Load(codes, g, lane);
    int sums[kTiles][4][4];
#pragma unroll
    for (int s = 0; s < 2; ++s) {
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        uint32_t a[4];
        group.Fragment(4 * s + m, table, a);
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
          if (s == 0) {
            ptx::MmaS8U8(sums[n][m], a, columns[n][0], columns[n][1], start.values);
          } else {
            ptx::MmaS8U8(sums[n][m], a, columns[n][2], columns[n][3], sums[n][m]);
          }
        }
      }
    }
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int m = 0; m < 4; ++m) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int sum = sums[n][m][2 * h] * 256 + sums[n][m][2 * h + 1];
          float& o = state->o[n][4 * g + m][h];
          o = fmaf(__int_as_float(sum) - offset[n], unit[n], o);
        }
      }
    }
  }
}

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
  for (int s = 16; s > 0; s /= 2) total += __shfl_xor_sync(kAllLanes, total, s);
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
      const int64_t other = __shfl_up_sync(kAllLanes, end, s);
      if (lane >= s) end += other;
    }
    const uint32_t found = __ballot_sync(kAllLanes, before + end > x);
    if (found != 0) {
      const int at = __ffs(found) - 1;
      u.tile_index = first + at;
      u.begin = before + __shfl_sync(kAllLanes, end - cost, at);
      break;
    }
    before += __shfl_sync(kAllLanes, end, 31);
  }
  u.tile = TileOf<kRows>(p, u.tile_index);
  const auto head_begin = [&](int h) {
    return u.begin + u.tile.num_row_groups *
                         (static_cast<int64_t>(u.tile.num_open_items) * index[h].open_before +
                          static_cast<int64_t>(u.tile.num_sealed) * index[h].sealed_before);
  };
  for (int first = 0; first < p.num_kv_heads; first += 32) {
    const int h = first + lane;
    const uint32_t found = __ballot_sync(kAllLanes, h < p.num_kv_heads && head_begin(h) <= x);
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

// ---- Rotation of a row over a warp: lane has channels [lane * kDim / 32, ...) -------------------

template <int kDim>
__device__ __forceinline__ void Hadamard(float (&x)[kDim / 32], int lane) {
  constexpr int kEach = kDim / 32;
#pragma unroll
  for (int h = kDim / 2; h >= 1; h /= 2) {
    if (h >= kEach) {
      const int s = h / kEach;
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const float other = __shfl_xor_sync(kAllLanes, x[i], s);
        x[i] = lane & s ? other - x[i] : x[i] + other;
      }
    } else {
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        if (i & h) continue;
        const float a = x[i], b = x[i + h];
        x[i] = a + b, x[i + h] = a - b;
      }
    }
  }
  const float norm = rsqrtf(static_cast<float>(kDim));
#pragma unroll
  for (int i = 0; i < kEach; ++i) x[i] *= norm;
}

template <int kDim>
__device__ __forceinline__ void FlipSigns(const uint32_t* signs, float (&x)[kDim / 32], int lane) {
  constexpr int kEach = kDim / 32;
  const int c = lane * kEach;
  const uint32_t bits = signs[c / 32] >> (c % 32);
#pragma unroll
  for (int i = 0; i < kEach; ++i) x[i] = bits >> i & 1 ? -x[i] : x[i];
}

__device__ __forceinline__ float LoadIo(const void* p, int64_t i, DecodeIo io) {
  if (io == DecodeIo::kF16) return __half2float(static_cast<const __half*>(p)[i]);
  if (io == DecodeIo::kBF16) return __bfloat162float(static_cast<const __nv_bfloat16*>(p)[i]);
  return static_cast<const float*>(p)[i];
}
__device__ __forceinline__ void StoreIo(void* p, int64_t i, float x, DecodeIo io) {
  if (io == DecodeIo::kF16) {
    static_cast<__half*>(p)[i] = __float2half(x);
  } else if (io == DecodeIo::kBF16) {
    static_cast<__nv_bfloat16*>(p)[i] = __float2bfloat16(x);
  } else {
    static_cast<float*>(p)[i] = x;
  }
}

// ---- Shared memory ------------------------------------------------------------------------------

template <int kDim, int kTiles>
struct alignas(16) Shared {
  static constexpr int kRows = 4 * kTiles;
  // Digits of the queries, high and low: for codes, and at 16 bits for 8-bit rows.
  int8_t code_digits[kRows][2][kDim];
  int8_t row_digits[kRows][2][kDim];
  float code_scale[kRows], row_scale[kRows];
  float code_offset[kRows];
  float m[kDecodeWarps][kRows], l[kDecodeWarps][kRows];
  float scales[kDecodeWarps][2][kPageLen];  // K, V of the page at hand
  float log8[256];                          // Log8Table
  int start[4];                             // SumStart
  bool is_last, has_more;
  Ranges ranges;
  Unit unit;                  // at hand
  int first_part, num_parts;  // of the unit
  DecodeHead head;
};
// A warp's state in its ring, padded so that lanes write without conflicts.
template <int kDim>
constexpr int kStateStride = kDim + 8;

template <int kDim, int kTiles>
__host__ __device__ size_t RingsOffset(int num_kv_heads) {
  return RoundUp<size_t>(
      RoundUp<size_t>(sizeof(Shared<kDim, kTiles>), 16) + num_kv_heads * sizeof(DecodeHeadIndex),
      128);
}

template <int kDim, int kTiles>
__device__ void PrepareQueries(const DecodeParams& p, const Unit& u, Shared<kDim, kTiles>* sh,
                               int warp, int lane) {
  constexpr int kRows = 4 * kTiles, kEach = kDim / 32;
  const DecodeHead& head = sh->head;
  for (int row = warp; row < kRows; row += kDecodeWarps) {
    const int in_tile = u.row_group * kRows + row;
    const int token = in_tile / p.group;
    float x[kEach];
    if (token < u.tile.num_tokens) {
      const int64_t from =
          ((static_cast<int64_t>(u.tile.sequence) * p.num_tokens + u.tile.first_token + token) *
               p.num_kv_heads * p.group +
           u.head * p.group + in_tile % p.group) *
          kDim;
#pragma unroll
      for (int i = 0; i < kEach; ++i) x[i] = LoadIo(p.q, from + lane * kEach + i, p.io) * p.scale;
    } else {
#pragma unroll
      for (int i = 0; i < kEach; ++i) x[i] = 0;
    }
    FlipSigns<kDim>(head.k_signs, x, lane);
    Hadamard<kDim>(x, lane);
    float largest = 0, sum = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) largest = fmaxf(largest, fabsf(x[i])), sum += fabsf(x[i]);
#pragma unroll
    for (int s = 16; s > 0; s /= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, s));
      sum += __shfl_xor_sync(kAllLanes, sum, s);
    }
    largest = fmaxf(largest, 1e-30f), sum = fmaxf(sum, 1e-30f);
    // The largest digit for which no sum over the channels can reach 2^22, rounding included.
    const bool in_place = head.k_kind == DecodeCodes::kInPlace2;
    const float limit = fminf(in_place ? kRowDigit / kInPlaceFactor : kRowDigit,
                              floorf((4194303.f / head.k_top - kDim) * largest / sum * 0.9999f));
    const auto store = [&](float top, bool scaled, int8_t(*digits)[kDim]) {
      const float inverse = top / largest;
      int all = 0;
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const int c = lane * kEach + i;
        int v = __float2int_rn(x[i] * inverse);
        all += v;
        if (scaled && c % 32 < 16) v *= 4;
        const int low = static_cast<int8_t>(v & 0xff);
        digits[0][c] = static_cast<int8_t>((v - low) >> 8);
        digits[1][c] = static_cast<int8_t>(low);
      }
      return all;
    };
    store(kRowDigit, false, sh->row_digits[row]);
    int all = store(limit, in_place, sh->code_digits[row]);
#pragma unroll
    for (int s = 16; s > 0; s /= 2) all += __shfl_xor_sync(kAllLanes, all, s);
    if (lane == 0) {
      sh->row_scale[row] = largest / kRowDigit;
      sh->code_scale[row] = largest / limit * (in_place ? 0.5f : 1.f);
      sh->code_offset[row] = kMagic + head.k_offset * static_cast<float>(all);
    }
  }
}

template <int kDim, int kTiles>
__device__ __forceinline__ void LoadQueries(const int8_t (*digits)[2][kDim], const float* scale,
                                            const float* offset, int lane,
                                            Queries<kDim, kTiles>* q) {
  const int r = lane / 4, c = lane % 4;
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int j = 0; j < kDim / 32; ++j) {
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        q->digits[n][j][k] = *reinterpret_cast<const uint32_t*>(
            &digits[4 * n + r / 2][r % 2][32 * j + 16 * k + 4 * c]);
      }
    }
    q->scale[n] = scale[4 * n + c];
    q->offset[n] = offset == nullptr ? kMagic : offset[4 * n + c];
  }
}

__device__ __forceinline__ float SoftCap(float score, float cap) {
  // cap * tanh(score / cap), both in powers of two.
  const float e = ptx::Exp2(__fdividef(score, cap) * 2.885390082f);
  return cap * (1.f - __fdividef(2.f, 1.f + e));
}

// ---- Half an open block -------------------------------------------------------------------------

// Tokens [32 half, 32 half + 32) of an open block, straight from memory: few pages are open.
template <int kDim, int kTiles>
__device__ void OpenItem(const DecodeParams& p, const Unit& u, const DecodeHead& head, int item,
                         const Queries<kDim, kTiles>& q, int lane, State<kDim, kTiles>* state) {
  constexpr int kSteps = kDim / 32;
  const int r = lane / 4, c = lane % 4, half = item % 2;
  const int index = item / 2;
  const int block = index < u.tile.num_sinks ? u.tile.first_sink + index
                                             : u.tile.first_recent + index - u.tile.num_sinks;
  const int first_pos = block * kPageLen + 32 * half;
  const int end = static_cast<int>(u.tile.first_pos) + u.tile.num_tokens;
  if (first_pos >= end) return;  // an empty sequence
  const int slot =
      p.open_table[static_cast<int64_t>(p.sequences[u.tile.sequence]) * p.table_stride + block];
  const uint8_t* base = p.open + slot * p.open_stride + head.open_offset;
  const float* k_scales = reinterpret_cast<const float*>(base + head.open_k_scales) + 32 * half;
  const float* v_scales = reinterpret_cast<const float*>(base + head.open_v_scales) + 32 * half;
  const int zero[4] = {kMagicBits, kMagicBits, kMagicBits, kMagicBits};
  // Values are asked for together with the keys, as far as registers go.
  constexpr int kAhead = kTiles > 1 ? 0 : kDim / 16 < 8 ? kDim / 16 : 8;
  uint4 ahead[kAhead + 1];
  const auto load_values = [&](int m) {
    return __ldcg(reinterpret_cast<const uint4*>(
        base + head.open_v_values + (((m / 4 * 2 + half) * 4 + m % 4) * 32 + lane) * 16));
  };
#pragma unroll
  for (int m = 0; m < kAhead; ++m) ahead[m] = load_values(m);
  float scores[kTiles][4];
#pragma unroll
  for (int t = 0; t < 2; ++t) {
    int sums[kTiles][4];
#pragma unroll
    for (int j = 0; j < kSteps; ++j) {
      const uint4 v =
          *reinterpret_cast<const uint4*>(base + (((2 * half + t) * kSteps + j) * 32 + lane) * 16);
      const uint32_t a[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        if (j == 0) {
          ptx::MmaS8S8(sums[n], a, q.digits[n][j][0], q.digits[n][j][1], zero);
        } else {
          ptx::MmaS8S8(sums[n], a, q.digits[n][j][0], q.digits[n][j][1], sums[n]);
        }
      }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float scale = k_scales[16 * t + 8 * h + r];
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        const float high = __int_as_float(sums[n][2 * h]) - kMagic;
        const float low = __int_as_float(sums[n][2 * h + 1]) - kMagic;
        scores[n][2 * t + h] = fmaf(high, 256.f, low) * scale * q.scale[n];
      }
    }
  }
  float v_scale[4], v_top = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int token = 16 * (i / 2) + 8 * (i % 2) + r;
    v_scale[i] = first_pos + token < end ? v_scales[token] : 0.f;
    v_top = fmaxf(v_top, v_scale[i]);
  }
  v_top = RowMax(v_top);
  const float to_digit = v_top > 0 ? kRowWeight / v_top : 0.f;
  uint32_t columns[kTiles][2];
  float unit[kTiles];
  const uint32_t selector = ColumnSelector(lane);
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    const int token = (u.row_group * 4 * kTiles + 4 * n + c) / p.group;
    const int pos = static_cast<int>(u.tile.first_pos) + token;
    const int lowest = p.sliding_window > 0 ? pos - p.sliding_window : -1;
    float top = kSmallest;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int key = first_pos + 16 * (i / 2) + 8 * (i % 2) + r;
      if (p.softcap > 0) scores[n][i] = SoftCap(scores[n][i], p.softcap);
      if (key > pos || key <= lowest) scores[n][i] = -INFINITY;
      top = fmaxf(top, scores[n][i]);
    }
    top = RowMax(top);
    const float factor = state->Raise(n, top);
    float digits[4], sum = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float w = ptx::Exp2(scores[n][i] - top);
      sum += w;
      digits[i] = fmaf(w, v_scale[i] * to_digit, kTwo23);
    }
    state->l[n] = fmaf(sum, factor, state->l[n]);
    unit[n] = factor * v_top * (1.f / kRowWeight);
#pragma unroll
    for (int t = 0; t < 2; ++t) {
      columns[n][t] = WeightsToColumns(digits[2 * t], digits[2 * t + 1], selector);
    }
  }
#pragma unroll
  for (int m = 0; m < kDim / 16; ++m) {
    const uint4 v = m < kAhead ? ahead[min(m, kAhead)] : load_values(m);
    const uint32_t a[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      int sums[4];
      ptx::MmaS8U8(sums, a, columns[n][0], columns[n][1], zero);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float high = __int_as_float(sums[2 * h]) - kMagic;
        const float low = __int_as_float(sums[2 * h + 1]) - kMagic;
        state->o[n][m][h] = fmaf(fmaf(high, 256.f, low), unit[n], state->o[n][m][h]);
      }
    }
  }
}

// ---- Sealed pages of a unit ---------------------------------------------------------------------

// Copies a record of chunks x 512 bytes and then the lanes below `tail` x 16 bytes: one instruction
// for each 512 bytes. `to` and `from` are the lane's.
__device__ __forceinline__ void CopyRecord(uint32_t to, const uint8_t* from, int chunks,
                                           bool tail, uint64_t policy) {
  if (tail) ptx::CopyAsync16(to + chunks * 512, from + chunks * 512, policy);
  switch (chunks) {
#define TQ_CHUNK(n)                                                     \
  case n:                                                               \
    ptx::CopyAsync16(to + (n - 1) * 512, from + (n - 1) * 512, policy); \
    [[fallthrough]];
#define TQ_CHUNKS(n) TQ_CHUNK(n + 4) TQ_CHUNK(n + 3) TQ_CHUNK(n + 2) TQ_CHUNK(n + 1)
    TQ_CHUNKS(28)
    TQ_CHUNKS(24)
    TQ_CHUNKS(20) TQ_CHUNKS(16) TQ_CHUNKS(12) TQ_CHUNKS(8) TQ_CHUNKS(4) TQ_CHUNKS(0)
#undef TQ_CHUNKS
#undef TQ_CHUNK
        default : break;
  }
}

// A value that the compiler keeps in a register and does not take apart.
template <typename T>
__device__ __forceinline__ const T* Keep(const T* p) {
  asm volatile("" : "+l"(p));
  return p;
}

// What a warp needs of the head at hand, in registers.
struct PageLayout {
  uint32_t k_scales, v_scales;  // of the lane's first scale
  uint32_t v_codes;
  DecodeCodes k_kind, v_kind;
  float v_factor;  // of V scales: to digits
  float p_unit, v_offset;
  DecodeTable k_table, v_table;
  bool special;  // softcap or sliding window
};

template <int kDim, int kTiles>
__device__ __forceinline__ void SealedPage(const DecodeParams& p, const Unit& u,
                                           const PageLayout& layout, const uint8_t* page,
                                           uint32_t bases, int block, const SumStart& start,
                                           const float* log8, const Queries<kDim, kTiles>& q,
                                           float (*scales)[kPageLen], int lane,
                                           State<kDim, kTiles>* state) {
  const float k_base = __uint_as_float(bases << 16);
  const float v_base = __uint_as_float(bases & 0xffff0000u);
  // Two scales of K and of V a lane, shared with the warp.
  {
    const uint8_t* const k2 = page + layout.k_scales;
    const uint8_t* const v2 = page + layout.v_scales;
    *reinterpret_cast<float2*>(&scales[0][2 * lane]) = make_float2(log8[k2[0]], log8[k2[1]]);
    *reinterpret_cast<float2*>(&scales[1][2 * lane]) =
        make_float2(log8[v2[0]] * layout.v_factor, log8[v2[1]] * layout.v_factor);
  }
  __syncwarp();
  float scores[kTiles][8];
  const auto qk = [&]<DecodeCodes kKind>() {
    PageScores<kKind>(page, scales[0], layout.k_table, start, q, lane, scores);
  };
  if (layout.k_kind == DecodeCodes::kTable3) {
    qk.template operator()<DecodeCodes::kTable3>();
  } else if (layout.k_kind == DecodeCodes::kTable4) {
    qk.template operator()<DecodeCodes::kTable4>();
  } else if (layout.k_kind == DecodeCodes::kInPlace2) {
    qk.template operator()<DecodeCodes::kInPlace2>();
  } else {
    qk.template operator()<DecodeCodes::kTable2>();
  }
  float v_scale[8];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float4 v = *reinterpret_cast<const float4*>(&scales[1][lane / 4 * 8 + 4 * i]);
    v_scale[4 * i] = v.x, v_scale[4 * i + 1] = v.y, v_scale[4 * i + 2] = v.z;
    v_scale[4 * i + 3] = v.w;
  }
  const uint32_t selector = ColumnSelector(lane);
  uint32_t columns[kTiles][4];
  float unit[kTiles], offset[kTiles];
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
    float scale = q.scale[n] * k_base;
    if (layout.special) {
      const int token = (u.row_group * 4 * kTiles + 4 * n + lane % 4) / p.group;
      const int lowest =
          p.sliding_window > 0 ? static_cast<int>(u.tile.first_pos) + token - p.sliding_window : -1;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int key = block * kPageLen + 16 * (i / 2) + 8 * (i % 2) + lane / 4;
        scores[n][i] *= scale;
        if (p.softcap > 0) scores[n][i] = SoftCap(scores[n][i], p.softcap);
        if (key <= lowest) scores[n][i] = -INFINITY;
      }
      scale = 1;
    }
    float top = fmaxf(fmaxf(fmaxf(scores[n][0], scores[n][1]), fmaxf(scores[n][2], scores[n][3])),
                      fmaxf(fmaxf(scores[n][4], scores[n][5]), fmaxf(scores[n][6], scores[n][7])));
    top = fmaxf(RowMax(top) * scale, kSmallest);
    const float factor = state->Raise(n, top);
    float sum = 0;
    uint32_t digit_sum[2] = {0, 0};
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      float digits[2];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float w = ptx::Exp2(fmaf(scores[n][2 * t + h], scale, -top));
        sum += w;
        digits[h] = fmaf(w, v_scale[2 * t + h], kTwo23);
        digit_sum[t % 2] += __float_as_uint(digits[h]);
      }
      columns[n][t] = WeightsToColumns(digits[0], digits[1], selector);
    }
    state->l[n] = fmaf(sum, factor, state->l[n]);
    unit[n] = factor * v_base * layout.p_unit;
    offset[n] = kMagic;
    if (layout.v_offset != 0) {  // what the codes have in front of the levels
      const bool in_place = layout.v_kind == DecodeCodes::kInPlace2;
      const uint32_t odd = in_place ? 4 : 1;
      const int own =
          static_cast<int>(digit_sum[0] + odd * digit_sum[1] - (4 + 4 * odd) * 0x4B000000u);
      if (in_place) {
        state->z[n] = fmaf(static_cast<float>(own), unit[n], state->z[n]);
      } else {
        offset[n] = fmaf(static_cast<float>(RowSum(own)), layout.v_offset, kMagic);
      }
    }
  }
  const uint8_t* const values = page + layout.v_codes;
  const auto pv = [&]<DecodeCodes kKind>() {
    PageValues<kKind>(values, layout.v_table, start, columns, offset, unit, lane, state);
  };
  if (layout.v_kind == DecodeCodes::kInPlace2) {
    pv.template operator()<DecodeCodes::kInPlace2>();
  } else if (layout.v_kind == DecodeCodes::kTable4) {
    pv.template operator()<DecodeCodes::kTable4>();
  } else if (layout.v_kind == DecodeCodes::kTable3) {
    pv.template operator()<DecodeCodes::kTable3>();
  } else {
    pv.template operator()<DecodeCodes::kTable2>();
  }
}

// ---- The kernel ---------------------------------------------------------------------------------

// o / l of one row (a warp), rotated back, to the output.
template <int kDim>
__device__ void WriteRow(const DecodeParams& p, const Unit& u, const uint32_t* v_signs, int rows,
                         int row, float l, float (&o)[kDim / 32], int lane) {
  constexpr int kEach = kDim / 32;
  const int in_tile = u.row_group * rows + row, token = in_tile / p.group;
  if (token >= u.tile.num_tokens) return;
  const float inverse = l > 0 ? 1.f / l : 0.f;
#pragma unroll
  for (int i = 0; i < kEach; ++i) o[i] *= inverse;
  Hadamard<kDim>(o, lane);
  FlipSigns<kDim>(v_signs, o, lane);
  const int64_t to =
      ((static_cast<int64_t>(u.tile.sequence) * p.num_tokens + u.tile.first_token + token) *
           p.num_kv_heads * p.group +
       u.head * p.group + in_tile % p.group) *
      kDim;
#pragma unroll
  for (int i = 0; i < kEach; ++i) StoreIo(p.out, to + lane * kEach + i, o[i], p.io);
}

// Merges the parts [first, first + count) of a unit and writes the output. Warps share a row when
// there are few rows; each has every n-th part, and `sums` for what it found. The order is fixed.
template <int kDim, int kTiles>
__device__ void MergeParts(const DecodeParams& p, const Unit& u, const uint32_t* v_signs,
                           int64_t first, int count, int warp, int lane, float (*sums)[kDim],
                           Shared<kDim, kTiles>* sh) {
  constexpr int kRows = 4 * kTiles, kEach = kDim / 32;
  const int rows = min(kRows, u.tile.num_tokens * p.group - u.row_group * kRows);
  const int share = rows >= 4 ? 1 : rows >= 2 ? 2 : 4;  // warps of a row
  const int turn = warp % share;
  for (int base_row = 0; base_row < rows; base_row += kDecodeWarps / share) {
    const int row = base_row + warp / share;
    float l = 0, o[kEach] = {};
    if (row < rows) {
      const auto state = [&](int i) {
        return __ldcg(reinterpret_cast<const float2*>(p.partial_state) + (first + i) * kRows + row);
      };
      float top = kSmallest;
      for (int i = lane; i < count; i += 32) top = fmaxf(top, state(i).x);
#pragma unroll
      for (int s = 16; s > 0; s /= 2) top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, s));
      for (int base = turn; base < count; base += 32 * share) {
        float weight = 0;
        if (base + lane * share < count) {
          const float2 s = state(base + lane * share);
          weight = ptx::Exp2(s.x - top);
          l = fmaf(weight, s.y, l);
        }
        const int n = min(32, (count - base + share - 1) / share);
#pragma unroll 16
        for (int k = 0; k < n; ++k) {
          const float w = __shfl_sync(kAllLanes, weight, k);
          const float* part =
              p.partial_out + ((first + base + k * share) * kRows + row) * kDim + lane * kEach;
#pragma unroll
          for (int i = 0; i < kEach; i += 2) {
            const float2 v = __ldcg(reinterpret_cast<const float2*>(part + i));
            o[i] = fmaf(w, v.x, o[i]), o[i + 1] = fmaf(w, v.y, o[i + 1]);
          }
        }
      }
#pragma unroll
      for (int s = 16; s > 0; s /= 2) l += __shfl_xor_sync(kAllLanes, l, s);
    }
    if (share > 1) {
      __syncthreads();
#pragma unroll
      for (int i = 0; i < kEach; ++i) sums[warp][lane * kEach + i] = o[i];
      if (lane == 0) sh->l[warp][0] = l;
      __syncthreads();
      for (int w = warp + 1; turn == 0 && w < warp + share; ++w) {
#pragma unroll
        for (int i = 0; i < kEach; ++i) o[i] += sums[w][lane * kEach + i];
        l += sh->l[w][0];
      }
    }
    if (row < rows && turn == 0) WriteRow<kDim>(p, u, v_signs, kRows, row, l, o, lane);
  }
}

template <int kDim, int kTiles, int kMinBlocks>
__global__ void __launch_bounds__(32 * kDecodeWarps, kMinBlocks)
    DecodeKernel(const __grid_constant__ DecodeParams p) {
  constexpr int kRows = 4 * kTiles, kEach = kDim / 32;
  extern __shared__ __align__(128) uint8_t dynamic[];
  auto& sh = *reinterpret_cast<Shared<kDim, kTiles>*>(dynamic);
  auto* const index = reinterpret_cast<DecodeHeadIndex*>(dynamic + RoundUp<size_t>(sizeof(sh), 16));
  uint8_t* const rings = dynamic + RingsOffset<kDim, kTiles>(p.num_kv_heads);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  uint8_t* const ring = rings + warp * 2 * p.stage_bytes;
  const int num_tiles = p.batch * (p.num_tokens > 1 ? 2 : 1);
  for (int i = threadIdx.x; i < p.num_kv_heads * static_cast<int>(sizeof(DecodeHeadIndex) / 4);
       i += blockDim.x) {
    reinterpret_cast<uint32_t*>(index)[i] = reinterpret_cast<const uint32_t*>(p.head_index)[i];
  }
  for (int i = threadIdx.x; i < 256; i += blockDim.x) sh.log8[i] = p.log8[i];
  if (threadIdx.x < 4) sh.start[threadIdx.x] = threadIdx.x % 2 == 0 ? 0 : kMagicBits;
  if (warp == 0) {
    Ranges ranges;
    ranges.total = TotalCost<kRows>(p, num_tiles, lane);
    const double total = static_cast<double>(ranges.total);
    ranges.count =
        max(1, static_cast<int>(min(static_cast<double>(gridDim.x), total / p.min_range_cost)));
    ranges.step = total / ranges.count;
    if (lane == 0) sh.ranges = ranges;
  }
  __syncthreads();
  const int me = blockIdx.x;
  if (me >= sh.ranges.count || sh.ranges.total == 0) return;
  const Unit& u = sh.unit;
  const DecodeHead& head = sh.head;
  const int64_t my_begin = sh.ranges.Begin(me), my_end = sh.ranges.Begin(me + 1);
  if (warp == 0) {
    const Unit found = FindUnit<kRows>(p, index, num_tiles, my_begin, lane);
    if (lane == 0) sh.unit = found;
  }
  __syncthreads();
  while (true) {  // units
    const DecodeHeadIndex& at = index[u.head];
    const int begin = u.ItemAt(at, my_begin);
    const int end = u.ItemAt(at, my_end);
    if (begin < end) {
      // Sealed pages go to the warps in turn, behind the open items.
      const int num_open = u.tile.num_open_items;
      int item = begin + warp;
      while (item < min(end, num_open)) item += kDecodeWarps;
      const int to_block = u.tile.first_sealed - num_open;  // item -> block
      int block = item + to_block;
      const int end_block = end + to_block;
      const int32_t* const table =
          p.sealed_table + static_cast<int64_t>(p.sequences[u.tile.sequence]) * p.table_stride;
      const auto id_of = [&](int b) -> uint32_t { return b < end_block ? table[b] : 0; };
      const uint8_t* const records = Keep(p.sealed + at.record_offset + lane * 16);
      const int chunks = at.record_bytes / 512;
      const uint64_t policy = ptx::ReadOncePolicy();
      const bool tail = lane * 16 < at.record_bytes % 512;
      uint32_t stage = ptx::SharedAddress(ring) + lane * 16;  // of the next copy
      const uint32_t other_stage = stage ^ (stage + p.stage_bytes);
      // Empty groups too: copies complete in the order of their groups.
      const auto issue = [&](int b, uint32_t id) {
        if (b < end_block) {
          CopyRecord(stage, records + static_cast<uint64_t>(id) * p.sealed_stride, chunks, tail,
                     policy);
        }
        ptx::CopyAsyncCommit();
        stage ^= other_stage;
      };
      uint32_t ids[2] = {id_of(block), id_of(block + kDecodeWarps)};
      issue(block, ids[0]);
      issue(block + kDecodeWarps, ids[1]);
      static_assert(sizeof(DecodeHead) / 4 <= 32 * kDecodeWarps, "a word a thread");
      if (threadIdx.x < sizeof(DecodeHead) / 4) {
        reinterpret_cast<uint32_t*>(&sh.head)[threadIdx.x] =
            reinterpret_cast<const uint32_t*>(&p.heads[u.head])[threadIdx.x];
      }
      if (threadIdx.x == blockDim.x - 1) {
        sh.first_part = sh.ranges.Of(u.begin);
        sh.num_parts = sh.ranges.Of(u.LastItem(at)) - sh.first_part + 1;
      }
      __syncthreads();
      const uint8_t* const sides = Keep(p.sides + head.side_offset);
      // Ids behind the end are 0: a valid slot.
      const auto side = [&](uint32_t id) {
        return __ldg(
            reinterpret_cast<const uint32_t*>(sides + static_cast<uint64_t>(id) * p.side_stride));
      };
      PrepareQueries<kDim, kTiles>(p, u, &sh, warp, lane);
      __syncthreads();
      State<kDim, kTiles> state;
      state.Reset();
      Queries<kDim, kTiles> q;
      if (begin < num_open) {
        LoadQueries<kDim, kTiles>(sh.row_digits, sh.row_scale, nullptr, lane, &q);
        for (int i = begin + warp; i < min(end, num_open); i += kDecodeWarps) {
          OpenItem<kDim, kTiles>(p, u, head, i, q, lane, &state);
        }
      }
      LoadQueries<kDim, kTiles>(sh.code_digits, sh.code_scale, sh.code_offset, lane, &q);
      SumStart start;
      *reinterpret_cast<int4*>(start.values) = *reinterpret_cast<const int4*>(sh.start);
      PageLayout layout;
      layout.k_scales = head.k_scales + 2 * lane;
      layout.v_scales = head.v_scales + 2 * lane;
      layout.v_codes = head.v_codes;
      layout.k_kind = head.k_kind;
      layout.v_kind = head.v_kind;
      layout.v_factor =
          head.p_limit *
          (head.v_kind == DecodeCodes::kInPlace2 && lane % 2 == 0 ? kInPlaceFactor : 1.f);
      layout.p_unit = head.p_unit;
      layout.v_offset = head.v_offset;
      layout.k_table = head.k_table;
      layout.v_table = head.v_table;
      uint32_t bases = side(ids[0]);
      uint32_t next = id_of(block + 2 * kDecodeWarps);
      const uint8_t* page = ring;
      const uint8_t* other_page = ring + p.stage_bytes;
      for (; block < end_block; block += kDecodeWarps) {
        const uint32_t next_bases = side(ids[1]);
        const uint32_t after = id_of(block + 3 * kDecodeWarps);
        layout.special = p.softcap > 0 ||
                         (p.sliding_window > 0 && block * kPageLen < u.tile.lowest + p.num_tokens);
        ptx::CopyAsyncWait<1>();
        __syncwarp();
        SealedPage<kDim, kTiles>(p, u, layout, page, bases, block, start, sh.log8, q,
                                 sh.scales[warp], lane, &state);
        __syncwarp();
        issue(block + 2 * kDecodeWarps, next);
        bases = next_bases;
        ids[1] = next;
        next = after;
        const uint8_t* const swap = page;
        page = other_page;
        other_page = swap;
      }
      ptx::CopyAsyncWait<0>();
      __syncwarp();
      // The ring is empty now: it takes the warps' states.
      float* mine = reinterpret_cast<float*>(ring);
      const int r = lane / 4, c = lane % 4;
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        const float l = RowSum(state.l[n]);
        const float z = RowSum(state.z[n]) * head.v_offset;
        if (r == 0) sh.m[warp][4 * n + c] = state.m[n], sh.l[warp][4 * n + c] = l;
#pragma unroll
        for (int m = 0; m < kDim / 16; ++m) {
          mine[(4 * n + c) * kStateStride<kDim> + 16 * m + r] = state.o[n][m][0] - z;
          mine[(4 * n + c) * kStateStride<kDim> + 16 * m + r + 8] = state.o[n][m][1] - z;
        }
      }
      __syncthreads();
      const int num_parts = sh.num_parts;
      const int unit_index =
          (u.tile_index * p.num_kv_heads + u.head) * p.num_row_groups + u.row_group;
      // Unique: both grow along the work.
      const int64_t slot = static_cast<int64_t>(me) + unit_index;
      for (int row = warp; row < kRows; row += kDecodeWarps) {
        float top = sh.m[0][row];
#pragma unroll
        for (int w = 1; w < kDecodeWarps; ++w) top = fmaxf(top, sh.m[w][row]);
        float l = 0, o[kEach] = {};
#pragma unroll
        for (int w = 0; w < kDecodeWarps; ++w) {
          const float weight = ptx::Exp2(sh.m[w][row] - top);
          l = fmaf(weight, sh.l[w][row], l);
          const float* part = reinterpret_cast<const float*>(rings + w * 2 * p.stage_bytes) +
                              row * kStateStride<kDim> + lane * kEach;
#pragma unroll
          for (int i = 0; i < kEach; ++i) o[i] = fmaf(weight, part[i], o[i]);
        }
        if (num_parts == 1) {
          WriteRow<kDim>(p, u, head.v_signs, kRows, row, l, o, lane);
        } else {
          float* part = p.partial_out + (slot * kRows + row) * kDim + lane * kEach;
#pragma unroll
          for (int i = 0; i < kEach; i += 2) {
            __stcg(reinterpret_cast<float2*>(part + i), make_float2(o[i], o[i + 1]));
          }
          if (lane == 0) {
            __stcg(reinterpret_cast<float2*>(p.partial_state) + slot * kRows + row,
                   make_float2(top, l));
          }
        }
      }
      if (num_parts > 1) {
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0) {
          const uint32_t before =
              atomicInc(&p.arrivals[unit_index], static_cast<uint32_t>(num_parts - 1));
          sh.is_last = before == static_cast<uint32_t>(num_parts - 1);
        }
        __syncthreads();
        if (sh.is_last) {
          __threadfence();
          MergeParts<kDim, kTiles>(p, u, head.v_signs,
                                   static_cast<int64_t>(sh.first_part) + unit_index, num_parts,
                                   warp, lane, reinterpret_cast<float(*)[kDim]>(rings), &sh);
        }
      }
      __syncthreads();
    }
    if (u.begin + u.cost >= my_end) break;
    __syncthreads();
    if (threadIdx.x == 0) sh.has_more = NextUnit<kRows>(p, index, num_tiles, &sh.unit);
    __syncthreads();
    if (!sh.has_more) break;
  }
}

// ---- Launchers ----------------------------------------------------------------------------------

struct Kernel {
  void (*function)(DecodeParams) = nullptr;
  size_t (*rings_offset)(int num_kv_heads) = nullptr;  // in shared memory
};

template <int kDim, int kTiles, int kMinBlocks>
Kernel Make() {
  return {DecodeKernel<kDim, kTiles, kMinBlocks>, RingsOffset<kDim, kTiles>};
}

Kernel KernelFor(int head_dim, int rows) {
#ifdef TQ_ONE_DECODE_KERNEL  // while one kernel is worked on
  return Make<128, 1, 4>();
#else
  switch (head_dim * 100 + rows) {
    case 6404: return Make<64, 1, 4>();
    case 6408: return Make<64, 2, 4>();
    case 6416: return Make<64, 4, 2>();
    case 12804: return Make<128, 1, 4>();
    case 12808: return Make<128, 2, 3>();
    case 12816: return Make<128, 4, 2>();
    case 25604: return Make<256, 1, 3>();
    case 25608: return Make<256, 2, 2>();
    default: return Make<256, 4, 1>();
  }
#endif
}

size_t SharedBytes(const Kernel& kernel, uint32_t stage_bytes, int num_kv_heads) {
  return kernel.rings_offset(num_kv_heads) + static_cast<size_t>(kDecodeWarps) * 2 * stage_bytes;
}

}  // namespace

Status PrepareDecodeKernel(int head_dim, int rows, uint32_t stage_bytes, int num_kv_heads,
                           DecodeKernelInfo* info) {
  const Kernel kernel = KernelFor(head_dim, rows);
  const size_t shared = SharedBytes(kernel, stage_bytes, num_kv_heads);
  TQ_RETURN_IF_ERROR(TQ_CUDA(cudaFuncSetAttribute(
      kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared))));
  TQ_RETURN_IF_ERROR(
      TQ_CUDA(cudaFuncSetAttribute(kernel.function, cudaFuncAttributePreferredSharedMemoryCarveout,
                                   cudaSharedmemCarveoutMaxShared)));
  TQ_RETURN_IF_ERROR(TQ_CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(
      &info->blocks_per_multiprocessor, kernel.function, 32 * kDecodeWarps, shared)));
  TQ_ASSIGN_OR_RETURN(const DeviceInfo device, GetDeviceInfo());
  info->num_blocks = info->blocks_per_multiprocessor * device.num_multiprocessors;
  return OkStatus();
}

Status LaunchDecodeKernel(int head_dim, int rows, const DecodeParams& params, int num_blocks,
                          void* stream) {
  const Kernel kernel = KernelFor(head_dim, rows);
  kernel.function<<<num_blocks, 32 * kDecodeWarps,
                    SharedBytes(kernel, params.stage_bytes, params.num_kv_heads),
                    static_cast<cudaStream_t>(stream)>>>(params);
  return TQ_CUDA(cudaGetLastError());
}

}  // namespace tq
