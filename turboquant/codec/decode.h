// From stored bytes back to float vectors in the head's rotated basis: for tests, for re-opening a
// block after truncation and for tools. Attention never calls this.
#pragma once

#include <cstddef>

#include "turboquant/codec/codec.h"
#include "turboquant/codec/encode.h"
#include "turboquant/codec/record_layout.h"

namespace tq {

// out: [kPageLen][head_dim]. `calibrated`: the head's book for Codebook::kCalibrated, else ignored.
void DecodeSealedSide(const Codec& codec, const CodebookTable* calibrated, Side side, int head_dim,
                      const uint8_t* codes, const uint8_t* scales, bf16_t base, float* out);
void DecodeOpenSide(const OpenSide& open, float* out);

}  // namespace tq
