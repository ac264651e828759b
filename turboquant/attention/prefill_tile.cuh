// What a thread block of prefill works on: units of 64 queries, the blocks that they read, and the
// rows on their way in and out. See prefill_cuda.cu for the idea.
#pragma once

#include "turboquant/attention/decode_fragments.cuh"
#include "turboquant/attention/prefill_params.h"
#include "turboquant/codec/device_row.cuh"
#include "turboquant/codec/fragment_layout.h"

namespace tq {
namespace {

constexpr float kCodeDigit = 127.f;  // of queries that meet codes

// Blocks that a unit reads, by the rule of precision.
struct PrefillUnit {
  int block = 0, head = 0;               // of its positions; of the query heads of the KV head
  int sealed_begin = 0, sealed_end = 0;  // blocks
  int sink_begin = 0, sink_end = 0;      // blocks, open
  int recent_begin = 0, recent_end = 0;  // blocks, open
};

__device__ __forceinline__ PrefillUnit PrefillUnitOf(const PrefillParams& p, const PrefillTile& t,
                                                     int index) {
  PrefillUnit u;
  const int unit = t.first_unit + index, end = t.first_pos + t.num_tokens;
  u.block = t.first_pos / kPageLen + unit / p.group;
  u.head = unit % p.group;
  if (u.block * kPageLen >= end) return u;  // none: it reads nothing
  const int first = max(t.first_pos, u.block * kPageLen);
  const int lowest = p.sliding_window > 0 ? max(0, first - p.sliding_window + 1) / kPageLen : 0;
  const int sinks = min(p.sink_blocks, u.block + 1);
  const int recent = max(sinks, u.block - p.recent_blocks);
  u.sink_begin = min(lowest, sinks);
  u.sink_end = sinks;
  u.sealed_begin = max(sinks, min(lowest, recent));
  u.sealed_end = recent;
  u.recent_begin = min(u.block + 1, max(recent, lowest));
  u.recent_end = u.block + 1;
  return u;
}

// What a thread block goes through: steps of kBlocks sealed blocks, at absolute multiples, then one
// open block at a time. All that some unit reads.
template <int kBlocks>
struct PrefillSteps {
  int sealed_begin = 0, sealed_end = 0, sink_begin = 0, recent_begin = 0;
  int first_step = 0, num_sealed = 0, num_sinks = 0, count = 0;

