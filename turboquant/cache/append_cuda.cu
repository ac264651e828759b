// Appends tokens to a device cache and seals the block that leaves the window, in one launch.
//
// One thread block for each (sequence, KV head). A warp takes a row: sanitized, centred, rotated,
// rounded to 8 bits, stored in fragment order. When the new tokens reach into a new block, the
// block that the window leaves behind is re-coded: rows to codes in shared memory, scales, words in
// fragment order, then the residual rows of its anchors. Lengths and page tables are read from
// memory, so the launch can be captured in a graph and decides for itself whether there is
// something to seal. A part of a prompt has a thread block for each (block, KV head).
//
// The same float operations in the same order as codec/encode.cc and codec/anchor.cc, so the bytes
// are equal; only logarithms and powers may round differently, and are taken in double for that.
#include <cuda_runtime_api.h>

#include "turboquant/base/device.h"
#include "turboquant/base/device_status.h"
#include "turboquant/cache/append_block.cuh"
#include "turboquant/cache/append_wide.cuh"
#include "turboquant/cache/sequence_at.cuh"

namespace tq {
namespace {

// One warp: scales of the block; returns the base and the bound of the rows' lengths.
template <int kDim>
__device__ void StoreScales(const AppendParams& p, const AppendSide& side, Side which,
                            uint8_t* record, SealShared<kDim>* sh, int lane, uint16_t* base,
                            uint16_t* bound) {
  const int s = which == Side::kV;
  const float largest = WarpMax(fmaxf(sh->scale[s][lane], sh->scale[s][lane + 32]));
  *base = largest > 0 ? BF16RoundUp(largest) : 0;
  const float value = __uint_as_float(static_cast<uint32_t>(*base) << 16);
  float top = 0;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int token = lane + 32 * i;
    const uint8_t code = EncodeScale(sh->scale[s][token], value);
    record[side.scales + FragmentScaleIndex(token)] = code;
    const float stored = value * p.log8[code];
    sh->stored[s][token] = stored;
    top = fmaxf(top, stored * __fsqrt_rn(static_cast<float>(sh->energy[s][token])));
  }
  *bound = BF16RoundUp(WarpMax(top) * 1.0001f);
}

// Word `word` of a lane's stream; see fragment_layout.h.
template <int kDim>
__device__ __forceinline__ uint32_t PackWord(const AppendSide& side, const SealShared<kDim>& sh,
                                             Side which, int lane, int word) {
  const auto codes = [&](int reg) {
    return RegisterOf<kDim>(sh.codes[which == Side::kV], which, lane, reg);
  };
  // Codes of an even register and of the odd one behind it as 8 nibbles.
  const auto nibbles = [&](int reg) {
    return NibblesOf(codes(reg)) | NibblesOf(codes(reg + 1)) << 16;
  };
  if (side.bits == 8) return codes(word);
  if (side.in_place != 0) {
    return codes(4 * word) | codes(4 * word + 2) << 2 | codes(4 * word + 1) << 4 |
           codes(4 * word + 3) << 6;
  }
  if (side.bits == 4) return nibbles(2 * word);
  if (side.bits == 2) return nibbles(4 * word) | nibbles(4 * word + 2) << 2;
  const int group = word / 3 * 8, i = word % 3;  // the last two registers are spread over the words
  return nibbles(group + 2 * i) | (nibbles(group + 6) >> i & 0x11111111u) << 3;
}

// ---- Anchors ------------------------------------------------------------------------------------

// scale * level of the 8-bit row, less what its code will be read as.
template <int kDim>
__device__ __forceinline__ float Residual(const AppendSide& side, Side which, const uint8_t* open,
                                          const SealShared<kDim>& sh, int token, int channel) {
  const int s = which == Side::kV;
  const float level = static_cast<float>(side.levels[sh.codes[s][token][channel]]);
  return OpenScale(side, open, token) *
             static_cast<float>(OpenLevel<kDim>(side, which, open, token, channel)) -
         sh.stored[s][token] * level;
}

// The sums of 8 lanes, in the order in which the CPU adds its 8 sums.
__device__ __forceinline__ float SumOf8(float x) {
  x += __shfl_xor_sync(kAllLanes, x, 4);
  x += __shfl_xor_sync(kAllLanes, x, 2);
  return x + __shfl_xor_sync(kAllLanes, x, 1);
}

// AnchorScorer::Score of a token plus half the logarithm of its error; a warp.
template <int kDim>
__device__ float AnchorScore(const AppendParams& p, const AppendHead& head, const uint8_t* open,
                             SealShared<kDim>* sh, int token, int position, int warp, int lane) {
  constexpr int kEach = kDim / 32;
  const AppendSide &k = head.sides[0], &v = head.sides[1];
  const int which = lane / 8, part = lane % 8;  // four dot products at a time
  float sum = 0;
  for (int c = part; c < kDim; c += 8) {
    float x = 0;
    if (which == 0) {
      x = Residual<kDim>(k, Side::kK, open, *sh, token, c);
    } else if (which == 1) {
      x = Residual<kDim>(v, Side::kV, open, *sh, token, c);
    } else if (which == 2) {
      x = OpenScale(v, open, token) *
          static_cast<float>(OpenLevel<kDim>(v, Side::kV, open, token, c));
    }
    sum += x * x;
  }
  sum = SumOf8(sum);
  const float k_error = __shfl_sync(kAllLanes, sum, 0);
  const float v_error = __shfl_sync(kAllLanes, sum, 8);
  const float v_energy = __shfl_sync(kAllLanes, sum, 16);
  const float error = v_error + head.error_weight * k_error * v_energy;
  if (!(error > 0)) return -INFINITY;
  // The key in the model's basis, then without its RoPE.
  float x[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    x[i] = OpenScale(k, open, token) *
           static_cast<float>(OpenLevel<kDim>(k, Side::kK, open, token, lane * kEach + i));
  }
  Hadamard<kDim>(x, lane, kNorm<kDim>);
  FlipSigns<kDim>(k.signs, x, lane);
  float* const row = sh->row[warp];
#pragma unroll
  for (int i = 0; i < kEach; ++i) row[lane * kEach + i] = x[i];
  __syncwarp();
  const DeviceCenterTable& t = p.center_table;
  for (int f = lane; f < t.half; f += 32) {
    const float2 angle = CenterAngle(t, f, position);
    const float c = angle.x * t.plain, s = angle.y * t.plain;
    const float a = row[f], b = row[f + t.half];
    row[f] = a * c + b * s;
    row[f + t.half] = b * c - a * s;
  }
  __syncwarp();
  const float* const probes = p.probes + head.first_probe;
  const float* const offsets = probes + head.num_probes * kDim;
  float* const scores = sh->probe_scores[warp];
  float top = -INFINITY;
  for (int first = 0; first < head.num_probes; first += 4) {
    const int probe = first + which;
    float dot = 0;
    if (probe < head.num_probes) {
      for (int c = part; c < kDim; c += 8) dot += __ldg(probes + probe * kDim + c) * row[c];
    }
    dot = SumOf8(dot);
    if (probe < head.num_probes) {
      dot += __ldg(offsets + probe);
      if (part == 0) scores[probe] = dot;
      top = fmaxf(top, dot);
    }
  }
  top = WarpMax(top);
  __syncwarp();
  for (int i = lane; i < head.num_probes; i += 32) {
    scores[i] = static_cast<float>(exp(static_cast<double>(scores[i] - top)));
  }
  __syncwarp();
  float total = 0;
  for (int i = 0; i < head.num_probes; ++i) total += scores[i];
  __syncwarp();
  const auto log_of = [](float f) { return static_cast<float>(log(static_cast<double>(f))); };
  return top + log_of(total) + 0.5f * log_of(error);
}

// A residual row of one side; a warp. Returns the scale.
template <int kDim>
__device__ uint16_t StoreAnchorRow(const AppendHead& head, Side which, const uint8_t* open,
                                   const SealShared<kDim>& sh, int token, uint8_t* row, int lane) {
  constexpr int kEach = kDim / 32;
  const AppendSide& side = head.sides[which == Side::kV];
  float e[kEach], largest = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    e[i] = Residual<kDim>(side, which, open, sh, token, lane * kEach + i);
    largest = fmaxf(largest, fabsf(e[i]));
  }
  const float top = head.anchor_bits == 4 ? 7.f : 127.f;
  const uint16_t scale = BF16RoundUp(__fdiv_rn(WarpMax(largest), top));
  const float value = __uint_as_float(static_cast<uint32_t>(scale) << 16);
  int level[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const float exact = value > 0 ? rintf(__fdiv_rn(e[i], value)) : 0.f;
    level[i] = static_cast<int>(fminf(fmaxf(exact, -top), top));
  }
#pragma unroll
  for (int i = 0; i < kEach; i += 2) {
    const int c = lane * kEach + i;
    if (head.anchor_bits == 4) {
      row[c / 2] = static_cast<uint8_t>((level[i] + 8) | (level[i + 1] + 8) << 4);
    } else {
      row[c] = static_cast<uint8_t>(level[i]), row[c + 1] = static_cast<uint8_t>(level[i + 1]);
    }
  }
  return scale;
}

