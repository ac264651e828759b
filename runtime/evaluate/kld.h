// How far one model's next-token distributions are from another's: per row, then over positions.
//
// Rows stream through: a reference row is prepared once and compared with a row of each candidate;
// only a few numbers a position are kept. Logs are natural, so divergences are in nats.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "turboquant/base/aligned.h"
#include "turboquant/base/status.h"

namespace tq {

// Mean and standard error in one pass (Welford, so that no large sums cancel).
class RunningMean {
 public:
  void Add(double x);
  int64_t count() const { return count_; }
  double mean() const { return mean_; }  // 0 without values
  double stderr_of_mean() const;         // 0 below two values

 private:
  int64_t count_ = 0;
  double mean_ = 0, m2_ = 0;
};

// Mean of values that come in groups and depend on each other within one: positions of windows.
// Groups may differ in size and weigh by it; the error is a ratio estimator's (Cochran, Sampling
// Techniques, 1977, chapter 6).
class GroupedMean {
 public:
  void Add(double mean, int64_t count);  // of one group; one without values is left out
  int64_t groups() const { return static_cast<int64_t>(groups_.size()); }
  double mean() const;            // of all values; 0 without
  double stderr_of_mean() const;  // 0 below two groups

 private:
  struct Group {
    double mean = 0, count = 0;
  };
  std::vector<Group> groups_;
};

// What one position adds to the statistics.
struct PositionScore {
  int64_t position = 0;
  int64_t quantized_behind = 0;  // tokens that this position read at low bits
  double kld = 0;                // KL(p_ref || p_q)
  double tvd = 0;                // total variation: half the sum of |p_ref - p_q|
  bool same_top = false;         // both rows have their largest logit at one id
  bool has_target = false;       // the three below are set
  double ref_logprob = 0;        // of the token that really follows
  double q_logprob = 0;
};

// A row of the reference, made ready to be compared with several candidates.
class ReferenceRow {
 public:
  // kDataLoss when a logit is NaN or infinite: such a row has no distribution.
  Status Set(std::span<const float> logits);
  // KL, total variation and same-top of `logits` against this row; identical rows give exactly 0.
  // kInvalidArgument when the lengths differ. target < 0: no token follows. `work` is scratch.
  Status Compare(std::span<const float> logits, int64_t target, AlignedBuffer<float>* work,
                 PositionScore* score) const;

  double logsumexp() const { return logsumexp_; }

 private:
  std::span<const float> logits_;  // the caller's memory, alive until the last Compare
  AlignedBuffer<float> probs_;     // softmax of the reference
  size_t top_ = 0;
  double logsumexp_ = 0;
};

// Index of the first largest value; `logits` must not be empty.
size_t ArgMax(std::span<const float> logits);

// Standard errors are the larger of those over positions and over windows.
struct DivergenceSummary {
  int64_t positions = 0;
  double mean = 0, mean_stderr = 0, median = 0, p90 = 0, p95 = 0, p99 = 0, p999 = 0, max = 0;
  double same_top = 0, same_top_stderr = 0;  // shares in 0..1
  double one_minus_tvd = 0;
  // Over the positions that have a target; 0 without any.
  int64_t targets = 0;
  double ppl_ref = 0, ppl_q = 0, ppl_ratio = 0, ppl_ratio_stderr = 0;
  double delta_p_rms = 0;  // of the probability of the token that follows
};

// Statistics over `scores`; percentiles interpolate between neighbours. Empty input: all zeros.
// `windows`: how many of the scores are of each window, in order; empty: all are of one.
DivergenceSummary Summarize(std::span<const PositionScore> scores,
                            std::span<const int64_t> windows = {});
// Only those with at least `min_quantized` quantized tokens behind them.
DivergenceSummary SummarizeBehind(std::span<const PositionScore> scores, int64_t min_quantized,
                                  std::span<const int64_t> windows = {});

struct PositionBucket {
  int64_t first = 0, end = 0;  // positions [first, end)
  double kld_mean = 0;
  int64_t positions = 0;
};
// Cuts positions into at most `max_buckets` equal ranges whose length is a multiple of 64.
std::vector<PositionBucket> ByPosition(std::span<const PositionScore> scores, int max_buckets = 16);

// --- The loops over the vocabulary, per instruction set (kld_simd.cc) -------------------------
namespace kld_kernel {
// The largest value. NaN is not reported here: ExpSum does.
float Max(const float* x, size_t n);
// out[i] = exp(x[i] - shift); returns the sum, accumulated in double; NaN when an x is not finite.
double ExpSum(const float* x, size_t n, float shift, float* out);
// x[i] *= factor.
void Scale(float* x, size_t n, float factor);
// With p = probabilities and q = e * inv_sum:
//   *kld = sum of p (ref - cand - lse_difference) - p + q, every term >= 0 in exact arithmetic,
//   *abs_difference = sum of |p - q|.
void Divergence(const float* ref, const float* cand, const float* p, const float* e, size_t n,
                float lse_difference, float inv_sum, double* kld, double* abs_difference);
}  // namespace kld_kernel

}  // namespace tq
