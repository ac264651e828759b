#include "runtime/formats/hf_tensors.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <utility>

namespace tq {
namespace {

using Parts = TensorAssembly::Parts;

Result<GgmlType> FloatType(const SafetensorsTensor& t) {
  switch (t.type) {
    case SafetensorsType::kF32: return GgmlType::kF32;
    case SafetensorsType::kF16: return GgmlType::kF16;
    case SafetensorsType::kBF16: return GgmlType::kBF16;
    default:
      return Unsupported("tensor '", t.name, "' holds ", SafetensorsTypeName(t.type),
                         "; weights are read in F32, F16 and BF16");
  }
}

Status BadShape(const SafetensorsTensor& t, const char* wanted) {
  return DataLoss("tensor '", t.name, "' is ", ShapeToString(t.shape), "; ", wanted,
                  " was expected");
}

// GGUF's order of dimensions is the other way round; none may be 0.
Result<std::vector<int64_t>> GgufShape(const SafetensorsTensor& t) {
  std::vector<int64_t> shape(t.shape.rbegin(), t.shape.rend());
  if (shape.empty() || shape.size() > 4 || t.data.empty()) {
    return BadShape(t, "1 to 4 dimensions, none of them 0,");
  }
  return shape;
}

void Assemble(GgufTensor& out, Parts parts,
              std::function<void(const Parts&, std::span<std::byte>)> make) {
  auto assembly = std::make_shared<TensorAssembly>();
  assembly->parts = std::move(parts);
  assembly->make = std::move(make);
  out.assembly = std::move(assembly);
}

// Every `step`-th value from `first` on, as float32 with `add` added.
void MakeFloats(const SafetensorsTensor& t, size_t first, size_t step, float add, GgufTensor& out) {
  out.type = GgmlType::kF32;
  const SafetensorsType type = t.type;
  if (type == SafetensorsType::kF32 && step == 1 && add == 0) {
    out.data = t.data;
    return;
  }
  Assemble(out, {t.data}, [=](const Parts& parts, std::span<std::byte> to) {
    const size_t size = SafetensorsTypeBytes(type);
    for (size_t i = 0; i < to.size() / sizeof(float); ++i) {
      const float value =
          SafetensorsElement(type, parts[0].data() + (first + i * step) * size) + add;
      std::memcpy(to.data() + i * sizeof value, &value, sizeof value);
    }
  });
}

// Row 2 i + j of a head is row j * half + i of the checkpoint's head.
Status PermuteRows(const SafetensorsTensor& t, int64_t num_heads, GgufTensor& out) {
  const int64_t rows = t.shape[0];
  if (rows % (2 * num_heads) != 0) {
    return DataLoss("tensor '", t.name, "' has ", rows,
                    " rows, which is no even number for each of ", num_heads, " heads");
  }
  const auto head = static_cast<size_t>(rows / num_heads), half = head / 2;
  const size_t row_bytes = t.data.size() / static_cast<size_t>(rows);
  Assemble(out, {t.data}, [=](const Parts& parts, std::span<std::byte> to) {
    for (size_t r = 0; r * row_bytes < to.size(); ++r) {
      const size_t in_head = r % head;
      const size_t from = r - in_head + in_head % 2 * half + in_head / 2;
      std::memcpy(to.data() + r * row_bytes, parts[0].data() + from * row_bytes, row_bytes);
    }
  });
  return OkStatus();
}

// [expert][in][n * step] to [expert][n][in], taking columns first, first + step ...
void Transpose(const SafetensorsTensor& t, size_t first, size_t step, GgufTensor& out) {
  const auto in = static_cast<size_t>(t.shape[1]), columns = static_cast<size_t>(t.shape[2]);
  const size_t size = SafetensorsTypeBytes(t.type);
  out.shape = {t.shape[1], t.shape[2] / static_cast<int64_t>(step), t.shape[0]};
  Assemble(out, {t.data}, [=](const Parts& parts, std::span<std::byte> to) {
    std::byte* p = to.data();
    for (size_t at = 0; at < parts[0].size(); at += in * columns * size) {
      for (size_t c = first; c < columns; c += step) {
        for (size_t i = 0; i < in; ++i, p += size) {
          std::memcpy(p, parts[0].data() + at + (i * columns + c) * size, size);
        }
      }
    }
  });
}

// Rows 0 .. n (or n .. 2 n) of every expert.
void TakeHalf(const SafetensorsTensor& t, bool lower, GgufTensor& out) {
  const size_t half = t.data.size() / static_cast<size_t>(t.shape[0]) / 2;
  out.shape[1] /= 2;
  Assemble(out, {t.data}, [=](const Parts& parts, std::span<std::byte> to) {
    for (size_t at = 0; at < to.size(); at += half) {
      std::memcpy(to.data() + at, parts[0].data() + 2 * at + (lower ? half : 0), half);
    }
  });
}

// Digits at `pos` of `name`, without leading zeros; -1: none. `pos` moves behind them.
int64_t ReadNumber(std::string_view name, size_t& pos) {
  int64_t number = -1;
  const auto [end, error] = std::from_chars(name.data() + pos, name.data() + name.size(), number);
  const auto length = static_cast<size_t>(end - (name.data() + pos));
  if (error != std::errc() || number < 0 || (length > 1 && name[pos] == '0')) return -1;
  pos += length;
  return number;
}

// `name` against a pattern in which '*' is a number; -1: no match, 0 when there is no '*'.
int64_t MatchPattern(std::string_view name, std::string_view pattern) {
  const size_t star = pattern.find('*');
  if (star == std::string_view::npos) return name == pattern ? 0 : -1;
  if (!name.starts_with(pattern.substr(0, star))) return -1;
  size_t pos = star;
  const int64_t number = ReadNumber(name, pos);
  return number >= 0 && name.substr(pos) == pattern.substr(star + 1) ? number : -1;
}

class TensorReader {
 public:
  TensorReader(const HfConfig& config, const std::vector<SafetensorsFile>& files)
      : config_(config), a_(*config.architecture) {
    for (const SafetensorsFile& file : files) {
      for (const SafetensorsTensor& tensor : file.tensors()) by_name_[tensor.name] = &tensor;
    }
  }