// SealAnchors of codec/anchor.h; the whole thread block, when codes and scales of both sides are in
// shared memory.
template <int kDim>
__device__ __noinline__ void SealAnchorRows(const AppendParams& p, const AppendHead& head,
                                            const uint8_t* open, int block, uint8_t* record,
                                            uint16_t* info, SealShared<kDim>* sh, int warp,
                                            int lane) {
  for (int t = warp; t < kPageLen; t += kWarps) {
    const float score = AnchorScore<kDim>(p, head, open, sh, t, block * kPageLen + t, warp, lane);
    if (lane == 0) sh->score[t] = score;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    // The highest scores, of equal ones the first; then by token.
    uint64_t taken = 0;
    for (int a = 0; a < head.anchors; ++a) {
      int best = -1;
      for (int t = 0; t < kPageLen; ++t) {
        if (!(taken >> t & 1) && (best < 0 || sh->score[t] > sh->score[best])) best = t;
      }
      taken |= uint64_t{1} << best;
    }
    int a = 0;
    for (int t = 0; t < kPageLen; ++t) {
      if (taken >> t & 1) sh->chosen[a++] = t;
    }
  }
  __syncthreads();
  const int row_bytes = kDim * head.anchor_bits / 8;
  for (int task = warp; task < 2 * head.anchors; task += kWarps) {
    const int a = task / 2, token = sh->chosen[a];
    const Side which = task % 2 == 0 ? Side::kK : Side::kV;
    const uint16_t scale = StoreAnchorRow<kDim>(
        head, which, open, *sh, token, record + head.sides[task % 2].anchors + a * row_bytes, lane);
    if (lane != 0) continue;
    if (which == Side::kK) info[3 * a] = static_cast<uint16_t>(token);
    info[3 * a + 1 + task % 2] = scale;
  }
}

