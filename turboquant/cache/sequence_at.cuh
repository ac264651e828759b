// A sequence of a batch as a kernel finds it in device memory.
#pragma once

#include "turboquant/codec/record_layout.h"

namespace tq {
namespace {

// Row in the page tables and length of sequences[index] of `p`, the parameters of a kernel. Within
// what the cache has, whatever memory holds: both are also read before the kernels in front have
// written them (ptx::WaitForDependencies).
struct SequenceAt {
  int row = 0, length = 0;

  template <typename Params>
  __device__ __forceinline__ void Read(const Params& p, int index) {
    row = RowOf(p, index);
    length = LengthOf(p, row);
  }
  // Whether Read would find something else now; both are asked for at once.
  template <typename Params>
  __device__ __forceinline__ bool Changed(const Params& p, int index) const {
    const int new_row = RowOf(p, index), new_length = LengthOf(p, row);
    return new_row != row || new_length != length;
  }

 private:
  template <typename Params>
  __device__ __forceinline__ static int RowOf(const Params& p, int index) {
    return min(max(__ldcg(p.sequences + index), 0), p.num_sequences - 1);
  }
  template <typename Params>
  __device__ __forceinline__ static int LengthOf(const Params& p, int row) {
    return min(max(__ldcg(p.lengths + row), 0), static_cast<int>(p.table_stride) * kPageLen);
  }
};

}  // namespace
}  // namespace tq