  Result<std::vector<GgufTensor>> Read() {
    for (const auto& [name, tensor] : by_name_) TQ_RETURN_IF_ERROR(Place(*tensor));
    for (auto& [name, stack] : stacks_) TQ_RETURN_IF_ERROR(Stack(name, stack));
    if (config_.tied_embeddings == false && !has_head_) {
      return DataLoss("there is no lm_head.weight, but 'tie_word_embeddings' is false");
    }
    for (const auto& [name, values] : config_.made_tensors) {
      GgufTensor tensor;
      tensor.name = name;
      tensor.shape = {static_cast<int64_t>(values.size())};
      const std::vector<float>& floats = values;
      Assemble(tensor, {}, [floats](const Parts&, std::span<std::byte> to) {
        std::memcpy(to.data(), floats.data(), to.size());
      });
      out_.push_back(std::move(tensor));
    }
    return std::move(out_);
  }

 private:
  struct Experts {
    std::vector<const SafetensorsTensor*> tensors;
  };

  Status NoPlace(const SafetensorsTensor& t) const {
    return Unsupported("tensor '", t.name, "' ", ShapeToString(t.shape), " has no place in a ",
                       a_.model_type, " model");
  }

  Status Place(const SafetensorsTensor& t) {
    std::string_view name = t.name;
    // What a model with pictures has beside its language model.
    for (const char* other : {"vision_tower.", "multi_modal_projector.", "model.vision_tower.",
                              "model.multi_modal_projector."}) {
      if (name.starts_with(other) && a_.gguf == std::string_view("gemma3")) return OkStatus();
    }
    std::string plain;
    for (const char* prefix : {"language_model.model.", "model.language_model."}) {
      if (name.starts_with(prefix)) plain = "model." + std::string(name.substr(strlen(prefix)));
    }
    if (name == "language_model.lm_head.weight") plain = "lm_head.weight";
    if (!plain.empty()) name = plain;

    if (name == "lm_head.weight") {
      has_head_ = true;
      if (config_.tied_embeddings.value_or(a_.norm_plus_one)) return OkStatus();
      return Add(t, "output.weight", TensorChange::kNone);
    }
    if (name == "model.embed_tokens.weight")
      return Add(t, "token_embd.weight", TensorChange::kNone);
    if (name == "model.norm.weight") return Add(t, "output_norm.weight", TensorChange::kNorm);
    constexpr std::string_view kLayers = "model.layers.";
    size_t pos = kLayers.size();
    if (!name.starts_with(kLayers)) return NoPlace(t);
    const int64_t layer = ReadNumber(name, pos);
    if (layer < 0 || pos == name.size() || name[pos] != '.') return NoPlace(t);
    if (layer >= config_.num_layers) {
      return DataLoss("tensor '", t.name, "' is of a layer beyond the ", config_.num_layers,
                      " of config.json");
    }
    const std::string_view rest = name.substr(pos + 1);
    const std::string block = StrCat("blk.", layer, ".");
    bool placed = false;
    for (const std::span<const TensorRule> table : a_.tensors) {
      for (const TensorRule& rule : table) {
        const int64_t expert = MatchPattern(rest, rule.hugging_face);
        if (expert < 0) continue;
        placed = true;
        if (rule.change == TensorChange::kSkip) continue;
        if (rule.change == TensorChange::kExpert) {
          TQ_RETURN_IF_ERROR(AddExpert(t, block + rule.gguf, expert));
        } else {
          TQ_RETURN_IF_ERROR(Add(t, block + rule.gguf, rule.change));
        }
      }
    }
    return placed ? OkStatus() : NoPlace(t);
  }

