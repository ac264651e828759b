// How sealed pages come to a warp: from where, and through a ring of two stages.
#pragma once

#include "turboquant/attention/decode_shared.cuh"
#include "turboquant/base/ptx.cuh"

namespace tq {
namespace {

// A warp copies `bytes`, a multiple of 16.
__device__ __forceinline__ void CopyRecord(uint32_t to, const uint8_t* from, uint32_t bytes,
                                           int lane) {
#pragma unroll 4
  for (uint32_t at = lane * 16; at < bytes; at += 512) ptx::CopyAsync16(to + at, from + at);
}

// A warp's sealed pages of a unit: every num_warps-th of the work, behind the open items, which
// take turns too. Pages are counted on from unit to unit.
struct PageSource {
  const DecodeHeadIndex* at;  // of the head
  const int32_t* ids;         // where the slot of block 0 lies
  int begin, end;             // pages
  int first;                  // page i is block first + i num_warps

  __device__ __forceinline__ bool has_center() const { return at->center >= 0; }
};
template <int kTiles>
__device__ __forceinline__ PageSource SourceOf(const DecodeParams& p, const DecodeHeadIndex* index,
                                               const Work& work, int begin, int warp, int num_warps,
                                               int lane, bool skip, WarpShared<kTiles>* own) {
  const Tile& tile = work.unit.tile;
  PageSource s;
  int item = work.begin + warp;
  while (item < min(work.end, tile.num_open_items)) item += num_warps;
  const int block = item + tile.first_sealed - tile.num_open_items;
  s.at = index + work.unit.head;
  s.ids = p.sealed_table + static_cast<int64_t>(tile.table_row) * p.table_stride;
  s.begin = s.end = begin;
  s.first = block - begin * num_warps;
  if (item < work.end) {
    s.end += static_cast<int>(static_cast<uint32_t>(work.end - item + num_warps - 1) /
                              static_cast<uint32_t>(num_warps));
  }
  if (lane == 0) {
    own->from.record = p.sealed + s.at->record_offset;
    own->from.side = p.sides + s.at->side_offset;
    own->from.bytes = skip ? s.at->v_codes : s.at->record_bytes;
    own->from.side_bytes = s.at->side_bytes;
  }
  __syncwarp();
  return s;
}
// Pages in front of it have tokens that some query does not see, or a softcap.
__device__ __forceinline__ int MaskedEnd(const DecodeParams& p, const Unit& u, const PageSource& s,
                                         int num_warps) {
  if (p.softcap > 0) return s.end;
  if (p.sliding_window == 0) return s.begin;
  const int blocks = (u.tile.lowest + p.num_tokens + kPageLen - 1) / kPageLen;
  const int behind = blocks - (s.first + s.begin * num_warps);
  return s.begin + (behind <= 0 ? 0 : (behind + num_warps - 1) / num_warps);
}

// A warp's ring of two stages: page i is in stage i % 2. Its barriers (WarpShared): keys, or whole
// records, of the two stages; values of the two stages.
template <int kTiles>
struct Ring {
  WarpShared<kTiles>* own;
  uint32_t stage = 0;  // of the page at hand: 0 or stage_bytes behind the first
  uint32_t barrier;    // of its keys
  uint32_t value_phases = 0;

  __device__ __forceinline__ explicit Ring(WarpShared<kTiles>* shared)
      : own(shared), barrier(ptx::SharedAddress(&shared->barriers[0])) {}

  __device__ __forceinline__ uint8_t* page() const {
    return reinterpret_cast<uint8_t*>(own + 1) + stage;
  }
  __device__ __forceinline__ uint8_t* other_page(const DecodeParams& p) const {
    return reinterpret_cast<uint8_t*>(own + 1) + (p.stage_bytes - stage);
  }
  // Goes on to the next page.
  __device__ __forceinline__ void Turn(const DecodeParams& p) {
    stage = p.stage_bytes - stage;
    barrier ^= sizeof(uint64_t);
  }

