// Order of the steps: logit bias, repetition, presence and frequency penalty, temperature, top-k,
// top-p, min-p, draw.
#include "runtime/engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "turboquant/base/numeric.h"

namespace tq {
namespace {

Status CheckRange(const char* name, double value, double low, double high, bool low_open = false) {
  // Written so that NaN is refused too.
  if (value <= high && (low_open ? value > low : value >= low)) return OkStatus();
  return InvalidArgument(name, " = ", value, ": expected ", low_open ? "more than " : "", low,
                         " to ", high);
}

Status CheckNotNegative(const char* name, int value) {
  if (value >= 0) return OkStatus();
  return InvalidArgument(name, " = ", value, ": expected 0 or more");
}

// A token and its probability relative to the most probable one.
struct Candidate {
  double weight;
  int32_t id;
};
// Heap order: the top is the most probable, the lowest id among equals.
bool Below(const Candidate& a, const Candidate& b) {
  return a.weight != b.weight ? a.weight < b.weight : a.id > b.id;
}

int32_t Greedy(std::span<const float> logits) {
  int32_t best = -1;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (std::isnan(logits[i])) continue;
    if (best < 0 || logits[i] > logits[static_cast<size_t>(best)]) best = static_cast<int32_t>(i);
  }
  return best;
}

// The most probable candidates that top-k, top-p and min-p leave, best first.
std::vector<Candidate> Restrict(std::vector<Candidate> all, const SamplingParams& params) {
  std::make_heap(all.begin(), all.end(), Below);
  const size_t k =
      params.top_k == 0 ? all.size() : std::min(all.size(), static_cast<size_t>(params.top_k));
  std::vector<Candidate> kept;
  double total = 0;  // of the k best: what top_p is a share of
  if (k == all.size()) {
    for (const Candidate& c : all) total += c.weight;
  }
  const auto pop = [&] {
    std::pop_heap(all.begin(), all.end(), Below);
    const Candidate c = all.back();
    all.pop_back();
    return c;
  };
  if (k < all.size()) {
    std::vector<Candidate> best;
    for (size_t i = 0; i < k; ++i) {
      best.push_back(pop());
      total += best.back().weight;
    }
    all = std::move(best);
    std::make_heap(all.begin(), all.end(), Below);
  }
  double mass = 0;
  while (!all.empty() && (kept.empty() || mass < params.top_p * total)) {
    const Candidate c = pop();
    if (!kept.empty() && c.weight < params.min_p) break;
    mass += c.weight;
    kept.push_back(c);
  }
  return kept;
}

}  // namespace

Status SamplingParams::Validate() const {
  TQ_RETURN_IF_ERROR(CheckRange("temperature", temperature, 0, 100));
  TQ_RETURN_IF_ERROR(CheckNotNegative("top_k", top_k));
  TQ_RETURN_IF_ERROR(CheckRange("top_p", top_p, 0, 1, /*low_open=*/true));
  TQ_RETURN_IF_ERROR(CheckRange("min_p", min_p, 0, 1));
  TQ_RETURN_IF_ERROR(CheckRange("repetition_penalty", repetition_penalty, 0, 100, true));
  TQ_RETURN_IF_ERROR(CheckRange("presence_penalty", presence_penalty, -2, 2));
  TQ_RETURN_IF_ERROR(CheckRange("frequency_penalty", frequency_penalty, -2, 2));
  for (const auto& [id, bias] : logit_bias) {
    TQ_RETURN_IF_ERROR(CheckNotNegative("a token of logit_bias", id));
    TQ_RETURN_IF_ERROR(CheckRange("a value of logit_bias", bias, -100, 100));
  }
  return CheckNotNegative("penalty_last", penalty_last);
}