  template <int kUnits>
  __device__ __forceinline__ void Set(const PrefillUnit (&units)[kUnits]) {
    sealed_begin = sink_begin = recent_begin = 1 << 30;
    int sink_end = 0, recent_end = 0;
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      const PrefillUnit& u = units[i];
      if (u.sealed_begin < u.sealed_end) {
        sealed_begin = min(sealed_begin, u.sealed_begin),
        sealed_end = max(sealed_end, u.sealed_end);
      }
      if (u.sink_begin < u.sink_end) {
        sink_begin = min(sink_begin, u.sink_begin), sink_end = max(sink_end, u.sink_end);
      }
      if (u.recent_begin < u.recent_end) {
        recent_begin = min(recent_begin, u.recent_begin);
        recent_end = max(recent_end, u.recent_end);
      }
    }
    if (sealed_end > sealed_begin) {
      first_step = sealed_begin / kBlocks;
      num_sealed = (sealed_end + kBlocks - 1) / kBlocks - first_step;
    }
    num_sinks = max(0, sink_end - sink_begin);
    count = num_sealed + num_sinks + max(0, recent_end - recent_begin);
  }
  __device__ __forceinline__ bool IsSealed(int i) const {
    return i < num_sealed;
  }
  // Its first block.
  __device__ __forceinline__ int BlockOf(int i) const {
    if (i < num_sealed) return (first_step + i) * kBlocks;
    i -= num_sealed;
    return i < num_sinks ? sink_begin + i : recent_begin + i - num_sinks;
  }
};

// Whether a unit has a part in a step that begins at `block`.
template <int kBlocks>
__device__ __forceinline__ bool TakesPart(const PrefillUnit& u, bool sealed, int block) {
  if (sealed) return block < u.sealed_end && block + kBlocks > u.sealed_begin;
  return (block >= u.sink_begin && block < u.sink_end) ||
         (block >= u.recent_begin && block < u.recent_end);
}

// ---- Queries ------------------------------------------------------------------------------------

// Digits of the queries of a unit as operand A: fragments of 16 rows x 32 channels, row by row of
// fragments, a lane's 16 bytes in one piece.
template <int kDim>
struct PrefillQueries {
  static constexpr int kBytes = kPageLen * kDim;
  uint8_t code[kBytes];               // 8 bits, for codes
  uint8_t high[kBytes], low[kBytes];  // 16 bits, for 8-bit rows
  float code_scale[kPageLen], row_scale[kPageLen];
};

// Where the query of a row of a unit lies in q and out, in rows of head_dim; -1: there is none.
__device__ __forceinline__ int64_t PrefillRow(const PrefillParams& p, const PrefillTile& t,
                                              const PrefillUnit& u, int kv_head, int row) {
  const int token = u.block * kPageLen + row - t.first_pos;
  if (token < 0 || token >= t.num_tokens) return -1;
  return static_cast<int64_t>(t.first_row + token) * p.num_kv_heads * p.group + kv_head * p.group +
         u.head;
}

// Rows that a warp turns at once: few warps are there to hide how long a shuffle takes.
constexpr int kRowsAtOnce = 4;

// 16 rows of a unit, by a warp.
template <int kDim>
__device__ void PreparePrefillQueries(const PrefillParams& p, const PrefillTile& t,
                                      const PrefillUnit& u, const PrefillHead& head, int kv_head,
                                      int first_row, int lane, PrefillQueries<kDim>* q) {
  constexpr int kEach = kDim / 32;
#pragma unroll 1
  for (int first = first_row; first < first_row + 16; first += kRowsAtOnce) {
    float x[kRowsAtOnce][kEach], largest[kRowsAtOnce];
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; ++i) {
      const int64_t from = PrefillRow(p, t, u, kv_head, first + i) * kDim;
#pragma unroll
      for (int e = 0; e < kEach; ++e) x[i][e] = 0;
      if (from >= 0) LoadIoRow(p.q, from + lane * kEach, p.io, x[i]);
#pragma unroll
      for (int e = 0; e < kEach; ++e) x[i][e] *= p.scale;
    }
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; ++i) FlipSigns<kDim>(head.k_signs, x[i], lane);
    Hadamard<kDim>(x, lane, rsqrtf(static_cast<float>(kDim)));
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; ++i) {
      largest[i] = 1e-30f;
#pragma unroll
      for (int e = 0; e < kEach; ++e) largest[i] = fmaxf(largest[i], fabsf(x[i][e]));
    }
#pragma unroll
    for (int s = 16; s > 0; s /= 2) {
#pragma unroll
      for (int i = 0; i < kRowsAtOnce; ++i) {
        largest[i] = fmaxf(largest[i], __shfl_xor_sync(kAllLanes, largest[i], s));
      }
    }
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; ++i) {
      const int row = first + i;
      const float to_code = kCodeDigit / largest[i], to_row = kRowDigit / largest[i];
#pragma unroll
      for (int e = 0; e < kEach; ++e) {
        const size_t at = FragmentByte(FragmentOf(Side::kK, kDim, row, lane * kEach + e));
        q->code[at] = static_cast<uint8_t>(__float2int_rn(x[i][e] * to_code));
        const int digit = __float2int_rn(x[i][e] * to_row);
        const int low = static_cast<int8_t>(digit & 0xff);
        q->high[at] = static_cast<uint8_t>((digit - low) >> 8);
        q->low[at] = static_cast<uint8_t>(low);
      }
      if (lane == 0) {
        q->code_scale[row] = largest[i] / kCodeDigit * head.k_unit;
        q->row_scale[row] = largest[i] / kRowDigit;
      }
    }
  }
}

// Operand A of the warp's 16 rows.
template <int kDim>
__device__ __forceinline__ void LoadQueryFragments(const uint8_t* digits, int warp, int lane,
                                                   uint32_t (&a)[kDim / 32][4]) {
#pragma unroll
  for (int j = 0; j < kDim / 32; ++j) {
    const uint4 v =
        *reinterpret_cast<const uint4*>(digits + ((warp * (kDim / 32) + j) * 32 + lane) * 16);
    a[j][0] = v.x, a[j][1] = v.y, a[j][2] = v.z, a[j][3] = v.w;
  }
}

