// How sealed pages come to a warp: from where, and through a ring of two stages.
#pragma once

#include "turboquant/attention/decode_shared.cuh"
#include "turboquant/base/ptx.cuh"

namespace tq {
namespace {

// Copies `bytes` of a record, a multiple of 16. `to` and `from` are the lane's, `lane_at` bytes
// behind the first.
__device__ __forceinline__ void CopyRecord(uint32_t to, const uint8_t* from, uint32_t bytes,
                                           uint32_t lane_at) {
  const uint32_t end = bytes - min(bytes, lane_at);  // of what the lane copies
#pragma unroll 4
  for (uint32_t at = 0; at < end; at += 512) ptx::CopyAsync16(to + at, from + at);
}

// A warp's sealed pages of a unit: every num_warps-th of the work, behind the open items, which
// take turns too. What all warps have alike stays in shared memory, where it costs no registers.
struct PageSource {
  const DecodeHeadIndex* at;  // of the head
  const Work* work;
  int first, count;  // blocks first + i num_warps
  int center_slot;   // of the lane's pair of the centre in its table; -1: none

  __device__ __forceinline__ bool has_center() const { return at->center >= 0; }
  // Where the slot of a page lies.
  __device__ __forceinline__ const int32_t* IdOf(const DecodeParams& p, int page,
                                                 int num_warps) const {
    return p.sealed_table + static_cast<int64_t>(work->unit.tile.table_row) * p.table_stride +
           first + page * num_warps;
  }
};
__device__ __forceinline__ PageSource SourceOf(const DecodeParams& p, const DecodeHeadIndex* index,
                                               const Work& work, int warp, int num_warps,
                                               int lane) {
  const Tile& tile = work.unit.tile;
  PageSource s;
  int item = work.begin + warp;
  while (item < min(work.end, tile.num_open_items)) item += num_warps;
  s.at = index + work.unit.head;
  s.work = &work;
  s.first = item + tile.first_sealed - tile.num_open_items;
  s.count = item < work.end
                ? static_cast<int>(static_cast<uint32_t>(work.end - item + num_warps - 1) /
                                   static_cast<uint32_t>(num_warps))
                : 0;
  s.center_slot = -1;
  if (s.at->center >= 0 && lane < kDecodePairs) {
    s.center_slot = p.centers[s.at->center].slot[lane];
  }
  return s;
}

// A warp's ring of two stages, for pages in turn from the first of a unit. Its barriers
// (WarpShared): keys, or whole records, of the two stages; values of the two stages.
template <int kTiles>
struct Ring {
  WarpShared<kTiles>* own;
  uint32_t value_phases = 0;

