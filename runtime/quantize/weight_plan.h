// Which tensors of a model are quantized, which types each may have, and which it gets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/formats/gguf.h"
#include "turboquant/base/status.h"
#include "turboquant/linear/weight.h"

namespace tq {

// What a user asks for: "int8", "int4", or a type by name.
struct QuantizeTarget {
  std::string name;
  WeightType type = WeightType::kQ4_K;   // of matrices without a measurement
  WeightType outer = WeightType::kQ6_K;  // of embeddings and head without one
  bool outer_is_fixed = false;           // `outer` was asked for by name: not to be allocated
  std::vector<WeightType> choices;       // what an allocation may give, fewest bits first
  double default_bits = 0;               // a weight, with calibration; 0: no allocation
};
// `embeddings`: the type of embeddings and head by name; "auto": Q6_K, as llama-quantize keeps the
// head, or the target's own type where that has more bits. kInvalidArgument lists the names.
Result<QuantizeTarget> QuantizeTargetOf(const std::string& name,
                                        const std::string& embeddings = "auto");
// "int8, int4, Q4_0, ...": types that are written.
std::string WritableTypeNames();

GgmlType GgmlTypeOf(WeightType type);

enum class TensorRole {
  kMatrix,  // of a layer: quantized
  kOuter,   // embeddings and head: quantized, read once a token or by all tokens
  kPlain,   // norms, biases, routers: F32, as engines want them
};

struct TensorPlan {
  const GgufTensor* tensor = nullptr;
  TensorRole role = TensorRole::kPlain;
  WeightType type = WeightType::kF32;  // to be written
  std::string reason;                  // of the type
  int layer = -1;                      // "blk.N."; -1: none
  std::string kind;                    // the name without layer: "attn_q.weight"

  int64_t rows() const { return tensor->num_elements() / tensor->shape[0]; }
  size_t bytes(WeightType as) const;
};

struct WeightPlan {
  std::vector<TensorPlan> tensors;  // in the order of the file

  // Every tensor with the target's own types. kInvalidArgument: weights that are quantized already
  // and may not be requantized (names the type and the way out), or a model that cannot be written
  // so. `file` must outlive the plan.
  static Result<WeightPlan> Create(const GgufFile& file, const QuantizeTarget& target,
                                   bool requantize);

  size_t bytes() const;            // of all tensors as they will be
  size_t source_bytes() const;     // as they are
  double bits_per_weight() const;  // of all tensors
  int64_t num_weights() const;
  // The type that most bytes have: general.file_type is named for it.
  WeightType main_type() const;
};

// `type`, or where rows of `row_len` are no whole blocks of it the next larger type whose blocks
// fit, with a minimum if `type` has one; F16 when none does.
WeightType TypeForRows(WeightType type, int64_t row_len);
bool FitsRows(WeightType type, int64_t row_len);
double BitsPerWeight(WeightType type);

}  // namespace tq
