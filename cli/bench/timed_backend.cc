#include "cli/bench/timed_backend.h"

#include <chrono>
#include <utility>

namespace tq::cli {
namespace {

class TimedBackend : public Backend {
 public:
  TimedBackend(std::unique_ptr<Backend> backend, StepSeconds* seconds)
      : b_(std::move(backend)), seconds_(seconds) {}

  Result<MatrixId> AddMatrix(WeightType type, int64_t out_dim, int64_t in_dim,
                             std::span<const std::byte> rows,
                             std::span<const int32_t> row_order) override {
    return b_->AddMatrix(type, out_dim, in_dim, rows, row_order);
  }
  VectorId AddVector(std::span<const float> values) override { return b_->AddVector(values); }
  size_t weight_bytes() const override { return b_->weight_bytes(); }
  Result<float*> Buffer(int index, size_t num_floats) override {
    return b_->Buffer(index, num_floats);
  }
  void Embed(MatrixId table, std::span<const int32_t> tokens, float scale, float* x) override {
    b_->Embed(table, tokens, scale, x);
  }
  void RmsNorm(const float* x, VectorId weight, int rows, int64_t n, float eps,
               float* out) override {
    b_->RmsNorm(x, weight, rows, n, eps, out);
  }
  void Linear(std::span<const LinearPart> parts, const float* x, int rows) override {
    b_->Linear(parts, x, rows);
  }
  void SetPositions(int set, const RopeFrequencies& rope,
                    std::span<const int64_t> positions) override {
    b_->SetPositions(set, rope, positions);
  }
  void ApplyRope(int set, float* x, int heads, int head_dim) override {
    b_->ApplyRope(set, x, heads, head_dim);
  }
  void GatedMul(Activation activation, float* gate, const float* up, int rows, int64_t n) override {
    b_->GatedMul(activation, gate, up, rows, n);
  }
  Status MixExperts(const ExpertLayer& experts, const float* x, int rows, float* out) override {
    return b_->MixExperts(experts, x, rows, out);
  }
  void Add(float* x, const float* y, int rows, int64_t n) override { b_->Add(x, y, rows, n); }
  Status Append(KvCache& cache, int layer, std::span<const AppendItem> items) override {
    const Timer timer(&seconds_->append);
    return b_->Append(cache, layer, items);
  }
  Status Attend(const KvCache& cache, int layer, const AttentionParams& params,
                std::span<const AttentionItem> items) override {
    const Timer timer(&seconds_->attention);
    return b_->Attend(cache, layer, params, items);
  }
  void GatherRows(const float* x, std::span<const int> indices, int64_t n, float* out) override {
    b_->GatherRows(x, indices, n, out);
  }
  void Logits(MatrixId matrix, const float* x, int rows, float softcap, float* host) override {
    b_->Logits(matrix, x, rows, softcap, host);
  }

 private:
  class Timer {
   public:
    explicit Timer(double* sum) : sum_(sum), start_(std::chrono::steady_clock::now()) {}
    ~Timer() {
      *sum_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
    }
    Timer(const Timer&) = delete;
    Timer& operator=(const Timer&) = delete;

   private:
    double* sum_;
    std::chrono::steady_clock::time_point start_;
  };

  std::unique_ptr<Backend> b_;
  StepSeconds* seconds_;
};

}  // namespace

std::unique_ptr<Backend> MakeTimedBackend(std::unique_ptr<Backend> backend, StepSeconds* seconds) {
  return std::make_unique<TimedBackend>(std::move(backend), seconds);
}

}  // namespace tq::cli
