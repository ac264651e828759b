// What a device does for a forward pass: about a dozen operations and the memory they work on.
//
// forward.cc is written once against this. Pointers to float are in the backend's own memory; only
// Logits writes to the host's. A result row depends on its own input row alone, bit for bit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/model/ops.h"
#include "turboquant/attention/attention.h"
#include "turboquant/base/status.h"
#include "turboquant/base/thread_pool.h"
#include "turboquant/cache/cache.h"
#include "turboquant/linear/weight.h"

namespace tq {

// Handles of weights that the backend holds.
enum class MatrixId : int { kNone = -1 };
enum class VectorId : int { kNone = -1 };

// y = W x (+ bias): [rows][out_dim], contiguous.
struct LinearPart {
  MatrixId matrix = MatrixId::kNone;
  VectorId bias = VectorId::kNone;
  float* y = nullptr;
};

// Feed-forward parts of which each row uses the num_used with the largest router logits, weighted
// by the softmax over these. Vectors are empty where there is no bias.
struct ExpertLayer {
  // Sees the inputs of down, expert by expert; empty: nobody does.
  std::function<void(int expert, const float* x, int rows)> down_probe;
  MatrixId router = MatrixId::kNone;
  VectorId router_bias = VectorId::kNone;
  std::vector<MatrixId> gate, up, down;                 // [num_experts]
  std::vector<VectorId> gate_bias, up_bias, down_bias;  // [num_experts], or empty
  int num_used = 0;
  Activation activation = Activation::kSilu;
};

// The new K and V rows of one sequence in one layer.
struct AppendItem {
  SeqId seq = 0;
  const float* k = nullptr;  // [num_tokens][num_kv_heads][head_dim], K after RoPE
  const float* v = nullptr;
};

class Backend {
 public:
  virtual ~Backend() = default;

  // --- Weights: copied in, in any order, at load ---------------------------------------------
  // Arguments and errors as PackedMatrix::Pack.
  virtual Result<MatrixId> AddMatrix(WeightType type, int64_t out_dim, int64_t in_dim,
                                     std::span<const std::byte> rows,
                                     std::span<const int32_t> row_order) = 0;
  // Other rows and another type for a matrix, its shape kept. kUnsupported: this backend cannot.
  virtual Status ReplaceMatrix(MatrixId id, WeightType type, std::span<const std::byte> rows,
                               std::span<const int32_t> row_order);
  virtual VectorId AddVector(std::span<const float> values) = 0;
  virtual size_t weight_bytes() const = 0;

  // --- Memory: kNumBuffers scratch buffers, grown on demand, contents kept until they grow ----
  static constexpr int kNumBuffers = 9;
  // kResourceExhausted with the number of bytes.
  virtual Result<float*> Buffer(int index, size_t num_floats) = 0;

  // --- Operations ----------------------------------------------------------------------------
  // x[r] = row tokens[r] of the matrix, times scale.
  virtual void Embed(MatrixId table, std::span<const int32_t> tokens, float scale, float* x) = 0;
  virtual void RmsNorm(const float* x, VectorId weight, int rows, int64_t n, float eps,
                       float* out) = 0;
  // Parts multiply the same x [rows][in_dim].
  virtual void Linear(std::span<const LinearPart> parts, const float* x, int rows) = 0;
  // The angles of the rows that ApplyRope turns, until the next call; some models have two sets.
  static constexpr int kNumRopes = 2;
  virtual void SetPositions(int set, const RopeFrequencies& rope,
                            std::span<const int64_t> positions) = 0;
  virtual void ApplyRope(int set, float* x, int heads, int head_dim) = 0;
  virtual void GatedMul(Activation activation, float* gate, const float* up, int rows,
                        int64_t n) = 0;
  // out = what the experts of each row make of x [rows][in_dim], summed in the order of their
  // numbers. kResourceExhausted like Buffer.
  virtual Status MixExperts(const ExpertLayer& experts, const float* x, int rows, float* out) = 0;
  virtual void Add(float* x, const float* y, int rows, int64_t n) = 0;
  virtual Status Append(KvCache& cache, int layer, std::span<const AppendItem> items) = 0;
  virtual Status Attend(const KvCache& cache, int layer, const AttentionParams& params,
                        std::span<const AttentionItem> items) = 0;
  // out[i] = row indices[i] of x.
  virtual void GatherRows(const float* x, std::span<const int> indices, int64_t n, float* out) = 0;
  // Like Linear, into memory of the host: [rows][out_dim]; soft-capped unless softcap is 0.
  virtual void Logits(MatrixId matrix, const float* x, int rows, float softcap, float* host) = 0;
};

std::unique_ptr<Backend> MakeCpuBackend(ThreadPool& pool);

}  // namespace tq