// ---- Softmax state of 16 rows, and the way out --------------------------------------------------

// A lane has rows r and r + 8 (r = lane / 4) of the warp's 16, and of each 8 channels 2 c, 2 c + 1
// (c = lane % 4).
template <int kDim>
struct PrefillState {
  float m[2], l[2];  // l: of the lane's own tokens
  float o[kDim / 8][4];

  __device__ __forceinline__ void Reset() {
#pragma unroll
    for (int i = 0; i < 2; ++i) m[i] = kSmallest, l[i] = 0;
#pragma unroll
    for (int j = 0; j < kDim / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) o[j][i] = 0;
    }
  }
  // Makes room for scores up to top[i]; returns in factor[i] what weights relative to it are worth.
  // What becomes of a row depends on that row alone.
  __device__ __forceinline__ void Raise(const float (&top)[2], float (&factor)[2]) {
    const bool raise[2] = {top[0] > m[0] + kSlack, top[1] > m[1] + kSlack};
    if (__any_sync(kAllLanes, raise[0] || raise[1])) {
      float scale[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float raised = raise[i] ? top[i] : m[i];
        scale[i] = ptx::Exp2(m[i] - raised);
        m[i] = raised;
        l[i] *= scale[i];
      }
#pragma unroll
      for (int j = 0; j < kDim / 8; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) o[j][i] *= scale[i / 2];
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) factor[i] = ptx::Exp2(top[i] - m[i]);
  }
};

template <int kDim>
constexpr int kPrefillRowStride = kDim + 8;  // floats; lanes write without conflicts
// Shared memory that a warp needs to write its rows.
template <int kDim>
constexpr size_t kPrefillOutBytes = 8 * kPrefillRowStride<kDim> * sizeof(float);

// o / l of the warp's rows, rotated back, to the output. `rows`: kPrefillOutBytes of the warp's
// own.
template <int kDim>
__device__ void WritePrefillRows(const PrefillParams& p, const PrefillTile& t, const PrefillUnit& u,
                                 const PrefillHead& head, int kv_head, int first_row, int lane,
                                 const PrefillState<kDim>& state, float* rows) {
  constexpr int kEach = kDim / 32, kStride = kPrefillRowStride<kDim>;
  const int r = lane / 4, c = lane % 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float l = half == 0 ? state.l[0] : state.l[1];
    l += __shfl_xor_sync(kAllLanes, l, 1);
    l += __shfl_xor_sync(kAllLanes, l, 2);
    const float inverse = l > 0 ? 1.f / l : 0.f;
    __syncwarp();
#pragma unroll
    for (int j = 0; j < kDim / 8; ++j) {
      const float x = half == 0 ? state.o[j][0] : state.o[j][2];
      const float y = half == 0 ? state.o[j][1] : state.o[j][3];
      *reinterpret_cast<float2*>(&rows[r * kStride + 8 * j + 2 * c]) =
          make_float2(x * inverse, y * inverse);
    }
    __syncwarp();
#pragma unroll 1
    for (int first = 0; first < 8; first += kRowsAtOnce) {
      float x[kRowsAtOnce][kEach];
#pragma unroll
      for (int i = 0; i < kRowsAtOnce; ++i) {
#pragma unroll
        for (int e = 0; e < kEach; ++e) x[i][e] = rows[(first + i) * kStride + lane * kEach + e];
      }
      Hadamard<kDim>(x, lane, rsqrtf(static_cast<float>(kDim)));
#pragma unroll
      for (int i = 0; i < kRowsAtOnce; ++i) {
        FlipSigns<kDim>(head.v_signs, x[i], lane);
        const int64_t to = PrefillRow(p, t, u, kv_head, first_row + 8 * half + first + i) * kDim;
        if (to < 0) continue;
#pragma unroll
        for (int e = 0; e < kEach; ++e) StoreIo(p.out, to + lane * kEach + e, x[i][e], p.io);
      }
    }
  }
}

}  // namespace
}  // namespace tq
