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
// lengths and formats are. Within a unit (sequence, head) its warps take turns at the pages;
// each has a ring of two pages and its own softmax state, so that nothing waits in the loop. The
// states of the warps are merged in shared memory at the end of a unit, while the first pages of
// the next come; a unit that more blocks worked on is merged by the block that arrives last, in the
// order of the blocks. So a result does not depend on timing; it does depend on the batch, which
// decides where ranges are cut.
//
// Read: decode_fragments.cuh (what a warp holds), decode_page.cuh (PageScores and PageValues, a
// sealed page), decode_extras.cuh (centre and anchors), decode_rows.cuh (OpenItem, half an open
// page), decode_units.cuh (who does what), decode_ring.cuh (how pages come), decode_merge.cuh (the
// ends of units), decode_kernel.cuh (the loop), decode_wide.cuh (8-bit codes, groups, floats).
#include <cuda_runtime_api.h>

#include <algorithm>

#include "turboquant/attention/decode_kernel.cuh"
#include "turboquant/base/device.h"
#include "turboquant/base/device_status.h"

namespace tq {
namespace {

// ---- Launchers ----------------------------------------------------------------------------------

// With more units for each multiprocessor, its warps do not work on one of them together.
constexpr int64_t kUnitsPerMultiprocessor = 4;

DecodeEntry EntryFor(int head_dim, int rows, DecodeVariant variant) {
  if (variant == DecodeVariant::kSkip) return SkippingDecodeEntry(head_dim, rows);
  if (variant == DecodeVariant::kWide) return WideDecodeEntry(head_dim, rows);
  return DecodeEntryOf<DecodeVariant::kPlain>(head_dim, rows);
}

size_t SharedBytes(const DecodeEntry& kernel, const DecodeKernelInfo& info, int num_kv_heads,
                   int num_warps) {
  return kernel.rings_offset(num_kv_heads, info.center_bytes) +
         static_cast<size_t>(num_warps) * kernel.warp_bytes(info.stage_bytes, info.center_pages);
}

}  // namespace

Status PrepareDecodeKernel(int head_dim, int rows, DecodeVariant variant, uint32_t side_at,
                           int num_kv_heads, bool has_center, bool one_row, int64_t num_units,
                           DecodeKernelInfo* info) {
  const DecodeEntry kernel = EntryFor(head_dim, rows, variant);
  TQ_ASSIGN_OR_RETURN(const CudaDeviceInfo device, GetCudaDeviceInfo());
  cudaFuncAttributes attributes;
  TQ_RETURN_IF_ERROR(TQ_CUDA(cudaFuncGetAttributes(&attributes, kernel.function)));
  const size_t limit = device.shared_bytes_per_block - attributes.sharedSizeBytes;
  const bool wide = variant == DecodeVariant::kWide;
  info->center_bytes = has_center ? sizeof(DecodeCenter::digits) : 0;
  const size_t fixed = kernel.rings_offset(num_kv_heads, info->center_bytes);
  info->stage_bytes = RoundUp(side_at + kSideBytes, kDecodeStageAlign);
  // Centres of as many pages at once as leave room for as many warps as there may be; of one where
  // thread blocks share a multiprocessor, as one less of them would fit.
  const bool few_units = num_units <= kUnitsPerMultiprocessor * device.num_multiprocessors;
  const bool packs = has_center && one_row && few_units && !wide;
  int many_warps = -1;
  for (int pages = packs ? kMaxCenterPages : 1; pages > 0; --pages) {
    const auto fit = static_cast<int>((limit - std::min(limit, fixed)) /
                                      kernel.warp_bytes(info->stage_bytes, pages));
    int warps = std::min(kernel.max_warps, fit);
    // Each of the four schedulers of a multiprocessor gets as many: pages go to warps in turn. Of
    // the larger records of a wide kernel every warp is needed.
    if (!wide && warps > kFewDecodeWarps) warps -= warps % kFewDecodeWarps;
    if (warps > many_warps) {
      many_warps = warps, info->center_pages = pages;
    }
  }
  const size_t few = SharedBytes(kernel, *info, num_kv_heads, kFewDecodeWarps);
  // Float rows are large: a wide kernel may have fewer warps than that.
  if (wide ? many_warps < 1 : few > limit) {
    return Unsupported("cuda decode attention: head_dim ", head_dim, " with ", rows,
                       " rows and records of this format needs ",
                       wide ? SharedBytes(kernel, *info, num_kv_heads, 1) : few,
                       " bytes of shared memory a thread block, ", device.name, " has ", limit,
                       "; supported there: fewer bits, or a smaller head_dim");
  }
  // The attribute is the function's, not this caller's: others may need more.
  TQ_RETURN_IF_ERROR(TQ_CUDA(cudaFuncSetAttribute(
      kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(limit))));
  TQ_RETURN_IF_ERROR(
      TQ_CUDA(cudaFuncSetAttribute(kernel.function, cudaFuncAttributePreferredSharedMemoryCarveout,
                                   cudaSharedmemCarveoutMaxShared)));
  // All warps of a multiprocessor may work on one range, so that they end together; or several
  // thread blocks on one each, of which one computes while another begins or ends a unit. Which is
  // faster was measured on an H200 at 131,072 tokens: the first with centres (by 3 to 20 %) and
  // where no warp is lost by it (by 2 to 13 %, with k3v2); the second otherwise (up to 3 %, with
  // k4v4), and at 8,192 tokens of 32 KV heads (2 to 15 %).
  int few_blocks = 0;
  if (few <= limit) {
    TQ_RETURN_IF_ERROR(TQ_CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(
        &few_blocks, kernel.function, 32 * kFewDecodeWarps, few)));
  }
  // Of a wide kernel's large records, more fit where a second thread block would not.
  const bool together = has_center || many_warps == kernel.max_warps ||
                        (wide && many_warps > kFewDecodeWarps * few_blocks);
  const bool one_block = few_blocks == 0 || (together && few_units && many_warps > kFewDecodeWarps);
  info->warps_per_block = one_block ? many_warps : kFewDecodeWarps;
  info->blocks_per_multiprocessor = one_block ? 1 : few_blocks;
  info->num_blocks = info->blocks_per_multiprocessor * device.num_multiprocessors;
  return OkStatus();
}

Status LaunchDecodeKernel(int head_dim, int rows, DecodeVariant variant, const DecodeParams& params,
                          const DecodeKernelInfo& info, void* stream) {
  const DecodeEntry kernel = EntryFor(head_dim, rows, variant);
  ptx::LaunchEarly(
      kernel.function, dim3(static_cast<unsigned>(info.num_blocks)), 32 * info.warps_per_block,
      SharedBytes(kernel, info, params.num_kv_heads, info.warps_per_block), stream, params);
  return TQ_CUDA(cudaGetLastError());
}

}  // namespace tq
