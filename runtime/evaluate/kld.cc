// Rows to scores, scores to statistics. The loops over the vocabulary are in kld_simd.cc.
#include "runtime/evaluate/kld.h"

#include <algorithm>
#include <cmath>

namespace tq {
namespace {

// Linear interpolation between the two nearest ranks; `sorted` is not empty.
double Quantile(const std::vector<double>& sorted, double q) {
  const double rank = q * static_cast<double>(sorted.size() - 1);
  const size_t low = static_cast<size_t>(rank);
  const size_t high = std::min(low + 1, sorted.size() - 1);
  return sorted[low] + (rank - static_cast<double>(low)) * (sorted[high] - sorted[low]);
}

// What has a standard error.
struct Means {
  RunningMean kld, same_top, delta_nll;
  void Add(const PositionScore& p) {
    kld.Add(p.kld);
    same_top.Add(p.same_top ? 1 : 0);
    if (p.has_target) delta_nll.Add(p.ref_logprob - p.q_logprob);
  }
};

Status NotFinite(const char* whose) {
  return DataLoss("the ", whose, " logits hold NaN or infinity: the row has no distribution");
}

}  // namespace

void RunningMean::Add(double x) {
  ++count_;
  const double delta = x - mean_;
  mean_ += delta / static_cast<double>(count_);
  m2_ += delta * (x - mean_);
}

double RunningMean::stderr_of_mean() const {
  if (count_ < 2) return 0;
  return std::sqrt(m2_ / static_cast<double>(count_ - 1) / static_cast<double>(count_));
}

void GroupedMean::Add(double mean, int64_t count) {
  if (count > 0) groups_.push_back({mean, static_cast<double>(count)});
}

double GroupedMean::mean() const {
  double sum = 0, count = 0;
  for (const Group& g : groups_) {
    sum += g.count * g.mean;
    count += g.count;
  }
  return count > 0 ? sum / count : 0;
}

double GroupedMean::stderr_of_mean() const {
  if (groups_.size() < 2) return 0;
  const double middle = mean(), n = static_cast<double>(groups_.size());
  double squares = 0, count = 0;
  for (const Group& g : groups_) {
    squares += std::pow(g.count * (g.mean - middle), 2);
    count += g.count;
  }
  return std::sqrt(n / (n - 1) * squares) / count;
}

size_t ArgMax(std::span<const float> logits) {
  const float best = kld_kernel::Max(logits.data(), logits.size());
  const auto it = std::find(logits.begin(), logits.end(), best);
  return it == logits.end() ? 0 : static_cast<size_t>(it - logits.begin());
}

Status ReferenceRow::Set(std::span<const float> logits) {
  if (logits.empty()) return InvalidArgument("a row of 0 logits cannot be compared");
  logits_ = logits;
  probs_.Reserve(logits.size());
  top_ = ArgMax(logits);
  const double sum = kld_kernel::ExpSum(logits.data(), logits.size(), logits[top_], probs_.data());
  if (!std::isfinite(sum) || !std::isfinite(logits[top_])) return NotFinite("reference's");
  kld_kernel::Scale(probs_.data(), logits.size(), static_cast<float>(1.0 / sum));
  logsumexp_ = logits[top_] + std::log(sum);
  return OkStatus();
}

Status ReferenceRow::Compare(std::span<const float> logits, int64_t target,
                             AlignedBuffer<float>* work, PositionScore* score) const {
  if (logits.size() != logits_.size()) {
    return InvalidArgument("a row of ", logits.size(), " logits cannot be compared with one of ",
                           logits_.size());
  }
  if (target >= static_cast<int64_t>(logits.size())) {
    return InvalidArgument("target token ", target, " is outside the vocabulary of ",
                           logits.size());
  }
  const size_t n = logits.size();
  work->Reserve(n);
  const size_t top = ArgMax(logits);
  const double sum = kld_kernel::ExpSum(logits.data(), n, logits[top], work->data());
  if (!std::isfinite(sum) || !std::isfinite(logits[top])) return NotFinite("compared");
  const double logsumexp = logits[top] + std::log(sum);
  double kld = 0, absolute = 0;
  kld_kernel::Divergence(logits_.data(), logits.data(), probs_.data(), work->data(), n,
                         static_cast<float>(logsumexp_ - logsumexp), static_cast<float>(1.0 / sum),
                         &kld, &absolute);
  // Rounding may leave a divergence of true zero slightly negative.
  score->kld = std::max(0.0, kld);
  score->tvd = 0.5 * absolute;
  score->same_top = top == top_;
  score->has_target = target >= 0;
  if (score->has_target) {
    score->ref_logprob = logits_[static_cast<size_t>(target)] - logsumexp_;
    score->q_logprob = logits[static_cast<size_t>(target)] - logsumexp;
  }
  return OkStatus();
}

DivergenceSummary Summarize(std::span<const PositionScore> scores,
                            std::span<const int64_t> windows) {
  DivergenceSummary s;
  if (scores.empty()) return s;
  std::vector<double> klds;
  klds.reserve(scores.size());
  Means all;
  RunningMean tvd, ref_nll, delta_p_squared;
  for (const PositionScore& p : scores) {
    klds.push_back(p.kld);
    all.Add(p);
    tvd.Add(p.tvd);
    if (!p.has_target) continue;
    ref_nll.Add(-p.ref_logprob);
    const double delta_p = std::exp(p.q_logprob) - std::exp(p.ref_logprob);
    delta_p_squared.Add(delta_p * delta_p);
  }
  GroupedMean kld, same_top, delta_nll;  // over windows
  for (const int64_t n : windows) {
    Means window;
    for (const PositionScore& p : scores.first(static_cast<size_t>(n))) window.Add(p);
    scores = scores.subspan(static_cast<size_t>(n));
    kld.Add(window.kld.mean(), window.kld.count());
    same_top.Add(window.same_top.mean(), window.same_top.count());
    delta_nll.Add(window.delta_nll.mean(), window.delta_nll.count());
  }
  std::sort(klds.begin(), klds.end());
  s.positions = all.kld.count();
  s.mean = all.kld.mean();
  s.mean_stderr = std::max(all.kld.stderr_of_mean(), kld.stderr_of_mean());
  s.median = Quantile(klds, 0.5);
  s.p90 = Quantile(klds, 0.9);
  s.p95 = Quantile(klds, 0.95);
  s.p99 = Quantile(klds, 0.99);
  s.p999 = Quantile(klds, 0.999);
  s.max = klds.back();
  s.same_top = all.same_top.mean();
  s.same_top_stderr = std::max(all.same_top.stderr_of_mean(), same_top.stderr_of_mean());
  s.one_minus_tvd = 1 - tvd.mean();
  s.targets = ref_nll.count();
  if (s.targets > 0) {
    s.ppl_ref = std::exp(ref_nll.mean());
    s.ppl_ratio = std::exp(all.delta_nll.mean());
    s.ppl_q = s.ppl_ref * s.ppl_ratio;
    s.ppl_ratio_stderr =
        s.ppl_ratio * std::max(all.delta_nll.stderr_of_mean(), delta_nll.stderr_of_mean());
    s.delta_p_rms = std::sqrt(delta_p_squared.mean());
  }
  return s;
}

DivergenceSummary SummarizeBehind(std::span<const PositionScore> scores, int64_t min_quantized,
                                  std::span<const int64_t> windows) {
  std::vector<PositionScore> kept;
  std::vector<int64_t> kept_of_windows;
  const auto keep = [&](std::span<const PositionScore> some) {
    const size_t before = kept.size();
    for (const PositionScore& p : some) {
      if (p.quantized_behind >= min_quantized) kept.push_back(p);
    }
    kept_of_windows.push_back(static_cast<int64_t>(kept.size() - before));
  };
  if (windows.empty()) keep(scores);
  for (const int64_t n : windows) {
    keep(scores.first(static_cast<size_t>(n)));
    scores = scores.subspan(static_cast<size_t>(n));
  }
  return Summarize(kept, kept_of_windows);
}

std::vector<PositionBucket> ByPosition(std::span<const PositionScore> scores, int max_buckets) {
  std::vector<PositionBucket> buckets;
  if (scores.empty() || max_buckets < 1) return buckets;
  int64_t end = 0;
  for (const PositionScore& p : scores) end = std::max(end, p.position + 1);
  const int64_t len = RoundUp<int64_t>(DivCeil<int64_t>(end, max_buckets), 64);
  buckets.resize(static_cast<size_t>(DivCeil<int64_t>(end, len)));
  for (size_t i = 0; i < buckets.size(); ++i) {
    buckets[i].first = static_cast<int64_t>(i) * len;
    buckets[i].end = std::min(end, buckets[i].first + len);
  }
  for (const PositionScore& p : scores) {
    PositionBucket& b = buckets[static_cast<size_t>(p.position / len)];
    ++b.positions;
    b.kld_mean += (p.kld - b.kld_mean) / static_cast<double>(b.positions);
  }
  std::erase_if(buckets, [](const PositionBucket& b) { return b.positions == 0; });
  return buckets;
}

}  // namespace tq
