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
// Read: decode_fragments.cuh (what a warp holds), decode_page.cuh (PageScores and PageValues, a
// sealed page), decode_extras.cuh (centre and anchors), decode_rows.cuh (OpenItem, half an open
// page), decode_units.cuh (who does what), DecodeKernel here (the loop).
#include <cuda_runtime_api.h>

#include <type_traits>

#include "turboquant/attention/decode_params.h"
#include "turboquant/attention/decode_rows.cuh"
#include "turboquant/base/device.h"
#include "turboquant/base/device_status.h"

namespace tq {
namespace {

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
  Hadamard<kDim>(o, lane, rsqrtf(static_cast<float>(kDim)));
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
  constexpr int kWide = kEach % 4 == 0 ? 4 : 2;
  using Wide = std::conditional_t<kWide == 4, float4, float2>;
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
          for (int i = 0; i < kEach; i += kWide) {
            const auto v = __ldcg(reinterpret_cast<const Wide*>(part + i));
            const float* const values = reinterpret_cast<const float*>(&v);
#pragma unroll
            for (int e = 0; e < kWide; ++e) o[i + e] = fmaf(w, values[e], o[i + e]);
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
  uint8_t* const center = dynamic + CenterOffset<kDim, kTiles>(p.num_kv_heads);
  uint8_t* const rings = center + p.center_bytes;
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
      // cos and sin of a pair of the centre a lane.
      const int head_center = p.heads[u.head].center;
      const uint32_t starts_at = p.stage_bytes - kCenterStartBytes;
      const float2* center_start = nullptr;
      if (head_center >= 0 && lane < kDecodePairs) {
        center_start = reinterpret_cast<const float2*>(p.center_table.starts) +
                       p.centers[head_center].slot[lane];
      }
      const auto issue = [&](int b, uint32_t id) {
        if (b < end_block) {
          CopyRecord(stage, records + static_cast<uint64_t>(id) * p.sealed_stride, chunks, tail,
                     policy);
          if (center_start != nullptr) {
            ptx::CopyAsync8(stage + starts_at - lane * 8,
                            center_start + static_cast<int64_t>(b) * p.center_table.num_slots);
          }
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
      // A number of the page's AnchorInfo a lane.
      const int anchor_numbers = 3 * head.num_anchors;
      const auto anchors = [&](uint32_t id) -> uint32_t {
        if (lane >= anchor_numbers) return 0;
        return __ldg(reinterpret_cast<const uint16_t*>(sides +
                                                       static_cast<uint64_t>(id) * p.side_stride +
                                                       sizeof(RecordSideInfo)) +
                     lane);
      };
      if (head.center >= 0) {
        const auto* const table = reinterpret_cast<const uint4*>(p.centers[head.center].digits);
        for (uint32_t i = threadIdx.x; i < p.center_bytes / 16; i += blockDim.x) {
          reinterpret_cast<uint4*>(center)[i] = __ldg(table + i);
        }
      }
      PrepareQueries<kDim, kTiles>(p, u, &sh, warp, lane);
      __syncthreads();
      State<kDim, kTiles> state;
      state.Reset();
      Queries<kDim, kTiles> q;
      if (begin < num_open) {
        LoadQueries<kDim, kTiles>(sh.row_digits, sh.row_scale, nullptr, lane, &q);
        for (int i = begin + warp; i < min(end, num_open); i += kDecodeWarps) {
          OpenItem<kDim, kTiles>(p, u, head, i, sh, q, lane, &state);
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
      layout.starts_at = starts_at;
      layout.center = nullptr;
      if (head.center >= 0) {
        layout.center = p.center_bytes > 0
                            ? reinterpret_cast<const uint4*>(center)
                            : reinterpret_cast<const uint4*>(p.centers[head.center].digits);
      }
      layout.k_anchors = head.k_anchors, layout.v_anchors = head.v_anchors;
      layout.num_anchors = head.num_anchors, layout.anchor_bits = head.anchor_bits;
      const bool extras = p.softcap > 0 || head.center >= 0 || head.num_anchors > 0;
      uint32_t bases = side(ids[0]), infos = anchors(ids[0]);
      uint32_t next = id_of(block + 2 * kDecodeWarps);
      const uint8_t* page = ring;
      const uint8_t* other_page = ring + p.stage_bytes;
      for (; block < end_block; block += kDecodeWarps) {
        const uint32_t next_bases = side(ids[1]), next_infos = anchors(ids[1]);
        const uint32_t after = id_of(block + 3 * kDecodeWarps);
        layout.special =
            extras || (p.sliding_window > 0 && block * kPageLen < u.tile.lowest + p.num_tokens);
        ptx::CopyAsyncWait<1>();
        __syncwarp();
        SealedPage<kDim, kTiles>(p, u, layout, page, bases, infos, block, start, sh, q,
                                 sh.scales[warp], lane, &state);
        __syncwarp();
        issue(block + 2 * kDecodeWarps, next);
        bases = next_bases, infos = next_infos;
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
  size_t (*center_offset)(int num_kv_heads) = nullptr;  // in shared memory
};

template <int kDim, int kTiles, int kMinBlocks>
Kernel Make() {
  return {DecodeKernel<kDim, kTiles, kMinBlocks>, CenterOffset<kDim, kTiles>};
}

Kernel KernelFor(int head_dim, int rows) {
  switch (head_dim * 100 + rows) {
    case 6404: return Make<64, 1, 4>();
    case 6408: return Make<64, 2, 3>();
    case 6416: return Make<64, 4, 2>();
    case 12804: return Make<128, 1, 4>();
    case 12808: return Make<128, 2, 3>();
    case 12816: return Make<128, 4, 2>();
    case 25604: return Make<256, 1, 3>();
    case 25608: return Make<256, 2, 2>();
    default: return Make<256, 4, 1>();
  }
}

size_t SharedBytes(const Kernel& kernel, uint32_t stage_bytes, int num_kv_heads,
                   uint32_t center_bytes) {
  return kernel.center_offset(num_kv_heads) + center_bytes +
         static_cast<size_t>(kDecodeWarps) * 2 * stage_bytes;
}

}  // namespace

Status PrepareDecodeKernel(int head_dim, int rows, uint32_t stage_bytes, int num_kv_heads,
                           bool has_center, DecodeKernelInfo* info) {
  const Kernel kernel = KernelFor(head_dim, rows);
  const size_t shared = SharedBytes(kernel, stage_bytes, num_kv_heads, 0);
  TQ_ASSIGN_OR_RETURN(const CudaDeviceInfo device, GetCudaDeviceInfo());
  cudaFuncAttributes attributes;
  TQ_RETURN_IF_ERROR(TQ_CUDA(cudaFuncGetAttributes(&attributes, kernel.function)));
  const size_t limit = device.shared_bytes_per_block - attributes.sharedSizeBytes;
  if (shared > limit) {
    return Unsupported("cuda decode attention: head_dim ", head_dim, " with ", rows,
                       " rows and records of this format needs ", shared,
                       " bytes of shared memory a thread block, ", device.name, " has ", limit,
                       "; supported there: fewer bits, or a smaller head_dim");
  }
  // The attribute is the function's, not this caller's: others may need more than `shared`.
  TQ_RETURN_IF_ERROR(TQ_CUDA(cudaFuncSetAttribute(
      kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(limit))));
  TQ_RETURN_IF_ERROR(
      TQ_CUDA(cudaFuncSetAttribute(kernel.function, cudaFuncAttributePreferredSharedMemoryCarveout,
                                   cudaSharedmemCarveoutMaxShared)));
  const auto blocks_with = [&](size_t bytes, int* blocks) {
    return TQ_CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, kernel.function,
                                                                 32 * kDecodeWarps, bytes));
  };
  TQ_RETURN_IF_ERROR(blocks_with(shared, &info->blocks_per_multiprocessor));
  info->center_bytes = 0;
  if (constexpr uint32_t table = sizeof(DecodeCenter::digits);
      has_center && shared + table <= limit) {
    int blocks = 0;
    TQ_RETURN_IF_ERROR(blocks_with(shared + table, &blocks));
    if (blocks == info->blocks_per_multiprocessor) info->center_bytes = table;
  }
  info->num_blocks = info->blocks_per_multiprocessor * device.num_multiprocessors;
  return OkStatus();
}

Status LaunchDecodeKernel(int head_dim, int rows, const DecodeParams& params, int num_blocks,
                          void* stream) {
  const Kernel kernel = KernelFor(head_dim, rows);
  kernel
      .function<<<num_blocks, 32 * kDecodeWarps,
                  SharedBytes(kernel, params.stage_bytes, params.num_kv_heads, params.center_bytes),
                  static_cast<cudaStream_t>(stream)>>>(params);
  return TQ_CUDA(cudaGetLastError());
}

}  // namespace tq
