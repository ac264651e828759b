// The rotation that a codec applies before it quantizes: a calibrated matrix, or the orthonormal H
// S with random signs S and H = DCT-II of order m (x) Hadamard of order 2^a for head_dim = m 2^a, m
// odd.
//
// Splitting an odd head_dim into power-of-two parts would leave unequal energies under one scale;
// the Kronecker product does not. rotation_ref.cc is the specification; both paths do the same
// float operations in the same order, so their results are equal bit for bit.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "turboquant/base/aligned.h"
#include "turboquant/codec/codec.h"

namespace tq {

class Rotation {
 public:
  Rotation() = default;  // identity of dimension 0
  // Signs from splitmix64 over (seed, layer, kv_head, side).
  Rotation(Rotate kind, int head_dim, uint64_t seed, int layer, int kv_head, Side side);
  // A calibrated matrix A, [head_dim][head_dim] row-major: x becomes A x. kInvalidArgument when it
  // is not finite, or so near to singular that its inverse would amplify errors.
  static Result<Rotation> FromMatrix(std::span<const float> matrix, int head_dim);

  // In place, on head_dim floats. Inverse(Forward(x)) = x up to rounding.
  void Forward(float* x) const;
  void Inverse(float* x) const;
  // For the query that meets keys put through Forward: keeps every score, q . k = q' . k'. The same
  // as Forward for the orthonormal kinds, the inverse transposed for a matrix.
  void ForwardQuery(float* q) const;

  Rotate kind() const { return kind_; }
  int head_dim() const { return head_dim_; }
  // For the kernels.
  struct Plan {
    int odd = 1;                 // m
    int pow2 = 1;                // 2^a
    float norm = 1;              // 1 / sqrt(2^a)
    AlignedBuffer<float> signs;  // [head_dim] of +1, -1
    AlignedBuffer<float> dct;    // [m][m], orthonormal; empty for m = 1
    // kMatrix: the columns of A, of its inverse, and of the inverse transposed.
    std::vector<float> matrix, inverse, query;
  };
  const Plan& plan() const { return *plan_; }

 private:
  Rotate kind_ = Rotate::kNone;
  int head_dim_ = 0;
  std::shared_ptr<const Plan> plan_;  // shared by copies
};

}  // namespace tq
