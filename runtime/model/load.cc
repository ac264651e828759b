// From a GGUF file to weights in the backend, tensor by tensor.
//
// A tensor's pages are released as soon as it is packed, so the resident memory of a load is the
// packed weights and one tensor. Files of the architecture llama hold the rows of q and k with RoPE
// pairs side by side (2 i, 2 i + 1); everything in memory is in Hugging Face order (i, i + half).
#include <cstdio>
#include <initializer_list>
#include <set>
#include <utility>

#include "runtime/formats/type_counts.h"
#include "runtime/model/llama.h"

namespace tq {
namespace {

std::string ShapeText(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (const int64_t n : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(n);
  return text + "]";
}

// Unsupported types with the way out.
Result<WeightType> TypeOf(const GgufTensor& t) {
  Result<WeightType> type = WeightTypeOf(GgmlTypeName(t.type));
  if (type.ok()) return type;
  return Unsupported("tensor '", t.name, "': ", type.status().message(),
                     "; 'tq quantize' makes a file of these types from the model's 16-bit weights");
}

// Row i of a head in Hugging Face order is this row of the file's head.
std::vector<int32_t> HuggingFaceRowOrder(int num_heads, int head_dim) {
  std::vector<int32_t> order;
  order.reserve(static_cast<size_t>(num_heads) * head_dim);
  for (int h = 0; h < num_heads; ++h) {
    for (int i = 0; i < head_dim; ++i) {
      const int half = head_dim / 2;
      order.push_back(h * head_dim + (i < half ? 2 * i : 2 * (i - half) + 1));
    }
  }
  return order;
}

}  // namespace

class LlamaLoader {
 public:
  LlamaLoader(LlamaModel& model, const ProgressSink& progress)
      : model_(model),
        a_(model.arch_),
        traits_(*a_.traits),
        file_(*model.file_),
        progress_(progress) {}

  Status Load() {
    const int q_dim = a_.num_q_heads * a_.head_dim, kv_dim = a_.num_kv_heads * a_.head_dim;
    const std::vector<int32_t> q_order = RowOrder(a_.num_q_heads);
    const std::vector<int32_t> k_order = RowOrder(a_.num_kv_heads);
    TQ_RETURN_IF_ERROR(
        Matrix("token_embd.weight", a_.vocab_size, a_.hidden_dim, {}, &model_.embedding_));
    model_.head_ = model_.embedding_;
    if (!a_.tied_embeddings) {
      TQ_RETURN_IF_ERROR(Matrix("output.weight", a_.vocab_size, a_.hidden_dim, {}, &model_.head_));
    }
    TQ_RETURN_IF_ERROR(Vector("output_norm.weight", a_.hidden_dim, {}, &model_.output_norm_));
    // Read with the architecture.
    for (const char* name :
         {"rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"}) {
      if (file_.FindTensor(name) != nullptr) used_.insert(name);
    }

    for (int l = 0; l < a_.num_layers; ++l) {
      LlamaModel::Layer w;
      const std::string blk = "blk." + std::to_string(l) + ".";
      TQ_RETURN_IF_ERROR(Vector(blk + "attn_norm.weight", a_.hidden_dim, {}, &w.attention_norm));
      if (traits_.fused_rows) {
        TQ_RETURN_IF_ERROR(Matrices(blk + "attn_qkv.weight", a_.hidden_dim,
                                    {{q_dim, &w.q}, {kv_dim, &w.k}, {kv_dim, &w.v}}));
      } else {
        TQ_RETURN_IF_ERROR(Matrix(blk + "attn_q.weight", q_dim, a_.hidden_dim, q_order, &w.q));
        TQ_RETURN_IF_ERROR(Matrix(blk + "attn_k.weight", kv_dim, a_.hidden_dim, k_order, &w.k));
        TQ_RETURN_IF_ERROR(Matrix(blk + "attn_v.weight", kv_dim, a_.hidden_dim, {}, &w.v));
      }
      TQ_RETURN_IF_ERROR(Matrix(blk + "attn_output.weight", a_.hidden_dim, q_dim, {}, &w.o));
      TQ_RETURN_IF_ERROR(Bias(blk + "attn_q.bias", q_dim, q_order, &w.q_bias));
      TQ_RETURN_IF_ERROR(Bias(blk + "attn_k.bias", kv_dim, k_order, &w.k_bias));
      if (w.k_bias != VectorId::kNone && !traits_.qk_norm) KeepKBias(l);
      TQ_RETURN_IF_ERROR(Bias(blk + "attn_v.bias", kv_dim, {}, &w.v_bias));
      TQ_RETURN_IF_ERROR(Bias(blk + "attn_output.bias", a_.hidden_dim, {}, &w.o_bias));
      if (traits_.qk_norm) {
        TQ_RETURN_IF_ERROR(Vector(blk + "attn_q_norm.weight", a_.head_dim, {}, &w.q_norm));
        TQ_RETURN_IF_ERROR(Vector(blk + "attn_k_norm.weight", a_.head_dim, {}, &w.k_norm));
      }
      if (traits_.sinks) {
        TQ_RETURN_IF_ERROR(Values(blk + "attn_sinks.weight", {a_.num_q_heads}));
        w.sinks = values_;
      }
      if (traits_.post_norms) {
        TQ_RETURN_IF_ERROR(
            Vector(blk + "post_attention_norm.weight", a_.hidden_dim, {}, &w.post_attention_norm));
        TQ_RETURN_IF_ERROR(
            Vector(blk + "post_ffw_norm.weight", a_.hidden_dim, {}, &w.post_ffn_norm));
      }
      TQ_RETURN_IF_ERROR(
          Vector(blk + traits_.ffn_norm + ".weight", a_.hidden_dim, {}, &w.ffn_norm));
      TQ_RETURN_IF_ERROR(a_.num_experts > 0 ? LoadExperts(blk, &w.experts) : LoadFfn(blk, &w));
      model_.layers_.push_back(std::move(w));
    }
    // A tensor that is left over means a feature whose absence would change the results.
    for (const GgufTensor& t : file_.tensors()) {
      if (used_.count(t.name) == 0) {
        return Unsupported("tensor '", t.name, "' ", ShapeText(t.shape), " has no place in the ",
                           traits_.name, " architecture as built here");
      }
    }
    return OkStatus();
  }

