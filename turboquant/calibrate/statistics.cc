#include "turboquant/calibrate/statistics.h"

#include <algorithm>
#include <cmath>

namespace tq {

VectorStatistics::VectorStatistics(const RopeFrequencies& rope, int head_dim, int num_layers,
                                   int heads)
    : rope_(rope),
      head_dim_(head_dim),
      heads_(heads),
      tokens_(static_cast<size_t>(num_layers)),
      sums_(static_cast<size_t>(num_layers) * heads * head_dim),
      squares_(sums_.size()),
      row_(static_cast<size_t>(head_dim)) {}

void VectorStatistics::SetPositions(int64_t first_pos, int count) {
  const size_t half = rope_.inv_freq.size(), n = static_cast<size_t>(count) * half;
  if (first_pos == first_pos_ && cos_.size() == n) return;
  first_pos_ = first_pos;
  cos_.resize(n);
  sin_.resize(n);
  for (size_t at = 0; at < n; ++at) {
    const double angle = double{rope_.inv_freq[at % half]} *
                         static_cast<double>(first_pos + static_cast<int64_t>(at / half));
    cos_[at] = static_cast<float>(std::cos(angle) / rope_.attention_scale);
    sin_[at] = static_cast<float>(std::sin(angle) / rope_.attention_scale);
  }
}

void VectorStatistics::Add(int layer, int64_t first_pos, int count, const float* rows) {
  SetPositions(first_pos, count);
  const size_t half = rope_.inv_freq.size(), dim = row_.size();
  for (int t = 0; t < count; ++t) {
    const float* c = cos_.data() + static_cast<size_t>(t) * half;
    const float* s = sin_.data() + static_cast<size_t>(t) * half;
    for (int h = 0; h < heads_; ++h) {
      const float* x = rows + (static_cast<size_t>(t) * heads_ + h) * dim;
      std::copy_n(x, dim, row_.begin());
      for (size_t i = 0; i < half; ++i) {
        row_[i] = x[i] * c[i] + x[i + half] * s[i];
        row_[i + half] = x[i + half] * c[i] - x[i] * s[i];
      }
      double* sum = &sums_[(static_cast<size_t>(layer) * heads_ + h) * dim];
      double* square = &squares_[(static_cast<size_t>(layer) * heads_ + h) * dim];
      for (size_t i = 0; i < dim; ++i) {
        sum[i] += row_[i];
        square[i] += double{row_[i]} * row_[i];
      }
    }
  }
  tokens_[static_cast<size_t>(layer)] += count;
}

std::vector<float> VectorStatistics::Mean(size_t head) const {
  const auto tokens = static_cast<double>(std::max<int64_t>(1, tokens_[head / heads_]));
  std::vector<float> mean;
  for (int i = 0; i < head_dim_; ++i) {
    mean.push_back(static_cast<float>(sums_[head * head_dim_ + i] / tokens));
  }
  return mean;
}

double VectorStatistics::Rms(size_t head) const {
  const auto tokens = static_cast<double>(std::max<int64_t>(1, tokens_[head / heads_]));
  double sum = 0;
  for (int i = 0; i < head_dim_; ++i) sum += squares_[head * head_dim_ + i];
  return std::sqrt(sum / tokens / head_dim_);
}

VectorStatistics::Outlier VectorStatistics::LargestChannel(size_t head) const {
  const auto first = squares_.begin() + static_cast<std::ptrdiff_t>(head) * head_dim_;
  const auto largest = std::max_element(first, first + head_dim_);
  const auto tokens = static_cast<double>(std::max<int64_t>(1, tokens_[head / heads_]));
  const double rms = Rms(head);
  Outlier outlier{static_cast<int>(largest - first), 1};
  if (rms > 0) outlier.ratio = std::sqrt(*largest / tokens) / rms;
  return outlier;
}

}  // namespace tq
