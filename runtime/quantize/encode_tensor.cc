#include "runtime/quantize/encode_tensor.h"

#include <algorithm>
#include <mutex>
#include <optional>
#include <string>

#include "turboquant/base/numeric.h"
#include "turboquant/linear/encode_block.h"
#include "turboquant/linear/encode_feedback.h"
#include "turboquant/linear/file_block.h"

namespace tq {
namespace {

constexpr int64_t kRowsPerTask = 8;

// The rows of a tensor as floats, one at a time.
class Rows {
 public:
  static Result<Rows> Of(const GgufFile& file, const GgufTensor& tensor) {
    const auto type = WeightTypeOf(GgmlTypeName(tensor.type));
    TQ_RETURN_IF_ERROR(type.status().WithContext("tensor '" + tensor.name + "'"));
    return Rows(file.Data(tensor), *type, tensor);
  }
  int64_t count() const { return count_; }
  int64_t length() const { return length_; }
  WeightType type() const { return type_; }
  std::span<const std::byte> bytes() const { return data_.bytes(); }
  void Decode(int64_t row, std::span<float> out) const {
    const size_t row_bytes = data_.bytes().size() / static_cast<size_t>(count_);
    DequantizeFileRow(type_, data_.bytes().data() + static_cast<size_t>(row) * row_bytes, out);
  }
  // The part of `importance` that is for a row.
  std::span<const float> Importance(std::span<const float> importance, int64_t row) const {
    const auto n = static_cast<size_t>(length_);
    if (importance.size() <= n) return importance;
    const int64_t rows_of_expert = count_ / static_cast<int64_t>(importance.size() / n);
    return importance.subspan(static_cast<size_t>(row / rows_of_expert) * n, n);
  }

 private:
  Rows(TensorData data, WeightType type, const GgufTensor& tensor)
      : data_(std::move(data)),
        type_(type),
        length_(tensor.shape[0]),
        count_(tensor.num_elements() / tensor.shape[0]) {}
  TensorData data_;
  WeightType type_;
  int64_t length_, count_;
};

size_t RowBytes(WeightType type, int64_t length) {
  return static_cast<size_t>(length / WeightBlockLen(type) * WeightBlockBytes(type));
}

// The first error of parallel work, by row.
class FirstError {
 public:
  void Set(int64_t row, const Status& status) {
    if (status.ok()) return;
    const std::lock_guard lock(mutex_);
    if (row_ >= 0 && row_ < row) return;
    row_ = row;
    status_ = status.WithContext(StrCat("row ", row));
  }
  const Status& status() const { return status_; }

 private:
  std::mutex mutex_;
  int64_t row_ = -1;
  Status status_;
};

}  // namespace

Result<std::vector<std::byte>> EncodeTensor(const GgufFile& file, const GgufTensor& tensor,
                                            WeightType type, std::span<const float> importance,
                                            std::span<const float> factor, ThreadPool& pool) {
  TQ_ASSIGN_OR_RETURN(const Rows rows, Rows::Of(file, tensor));
  if (rows.type() == type) {
    return std::vector<std::byte>(rows.bytes().begin(), rows.bytes().end());
  }
  const size_t row_bytes = RowBytes(type, rows.length());
  std::vector<std::byte> out(row_bytes * static_cast<size_t>(rows.count()));
  FirstError error;
  const auto tasks = static_cast<size_t>(DivCeil(rows.count(), kRowsPerTask));
  pool.ParallelFor(tasks, [&](size_t task, int) {
    const auto length = static_cast<size_t>(rows.length());
    const int64_t first = static_cast<int64_t>(task) * kRowsPerTask;
    const int64_t end = std::min(rows.count(), first + kRowsPerTask);
    if (!factor.empty() && IsBlockType(type)) {
      std::vector<float> all(length * static_cast<size_t>(end - first));
      for (int64_t r = first; r < end; ++r) {
        rows.Decode(r, std::span(all).subspan(static_cast<size_t>(r - first) * length, length));
      }
      error.Set(first, EncodeFileRowsWithFeedback(
                           type, all, rows.length(), importance, factor,
                           std::span(out).subspan(static_cast<size_t>(first) * row_bytes,
                                                  static_cast<size_t>(end - first) * row_bytes)));
      return;
    }
    std::vector<float> values(length);
    for (int64_t r = first; r < end; ++r) {
      rows.Decode(r, values);
      error.Set(
          r, EncodeFileRow(type, values, rows.Importance(importance, r),
                           std::span(out).subspan(static_cast<size_t>(r) * row_bytes, row_bytes)));
    }
  });
  TQ_RETURN_IF_ERROR(error.status().WithContext("tensor '" + tensor.name + "'"));
  return out;
}

Result<std::vector<double>> EncodingErrors(const GgufFile& file, const GgufTensor& tensor,
                                           std::span<const WeightType> types,
                                           std::span<const float> importance, int64_t max_rows,
                                           ThreadPool& pool) {
  TQ_ASSIGN_OR_RETURN(const Rows rows, Rows::Of(file, tensor));
  const int64_t sampled = std::min(rows.count(), max_rows);
  std::vector<double> errors(static_cast<size_t>(sampled) * types.size());  // [row][type]
  FirstError error;
  pool.ParallelFor(static_cast<size_t>(sampled), [&](size_t i, int) {
    const int64_t row = static_cast<int64_t>(i) * rows.count() / sampled;
    std::vector<float> values(static_cast<size_t>(rows.length())), stored(values.size());
    std::vector<std::byte> bytes;
    rows.Decode(row, values);
    const std::span<const float> weights = rows.Importance(importance, row);
    for (size_t t = 0; t < types.size(); ++t) {
      bytes.resize(RowBytes(types[t], rows.length()));
      const Status status = EncodeFileRow(types[t], values, weights, bytes);
      error.Set(row, status);
      if (!status.ok()) continue;
      DequantizeFileRow(types[t], bytes.data(), stored);
      double sum = 0;
      for (size_t k = 0; k < values.size(); ++k) {
        const double difference = double{values[k]} - stored[k];
        sum += difference * difference * (weights.empty() ? 1 : weights[k]);
      }
      errors[i * types.size() + t] = sum;
    }
  });
  TQ_RETURN_IF_ERROR(error.status().WithContext("tensor '" + tensor.name + "'"));
  std::vector<double> sums(types.size());
  const double scale = static_cast<double>(rows.count()) / static_cast<double>(sampled);
  for (size_t i = 0; i < errors.size(); ++i) sums[i % types.size()] += scale * errors[i];
  return sums;
}

}  // namespace tq