 private:
  std::vector<int32_t> RowOrder(int num_heads) const {
    return traits_.pairs_side_by_side ? HuggingFaceRowOrder(num_heads, a_.head_dim)
                                      : std::vector<int32_t>();
  }

  Status LoadFfn(const std::string& blk, LlamaModel::Layer* w) {
    if (traits_.fused_rows) {
      TQ_RETURN_IF_ERROR(Matrices(blk + "ffn_up.weight", a_.hidden_dim,
                                  {{a_.ffn_dim, &w->gate}, {a_.ffn_dim, &w->up}}));
    } else {
      TQ_RETURN_IF_ERROR(Matrix(blk + "ffn_gate.weight", a_.ffn_dim, a_.hidden_dim, {}, &w->gate));
      TQ_RETURN_IF_ERROR(Matrix(blk + "ffn_up.weight", a_.ffn_dim, a_.hidden_dim, {}, &w->up));
    }
    return Matrix(blk + "ffn_down.weight", a_.hidden_dim, a_.ffn_dim, {}, &w->down);
  }

  Status LoadExperts(const std::string& blk, ExpertLayer* e) {
    e->num_used = a_.num_experts_used;
    e->activation = traits_.activation;
    TQ_RETURN_IF_ERROR(
        Matrix(blk + "ffn_gate_inp.weight", a_.num_experts, a_.hidden_dim, {}, &e->router));
    TQ_RETURN_IF_ERROR(Bias(blk + "ffn_gate_inp.bias", a_.num_experts, {}, &e->router_bias));
    const struct {
      const char* name;
      int out_dim, in_dim;
      std::vector<MatrixId>* matrices;
      std::vector<VectorId>* biases;
    } parts[] = {{"ffn_gate_exps", a_.expert_ffn_dim, a_.hidden_dim, &e->gate, &e->gate_bias},
                 {"ffn_up_exps", a_.expert_ffn_dim, a_.hidden_dim, &e->up, &e->up_bias},
                 {"ffn_down_exps", a_.hidden_dim, a_.expert_ffn_dim, &e->down, &e->down_bias}};
    for (const auto& p : parts) {
      const std::string name = blk + p.name + ".weight";
      TQ_ASSIGN_OR_RETURN(const GgufTensor* t, Find(name, {p.in_dim, p.out_dim, a_.num_experts}));
      const TensorData data = file_.Data(*t);
      for (int i = 0; i < a_.num_experts; ++i) {
        MatrixId id;
        TQ_RETURN_IF_ERROR(AddRows(*t, data, int64_t{i} * p.out_dim, p.out_dim, {}, &id));
        p.matrices->push_back(id);
      }
      file_.Release(*t);
      const std::string bias = blk + p.name + ".bias";
      if (file_.FindTensor(bias) == nullptr) continue;
      TQ_RETURN_IF_ERROR(Values(bias, {p.out_dim, a_.num_experts}));
      const std::vector<float> values = values_;
      for (int i = 0; i < a_.num_experts; ++i) {
        p.biases->push_back(model_.backend_->AddVector(std::span(values).subspan(
            static_cast<size_t>(i) * p.out_dim, static_cast<size_t>(p.out_dim))));
      }
    }
    return OkStatus();
  }