// ---- The kernel ---------------------------------------------------------------------------------

// Re-codes a block from its open rows: its record and side info. The whole thread block. has_codes:
// codes of books are in shared memory already, as CodeBlock makes them.
template <int kDim>
__device__ void SealBlock(const AppendParams& p, const AppendHead& head, int sequence, int block,
                          const uint8_t* open, bool has_codes, SealShared<kDim>* sh, int warp,
                          int lane) {
  const int64_t slot = p.sealed_table[sequence * p.table_stride + block];
  uint8_t* const record =
      p.sealed + static_cast<uint64_t>(slot) * p.sealed_stride + head.record_offset;
  for (int s = 0; s < 2; ++s) {
    const AppendSide& side = head.sides[s];
    const Side which = s == 0 ? Side::kK : Side::kV;
    if (side.kind != AppendKind::kBook) {
      const uint16_t base = SealWide<kDim>(p, side, which, open, record, sh, warp, lane);
      if (threadIdx.x == 0) sh->bases[s] = base;
      __syncthreads();  // the other side may need the same memory
    }
    for (int t = warp; side.kind == AppendKind::kBook && !has_codes && t < kPageLen; t += kWarps) {
      CodeRow<kDim>(side, which, open, t, sh, lane);
    }
  }
  __syncthreads();
  // A warp each has the scales of a side; all have its words.
  if (warp < 2) {
    const Side which = warp == 0 ? Side::kK : Side::kV;
    const AppendSide& side = head.sides[warp];
    if (side.kind == AppendKind::kBook) {
      uint16_t base, bound;
      StoreScales<kDim>(p, side, which, record, sh, lane, &base, &bound);
      if (lane == 0) sh->bases[warp] = base;
      if (lane == 0 && which == Side::kV) sh->bound = bound;
    } else if (which == Side::kV) {
      const uint16_t bound = BoundOfRows<kDim>(*sh, which, lane);
      if (lane == 0) sh->bound = bound;
    }
  }
  for (int s = 0; s < 2; ++s) {
    const AppendSide& side = head.sides[s];
    const int words = side.kind == AppendKind::kFloat ? 0 : kDim * side.bits / 16;  // of a lane
    for (int i = threadIdx.x; i < 32 * words; i += blockDim.x) {
      *reinterpret_cast<uint32_t*>(record + side.codes + FragmentWordByte(i % 32, i / 32)) =
          PackWord<kDim>(side, *sh, s == 0 ? Side::kK : Side::kV, i % 32, i / 32);
    }
  }
  __syncthreads();
  auto* const info = reinterpret_cast<RecordSideInfo*>(
      p.side_infos + static_cast<uint64_t>(slot) * p.side_stride + head.side_offset);
  if (head.anchors > 0) {
    SealAnchorRows<kDim>(p, head, open, block, record, reinterpret_cast<uint16_t*>(info + 1), sh,
                         warp, lane);
  }
  if (threadIdx.x == 0) {
    info->k_base = sh->bases[0];
    info->v_base = sh->bases[1];
    info->v_bound = sh->bound;
    info->flags = 1;
  }
}

