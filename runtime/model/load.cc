// From a GGUF file to weights in the backend, tensor by tensor.
//
// A tensor's pages are released as soon as it is packed, so the resident memory of a load is the
// packed weights and one tensor. llama-type files hold the rows of q and k with RoPE pairs side by
// side (2 i, 2 i + 1); everything in memory is in Hugging Face order (i, i + half).
#include <algorithm>
#include <set>

#include "runtime/model/llama.h"

namespace tq {
namespace {

std::string ShapeText(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (const int64_t n : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(n);
  return text + "]";
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
      : model_(model), a_(model.arch_), file_(*model.file_), progress_(progress) {}

  Status Load() {
    const int q_dim = a_.num_q_heads * a_.head_dim, kv_dim = a_.num_kv_heads * a_.head_dim;
    const std::vector<int32_t> q_order = HuggingFaceRowOrder(a_.num_q_heads, a_.head_dim);
    const std::vector<int32_t> k_order = HuggingFaceRowOrder(a_.num_kv_heads, a_.head_dim);
    TQ_RETURN_IF_ERROR(
        Matrix("token_embd.weight", a_.vocab_size, a_.hidden_dim, {}, &model_.embedding_));
    model_.head_ = model_.embedding_;
    if (!a_.tied_embeddings) {
      TQ_RETURN_IF_ERROR(Matrix("output.weight", a_.vocab_size, a_.hidden_dim, {}, &model_.head_));
    }
    TQ_RETURN_IF_ERROR(Vector("output_norm.weight", a_.hidden_dim, {}, &model_.output_norm_));
    if (file_.FindTensor("rope_freqs.weight") != nullptr) used_.insert("rope_freqs.weight");

    for (int l = 0; l < a_.num_layers; ++l) {
      LlamaModel::Layer w;
      const std::string blk = "blk." + std::to_string(l) + ".";
      TQ_RETURN_IF_ERROR(Vector(blk + "attn_norm.weight", a_.hidden_dim, {}, &w.attention_norm));
      TQ_RETURN_IF_ERROR(Matrix(blk + "attn_q.weight", q_dim, a_.hidden_dim, q_order, &w.q));
      TQ_RETURN_IF_ERROR(Matrix(blk + "attn_k.weight", kv_dim, a_.hidden_dim, k_order, &w.k));
      TQ_RETURN_IF_ERROR(Matrix(blk + "attn_v.weight", kv_dim, a_.hidden_dim, {}, &w.v));
      TQ_RETURN_IF_ERROR(Matrix(blk + "attn_output.weight", a_.hidden_dim, q_dim, {}, &w.o));
      TQ_RETURN_IF_ERROR(Bias(blk + "attn_q.bias", q_dim, q_order, &w.q_bias));
      TQ_RETURN_IF_ERROR(Bias(blk + "attn_k.bias", kv_dim, k_order, &w.k_bias));
      if (w.k_bias != VectorId::kNone) KeepKBias(l);
      TQ_RETURN_IF_ERROR(Bias(blk + "attn_v.bias", kv_dim, {}, &w.v_bias));
      TQ_RETURN_IF_ERROR(Bias(blk + "attn_output.bias", a_.hidden_dim, {}, &w.o_bias));
      TQ_RETURN_IF_ERROR(Vector(blk + "ffn_norm.weight", a_.hidden_dim, {}, &w.ffn_norm));
      TQ_RETURN_IF_ERROR(Matrix(blk + "ffn_gate.weight", a_.ffn_dim, a_.hidden_dim, {}, &w.gate));
      TQ_RETURN_IF_ERROR(Matrix(blk + "ffn_up.weight", a_.ffn_dim, a_.hidden_dim, {}, &w.up));
      TQ_RETURN_IF_ERROR(Matrix(blk + "ffn_down.weight", a_.hidden_dim, a_.ffn_dim, {}, &w.down));
      model_.layers_.push_back(w);
    }
    // A tensor that is left over means a feature whose absence would change the results.
    for (const GgufTensor& t : file_.tensors()) {
      if (used_.count(t.name) == 0) {
        return Unsupported("tensor '", t.name, "' ", ShapeText(t.shape),
                           " has no place in the llama architecture as built here");
      }
    }
    return OkStatus();
  }

 private:
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
    const auto type = WeightTypeOf(GgmlTypeName(t->type));
    TQ_RETURN_IF_ERROR(type.status().WithContext("tensor '" + name + "'"));
    auto added =
        model_.backend_->AddMatrix(*type, out_dim, in_dim, file_.Data(*t).bytes(), row_order);
    TQ_RETURN_IF_ERROR(added.status().WithContext("tensor '" + name + "'"));
    *id = *added;
    file_.Release(*t);
    return OkStatus();
  }

  // Norm weights and biases, as floats; values_ keeps the last one.
  Status Vector(const std::string& name, int n, std::span<const int32_t> order, VectorId* id) {
    TQ_ASSIGN_OR_RETURN(const GgufTensor* t, Find(name, {n}));
    const auto type = WeightTypeOf(GgmlTypeName(t->type));
    TQ_RETURN_IF_ERROR(type.status().WithContext("tensor '" + name + "'"));
    ThreadPool inline_pool(1);
    auto row = PackedMatrix::Pack(*type, 1, n, file_.Data(*t).bytes(), {}, inline_pool);
    TQ_RETURN_IF_ERROR(row.status().WithContext("tensor '" + name + "'"));
    std::vector<float> in_file_order(static_cast<size_t>(n));
    row->DecodeRow(0, in_file_order.data());
    values_ = in_file_order;
    for (size_t i = 0; i < order.size(); ++i) values_[i] = in_file_order[order[i]];
    *id = model_.backend_->AddVector(values_);
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
  const GgufFile& file_;
  const ProgressSink& progress_;
  std::set<std::string> used_;
  std::vector<float> values_;
};

Result<std::unique_ptr<LlamaModel>> LlamaModel::Create(std::unique_ptr<GgufFile> file,
                                                       std::unique_ptr<Backend> backend,
                                                       const ProgressSink& progress) {
  std::unique_ptr<LlamaModel> model(new LlamaModel());
  TQ_ASSIGN_OR_RETURN(model->arch_, Architecture::FromGguf(*file));
  model->file_ = std::move(file);
  model->backend_ = std::move(backend);
  TQ_RETURN_IF_ERROR(LlamaLoader(*model, progress).Load());
  return model;
}

Result<std::unique_ptr<Model>> Model::Load(const std::string& path, ThreadPool& pool,
                                           const ProgressSink& progress) {
  TQ_ASSIGN_OR_RETURN(GgufFile file, GgufFile::Open(path));
  auto model = LlamaModel::Create(std::make_unique<GgufFile>(std::move(file)), MakeCpuBackend(pool),
                                  progress);
  TQ_RETURN_IF_ERROR(model.status().WithContext(path));
  return std::unique_ptr<Model>(std::move(*model));
}

WeightInfo LlamaModel::weights() const {
  WeightInfo info;
  info.bytes = backend_->weight_bytes();
  std::vector<std::pair<std::string, int>> counts(type_counts_.begin(), type_counts_.end());
  std::stable_sort(counts.begin(), counts.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  for (const auto& [type, count] : counts) {
    info.types += StrCat(info.types.empty() ? "" : ", ", type, " (", count, ")");
  }
  return info;
}

}  // namespace tq