  Result<const GgufTensor*> Find(const std::string& name, const std::vector<int64_t>& shape) {
    const GgufTensor* t = file_.FindTensor(name);
    if (t == nullptr) {
      return InvalidArgument("tensor '", name, "' is missing; expected ", ShapeText(shape));
    }
    if (t->shape != shape) {
      return InvalidArgument("tensor '", name, "' is ", ShapeText(t->shape), "; expected ",
                             ShapeText(shape));
    }
    used_.insert(name);
    ++model_.type_counts_[GgmlTypeName(t->type)];
    if (!ReportProgress(progress_, used_.size(), file_.tensors().size(), "loading " + name)) {
      return Cancelled("loading was cancelled at tensor '", name, "'");
    }
    return t;
  }

  Status Matrix(const std::string& name, int64_t out_dim, int64_t in_dim,
                std::span<const int32_t> row_order, MatrixId* id) {
    TQ_ASSIGN_OR_RETURN(const GgufTensor* t, Find(name, {in_dim, out_dim}));
    TQ_RETURN_IF_ERROR(AddRows(*t, file_.Data(*t), 0, out_dim, row_order, id));
    file_.Release(*t);
    return OkStatus();
  }

  // A tensor whose rows are those of several matrices, one behind the other.
  struct Part {
    int64_t out_dim;
    MatrixId* id;
  };
  Status Matrices(const std::string& name, int64_t in_dim, std::initializer_list<Part> parts) {
    int64_t rows = 0;
    for (const Part& part : parts) rows += part.out_dim;
    TQ_ASSIGN_OR_RETURN(const GgufTensor* t, Find(name, {in_dim, rows}));
    int64_t first = 0;
    const TensorData data = file_.Data(*t);
    for (const Part& part : parts) {
      TQ_RETURN_IF_ERROR(AddRows(*t, data, first, part.out_dim, {}, part.id));
      first += part.out_dim;
    }
    file_.Release(*t);
    return OkStatus();
  }

  // Rows [first, first + out_dim) of a tensor, counted over all its dimensions but the first.
  Status AddRows(const GgufTensor& t, const TensorData& data, int64_t first, int64_t out_dim,
                 std::span<const int32_t> row_order, MatrixId* id) {
    const std::string where = "tensor '" + t.name + "'";
    TQ_ASSIGN_OR_RETURN(const WeightType type, TypeOf(t));
    const int64_t in_dim = t.shape[0];
    const size_t row_bytes = data.bytes().size() / static_cast<size_t>(t.num_elements() / in_dim);
    const auto rows = data.bytes().subspan(static_cast<size_t>(first) * row_bytes,
                                           static_cast<size_t>(out_dim) * row_bytes);
    auto added = model_.backend_->AddMatrix(type, out_dim, in_dim, rows, row_order);
    TQ_RETURN_IF_ERROR(added.status().WithContext(where));
    *id = *added;
    model_.parts_[t.name].push_back({*id, first, out_dim, {row_order.begin(), row_order.end()}});
    return OkStatus();
  }

  // Norm weights and biases, as floats; values_ keeps the last one.
  Status Vector(const std::string& name, int n, std::span<const int32_t> order, VectorId* id) {
    TQ_RETURN_IF_ERROR(Values(name, {n}));
    if (!order.empty()) {
      const std::vector<float> in_file_order = values_;
      for (size_t i = 0; i < order.size(); ++i) values_[i] = in_file_order[order[i]];
    }
    *id = model_.backend_->AddVector(values_);
    return OkStatus();
  }