// The whole thread block, which is to wait for itself then.
__device__ __forceinline__ void CopyHead(const AppendHead& from, AppendHead* to) {
  static_assert(sizeof(AppendHead) % 4 == 0);
  for (uint32_t i = threadIdx.x; i < sizeof(AppendHead) / 4; i += blockDim.x) {
    reinterpret_cast<uint32_t*>(to)[i] = reinterpret_cast<const uint32_t*>(&from)[i];
  }
}

// Row `task` / 2 of K or V, `from` of the tokens in p.k and p.v; a warp.
template <int kDim>
__device__ __forceinline__ void AppendTask(const AppendParams& p, const AppendHead& head,
                                           int kv_head, int task, int64_t from, int position,
                                           uint8_t* open, int lane) {
  const bool is_k = task % 2 == 0;
  AppendRow<kDim>(p, head.sides[task % 2],
                  is_k && head.center >= 0 ? p.centers + head.center * kDim : nullptr,
                  is_k ? Side::kK : Side::kV, is_k ? p.k : p.v,
                  (from * p.num_kv_heads + kv_head) * kDim, position, open, lane);
}

template <int kDim>
__global__ void __launch_bounds__(32 * kWarps)
    AppendKernel(const __grid_constant__ AppendParams p) {
  __shared__ SealShared<kDim> sh;
  __shared__ AppendHead head;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  CopyHead(p.heads[blockIdx.y], &head);
  // Lengths may be read too early: looked at again when the kernels in front have ended. Page
  // tables are not written by kernels.
  SequenceAt at;
  int last = 0, last_slot = 0;  // the block of the last token
  const auto find = [&] {
    at.Read(p, static_cast<int>(blockIdx.x));
    last = max(at.length - 1, 0) / kPageLen;
    last_slot = p.open_table[at.row * p.table_stride + last];
  };
  find();
  __syncthreads();
  if (p.alone != 0) ptx::LaunchDependents();
  ptx::WaitForDependencies();
  if (at.Changed(p, static_cast<int>(blockIdx.x))) find();
  const int sequence = at.row, length = at.length, n = min(p.num_tokens, length);
  const auto open_part = [&](int block) {
    const int slot = block == last ? last_slot : p.open_table[sequence * p.table_stride + block];
    return p.open + static_cast<uint64_t>(slot) * p.open_stride + head.open_offset;
  };
  for (int task = warp; task < 2 * n; task += kWarps) {
    const int position = length - n + task / 2;
    AppendTask<kDim>(p, head, blockIdx.y, task,
                     static_cast<int64_t>(blockIdx.x) * p.num_tokens + p.num_tokens - n + task / 2,
                     position, open_part(position / kPageLen), lane);
  }
  const int before = length - n > 0 ? (length - n - 1) / kPageLen : -1;
  const int block = last - p.recent_blocks - 1;
  if (n == 0 || last == before || block < p.sink_blocks) return;
  __syncthreads();  // without a window the block may just have been filled
  SealBlock<kDim>(p, head, sequence, block, open_part(block), false, &sh, warp, lane);
}

