// The decode kernel; see decode_cuda.cu for the idea.
#pragma once

#include <type_traits>

#include "turboquant/attention/decode_entry.h"
#include "turboquant/attention/decode_rows.cuh"
#include "turboquant/attention/decode_skip.cuh"

namespace tq {
namespace {

// ---- The kernel ---------------------------------------------------------------------------------

// o / l of one row (a warp), rotated back, to the output. m, reference: what l and `skipped` are
// relative to.
template <DecodeVariant kVariant, int kDim>
__device__ void WriteRow(const DecodeParams& p, const Unit& u, const DecodeHead& head, int rows,
                         int row, float m, float l, float reference, const SkippedMass& skipped,
                         float (&o)[kDim / 32], int lane) {
  constexpr int kEach = kDim / 32;
  const int in_tile = u.row_group * rows + row, token = in_tile / p.group;
  if (token >= u.tile.num_tokens) return;
  const float inverse = l > 0 ? 1.f / l : 0.f;
#pragma unroll
  for (int i = 0; i < kEach; ++i) o[i] *= inverse;
  if (kVariant != DecodeVariant::kWide || head.v_rotated != 0) {
    Hadamard<kDim>(o, lane, rsqrtf(static_cast<float>(kDim)));
    FlipSigns<kDim>(head.v_signs, o, lane);
  }
  const int64_t to =
      ((static_cast<int64_t>(u.tile.sequence) * p.num_tokens + u.tile.first_token + token) *
           p.num_kv_heads * p.group +
       u.head * p.group + in_tile % p.group) *
      kDim;
#pragma unroll
  for (int i = 0; i < kEach; ++i) StoreIo(p.out, to + lane * kEach + i, o[i], p.io);
  if constexpr (kVariant == DecodeVariant::kSkip) {
    if (p.skipped == nullptr || lane != 0) return;
    const float all = skipped.mass + l * ptx::Exp2(m - reference);
    const float part = all > 0 ? 1.f / all : 0.f;
    reinterpret_cast<float2*>(p.skipped)[to / kDim] =
        make_float2(skipped.mass * part, skipped.bound * part);
  }
}

// float2 of a row of a part: (m, l), and what was skipped.
template <bool kSkip>
constexpr int kPartWidth = kSkip ? 2 : 1;

// Merges the parts [first, first + count) of a unit and writes the output. Warps share a row when
// there are few rows; each has every n-th part, and its ring for what it found. The order is fixed.
template <DecodeVariant kVariant, int kDim, int kTiles>
__device__ void MergeParts(const DecodeParams& p, const Unit& u, const DecodeHead& head,
                           int64_t first, int count, int warp, int lane, uint8_t* rings,
                           size_t warp_bytes, const Shared<kDim, kTiles>& sh) {
  constexpr bool kSkip = kVariant == DecodeVariant::kSkip;
  constexpr int kRows = 4 * kTiles, kEach = kDim / 32;
  const int rows = min(kRows, u.tile.num_tokens * p.group - u.row_group * kRows);
  constexpr int kWide = kEach % 4 == 0 ? 4 : 2;
  using Wide = std::conditional_t<kWide == 4, float4, float2>;
  const int num_warps = static_cast<int>(blockDim.x / 32);
  const auto sums = [&](int w) { return reinterpret_cast<float*>(rings + w * warp_bytes); };
  int share = 1;  // warps of a row
  while (2 * share * rows <= num_warps) share *= 2;
  const int turn = warp % share, rows_at_once = num_warps / share;
  for (int base_row = 0; base_row < rows; base_row += rows_at_once) {
    // Warps behind the last whole group of `share` have no row.
    const int row = warp / share < rows_at_once ? base_row + warp / share : rows;
    float l = 0, top = kSmallest, o[kEach] = {};
    SkippedMass skipped;
    if (row < rows) {
      const auto state = [&](int i) {
        return __ldcg(reinterpret_cast<const float2*>(p.partial_state) +
                      ((first + i) * kRows + row) * kPartWidth<kSkip>);
      };
      const auto skipped_of = [&](int i) {
        return __ldcg(reinterpret_cast<const float2*>(p.partial_state) +
                      ((first + i) * kRows + row) * kPartWidth<kSkip> + 1);
      };
      for (int i = lane; i < count; i += 32) top = fmaxf(top, state(i).x);
#pragma unroll
      for (int s = 16; s > 0; s /= 2) top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, s));
      for (int base = turn; base < count; base += 32 * share) {
        float weight = 0;
        if (base + lane * share < count) {
          const float2 s = state(base + lane * share);
          weight = ptx::Exp2(s.x - top);
          l = fmaf(weight, s.y, l);
          if constexpr (kSkip) {
            const float2 part = skipped_of(base + lane * share);
            skipped.mass += part.x, skipped.bound += part.y;
          }
        }
        const int n = min(32, (count - base + share - 1) / share);
#pragma unroll 16
        for (int k = 0; k < n; ++k) {
          const float w = __shfl_sync(kAllLanes, weight, k);
          const float* part =
              p.partial_out + ((first + base + k * share) * kRows + row) * kDim + lane * kEach;
#pragma unroll
          for (int i = 0; i < kEach; i += kWide) {
            const auto v = __ldcg(reinterpret_cast<const Wide*>(part + i));
            const float* const values = reinterpret_cast<const float*>(&v);
#pragma unroll
            for (int e = 0; e < kWide; ++e) o[i + e] = fmaf(w, values[e], o[i + e]);
          }
        }
      }
#pragma unroll
      for (int s = 16; s > 0; s /= 2) {
        l += __shfl_xor_sync(kAllLanes, l, s);
        if constexpr (kSkip) {
          skipped.mass += __shfl_xor_sync(kAllLanes, skipped.mass, s);
          skipped.bound += __shfl_xor_sync(kAllLanes, skipped.bound, s);
        }
      }
    }
    if (share > 1) {
      __syncthreads();
#pragma unroll
      for (int i = 0; i < kEach; ++i) sums(warp)[lane * kEach + i] = o[i];
      if (lane == 0) {
        sums(warp)[kDim] = l;
        if constexpr (kSkip) {
          sums(warp)[kDim + 1] = skipped.mass, sums(warp)[kDim + 2] = skipped.bound;
        }
      }
      __syncthreads();
      for (int w = warp + 1; row < rows && turn == 0 && w < warp + share; ++w) {
#pragma unroll
        for (int i = 0; i < kEach; ++i) o[i] += sums(w)[lane * kEach + i];
        l += sums(w)[kDim];
        if constexpr (kSkip) {
          skipped.mass += sums(w)[kDim + 1], skipped.bound += sums(w)[kDim + 2];
        }
      }
    }
    if (row < rows && turn == 0) {
      WriteRow<kVariant, kDim>(p, u, head, kRows, row, top, l, sh.reference[row], skipped, o, lane);
    }
  }
}