Logprobs ComputeLogprobs(std::span<const float> logits, int32_t id, int num_top) {
  const int32_t best = Greedy(logits);
  Logprobs out;
  if (best < 0) return out;
  const double max = logits[static_cast<size_t>(best)];
  double sum = 0;
  for (const float logit : logits) {
    // Equal infinities: max itself counts 1, the others nothing.
    if (!std::isnan(logit)) sum += logit == max ? 1 : std::exp(logit - max);
  }
  const double log_sum = std::log(sum);
  const auto logprob = [&](int32_t i) {
    const float logit = logits[static_cast<size_t>(i)];
    if (std::isnan(logit)) return -std::numeric_limits<float>::infinity();
    return static_cast<float>((logit == max ? 0 : logit - max) - log_sum);
  };
  if (id >= 0 && static_cast<size_t>(id) < logits.size()) out.chosen = {id, logprob(id)};
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const size_t count = std::min(order.size(), static_cast<size_t>(std::max(num_top, 0)));
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(count), order.end(),
                    [&](int32_t a, int32_t b) {
                      const float x = logprob(a), y = logprob(b);
                      return x != y ? x > y : a < b;
                    });
  for (size_t i = 0; i < count; ++i) out.top.push_back({order[i], logprob(order[i])});
  return out;
}

void Sampler::Adjust(std::span<const int32_t> history, std::span<float> logits) const {
  const auto is_token = [&](int32_t id) {
    return id >= 0 && static_cast<size_t>(id) < logits.size();
  };
  for (const auto& [id, bias] : params_.logit_bias) {
    if (is_token(id)) logits[static_cast<size_t>(id)] += bias;
  }
  if (params_.repetition_penalty != 1) {
    const size_t n = std::min(history.size(), static_cast<size_t>(params_.penalty_last));
    std::vector<int32_t> recent(history.end() - static_cast<std::ptrdiff_t>(n), history.end());
    std::sort(recent.begin(), recent.end());
    recent.erase(std::unique(recent.begin(), recent.end()), recent.end());
    for (const int32_t id : recent) {
      if (!is_token(id)) continue;
      float& logit = logits[static_cast<size_t>(id)];
      logit = logit > 0 ? logit / params_.repetition_penalty : logit * params_.repetition_penalty;
    }
  }
  for (const auto& [id, count] : drawn_) {
    if (!is_token(id)) continue;
    logits[static_cast<size_t>(id)] -=
        params_.presence_penalty + static_cast<float>(count) * params_.frequency_penalty;
  }
}

int32_t Sampler::Sample(std::span<const float> logits, std::span<const int32_t> history) {
  const bool counts = params_.presence_penalty != 0 || params_.frequency_penalty != 0;
  const bool repetition =
      params_.repetition_penalty != 1 && params_.penalty_last > 0 && !history.empty();
  std::vector<float> adjusted;
  if (repetition || !params_.logit_bias.empty() || (counts && !drawn_.empty())) {
    adjusted.assign(logits.begin(), logits.end());
    Adjust(history, adjusted);
    logits = adjusted;
  }
  const int32_t id = Choose(logits);
  if (counts && id >= 0) ++drawn_[id];
  return id;
}

int32_t Sampler::Choose(std::span<const float> logits) {
  const int32_t best = Greedy(logits);
  if (params_.temperature == 0 || best < 0) return best;
  const float max = logits[static_cast<size_t>(best)];
  if (std::isinf(max)) return best;  // no differences to weigh

  std::vector<Candidate> candidates;
  candidates.reserve(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) {
    if (std::isnan(logits[i])) continue;
    const double weight = std::exp(static_cast<double>(logits[i] - max) / params_.temperature);
    candidates.push_back({weight, static_cast<int32_t>(i)});
  }
  if (params_.top_k != 0 || params_.top_p < 1 || params_.min_p > 0) {
    candidates = Restrict(std::move(candidates), params_);
  }
  double total = 0;
  for (const Candidate& c : candidates) total += c.weight;
  double left = static_cast<double>(SplitMix64(state_) >> 11) * 0x1p-53 * total;
  for (const Candidate& c : candidates) {
    left -= c.weight;
    if (left < 0) return c.id;
  }
  return best;  // the draw fell behind the last one by rounding
}

}  // namespace tq