// Blocks that the tokens of a part of a prompt lie in, and those that leave the window by it.
struct PromptBlocks {
  int first = 0, count = 0;          // of the grid
  int seal_begin = 0, seal_end = 0;  // among them
};
__host__ __device__ inline PromptBlocks PromptBlocksOf(const AppendParams& p) {
  const int from = p.prompt_length - p.num_tokens;
  const int last = (p.prompt_length - 1) / kPageLen;
  const int before = from > 0 ? (from - 1) / kPageLen : -1;
  PromptBlocks b;
  const int sealed_before = before - p.recent_blocks;
  b.seal_begin = sealed_before > p.sink_blocks ? sealed_before : p.sink_blocks;
  b.seal_end = last - p.recent_blocks > b.seal_begin ? last - p.recent_blocks : b.seal_begin;
  b.first = from / kPageLen;
  if (b.seal_end > b.seal_begin && b.seal_begin < b.first) b.first = b.seal_begin;
  b.count = last - b.first + 1;
  return b;
}

template <int kDim>
struct PromptShared {
  SealShared<kDim> seal;
  BlockRows<kDim> rows;
  AppendHead head;
};

// A thread block for each (block, KV head).
template <int kDim>
__global__ void __launch_bounds__(32 * kWarps, kDim <= 128 ? 3 : 2)
    AppendPromptKernel(const __grid_constant__ AppendParams p) {
  auto& sh = *reinterpret_cast<PromptShared<kDim>*>(ptx::DynamicShared());
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const PromptBlocks blocks = PromptBlocksOf(p);
  const int block = blocks.first + static_cast<int>(blockIdx.y);
  const int from = p.prompt_length - p.num_tokens;  // of the new tokens
  const int begin = max(from, block * kPageLen);
  const int end = min(p.prompt_length, (block + 1) * kPageLen);
  const bool seals = block >= blocks.seal_begin && block < blocks.seal_end;
  if (begin >= end && !seals) return;
  CopyHead(p.heads[blockIdx.x], &sh.head);
  __syncthreads();
  const AppendHead& head = sh.head;
  const int slot = p.open_table[p.prompt_sequence * p.table_stride + block];
  uint8_t* const open = p.open + static_cast<uint64_t>(slot) * p.open_stride + head.open_offset;
  const bool has_codes = end - begin == kPageLen &&
                         head.sides[0].row_type == AppendRowType::kInt8 &&
                         head.sides[1].row_type == AppendRowType::kInt8;
  if (has_codes) {
    CodeBlock<kDim>(p, head, blockIdx.x, begin - from, begin, seals, &sh.rows, &sh.seal, warp,
                    lane);
    StoreOpenBlock<kDim>(head, sh.rows, open, lane);
  } else {
    for (int task = warp; task < 2 * (end - begin); task += kWarps) {
      const int position = begin + task / 2;
      AppendTask<kDim>(p, head, blockIdx.x, task, position - from, position, open, lane);
    }
  }
  if (!seals) return;
  __syncthreads();
  SealBlock<kDim>(p, head, p.prompt_sequence, block, open, has_codes, &sh.seal, warp, lane);
}