  // All values of a small tensor to values_.
  Status Values(const std::string& name, const std::vector<int64_t>& shape) {
    TQ_ASSIGN_OR_RETURN(const GgufTensor* t, Find(name, shape));
    TQ_ASSIGN_OR_RETURN(const WeightType type, TypeOf(*t));
    ThreadPool inline_pool(1);
    const int64_t n = t->num_elements();
    auto row = PackedMatrix::Pack(type, 1, n, file_.Data(*t).bytes(), {}, inline_pool);
    TQ_RETURN_IF_ERROR(row.status().WithContext("tensor '" + name + "'"));
    values_.resize(static_cast<size_t>(n));
    row->DecodeRow(0, values_.data());
    file_.Release(*t);
    return OkStatus();
  }

  Status Bias(const std::string& name, int n, std::span<const int32_t> order, VectorId* id) {
    return file_.FindTensor(name) == nullptr ? OkStatus() : Vector(name, n, order, id);
  }

  void KeepKBias(int layer) {
    const auto heads = static_cast<size_t>(a_.num_kv_heads);
    const auto dim = static_cast<size_t>(a_.head_dim);
    if (model_.k_bias_.empty()) {
      model_.k_bias_.assign(static_cast<size_t>(a_.num_layers) * heads, std::vector<float>(dim));
    }
    for (size_t h = 0; h < heads; ++h) {
      const auto first = values_.begin() + static_cast<std::ptrdiff_t>(h * dim);
      model_.k_bias_[static_cast<size_t>(layer) * heads + h].assign(
          first, first + static_cast<std::ptrdiff_t>(dim));
    }
  }

  LlamaModel& model_;
  const Architecture& a_;
  const ArchitectureTraits& traits_;
  const GgufFile& file_;
  const ProgressSink& progress_;
  std::set<std::string> used_;
  std::vector<float> values_;
};

Result<std::unique_ptr<LlamaModel>> LlamaModel::Create(std::unique_ptr<GgufFile> file,
                                                       std::unique_ptr<Backend> backend,
                                                       const ProgressSink& progress,
                                                       int64_t context) {
  std::unique_ptr<LlamaModel> model(new LlamaModel());
  TQ_ASSIGN_OR_RETURN(model->arch_, Architecture::FromGguf(*file, context));
  model->file_ = std::move(file);
  model->backend_ = std::move(backend);
  TQ_RETURN_IF_ERROR(LlamaLoader(*model, progress).Load());
  return model;
}

Result<std::unique_ptr<Model>> Model::Load(const std::string& path, ThreadPool& pool,
                                           const ProgressSink& progress, int64_t context) {
  TQ_ASSIGN_OR_RETURN(GgufFile file, GgufFile::Open(path));
  auto model = LlamaModel::Create(std::make_unique<GgufFile>(std::move(file)), MakeCpuBackend(pool),
                                  progress, context);
  TQ_RETURN_IF_ERROR(model.status().WithContext(path));
  return std::unique_ptr<Model>(std::move(*model));
}

Result<int> LlamaModel::ReplaceMatrix(const std::string& tensor, WeightType type,
                                      std::span<const std::byte> rows) {
  const auto it = parts_.find(tensor);
  if (it == parts_.end()) return NotFound("the model has no matrix '", tensor, "'");
  int64_t num_rows = 0;
  for (const TensorPart& part : it->second) num_rows += part.out_dim;
  const size_t row_bytes = rows.size() / static_cast<size_t>(num_rows);
  for (const TensorPart& part : it->second) {
    const auto own = rows.subspan(static_cast<size_t>(part.first) * row_bytes,
                                  static_cast<size_t>(part.out_dim) * row_bytes);
    TQ_RETURN_IF_ERROR(backend_->ReplaceMatrix(part.id, type, own, part.row_order)
                           .WithContext("tensor '" + tensor + "'"));
  }
  int layer = 0;
  if (std::sscanf(tensor.c_str(), "blk.%d.", &layer) == 1) return layer;
  return tensor == "output.weight" ? arch_.num_layers - 1 : -1;
}

WeightInfo LlamaModel::weights() const {
  WeightInfo info;
  info.bytes = backend_->weight_bytes();
  info.types = TypeCountsText(type_counts_);
  return info;
}

}  // namespace tq
