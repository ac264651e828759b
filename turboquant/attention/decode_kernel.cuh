// The decode kernel; see decode_cuda.cu for the idea.
#pragma once

#include "turboquant/attention/decode_entry.h"
#include "turboquant/attention/decode_merge.cuh"
#include "turboquant/attention/decode_ring.cuh"

namespace tq {
namespace {

template <int kDim, int kTiles, int kMinBlocks, DecodeVariant kVariant>
__global__ void __launch_bounds__(32 * kFewDecodeWarps * kMinBlocks, 1)
    DecodeKernel(const __grid_constant__ DecodeParams p) {
  constexpr bool kSkip = kVariant == DecodeVariant::kSkip;
  constexpr bool kWide = kVariant == DecodeVariant::kWide;
  constexpr int kRows = 4 * kTiles;
  uint8_t* const dynamic = ptx::KeepShared(ptx::DynamicShared());
  auto& sh = *reinterpret_cast<Shared<kDim, kTiles>*>(dynamic);
  [[maybe_unused]] WideShared<kDim, kTiles>* wide = nullptr;
  if constexpr (kWide) {
    wide = reinterpret_cast<WideShared<kDim, kTiles>*>(dynamic + kWideOffset<kDim, kTiles>);
  }
  uint8_t* const center = dynamic + kCenterOffset<kDim, kTiles, kWide>;
  auto* const index = reinterpret_cast<DecodeHeadIndex*>(center + p.center_bytes);
  uint8_t* const warps = dynamic + RingsOffset<kDim, kTiles, kWide>(p.num_kv_heads, p.center_bytes);
  const int warp = threadIdx.x / 32, lane = ptx::KeepRegister(static_cast<int>(threadIdx.x % 32)),
            me = blockIdx.x;
  const int num_warps = static_cast<int>(blockDim.x / 32);
  const size_t warp_bytes = WarpBytes<kTiles>(p.stage_bytes, p.center_pages);
  auto* const own =
      ptx::KeepShared(reinterpret_cast<WarpShared<kTiles>*>(warps + warp * warp_bytes));
  const int num_tiles = p.batch * (p.num_tokens > 1 ? 2 : 1);
  if (lane < 4) {
    ptx::BarrierInit(ptx::SharedAddress(&own->barriers[lane]), 1);
    ptx::FenceBulkCopy();
  }
  if (threadIdx.x < LoopConstants::kWords) {
    sh.constants[threadIdx.x] = LoopConstants::Word(threadIdx.x);
  }
  // The first warp looks for work while others, if there are any, fetch tables.
  const int helper = static_cast<int>(threadIdx.x) - (num_warps > 1 ? 32 : 0);
  const int helpers = num_warps > 1 ? static_cast<int>(blockDim.x) - 32 : 32;
  for (int i = helper; i >= 0 && i < p.num_kv_heads * static_cast<int>(sizeof(*index) / 4);
       i += helpers) {
    reinterpret_cast<uint32_t*>(index)[i] = reinterpret_cast<const uint32_t*>(p.head_index)[i];
  }
  for (int i = helper; i >= 0 && i < 256; i += helpers) sh.log8[i] = p.log8[i];
  // What was read so far does not change. Lengths do, but seldom between layers: the work is cut by
  // what they are before the kernels in front have ended, and once more if that was too early. Page
  // tables are not written by kernels.
  const bool early = ptx::kHasBulkCopy && num_tiles <= 32;  // kHasBulkCopy: as is the early launch
  SequenceAt seen;
  Ring<kTiles> ring(own);
  PageSource source;
  uint32_t first_ids = 0;
#pragma unroll 1
  for (int attempt = early ? 0 : 1; attempt < 2; ++attempt) {
    if (attempt == 1) {
      ptx::WaitForDependencies();
      ptx::LaunchDependents();
    }
    if (warp == 0) {
      const bool cut =
          attempt == 0 || !early ||
          __any_sync(kAllLanes, lane < num_tiles && seen.Changed(p, SequenceOf(p, lane)));
      // Others may still look at that of the first attempt.
      if (cut) FirstWork<kRows>(p, num_tiles, me, lane, &sh.ranges, &sh.work[attempt], &seen);
      if (attempt == 1 && lane == 0) sh.cut_again = cut;
    }
    __syncthreads();
    const Work& work = sh.work[attempt];
    if ((attempt == 0 || sh.cut_again) && work.begin < work.end) {
      source = SourceOf<kTiles>(p, index, work, 0, warp, num_warps, lane, kSkip, own);
      first_ids = ring.FirstIds(source, num_warps, lane);
    }
  }
  const int first_work = sh.cut_again ? 1 : 0;
  if (sh.work[first_work].begin >= sh.work[first_work].end) return;
  const DecodeHead& head = sh.head;
  bool asked = false;                              // for the unit's first page
  for (int current = first_work;; current ^= 1) {  // units
    const Work& work = sh.work[current];
    const Unit& u = work.unit;
    // Heads and queries are asked for in front of the pages, behind which they would wait.
    constexpr int kHeadWords = sizeof(DecodeHead) / 4;
    const auto* const head_words = reinterpret_cast<const uint32_t*>(&p.heads[u.head]);
    const int thread = threadIdx.x;
    const uint32_t head_word = thread < kHeadWords ? head_words[thread] : 0;
    const QueryRow<kDim> query = LoadQueryRow<kDim, kTiles>(p, u, source.at->center, warp, lane);
    if (source.has_center()) {
      const auto* const table = reinterpret_cast<const uint4*>(p.centers[source.at->center].digits);
      for (uint32_t i = threadIdx.x; i < p.center_bytes / 16; i += blockDim.x) {
        reinterpret_cast<uint4*>(center)[i] = __ldg(table + i);
      }
    }
    [[maybe_unused]] uint32_t id = __shfl_sync(kAllLanes, first_ids, 0);  // of the page at hand
    [[maybe_unused]] uint32_t next_id = __shfl_sync(kAllLanes, first_ids, 1);
    if (!asked) {
      ring.Issue(p, source, source.begin, id, false, lane);
      if (kSkip && !ptx::kHasBulkCopy) ptx::CopyAsyncCommit();  // in place of values
    }
    ring.AskForIds(source, source.begin + 32, num_warps, lane);
    ring.Issue(p, source, source.begin + 1, next_id, true, lane);
    ring.PutId(source.begin + lane, first_ids);
    for (int i = thread; i < kHeadWords; i += static_cast<int>(blockDim.x)) {
      reinterpret_cast<uint32_t*>(&sh.head)[i] = i == thread ? head_word : head_words[i];
    }
    if (threadIdx.x == blockDim.x - 1) {
      NextWork<kRows>(p, index, num_tiles, sh.ranges, me, work, &sh.work[current ^ 1]);
    }
    __syncthreads();
    PrepareQueries<kWide, kDim, kTiles>(p, u, query, &sh, wide, warp, lane);
    __syncthreads();
    if constexpr (kSkip) SetSkipLimits<kDim, kTiles>(p, u, &sh, warps, warp_bytes, warp, lane);
    State<kDim, kTiles> state;
    state.Reset();
    Queries<kDim, kTiles> q;
    if (work.begin < u.tile.num_open_items) {
      LoadQueries<kDim, kTiles>(sh.row_digits, sh.row_scale, nullptr, lane, &q);
      for (int i = work.begin + warp; i < min(work.end, u.tile.num_open_items); i += num_warps) {
        OpenItem<kWide, kDim, kTiles>(p, u, head, i, sh, wide, q, lane, &state);
      }
    }
    if (kWide && head.k_groups.len > 0) {
      LoadQueries<kDim, kTiles>(sh.row_digits, sh.row_scale, nullptr, lane, &q);
    } else {
      LoadQueries<kDim, kTiles>(sh.code_digits, sh.code_scale, sh.code_offset, lane, &q);
    }
    const LoopConstants k(sh.constants);
    const DecodeTable k_table = TurnedTable(head.k_table), v_table = TurnedTable(head.v_table);
    PageTask task = {&head, &k_table, &v_table, reinterpret_cast<const uint4*>(center)};
    task.v_factor = VScaleFactor(head, lane);
    if (lane == 0) own->masked_end = MaskedEnd(p, u, source, num_warps);
    __syncwarp();
    [[maybe_unused]] PageWeights<kTiles> pending;  // of the page before, whose values come later
    [[maybe_unused]] bool has_pending = false;
    if constexpr (kSkip) {
#pragma unroll
      for (int n = 0; n < kTiles; ++n) pending.unit[n] = 0;
    }
    const auto values_of_pending = [&] {
      ring.WaitForOtherValues();
      if (!ptx::kHasBulkCopy) ptx::CopyAsyncWait<3>();
      __syncwarp();
      SealedValues<kWide, kDim, kTiles>(task, ring.other_page(p), k, sh.log8, pending, lane,
                                        &state);
    };
    int center_page = 0;  // of the page among those whose centres are made at once
    for (int page = source.begin; page < source.end; ++page) {
      task.masked = page < own->masked_end;
      task.block = source.first + page * num_warps;
      const uint8_t* const at = ring.page();
      ring.Wait(page);
      // Groups behind the page's one: the next page's; with skipping, values in front of that too.
      ptx::CopyAsyncWait<kSkip && !ptx::kHasBulkCopy ? 2 : 1>();
      __syncwarp();
      if constexpr (kTiles == 1 && !kWide) {
        if (PacksCenters<kTiles, kWide>(p) && head.center >= 0) {
          float* const scores = ring.CenterScores(p);
          if (center_page == 0) {
            CentersOfPages<kDim>(task.center, task.block, num_warps, p.center_pages, sh, lane,
                                 scores);
          }
          task.center_scores = scores + center_page * kPageLen;
          center_page = center_page == p.center_pages - 1 ? 0 : center_page + 1;
        }
      }
      PageWeights<kTiles> weights;
      bool keep = true;
      if constexpr (kSkip) {
        keep = SealedScores<kVariant, kDim, kTiles>(p, u, task, at, k, q, sh, wide, own, lane,
                                                    &state, &pending, &weights);
      } else {
        SealedScores<kVariant, kDim, kTiles>(p, u, task, at, k, q, sh, wide, own, lane, &state,
                                             nullptr, &weights);
        SealedValues<kWide, kDim, kTiles>(task, at, k, sh.log8, weights, lane, &state);
      }
      __syncwarp();
      if (page % 32 == 31) ring.AskForIds(source, page + 33, num_warps, lane);
      const uint32_t new_id = ring.IdAt(page + 2);
      if constexpr (kSkip) ring.IssueValues(p, source, keep, id, lane);
      ring.Issue(p, source, page + 2, new_id, false, lane);
      if constexpr (kSkip) {
        // The page before: its values have had the time of a page's scores to come.
        if (has_pending) values_of_pending();
        pending = weights;
        has_pending = keep;
        id = next_id;
        next_id = new_id;
      }
      ring.Turn(p);
    }
    ptx::CopyAsyncWait<0>();
    if (kSkip && has_pending) values_of_pending();
    __syncwarp();
    // The stages are empty now: the one at hand gets the first page of the next unit, so that it
    // comes while this one ends, the other takes the warp's state.
    const Work& next_work = sh.work[current ^ 1];
    asked = next_work.begin < next_work.end;
    if (asked) {
      source = SourceOf<kTiles>(p, index, next_work, source.end, warp, num_warps, lane, kSkip, own);
      first_ids = ring.FirstIds(source, num_warps, lane);
      ring.Issue(p, source, source.begin, __shfl_sync(kAllLanes, first_ids, 0), false, lane);
      if (kSkip && !ptx::kHasBulkCopy) ptx::CopyAsyncCommit();
    }
    float* const mine = reinterpret_cast<float*>(ring.other_page(p));
    if (lane == 0) own->state_at = p.stage_bytes - ring.stage;
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
    MergeWarps<kVariant, kDim, kTiles>(p, work, head, me, warp, lane, warps, warp_bytes, &sh);
    if (!asked) break;
    ptx::FenceBulkCopy();  // of the rings' memory
    __syncthreads();
  }
}

// Thread blocks of kFewDecodeWarps warps that share a multiprocessor, by variant, 64, 128 or 256
// channels, and 4, 8 or 16 rows: what registers allow. 0: no such kernel.
constexpr int kDecodeBlocks[3][3][3] = {{{4, 3, 2}, {4, 3, 2}, {3, 2, 1}},
                                        {{4, 3, 0}, {3, 2, 0}, {2, 2, 0}},
                                        {{3, 2, 0}, {3, 2, 0}, {2, 2, 0}}};

template <DecodeVariant kVariant, int kDim, int kTiles>
DecodeEntry MakeDecodeEntry() {
  constexpr int kBlocks = kDecodeBlocks[static_cast<int>(kVariant)][kDim / 128][kTiles / 2];
  if constexpr (kBlocks == 0) {
    return {};
  } else {
    return {DecodeKernel<kDim, kTiles, kBlocks, kVariant>,
            RingsOffset<kDim, kTiles, kVariant == DecodeVariant::kWide>, WarpBytes<kTiles>,
            kFewDecodeWarps * kBlocks};
  }
}

// The kernel of a head_dim and one of kDecodeRows that the variant has.
template <DecodeVariant kVariant>
DecodeEntry DecodeEntryOf(int head_dim, int rows) {
  const auto of_dim = [&]<int kDim>() {
    return rows == 4   ? MakeDecodeEntry<kVariant, kDim, 1>()
           : rows == 8 ? MakeDecodeEntry<kVariant, kDim, 2>()
                       : MakeDecodeEntry<kVariant, kDim, 4>();
  };
  return head_dim == 64    ? of_dim.template operator()<64>()
         : head_dim == 128 ? of_dim.template operator()<128>()
                           : of_dim.template operator()<256>();
}

}  // namespace
}  // namespace tq