  // Memory takes long to answer beside the copies: slots of pages come 32 at a time, 30 to 62 pages
  // before they are needed. First those of a unit's first pages, of which the lane's is returned.
  __device__ __forceinline__ uint32_t FirstIds(const PageSource& s, int num_warps, int lane) const {
    const int page = s.begin + lane;
    return page < s.end ? s.ids[s.first + page * num_warps] : 0;
  }
  __device__ __forceinline__ void PutId(int page, uint32_t id) const { own->ids[page % 64] = id; }
  __device__ __forceinline__ uint32_t IdAt(int page) const { return own->ids[page % 64]; }
  // Of 32 pages, into the group that is committed next.
  __device__ __forceinline__ void AskForIds(const PageSource& s, int first_page, int num_warps,
                                            int lane) const {
    const int page = first_page + lane;
    if (page < s.end) {
      ptx::CopyAsync4(ptx::SharedAddress(&own->ids[page % 64]), s.ids + s.first + page * num_warps);
    }
  }
  // Centres of center_pages pages, [pages][r][8]: of tokens 8 i + r.
  __device__ __forceinline__ float* CenterScores(const DecodeParams& p) const {
    return reinterpret_cast<float*>(reinterpret_cast<uint8_t*>(own + 1) + 2 * p.stage_bytes);
  }
  // Asks for page `page`, if there is one, for the stage at hand or the other; with skipping its V
  // codes are asked for when its scores are known. A group of copies even where it is empty: groups
  // complete in their order.
  __device__ __forceinline__ void Issue(const DecodeParams& p, const PageSource& s, int page,
                                        uint32_t id, bool other, int lane) const {
    if (page < s.end) {
      const uint32_t to = ptx::SharedAddress(own + 1) + (other ? p.stage_bytes - stage : stage);
      const uint32_t to_side = to + p.side_at, of = other ? barrier ^ sizeof(uint64_t) : barrier;
      const auto& from = own->from;
      const uint8_t* const record = from.record + static_cast<uint64_t>(id) * p.sealed_stride;
      const uint8_t* const side = from.side + static_cast<uint64_t>(id) * p.side_stride;
      if constexpr (ptx::kHasBulkCopy) {
        ptx::BulkCopyPair(of, to, record, from.bytes, to_side, side, from.side_bytes);
      } else {
        CopyRecord(to, record, from.bytes, lane);
        CopyRecord(to_side, side, from.side_bytes, lane);
      }
    }
    ptx::CopyAsyncCommit();
  }
  // The V codes of the page at hand.
  __device__ __forceinline__ void IssueValues(const DecodeParams& p, const PageSource& s,
                                              bool wanted, uint32_t id, int lane) const {
    if (wanted) {
      const uint32_t at = s.at->v_codes, bytes = s.at->record_bytes - at;
      const uint32_t to = ptx::SharedAddress(own + 1) + stage + at;
      const uint8_t* const codes =
          own->from.record + static_cast<uint64_t>(id) * p.sealed_stride + at;
      if constexpr (!ptx::kHasBulkCopy) {
        CopyRecord(to, codes, bytes, lane);
      } else if (lane == 0) {
        const uint32_t of = barrier + 2 * sizeof(uint64_t);
        ptx::BarrierExpect(of, bytes);
        ptx::BulkCopy(to, codes, bytes, of, ptx::kReadOncePolicy);
      }
    }
    if (!ptx::kHasBulkCopy) ptx::CopyAsyncCommit();
  }
  // For bulk copies of the page at hand, which is page `page`: each stage's phases alternate.
  __device__ __forceinline__ void Wait(int page) const {
    if constexpr (ptx::kHasBulkCopy) ptx::BarrierWait(barrier, page >> 1 & 1);
  }
  // For those of the values in the other stage.
  __device__ __forceinline__ void WaitForOtherValues() {
    if constexpr (ptx::kHasBulkCopy) {
      const int i = stage == 0 ? 1 : 0;
      ptx::BarrierWait(ptx::SharedAddress(&own->barriers[2 + i]), value_phases >> i & 1);
      value_phases ^= 1u << i;
    }
  }
};

}  // namespace
}  // namespace tq
