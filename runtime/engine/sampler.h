// From logits to a token: greedy, temperature, top-k, top-p, min-p, repetition penalty, by seed.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "turboquant/base/status.h"

namespace tq {

struct SamplingParams {
  float temperature = 0;  // 0 = greedy
  int top_k = 0;          // 0 = all
  float top_p = 1;
  float min_p = 0;               // relative to the most probable token
  float repetition_penalty = 1;  // over the last `penalty_last` tokens
  int penalty_last = 64;
  uint64_t seed = 0;
  Status Validate() const;  // names the parameter, its value and its range
};

class Sampler {
 public:
  explicit Sampler(const SamplingParams& params) : params_(params), state_(params.seed) {}
  // Deterministic: the same seed, logits and history give the same token. Ties in greedy go to the
  // lowest id; NaN logits are never chosen; -1 when there is nothing else (or nothing at all).
  int32_t Sample(std::span<const float> logits, std::span<const int32_t> history);

 private:
  SamplingParams params_;
  uint64_t state_;
};

}  // namespace tq