  Status Add(const SafetensorsTensor& t, const std::string& name, TensorChange change) {
    GgufTensor out;
    out.name = name;
    TQ_ASSIGN_OR_RETURN(out.shape, GgufShape(t));
    TQ_RETURN_IF_ERROR(Change(t, change, out));
    if (out.assembly == nullptr && out.data.empty()) out.data = t.data;
    out_.push_back(std::move(out));
    return OkStatus();
  }

  Status Change(const SafetensorsTensor& t, TensorChange change, GgufTensor& out) {
    using enum TensorChange;
    const size_t odd = change == kOddTransposed || change == kOdd;
    TQ_ASSIGN_OR_RETURN(out.type, FloatType(t));
    const bool is_pair =
        change == kEven || change == kOdd || change == kEvenTransposed || change == kOddTransposed;
    if (is_pair && t.shape.back() % 2 != 0) return BadShape(t, "an even number of columns");
    switch (change) {
      case kQuery:
      case kKey:
        if (t.shape.size() == 1) {
          MakeFloats(t, 0, 1, 0, out);
          // A bias has one value a row; it is permuted as float32.
          if (a_.permute_rows) return PermuteBias(t, change, out);
          return OkStatus();
        }
        if (!a_.permute_rows) return OkStatus();
        return PermuteRows(t, change == kQuery ? config_.num_q_heads : config_.num_kv_heads, out);
      case kNorm: MakeFloats(t, 0, 1, a_.norm_plus_one ? 1.0f : 0.0f, out); return OkStatus();
      case kF32: MakeFloats(t, 0, 1, 0, out); return OkStatus();
      case kEven:
      case kOdd:
        out.shape[0] /= 2;
        MakeFloats(t, odd, 2, 0, out);
        return OkStatus();
      case kUpperHalf:
      case kLowerHalf:
        if (t.shape.size() != 3 || t.shape[1] % 2 != 0) return BadShape(t, "[experts, 2 n, in]");
        TakeHalf(t, change == kLowerHalf, out);
        return OkStatus();
      case kTransposed:
      case kEvenTransposed:
      case kOddTransposed:
        if (t.shape.size() != 3) return BadShape(t, "[experts, in, out]");
        Transpose(t, odd, change == kTransposed ? 1 : 2, out);
        return OkStatus();
      default:
        if (t.shape.size() == 1) MakeFloats(t, 0, 1, 0, out);
        return OkStatus();
    }
  }

