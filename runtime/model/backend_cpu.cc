// The backend on the CPU: packed matrices, ops.h, and rows spread over the thread pool.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>
#include <vector>

#include "runtime/model/backend.h"
#include "runtime/model/ops.h"
#include "turboquant/base/aligned.h"
#include "turboquant/linear/matmul.h"

namespace tq {
namespace {

class CpuBackend : public Backend {
 public:
  explicit CpuBackend(ThreadPool& pool) : pool_(pool) {}

  Result<MatrixId> AddMatrix(WeightType type, int64_t out_dim, int64_t in_dim,
                             std::span<const std::byte> rows,
                             std::span<const int32_t> row_order) override {
    TQ_ASSIGN_OR_RETURN(PackedMatrix m, PackedMatrix::Pack(type, out_dim, in_dim, rows, row_order,
                                                           pool_, &memory_));
    weight_bytes_ += m.bytes();
    matrices_.push_back(std::move(m));
    return static_cast<MatrixId>(matrices_.size() - 1);
  }

  VectorId AddVector(std::span<const float> values) override {
    weight_bytes_ += values.size_bytes();
    vectors_.emplace_back(values.begin(), values.end());
    return static_cast<VectorId>(vectors_.size() - 1);
  }

  size_t weight_bytes() const override { return weight_bytes_; }

  Result<float*> Buffer(int index, size_t num_floats) override {
    TQ_CHECK(index >= 0 && index < kNumBuffers);
    AlignedBuffer<float>& buffer = buffers_[index];
    try {
      buffer.Reserve(num_floats);
    } catch (const std::bad_alloc&) {
      return ResourceExhausted("no memory for ", num_floats * sizeof(float),
                               " bytes of activations; use shorter chunks");
    }
    return buffer.data();
  }

  void Embed(MatrixId table, std::span<const int32_t> tokens, float* x) override {
    const PackedMatrix& m = matrix(table);
    ForRows(static_cast<int>(tokens.size()), m.in_dim(), [&](int first, int end) {
      for (int r = first; r < end; ++r) {
        m.DecodeRow(tokens[static_cast<size_t>(r)], x + r * m.in_dim());
      }
    });
  }

  void RmsNorm(const float* x, VectorId weight, int rows, int64_t n, float eps,
               float* out) override {
    ForRows(rows, n, [&](int first, int end) {
      tq::RmsNorm(x + first * n, vector(weight).data(), end - first, n, eps, out + first * n);
    });
  }

  void Linear(std::span<const LinearPart> parts, const float* x, int rows) override {
    products_.clear();
    for (const LinearPart& part : parts) {
      const PackedMatrix& m = matrix(part.matrix);
      products_.push_back({.weight = &m, .y = part.y, .y_stride = m.out_dim()});
    }
    Multiply(products_, x, rows, scratch_, pool_);
    for (const LinearPart& part : parts) {
      if (part.bias == VectorId::kNone) continue;
      const std::vector<float>& bias = vector(part.bias);
      const auto n = static_cast<int64_t>(bias.size());
      for (int r = 0; r < rows; ++r) tq::Add(part.y + r * n, bias.data(), n);
    }
  }

  void SetPositions(const RopeFrequencies& rope, std::span<const int64_t> positions) override {
    const size_t half = rope.inv_freq.size();
    rope_rows_ = static_cast<int>(positions.size());
    cos_.resize(positions.size() * half);
    sin_.resize(positions.size() * half);
    for (size_t r = 0; r < positions.size(); ++r) {
      for (size_t i = 0; i < half; ++i) {
        const double angle = static_cast<double>(positions[r]) * rope.inv_freq[i];
        cos_[r * half + i] = static_cast<float>(std::cos(angle)) * rope.attention_scale;
        sin_[r * half + i] = static_cast<float>(std::sin(angle)) * rope.attention_scale;
      }
    }
  }

  void ApplyRope(float* x, int heads, int head_dim) override {
    ForRows(rope_rows_, static_cast<int64_t>(heads) * head_dim, [&](int first, int end) {
      const int64_t half = head_dim / 2;
      tq::ApplyRope(x + static_cast<int64_t>(first) * heads * head_dim, &cos_[first * half],
                    &sin_[first * half], end - first, heads, head_dim);
    });
  }

  void SiluMul(float* gate, const float* up, int rows, int64_t n) override {
    ForRows(rows, n, [&](int first, int end) {
      tq::SiluMul(gate + first * n, up + first * n, (end - first) * n);
    });
  }

  void Add(float* x, const float* y, int rows, int64_t n) override {
    ForRows(rows, n,
            [&](int first, int end) { tq::Add(x + first * n, y + first * n, (end - first) * n); });
  }

  Status Append(KvCache& cache, int layer, std::span<const AppendItem> items) override {
    for (const AppendItem& item : items) {
      TQ_RETURN_IF_ERROR(cache.AppendLayer(item.seq, layer, item.k, item.v, pool_));
    }
    return OkStatus();
  }

  Status Attend(const KvCache& cache, int layer, const AttentionParams& params,
                std::span<const AttentionItem> items) override {
    return tq::Attend(cache, layer, params, items, pool_);
  }

  void GatherRows(const float* x, std::span<const int> indices, int64_t n, float* out) override {
    for (const int row : indices) {
      std::memcpy(out, x + row * n, static_cast<size_t>(n) * sizeof(float));
      out += n;
    }
  }

  void Logits(MatrixId head, const float* x, int rows, float* host) override {
    const LinearPart part = {.matrix = head, .y = host};
    Linear({&part, 1}, x, rows);
  }

 private:
  const PackedMatrix& matrix(MatrixId id) const { return matrices_[static_cast<size_t>(id)]; }
  const std::vector<float>& vector(VectorId id) const { return vectors_[static_cast<size_t>(id)]; }

  // fn(first, end) over ranges of rows; in this thread when there is little to do.
  template <typename Fn>
  void ForRows(int rows, int64_t n, const Fn& fn) {
    constexpr int64_t kMinParallelValues = 1 << 14;
    constexpr int kRowsPerTask = 8;
    if (rows * n < kMinParallelValues) return fn(0, rows);
    pool_.ParallelFor(static_cast<size_t>(DivCeil(rows, kRowsPerTask)), [&](size_t task, int) {
      const int first = static_cast<int>(task) * kRowsPerTask;
      fn(first, std::min(rows, first + kRowsPerTask));
    });
  }

  ThreadPool& pool_;
  WeightMemory memory_;
  std::vector<PackedMatrix> matrices_;
  std::vector<std::vector<float>> vectors_;
  size_t weight_bytes_ = 0;
  AlignedBuffer<float> buffers_[kNumBuffers];
  MatmulScratch scratch_;
  std::vector<Product> products_;
  int rope_rows_ = 0;
  std::vector<float> cos_, sin_;  // [rope_rows_][rope_dim / 2]
};

}  // namespace

std::unique_ptr<Backend> MakeCpuBackend(ThreadPool& pool) {
  return std::make_unique<CpuBackend>(pool);
}

}  // namespace tq
