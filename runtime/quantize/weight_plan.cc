#include "runtime/quantize/weight_plan.h"

#include <algorithm>
#include <cstdio>
#include <map>

namespace tq {
namespace {

using enum WeightType;

const std::vector<WeightType>& AllInt4Choices() {
  static const std::vector<WeightType> choices = {kQ4_0, kQ4_K, kQ4_1, kQ5_0,
                                                  kQ5_K, kQ5_1, kQ6_K, kQ8_0};
  return choices;
}

// Types whose blocks are 32 long, fewest bits first, and what comes after them.
constexpr WeightType kShortBlocks[] = {kQ4_0, kQ4_1, kQ5_0, kQ5_1, kQ8_0};

// Tensors that stay as floats although they have rows: routers decide between experts.
bool IsRouter(const std::string& kind) {
  return kind == "ffn_gate_inp.weight";
}

// Float types, and the ones that hold integers of fewer bits.
bool IsFloatType(GgmlType type) {
  return type == GgmlType::kF32 || type == GgmlType::kF16 || type == GgmlType::kBF16;
}

std::optional<WeightType> WritableType(const std::string& name) {
  const Result<WeightType> type = WeightTypeOf(name);
  if (!type.ok() || *type == kF32 || !IsWritable(*type)) return std::nullopt;
  return *type;
}

}  // namespace

double BitsPerWeight(WeightType type) {
  return 8.0 * WeightBlockBytes(type) / WeightBlockLen(type);
}

bool FitsRows(WeightType type, int64_t row_len) {
  return row_len % WeightBlockLen(type) == 0;
}

WeightType TypeForRows(WeightType type, int64_t row_len) {
  if (FitsRows(type, row_len)) return type;
  for (const WeightType shorter : kShortBlocks) {
    const bool has_min = LayoutOf(shorter).has_min || !LayoutOf(type).has_min;
    const bool is_last = shorter == kShortBlocks[std::size(kShortBlocks) - 1];
    if (BitsPerWeight(shorter) >= BitsPerWeight(type) && (has_min || is_last) &&
        FitsRows(shorter, row_len)) {
      return shorter;
    }
  }
  return kF16;
}

std::string WritableTypeNames() {
  std::string names;
  for (size_t i = 0; i < std::size(kWeightLayouts); ++i) {
    const auto type = static_cast<WeightType>(i);
    if (type != kF32 && IsWritable(type))
      names += StrCat(names.empty() ? "" : ", ", WeightTypeName(type));
  }
  return names;
}

Result<QuantizeTarget> QuantizeTargetOf(const std::string& name, const std::string& embeddings) {
  QuantizeTarget target;
  target.name = name;
  if (name == "int8") {
    target.type = target.outer = kQ8_0;
    target.choices = {kQ6_K, kQ8_0, kF16};
  } else if (name == "int4") {
    target.type = kQ4_K;
    target.choices = AllInt4Choices();
    target.default_bits = 5.0;
  } else if (const std::optional<WeightType> type = WritableType(name)) {
    target.type = *type;
    if (BitsPerWeight(*type) > BitsPerWeight(target.outer)) target.outer = *type;
    target.choices = {*type};
    for (const WeightType more :
         {kQ2_K, kQ3_K, kQ4_0, kQ4_K, kQ4_1, kQ5_0, kQ5_K, kQ5_1, kQ6_K, kQ8_0, kF16}) {
      if (BitsPerWeight(more) > BitsPerWeight(*type)) target.choices.push_back(more);
    }
  } else {
    return InvalidArgument("there is no kind of weights '", name, "'; there are int8, int4, ",
                           WritableTypeNames());
  }
  if (embeddings == "auto") return target;
  const std::optional<WeightType> outer = WritableType(embeddings);
  if (!outer) {
    return InvalidArgument("there is no type '", embeddings, "' for embeddings; there are auto, ",
                           WritableTypeNames());
  }
  target.outer = *outer;
  target.outer_is_fixed = true;
  return target;
}

GgmlType GgmlTypeOf(WeightType type) {
  for (uint32_t number = 0; number < 64; ++number) {
    const auto ggml = static_cast<GgmlType>(number);
    if (GgmlTypeName(ggml) == WeightTypeName(type)) return ggml;
  }
  TQ_CHECK(false);
  return GgmlType::kF32;
}

size_t TensorPlan::bytes(WeightType as) const {
  return static_cast<size_t>(tensor->num_elements() / WeightBlockLen(as) * WeightBlockBytes(as));
}

Result<WeightPlan> WeightPlan::Create(const GgufFile& file, const QuantizeTarget& target,
                                      bool requantize) {
  WeightPlan plan;
  std::map<std::string, int> quantized;
  for (const GgufTensor& t : file.tensors()) {
    TensorPlan p;
    p.tensor = &t;
    p.kind = t.name;
    int length = 0;
    if (std::sscanf(t.name.c_str(), "blk.%d.%n", &p.layer, &length) == 1 && length > 0) {
      p.kind = t.name.substr(static_cast<size_t>(length));
    } else {
      p.layer = -1;
    }
    const auto type = WeightTypeOf(GgmlTypeName(t.type));
    TQ_RETURN_IF_ERROR(type.status().WithContext("tensor '" + t.name + "'"));
    if (!IsFloatType(t.type)) ++quantized[GgmlTypeName(t.type)];
    if (t.shape.size() < 2 || !p.kind.ends_with(".weight") || IsRouter(p.kind)) {
      p.reason = IsRouter(p.kind) ? "chooses experts" : "small";
    } else {
      const bool outer = p.layer < 0;
      p.role = outer ? TensorRole::kOuter : TensorRole::kMatrix;
      const WeightType wanted = outer ? target.outer : target.type;
      p.type = TypeForRows(wanted, t.shape[0]);
      p.reason = outer && target.outer_is_fixed
                     ? StrCat("--embeddings ", WeightTypeName(target.outer))
                     : StrCat("--to ", target.name);
      if (p.type != wanted) {
        p.reason +=
            StrCat("; rows of ", t.shape[0], " are no whole blocks of ", WeightTypeName(wanted));
      }
    }
    plan.tensors.push_back(std::move(p));
  }
  if (!quantized.empty() && !requantize) {
    std::string types;
    for (const auto& [name, count] : quantized) {
      types += StrCat(types.empty() ? "" : ", ", name, " (", count, " tensors)");
    }
    return InvalidArgument(
        "'", file.path(), "' is quantized already: ", types,
        "; start from the model's F32, F16 or BF16 weights, or accept the loss of both steps with "
        "--requantize");
  }
  return plan;
}

size_t WeightPlan::bytes() const {
  size_t total = 0;
  for (const TensorPlan& t : tensors) total += t.bytes(t.type);
  return total;
}

size_t WeightPlan::source_bytes() const {
  size_t total = 0;
  for (const TensorPlan& t : tensors) total += t.tensor->num_bytes();
  return total;
}

int64_t WeightPlan::num_weights() const {
  int64_t total = 0;
  for (const TensorPlan& t : tensors) total += t.tensor->num_elements();
  return total;
}

double WeightPlan::bits_per_weight() const {
  return 8.0 * static_cast<double>(bytes()) / static_cast<double>(num_weights());
}

WeightType WeightPlan::main_type() const {
  std::map<WeightType, size_t> bytes;
  for (const TensorPlan& t : tensors) {
    if (t.role == TensorRole::kMatrix) bytes[t.type] += t.bytes(t.type);
  }
  if (bytes.empty()) return WeightType::kF32;
  return std::max_element(bytes.begin(), bytes.end(),
                          [](const auto& a, const auto& b) { return a.second < b.second; })
      ->first;
}

}  // namespace tq