  // The bias of q or k: float32 first, then rows as those of its matrix.
  Status PermuteBias(const SafetensorsTensor& t, TensorChange change, GgufTensor& out) {
    const int64_t heads =
        change == TensorChange::kQuery ? config_.num_q_heads : config_.num_kv_heads;
    GgufTensor permuted = out;
    TQ_RETURN_IF_ERROR(PermuteRows(t, heads, permuted));
    const auto rows = permuted.assembly;
    const SafetensorsType type = t.type;
    const size_t bytes = t.data.size();
    Assemble(out, {t.data}, [=](const Parts& parts, std::span<std::byte> to) {
      std::vector<std::byte> raw(bytes);
      rows->make(parts, raw);
      const size_t size = SafetensorsTypeBytes(type);
      for (size_t i = 0; i < bytes / size; ++i) {
        const float value = SafetensorsElement(type, raw.data() + i * size);
        std::memcpy(to.data() + i * sizeof value, &value, sizeof value);
      }
    });
    out.data = {};
    return OkStatus();
  }

  Status AddExpert(const SafetensorsTensor& t, const std::string& name, int64_t expert) {
    if (expert >= config_.num_experts) {
      return DataLoss("tensor '", t.name, "' is of an expert beyond the ", config_.num_experts,
                      " of config.json");
    }
    std::vector<const SafetensorsTensor*>& tensors = stacks_[name].tensors;
    tensors.resize(static_cast<size_t>(config_.num_experts));
    tensors[static_cast<size_t>(expert)] = &t;
    return OkStatus();
  }

  Status Stack(const std::string& name, const Experts& experts) {
    GgufTensor out;
    out.name = name;
    Parts parts;
    const SafetensorsTensor* first = nullptr;
    for (size_t i = 0; i < experts.tensors.size(); ++i) {
      const SafetensorsTensor* t = experts.tensors[i];
      if (t == nullptr) {
        return DataLoss("the weights of expert ", i, " of ", experts.tensors.size(), " for '", name,
                        "' are missing");
      }
      if (first == nullptr) first = t;
      if (t->shape != first->shape || t->type != first->type) {
        return DataLoss("tensor '", t->name, "' is ", ShapeToString(t->shape), " of ",
                        SafetensorsTypeName(t->type), ", but '", first->name, "' is ",
                        ShapeToString(first->shape), " of ", SafetensorsTypeName(first->type));
      }
      parts.push_back(t->data);
    }
    if (first->shape.size() != 2) return BadShape(*first, "a matrix");
    TQ_ASSIGN_OR_RETURN(out.shape, GgufShape(*first));
    TQ_ASSIGN_OR_RETURN(out.type, FloatType(*first));
    out.shape.push_back(static_cast<int64_t>(parts.size()));
    Assemble(out, std::move(parts), [](const Parts& from, std::span<std::byte> to) {
      size_t at = 0;
      for (const std::span<const std::byte> part : from) {
        std::memcpy(to.data() + at, part.data(), part.size());
        at += part.size();
      }
    });
    out_.push_back(std::move(out));
    return OkStatus();
  }

  const HfConfig& config_;
  const HfArchitecture& a_;
  std::map<std::string, const SafetensorsTensor*> by_name_;
  std::map<std::string, Experts> stacks_;  // by GGUF name
  std::vector<GgufTensor> out_;
  bool has_head_ = false;
};

}  // namespace

Result<std::vector<GgufTensor>> ReadHfTensors(const HfConfig& config,
                                              const std::vector<SafetensorsFile>& files) {
  return TensorReader(config, files).Read();
}

}  // namespace tq
