// Anchors: the tokens of a sealed block that are kept better, as residual rows of K and V.
//
// Which ones is a pure function of the block and the profile: the key's expected score under the
// head's mean query, plus the logarithm of its coding error. So fork, prefix hit and verification
// agree. Nothing is masked: attention adds q . r_K to the token's score and p r_V to the output.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "turboquant/codec/center.h"
#include "turboquant/codec/codec.h"
#include "turboquant/codec/encode.h"
#include "turboquant/codec/record_layout.h"
#include "turboquant/codec/rotation.h"

namespace tq {

// What a profile knows of the queries that read one KV head.
struct QueryStatistics {
  // [query heads of the group][head_dim]: means before RoPE, after bias and q-norm, in Hugging Face
  // order.
  std::vector<std::vector<float>> means;
  float rms = 1;  // root mean square of a query channel
  bool empty() const { return means.empty(); }
};

class AnchorScorer {
 public:
  AnchorScorer() = default;
  // `center`: what is subtracted from the head's keys. `first_distance`: of the nearest query that
  // reads sealed codes (recent_len).
  AnchorScorer(const QueryStatistics& queries, const RopeFrequencies& rope, int head_dim,
               const HeadCenter& center, int first_distance);
  bool empty() const { return num_probes_ == 0; }
  float query_rms() const { return query_rms_; }
  // For kernels that score on a device: [num_probes][head_dim] probes and their offsets; the first
  // num_scored of them count.
  int num_scored() const { return std::min(num_probes_, kMaxScored); }
  std::span<const float> probes() const { return probes_; }
  std::span<const float> offsets() const { return offsets_; }
  static constexpr int kMaxScored = 96;
  // log of the expected weight of a key at `position`: k is centred and after RoPE, not rotated by
  // the codec; it is overwritten.
  float Score(const CenterTable& rope, int64_t position, float* k) const;

 private:
  int num_probes_ = 0, head_dim_ = 0, half_ = 0;
  float query_rms_ = 1;
  std::vector<float> probes_;   // [num_probes][head_dim]: mean query seen from a distance, scaled
  std::vector<float> offsets_;  // [num_probes]: what the centre adds
};

struct AnchorBlock {
  const HeadFormat* format = nullptr;
  const AnchorScorer* scorer = nullptr;
  const Rotation* k_rotation = nullptr;
  const CenterTable* rope = nullptr;
  int64_t first_pos = 0;
  OpenSide k, v;
  // [64][head_dim] of the sealed rows, from DecodeSealedSide.
  const float* k_decoded = nullptr;
  const float* v_decoded = nullptr;
};

// Chooses format->anchors tokens and writes their rows (AnchorBytes each side) and info, ordered by
// token.
void SealAnchors(const AnchorBlock& block, uint8_t* k_rows, uint8_t* v_rows, AnchorInfo* info);

// One residual row: out[padded_dim] = scale * level. 4-bit levels -7..7 are stored + 8, the even
// channel in the low half of the byte; 8-bit ones as they are.
void DecodeAnchorRow(int bits, const uint8_t* row, bf16_t scale, int padded_dim, float* out);

}  // namespace tq