__global__ void AdvanceKernel(int32_t* lengths, const int32_t* sequences, int batch, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  ptx::LaunchDependents();
  ptx::WaitForDependencies();
  if (i < batch) lengths[sequences[i]] += n;
}

using AppendFunction = void (*)(AppendParams);
AppendFunction AppendFunctionOf(int head_dim) {
  return head_dim == 64    ? AppendKernel<64>
         : head_dim == 128 ? AppendKernel<128>
                           : AppendKernel<256>;
}

}  // namespace

Status PrepareAppend(int head_dim, AppendParams* p) {
  TQ_ASSIGN_OR_RETURN(const CudaDeviceInfo device, GetCudaDeviceInfo());
  const AppendFunction kernel = AppendFunctionOf(head_dim);
  cudaFuncAttributes attributes;
  TQ_RETURN_IF_ERROR(TQ_CUDA(cudaFuncGetAttributes(&attributes, kernel)));
  p->num_multiprocessors = device.num_multiprocessors;
  p->idle_shared_bytes =
      static_cast<uint32_t>(device.shared_bytes_per_block - attributes.sharedSizeBytes);
  TQ_RETURN_IF_ERROR(
      TQ_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   static_cast<int>(p->idle_shared_bytes))));
  // As attention behind it: a multiprocessor must be idle to share its memory out anew.
  return TQ_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                      cudaSharedmemCarveoutMaxShared));
}

Status LaunchAppend(int head_dim, const AppendParams& params, void* stream) {
  AppendParams p = params;
  const dim3 grid(static_cast<unsigned>(p.batch), static_cast<unsigned>(p.num_kv_heads));
  // Attention behind it may begin early, but on other multiprocessors: its thread blocks find no
  // room where one has all of the shared memory. Where there is room they would find it in pieces
  // when the append has ended, and the last of several that fill a multiprocessor together would
  // begin only when the first ends: measured, 1.4 times the time.
  p.alone = p.batch * p.num_kv_heads <= p.num_multiprocessors ? 1 : 0;
  ptx::LaunchEarly(AppendFunctionOf(head_dim), grid, 32 * kWarps,
                   p.alone != 0 ? p.idle_shared_bytes : 0, stream, p);
  return TQ_CUDA(cudaGetLastError());
}

Status LaunchAppendPrompt(int head_dim, const AppendParams& p, void* stream) {
  const dim3 grid(static_cast<unsigned>(p.num_kv_heads),
                  static_cast<unsigned>(PromptBlocksOf(p).count));
  const auto launch = [&](void (*kernel)(AppendParams), size_t shared_bytes) {
    TQ_RETURN_IF_ERROR(TQ_CUDA(cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes))));
    ptx::Launch(kernel, grid, 32 * kWarps, shared_bytes, stream, p);
    return TQ_CUDA(cudaGetLastError());
  };
  switch (head_dim) {
    case 64: return launch(AppendPromptKernel<64>, sizeof(PromptShared<64>));
    case 128: return launch(AppendPromptKernel<128>, sizeof(PromptShared<128>));
    default: return launch(AppendPromptKernel<256>, sizeof(PromptShared<256>));
  }
}

Status LaunchAdvance(int32_t* lengths, const int32_t* sequences, int batch, int n, void* stream) {
  ptx::LaunchEarly(AdvanceKernel, dim3(static_cast<unsigned>(batch + 127) / 128), 128, 0, stream,
                   lengths, sequences, batch, n);
  return TQ_CUDA(cudaGetLastError());
}

}  // namespace tq
