// Blocks of weights as GGUF files hold them: the one place that knows their bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "turboquant/base/numeric.h"
#include "turboquant/linear/weight.h"

namespace tq {

// The parts of a block, each by itself.
struct FileBlock {
  f16_t d = 0, m = 0;                // m: types with a minimum
  uint8_t exponent = 0;              // in place of d, MXFP4
  uint8_t codes[kMaxBlockLen];       // offset not taken off; of Q8_0: 128 added; of MXFP4: ranks
  int8_t scales[kMaxBlockLen / 16];  // of the groups, K types
  uint8_t mins[kMaxBlockLen / 16];
};

// `type` is a block type, `bytes` one block of it.
void ReadFileBlock(WeightType type, const std::byte* bytes, FileBlock& block);

// The other way: every bit of `bytes` (one block) is set. Codes, scales and mins must fit into
// their bits. Types that encode_block.h writes.
void WriteFileBlock(WeightType type, const FileBlock& block, std::byte* bytes);

// A row of values straight from a file: the specification of what weights mean. `bytes` holds
// out.size() values, a multiple of the type's block.
void DequantizeFileRow(WeightType type, const std::byte* bytes, std::span<float> out);

// The value of a float type at p.
float ReadFloat(WeightType type, const std::byte* p);

}  // namespace tq
