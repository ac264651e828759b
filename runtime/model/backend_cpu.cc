// The backend on the CPU: packed matrices, ops.h, and rows spread over the thread pool.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <new>
#include <numeric>
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

  Status ReplaceMatrix(MatrixId id, WeightType type, std::span<const std::byte> rows,
                       std::span<const int32_t> row_order) override {
    PackedMatrix& old = matrices_[static_cast<size_t>(id)];
    // Memory of its own, which goes with it.
    TQ_ASSIGN_OR_RETURN(PackedMatrix m, PackedMatrix::Pack(type, old.out_dim(), old.in_dim(), rows,
                                                           row_order, pool_));
    weight_bytes_ += m.bytes() - old.bytes();
    old = std::move(m);
    return OkStatus();
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

  void Embed(MatrixId table, std::span<const int32_t> tokens, float scale, float* x) override {
    const PackedMatrix& m = matrix(table);
    ForRows(static_cast<int>(tokens.size()), m.in_dim(), [&](int first, int end) {
      for (int r = first; r < end; ++r) {
        float* row = x + r * m.in_dim();
        m.DecodeRow(tokens[static_cast<size_t>(r)], row);
        for (int64_t i = 0; scale != 1 && i < m.in_dim(); ++i) row[i] *= scale;
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

  void SetPositions(int set, const RopeFrequencies& rope,
                    std::span<const int64_t> positions) override {
    Angles& a = angles_[set];
    const size_t half = rope.inv_freq.size();
    a.rows = static_cast<int>(positions.size());
    a.rope_dim = rope.rope_dim();
    a.cos.resize(positions.size() * half);
    a.sin.resize(positions.size() * half);
    for (size_t r = 0; r < positions.size(); ++r) {
      for (size_t i = 0; i < half; ++i) {
        const double angle = static_cast<double>(positions[r]) * rope.inv_freq[i];
        a.cos[r * half + i] = static_cast<float>(std::cos(angle)) * rope.attention_scale;
        a.sin[r * half + i] = static_cast<float>(std::sin(angle)) * rope.attention_scale;
      }
    }
  }

  void ApplyRope(int set, float* x, int heads, int head_dim) override {
    const Angles& a = angles_[set];
    ForRows(a.rows, static_cast<int64_t>(heads) * head_dim, [&](int first, int end) {
      const int64_t half = a.rope_dim / 2;
      tq::ApplyRope(x + static_cast<int64_t>(first) * heads * head_dim, &a.cos[first * half],
                    &a.sin[first * half], end - first, heads, head_dim, a.rope_dim);
    });
  }

  void GatedMul(Activation activation, float* gate, const float* up, int rows, int64_t n) override {
    ForRows(rows, n, [&](int first, int end) {
      tq::GatedMul(activation, gate + first * n, up + first * n, (end - first) * n);
    });
  }

  // Rows are gathered by expert, so that an expert's weights are read once; each row adds its
  // experts in the order of their numbers, whatever else is in the batch.
  Status MixExperts(const ExpertLayer& experts, const float* x, int rows, float* out) override {
    const auto num_experts = experts.gate.size();
    const int64_t in_dim = matrix(experts.router).in_dim();
    const int64_t ffn = matrix(experts.gate[0]).out_dim();
    const auto n = static_cast<size_t>(rows);
    try {
      router_logits_.Reserve(n * num_experts);
      expert_in_.Reserve(n * in_dim);
      expert_out_.Reserve(n * in_dim);
      expert_gate_.Reserve(n * ffn);
      expert_up_.Reserve(n * ffn);
      routes_.resize(num_experts);
    } catch (const std::bad_alloc&) {
      return ResourceExhausted("no memory for the experts of ", rows,
                               " tokens; use shorter chunks");
    }
    const LinearPart router = {experts.router, experts.router_bias, router_logits_.data()};
    Linear({&router, 1}, x, rows);
    for (std::vector<Route>& list : routes_) list.clear();
    for (int r = 0; r < rows; ++r) {
      ChooseExperts(router_logits_.data() + static_cast<size_t>(r) * num_experts, r,
                    experts.num_used);
    }
    std::fill_n(out, n * in_dim, 0.f);
    const auto bias = [](const std::vector<VectorId>& list, size_t e) {
      return list.empty() ? VectorId::kNone : list[e];
    };
    for (size_t e = 0; e < num_experts; ++e) {
      const std::vector<Route>& routes = routes_[e];
      if (routes.empty()) continue;
      const int count = static_cast<int>(routes.size());
      for (int i = 0; i < count; ++i) {
        std::copy_n(x + routes[i].row * in_dim, in_dim, expert_in_.data() + i * in_dim);
      }
      const LinearPart gate_up[] = {
          {experts.gate[e], bias(experts.gate_bias, e), expert_gate_.data()},
          {experts.up[e], bias(experts.up_bias, e), expert_up_.data()}};
      Linear(gate_up, expert_in_.data(), count);
      GatedMul(experts.activation, expert_gate_.data(), expert_up_.data(), count, ffn);
      if (experts.down_probe) {
        experts.down_probe(static_cast<int>(e), expert_gate_.data(), count);
      }
      const LinearPart down = {experts.down[e], bias(experts.down_bias, e), expert_out_.data()};
      Linear({&down, 1}, expert_gate_.data(), count);
      for (int i = 0; i < count; ++i) {
        float* row = out + routes[i].row * in_dim;
        const float* from = expert_out_.data() + i * in_dim;
        for (int64_t c = 0; c < in_dim; ++c) row[c] += routes[i].weight * from[c];
      }
    }
    return OkStatus();
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

  void Logits(MatrixId head, const float* x, int rows, float softcap, float* host) override {
    const LinearPart part = {.matrix = head, .y = host};
    Linear({&part, 1}, x, rows);
    if (softcap == 0) return;
    const int64_t n = matrix(head).out_dim();
    ForRows(rows, n,
            [&](int first, int end) { tq::Softcap(softcap, host + first * n, (end - first) * n); });
  }

 private:
  const PackedMatrix& matrix(MatrixId id) const { return matrices_[static_cast<size_t>(id)]; }
  const std::vector<float>& vector(VectorId id) const { return vectors_[static_cast<size_t>(id)]; }

  // Puts `row` on the lists of the experts with the largest logits; the first of equals wins.
  void ChooseExperts(const float* logits, int row, int num_used) {
    order_.resize(routes_.size());
    std::iota(order_.begin(), order_.end(), 0);
    // What is no number comes last: an order needs that.
    const auto rank = [logits](int e) {
      return std::isnan(logits[e]) ? -std::numeric_limits<float>::infinity() : logits[e];
    };
    std::partial_sort(order_.begin(), order_.begin() + num_used, order_.end(),
                      [&](int a, int b) { return rank(a) != rank(b) ? rank(a) > rank(b) : a < b; });
    float sum = 0;
    for (int i = 0; i < num_used; ++i) sum += std::exp(logits[order_[i]] - logits[order_[0]]);
    for (int i = 0; i < num_used; ++i) {
      const float weight = std::exp(logits[order_[i]] - logits[order_[0]]) / sum;
      routes_[static_cast<size_t>(order_[i])].push_back({row, weight});
    }
  }

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
  struct Angles {
    int rows = 0, rope_dim = 0;
    std::vector<float> cos, sin;  // [rows][rope_dim / 2]
  } angles_[kNumRopes];
  // Of MixExperts.
  struct Route {
    int row;
    float weight;
  };
  std::vector<std::vector<Route>> routes_;  // by expert
  std::vector<int> order_;
  AlignedBuffer<float> router_logits_, expert_in_, expert_out_, expert_gate_, expert_up_;
};

}  // namespace

Status Backend::ReplaceMatrix(MatrixId, WeightType, std::span<const std::byte>,
                              std::span<const int32_t>) {
  return Unsupported("this backend does not replace weights; use the CPU's");
}

std::unique_ptr<Backend> MakeCpuBackend(ThreadPool& pool) {
  return std::make_unique<CpuBackend>(pool);
}

}  // namespace tq