  // Memory takes long to answer beside the copies: slots come 32 at a time, long before they are
  // needed. First those of a unit's first pages, of which the lane's is returned.
  __device__ __forceinline__ uint32_t FirstIds(const DecodeParams& p, const PageSource& s,
                                               int num_warps, int lane) const {
    return lane < s.count ? *s.IdOf(p, lane, num_warps) : 0;
  }
  __device__ __forceinline__ void LaterIds(const DecodeParams& p, const PageSource& s, int page,
                                           int num_warps, int lane) const {
    if (page + lane < s.count) {
      ptx::CopyAsync4(ptx::SharedAddress(&own->ids[page / 32 % 2][lane]),
                      s.IdOf(p, page + lane, num_warps));
    }
    ptx::CopyAsyncCommit();
  }
  __device__ __forceinline__ uint32_t IdAt(int page) const {
    return own->ids[page / 32 % 2][page % 32];
  }
  // Copies [from, from + bytes) of the record of slot `id` to the same place of a stage.
  __device__ __forceinline__ static void Copy(const DecodeParams& p, const DecodeHeadIndex& at,
                                              uint32_t stage, uint32_t barrier, uint32_t id,
                                              uint32_t from, uint32_t bytes, int lane) {
    const uint8_t* const record =
        p.sealed + static_cast<uint64_t>(id) * p.sealed_stride + at.record_offset + from;
    if constexpr (ptx::kHasBulkCopy) {
      ptx::BulkCopy(stage + from, record, bytes, barrier, ptx::kReadOncePolicy);
    } else {
      CopyRecord(stage + from + lane * 16, record + lane * 16, bytes, lane * 16);
    }
  }
  __device__ __forceinline__ uint32_t StageOf(const DecodeParams& p, int page) const {
    return ptx::SharedAddress(own + 1) + (page % 2 == 0 ? 0 : p.stage_bytes);
  }
  __device__ __forceinline__ uint32_t BarrierOf(int page, bool values) const {
    return ptx::SharedAddress(&own->barriers[page % 2 + (values ? 2 : 0)]);
  }
  // Asks for a page, if there is one; with kSkip its V codes are asked for when its scores are
  // known. Groups that are empty too: copies complete in the order of their groups.
  template <bool kSkip>
  __device__ __forceinline__ void Issue(const DecodeParams& p, const PageSource& s, int page,
                                        uint32_t id, int num_warps, int lane) const {
    if (page < s.count) {
      const uint32_t stage = StageOf(p, page), to_side = stage + p.side_at, lane_at = lane * 16;
      if (!ptx::kHasBulkCopy || lane == 0) {
        const uint8_t* const side =
            p.sides + static_cast<uint64_t>(id) * p.side_stride + s.at->side_offset;
        const uint32_t bytes = kSkip ? s.at->v_codes : s.at->record_bytes;
        const uint32_t side_bytes = s.at->side_bytes, barrier = BarrierOf(page, false);
        if constexpr (ptx::kHasBulkCopy) ptx::BarrierExpect(barrier, bytes + side_bytes);
        Copy(p, *s.at, stage, barrier, id, 0, bytes, lane);
        if constexpr (ptx::kHasBulkCopy) {
          ptx::BulkCopy(to_side, side, side_bytes, barrier, ptx::kReadAgainPolicy);
        } else if (lane_at < side_bytes) {
          ptx::CopyAsync16(to_side + lane_at, side + lane_at);
        }
      }
      if (s.center_slot >= 0) {
        const int block = s.first + page * num_warps;
        ptx::CopyAsync8(to_side + kSideBytes + lane * 8,
                        reinterpret_cast<const float2*>(p.center_table.starts) +
                            static_cast<int64_t>(block) * p.center_table.num_slots + s.center_slot);
      }
    }
    if (!ptx::kHasBulkCopy || s.has_center()) ptx::CopyAsyncCommit();
  }
  // The V codes of a page.
  __device__ __forceinline__ void IssueValues(const DecodeParams& p, const PageSource& s, int page,
                                              bool wanted, uint32_t id, int lane) const {
    if (wanted && (!ptx::kHasBulkCopy || lane == 0)) {
      const uint32_t from = s.at->v_codes, bytes = s.at->record_bytes - from;
      const uint32_t barrier = BarrierOf(page, true);
      if constexpr (ptx::kHasBulkCopy) ptx::BarrierExpect(barrier, bytes);
      Copy(p, *s.at, StageOf(p, page), barrier, id, from, bytes, lane);
    }
    if (!ptx::kHasBulkCopy) ptx::CopyAsyncCommit();
  }
  // For bulk copies of a page.
  __device__ __forceinline__ void Wait(int page) const {
    if constexpr (ptx::kHasBulkCopy) {
      ptx::BarrierWait(BarrierOf(page, false), (own->phases >> page % 2 ^ page >> 1) & 1);
    }
  }
  __device__ __forceinline__ void WaitForValues(int page) {
    if constexpr (ptx::kHasBulkCopy) {
      ptx::BarrierWait(BarrierOf(page, true), value_phases >> page % 2 & 1);
      value_phases ^= 1u << page % 2;
    }
  }
  // Of a unit with so many pages, one lane.
  __device__ __forceinline__ void End(int pages) const {
    own->phases ^= ((pages + 1) / 2 & 1) | (pages / 2 & 1) << 1;
  }
};

}  // namespace
}  // namespace tq
