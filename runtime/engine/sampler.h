// From logits to a token: greedy or by chance, with biases, penalties and cuts, by seed.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "turboquant/base/status.h"

namespace tq {

struct SamplingParams {
  float temperature = 0;  // 0 = greedy
  int top_k = 0;          // 0 = all
  float top_p = 1;
  float min_p = 0;               // relative to the most probable token
  float repetition_penalty = 1;  // over the last `penalty_last` tokens, prompt and all
  int penalty_last = 64;
  // Subtracted from the logits of tokens that were drawn before: once, and for each time.
  float presence_penalty = 0, frequency_penalty = 0;
  std::vector<std::pair<int32_t, float>> logit_bias = {};  // token id, added to its logit
  uint64_t seed = 0;
  Status Validate() const;  // names the parameter, its value and its range
};

struct TokenLogprob {
  int32_t id = -1;
  float logprob = 0;  // natural logarithm
};
// The log-probability of `id` in what the model says, before biases, penalties and temperature,
// and the `num_top` most probable tokens (the lowest id first among equals). NaN logits count as
// -inf. A logit of +inf makes the others impossible.
struct Logprobs {
  TokenLogprob chosen;
  std::vector<TokenLogprob> top;
};
Logprobs ComputeLogprobs(std::span<const float> logits, int32_t id, int num_top);

class Sampler {
 public:
  explicit Sampler(const SamplingParams& params) : params_(params), state_(params.seed) {}
  // Deterministic: the same seed, logits and history give the same token. Ties in greedy go to the
  // lowest id; NaN logits are never chosen; -1 when there is nothing else (or nothing at all).
  int32_t Sample(std::span<const float> logits, std::span<const int32_t> history);

 private:
  int32_t Choose(std::span<const float> logits);
  void Adjust(std::span<const int32_t> history, std::span<float> logits) const;

  SamplingParams params_;
  uint64_t state_;
  std::unordered_map<int32_t, int> drawn_;  // how often
};

}  // namespace tq