// Barriers of a warp: keys (or whole records) of the two stages, values of the two stages.
constexpr uint32_t kOtherBarrier = sizeof(uint64_t);
constexpr uint32_t kValueBarriers = 2 * sizeof(uint64_t);

template <int kDim, int kTiles, int kMinBlocks, DecodeVariant kVariant>
__global__ void __launch_bounds__(32 * kFewDecodeWarps * kMinBlocks, 1)
    DecodeKernel(const __grid_constant__ DecodeParams p) {
  constexpr bool kSkip = kVariant == DecodeVariant::kSkip;
  constexpr bool kWide = kVariant == DecodeVariant::kWide;
  constexpr int kRows = 4 * kTiles, kEach = kDim / 32;
  uint8_t* const dynamic = ptx::DynamicShared();
  auto& sh = *reinterpret_cast<Shared<kDim, kTiles>*>(dynamic);
  auto* const index = reinterpret_cast<DecodeHeadIndex*>(dynamic + RoundUp<size_t>(sizeof(sh), 16));
  uint8_t* const center = dynamic + CenterOffset<kDim, kTiles, kWide>(p.num_kv_heads);
  [[maybe_unused]] WideShared<kDim, kTiles>* wide = nullptr;
  if constexpr (kWide) {
    wide = reinterpret_cast<WideShared<kDim, kTiles>*>(
        dynamic + CenterOffset<kDim, kTiles, false>(p.num_kv_heads));
  }
  uint8_t* const warps = center + p.center_bytes;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int num_warps = static_cast<int>(blockDim.x / 32);
  const size_t warp_bytes = WarpBytes<kTiles>(p.stage_bytes);
  const auto of_warp = [&](int w) {
    return reinterpret_cast<WarpShared<kTiles>*>(warps + w * warp_bytes);
  };
  WarpShared<kTiles>* const own = of_warp(warp);
  uint8_t* const ring = reinterpret_cast<uint8_t*>(own + 1);
  const int num_tiles = p.batch * (p.num_tokens > 1 ? 2 : 1);
  for (int i = threadIdx.x; i < p.num_kv_heads * static_cast<int>(sizeof(DecodeHeadIndex) / 4);
       i += blockDim.x) {
    reinterpret_cast<uint32_t*>(index)[i] = reinterpret_cast<const uint32_t*>(p.head_index)[i];
  }
  for (int i = threadIdx.x; i < 256; i += blockDim.x) sh.log8[i] = p.log8[i];
  if (lane < 4) {
    ptx::BarrierInit(ptx::SharedAddress(&own->barriers[lane]), 1);
    ptx::FenceBulkCopy();
  }
  uint32_t parities = 0;  // of the phases that the warp's barriers are in
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
      while (item < min(end, num_open)) item += num_warps;
      const int to_block = u.tile.first_sealed - num_open;  // item -> block
      int block = item + to_block;
      const int end_block = end + to_block;
      const int32_t* const table =
          p.sealed_table + static_cast<int64_t>(p.sequences[u.tile.sequence]) * p.table_stride;
      const auto id_of = [&](int b) -> uint32_t { return b < end_block ? table[b] : 0; };
      const uint32_t record_bytes = at.record_bytes, side_bytes = at.side_bytes;
      const uint32_t lane_at = ptx::kHasBulkCopy ? 0 : lane * 16;
      const uint8_t* const records = Keep(p.sealed + at.record_offset + lane_at);
      const uint8_t* const sides = Keep(p.sides + p.heads[u.head].side_offset + lane_at);
      uint32_t stage = ptx::SharedAddress(ring);  // of the next copy
      const uint32_t other_stage = stage ^ (stage + p.stage_bytes);
      uint32_t barrier = ptx::SharedAddress(&own->barriers[0]);  // of that stage
      // cos and sin of a pair of the centre a lane.
      const int head_center = p.heads[u.head].center;
      const float2* center_start = nullptr;
      if (head_center >= 0 && lane < kDecodePairs) {
        center_start = reinterpret_cast<const float2*>(p.center_table.starts) +
                       p.centers[head_center].slot[lane];
      }
      // Copies [from, from + bytes) of the record of slot `id` to the same place of a stage; lanes
      // have 16 bytes each where there are no bulk copies.
      const auto copy = [&](uint32_t to, uint32_t at_barrier, uint32_t id, uint32_t from,
                            uint32_t bytes) {
        const uint8_t* const record = records + static_cast<uint64_t>(id) * p.sealed_stride + from;
        if constexpr (ptx::kHasBulkCopy) {
          ptx::BulkCopy(to + from, record, bytes, at_barrier, ptx::kReadOncePolicy);
        } else {
          CopyRecord(to + from + lane_at, record, bytes, lane_at);
        }
      };
      // With skipping, V codes are asked for when the page's scores are known.
      const uint32_t key_bytes = kSkip ? p.heads[u.head].v_codes : record_bytes;
      // Groups that are empty too: copies complete in the order of their groups.
      const auto issue = [&](int b, uint32_t id) {
        if (b < end_block) {
          const uint8_t* const side = sides + static_cast<uint64_t>(id) * p.side_stride;
          if constexpr (ptx::kHasBulkCopy) {
            if (lane == 0) {
              ptx::BarrierExpect(barrier, key_bytes + side_bytes);
              copy(stage, barrier, id, 0, key_bytes);
              ptx::BulkCopy(stage + p.side_at, side, side_bytes, barrier, ptx::kReadOncePolicy);
            }
          } else {
            copy(stage, barrier, id, 0, key_bytes);
            if (lane_at < side_bytes) ptx::CopyAsync16(stage + p.side_at + lane_at, side);
          }
          if (center_start != nullptr) {
            ptx::CopyAsync8(stage + p.side_at + kSideBytes + lane * 8,
                            center_start + static_cast<int64_t>(b) * p.center_table.num_slots);
          }
        }
        if (!ptx::kHasBulkCopy || head_center >= 0) ptx::CopyAsyncCommit();
        stage ^= other_stage;
        barrier ^= kOtherBarrier;
      };
      // V codes to the stage that `issue` turns to next.
      [[maybe_unused]] const auto issue_values = [&](bool wanted, uint32_t id) {
        if (wanted) {
          if constexpr (ptx::kHasBulkCopy) {
            if (lane == 0) {
              ptx::BarrierExpect(barrier + kValueBarriers, record_bytes - key_bytes);
              copy(stage, barrier + kValueBarriers, id, key_bytes, record_bytes - key_bytes);
            }
          } else {
            copy(stage, 0, id, key_bytes, record_bytes - key_bytes);
          }
        }
        if (!ptx::kHasBulkCopy) ptx::CopyAsyncCommit();
      };
      // For bulk copies to a stage; first_barrier: 0 for keys, 2 for values.
      const auto wait = [&](const uint8_t* of, uint32_t first_barrier) {
        if constexpr (ptx::kHasBulkCopy) {
          const uint32_t which = first_barrier + (of == ring ? 0 : 1);
          ptx::BarrierWait(ptx::SharedAddress(&own->barriers[which]), parities >> which & 1);
          parities ^= 1u << which;
        }
      };
      uint32_t ids[2] = {id_of(block), id_of(block + num_warps)};
      issue(block, ids[0]);
      if (kSkip && !ptx::kHasBulkCopy) ptx::CopyAsyncCommit();  // in place of values
      issue(block + num_warps, ids[1]);
      for (uint32_t i = threadIdx.x; i < sizeof(DecodeHead) / 4; i += blockDim.x) {
        reinterpret_cast<uint32_t*>(&sh.head)[i] =
            reinterpret_cast<const uint32_t*>(&p.heads[u.head])[i];
      }
      if (threadIdx.x == blockDim.x - 1) {
        sh.first_part = sh.ranges.Of(u.begin);
        sh.num_parts = sh.ranges.Of(u.LastItem(at)) - sh.first_part + 1;
      }
      __syncthreads();
      if (head.center >= 0) {
        const auto* const table = reinterpret_cast<const uint4*>(p.centers[head.center].digits);
        for (uint32_t i = threadIdx.x; i < p.center_bytes / 16; i += blockDim.x) {
          reinterpret_cast<uint4*>(center)[i] = __ldg(table + i);
        }
      }
      PrepareQueries<kWide, kDim, kTiles>(p, u, &sh, wide, warp, lane);
      __syncthreads();
      if constexpr (kSkip) {
        SetSkipLimits<kDim, kTiles>(p, u, &sh, warps, warp_bytes, warp, lane);
      }
      State<kDim, kTiles> state;
      state.Reset();
      Queries<kDim, kTiles> q;
      if (begin < num_open) {
        LoadQueries<kDim, kTiles>(sh.row_digits, sh.row_scale, nullptr, lane, &q);
        for (int i = begin + warp; i < min(end, num_open); i += num_warps) {
          OpenItem<kWide, kDim, kTiles>(p, u, head, i, sh, wide, q, lane, &state);
        }
      }
      if (kWide && head.k_groups.len > 0) {
        LoadQueries<kDim, kTiles>(sh.row_digits, sh.row_scale, nullptr, lane, &q);
      } else {
        LoadQueries<kDim, kTiles>(sh.code_digits, sh.code_scale, sh.code_offset, lane, &q);
      }
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
      layout.center = nullptr;
      if (head.center >= 0) {
        layout.center = p.center_bytes > 0
                            ? reinterpret_cast<const uint4*>(center)
                            : reinterpret_cast<const uint4*>(p.centers[head.center].digits);
      }
      layout.k_anchors = head.k_anchors, layout.v_anchors = head.v_anchors;
      layout.num_anchors = head.num_anchors, layout.anchor_bits = head.anchor_bits;
      layout.head = &head;
      layout.plain_k = !IsFloat(head.k_kind) && head.k_groups.len == 0;
      layout.plain_v = !IsFloat(head.v_kind) && head.v_groups.len == 0;
      const bool extras = head.center >= 0 || head.num_anchors > 0;
      uint32_t next = id_of(block + 2 * num_warps);
      const uint8_t* page = ring;
      const uint8_t* other_page = ring + p.stage_bytes;
      [[maybe_unused]] PageWeights<kTiles> pending;  // of the page before, whose values come later
      [[maybe_unused]] bool has_pending = false;
      if constexpr (kSkip) {
#pragma unroll
        for (int n = 0; n < kTiles; ++n) pending.unit[n] = 0;
      }
      for (; block < end_block; block += num_warps) {
        const uint32_t after = id_of(block + 3 * num_warps);
        layout.masked = p.softcap > 0 ||
                        (p.sliding_window > 0 && block * kPageLen < u.tile.lowest + p.num_tokens);
        layout.special = extras || layout.masked;
        wait(page, 0);
        if constexpr (!kSkip) {
          if (!ptx::kHasBulkCopy || head.center >= 0) ptx::CopyAsyncWait<1>();
          __syncwarp();
          PageWeights<kTiles> weights;
          SealedScores<kVariant, kDim, kTiles>(p, u, layout, page, block, start, q, sh, wide, own,
                                               lane, &state, nullptr, &weights);
          SealedValues<kWide, kDim, kTiles>(layout, page, start, sh.log8, weights, lane, &state);
          __syncwarp();
          issue(block + 2 * num_warps, next);
        } else {
          // Groups behind the keys' one: values and keys of the page between.
          if (!ptx::kHasBulkCopy) {
            ptx::CopyAsyncWait<2>();
          } else if (head.center >= 0) {
            ptx::CopyAsyncWait<1>();
          }
          __syncwarp();
          PageWeights<kTiles> weights;
          const bool keep = SealedScores<kVariant, kDim, kTiles>(
              p, u, layout, page, block, start, q, sh, wide, own, lane, &state, &pending, &weights);
          __syncwarp();
          issue_values(keep, ids[0]);
          issue(block + 2 * num_warps, next);
          // The page before: its values have had the time of a page's scores to come.
          if (has_pending) {
            wait(other_page, 2);
            if (!ptx::kHasBulkCopy) ptx::CopyAsyncWait<3>();
            __syncwarp();
            SealedValues<kWide, kDim, kTiles>(layout, other_page, start, sh.log8, pending, lane,
                                              &state);
          }
          pending = weights;
          has_pending = keep;
          ids[0] = ids[1];
          ids[1] = next;
        }
        next = after;
        const uint8_t* const swap = page;
        page = other_page;
        other_page = swap;
      }
      ptx::CopyAsyncWait<0>();
      if (kSkip && has_pending) {
        wait(other_page, 2);
        __syncwarp();
        SealedValues<kWide, kDim, kTiles>(layout, other_page, start, sh.log8, pending, lane,
                                          &state);
      }
      __syncwarp();
      // The ring is empty now: it takes the warps' states.
      float* mine = reinterpret_cast<float*>(ring);
      const int r = lane / 4, c = lane % 4;
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        const float l = RowSum(state.l[n]);
        const float z = RowSum(state.z[n]) * head.v_offset;
        if (r == 0) own->m[4 * n + c] = state.m[n], own->l[4 * n + c] = l;
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
      for (int row = warp; row < kRows; row += num_warps) {
        float top = of_warp(0)->m[row];
        for (int w = 1; w < num_warps; ++w) top = fmaxf(top, of_warp(w)->m[row]);
        float l = 0, o[kEach] = {};
        for (int w = 0; w < num_warps; ++w) {
          const WarpShared<kTiles>* const from = of_warp(w);
          const float weight = ptx::Exp2(from->m[row] - top);
          l = fmaf(weight, from->l[row], l);
          const float* part =
              reinterpret_cast<const float*>(from + 1) + row * kStateStride<kDim> + lane * kEach;
#pragma unroll
          for (int i = 0; i < kEach; ++i) o[i] = fmaf(weight, part[i], o[i]);
        }
        SkippedMass skipped;
        if constexpr (kSkip) {
          for (int w = 0; w < num_warps; ++w) {
            skipped.mass += of_warp(w)->skipped[row][0],
                skipped.bound += of_warp(w)->skipped[row][1];
          }
        }
        if (num_parts == 1) {
          WriteRow<kVariant, kDim>(p, u, head, kRows, row, top, l, sh.reference[row], skipped, o,
                                   lane);
        } else {
          float* part = p.partial_out + (slot * kRows + row) * kDim + lane * kEach;
#pragma unroll
          for (int i = 0; i < kEach; i += 2) {
            __stcg(reinterpret_cast<float2*>(part + i), make_float2(o[i], o[i + 1]));
          }
          if (lane == 0) {
            float2* const part_state = reinterpret_cast<float2*>(p.partial_state) +
                                       (slot * kRows + row) * kPartWidth<kSkip>;
            __stcg(part_state, make_float2(top, l));
            if constexpr (kSkip) {
              __stcg(part_state + 1, make_float2(skipped.mass, skipped.bound));
            }
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
          MergeParts<kVariant, kDim, kTiles>(
              p, u, head, static_cast<int64_t>(sh.first_part) + unit_index, num_parts, warp, lane,
              reinterpret_cast<uint8_t*>(of_warp(0) + 1), warp_bytes, sh);
        }
      }
      ptx::FenceBulkCopy();  // of the rings' memory
      __syncthreads();
    }
    if (u.begin + u.cost >= my_end) break;
    __syncthreads();
    if (threadIdx.x == 0) sh.has_more = NextUnit<kRows>(p, index, num_tiles, &sh.unit);
    __syncthreads();
    if (!sh.has_more) break;
  }
}

template <int kDim, int kTiles, int kMinBlocks, DecodeVariant kVariant>
DecodeEntry MakeDecodeEntry() {
  return {DecodeKernel<kDim, kTiles, kMinBlocks, kVariant>,
          CenterOffset<kDim, kTiles, kVariant == DecodeVariant::kWide>, WarpBytes<kTiles>,
          kFewDecodeWarps * kMinBlocks};
}

}  // namespace
}  // namespace tq
