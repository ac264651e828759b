// From stored bytes back to float vectors in the head's rotated basis: for tests, for re-opening a
// block after truncation and for tools. Attention never calls this.
#pragma once

#include <cstddef>

#include "turboquant/codec/codec.h"
#include "turboquant/codec/record_layout.h"

namespace tq {

// out: [kPageLen][head_dim].
void DecodeSealedSide(const Codec& codec, Side side, int head_dim, const uint8_t* codes,
                      const uint8_t* scales, bf16_t base, float* out);
void DecodeOpenSide(Side side, int head_dim, int open_bits, const std::byte* values,
                    const float* scales, float* out);

}  // namespace tq
