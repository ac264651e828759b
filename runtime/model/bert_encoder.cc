#include "runtime/model/bert_encoder.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "turboquant/base/file.h"
#include "turboquant/base/json_object.h"
#include "turboquant/base/numeric.h"

namespace tq {
namespace {

constexpr int kRowsPerTask = 8;

// fn(row) for all rows, spread over the pool.
template <typename Fn>
void ForRows(ThreadPool& pool, int rows, const Fn& fn) {
  pool.ParallelFor(static_cast<size_t>(DivCeil(rows, kRowsPerTask)), [&](size_t task, int) {
    const int first = static_cast<int>(task) * kRowsPerTask;
    for (int row = first; row < std::min(rows, first + kRowsPerTask); ++row) fn(row);
  });
}

// GELU in its exact form: x * P(a standard normal variable is below x).
float Gelu(float x) {
  return 0.5f * x * (1.0f + std::erf(x * 0.70710678f));
}

}  // namespace

Result<std::unique_ptr<BertEncoder>> BertEncoder::Load(const std::string& folder,
                                                       ThreadPool& pool) {
  TQ_ASSIGN_OR_RETURN(const std::string config, ReadFile(folder + "/config.json"));
  TQ_ASSIGN_OR_RETURN(SafetensorsFile weights,
                      SafetensorsFile::Open(folder + "/model.safetensors"));
  return Build(config, std::move(weights), pool);
}

Result<std::unique_ptr<BertEncoder>> BertEncoder::Build(const std::string& config,
                                                        SafetensorsFile weights, ThreadPool& pool) {
  std::unique_ptr<BertEncoder> encoder(new BertEncoder(std::move(weights), pool));
  TQ_RETURN_IF_ERROR(encoder->ReadConfig(config));
  TQ_RETURN_IF_ERROR(encoder->LoadWeights());
  return encoder;
}

Status BertEncoder::ReadConfig(const std::string& config) {
  TQ_ASSIGN_OR_RETURN(const nlohmann::json json, ParseJsonObject(config, "config.json"));
  const JsonObject object(json, "config.json");
  for (const auto& [key, wanted] : {std::pair<const char*, const char*>{"model_type", "bert"},
                                    {"hidden_act", "gelu"},
                                    {"position_embedding_type", "absolute"}}) {
    TQ_ASSIGN_OR_RETURN(const std::optional<std::string> found, object.Text(key));
    if (found.value_or(wanted) != wanted) {
      return Unsupported("'", key, "' of config.json is '", *found,
                         "'; an encoder of sentences needs '", wanted, "'");
    }
  }
  int64_t layers = 0, heads = 0;
  for (const auto& [key, value] : {std::pair<const char*, int64_t*>{"hidden_size", &hidden_},
                                   {"intermediate_size", &ffn_},
                                   {"vocab_size", &vocab_},
                                   {"max_position_embeddings", &positions_},
                                   {"num_hidden_layers", &layers},
                                   {"num_attention_heads", &heads}}) {
    constexpr int64_t kMost = 1 << 24;
    TQ_ASSIGN_OR_RETURN(const std::optional<int64_t> found, object.Int(key));
    if (!found) return object.Wrong(key, "an integer");
    if (*found < 1 || *found > kMost) {
      return InvalidArgument("'", key, "' of config.json is ", *found, "; 1 to ", kMost,
                             " are possible");
    }
    *value = *found;
  }
  TQ_ASSIGN_OR_RETURN(const std::optional<double> eps, object.Number("layer_norm_eps"));
  if (eps && !(*eps > 0 && *eps < 1)) {
    return InvalidArgument("'layer_norm_eps' of config.json is ", *eps, "; 0 to 1 is possible");
  }
  if (hidden_ % heads != 0) {
    return InvalidArgument("config.json: ", heads, " heads do not divide the hidden_size of ",
                           hidden_);
  }
  norm_eps_ = static_cast<float>(eps.value_or(1e-12));
  num_layers_ = static_cast<int>(layers);
  num_heads_ = static_cast<int>(heads);
  return OkStatus();
}

Result<BertEncoder::Norm> BertEncoder::LoadNorm(const std::string& name) const {
  Norm norm;
  TQ_ASSIGN_OR_RETURN(norm.weight, weights_.GetFloats(name + ".weight", {hidden_}));
  TQ_ASSIGN_OR_RETURN(norm.bias, weights_.GetFloats(name + ".bias", {hidden_}));
  return norm;
}

Result<BertEncoder::Linear> BertEncoder::LoadLinear(const std::string& name, int64_t out_dim,
                                                    int64_t in_dim) const {
  Linear linear;
  TQ_ASSIGN_OR_RETURN(const std::vector<float> rows,
                      weights_.GetFloats(name + ".weight", {out_dim, in_dim}));
  Result<PackedMatrix> packed = PackedMatrix::Pack(WeightType::kF32, out_dim, in_dim,
                                                   std::as_bytes(std::span(rows)), {}, pool_);
  if (!packed.ok()) return packed.status().WithContext(name + ".weight");
  linear.matrix = *std::move(packed);
  weights_.Release(*weights_.Find(name + ".weight"));
  TQ_ASSIGN_OR_RETURN(linear.bias, weights_.GetFloats(name + ".bias", {out_dim}));
  return linear;
}

Status BertEncoder::LoadWeights() {
  const std::string words = "embeddings.word_embeddings.weight";
  words_ = weights_.Find(words);
  if (words_ == nullptr) {
    return NotFound("'", weights_.path(), "' has no tensor '", words,
                    "'; an encoder saved by transformers or sentence-transformers has one");
  }
  if (words_->shape != std::vector<int64_t>{vocab_, hidden_}) {
    return InvalidArgument("'", words, "' has the shape ", ShapeToString(words_->shape),
                           ", but config.json says ", ShapeToString({vocab_, hidden_}));
  }
  TQ_ASSIGN_OR_RETURN(position_rows_, weights_.GetFloats("embeddings.position_embeddings.weight",
                                                         {positions_, hidden_}));
  // One text has one type; the rows of others are not used.
  const std::string types = "embeddings.token_type_embeddings.weight";
  TQ_ASSIGN_OR_RETURN(type_row_, weights_.GetFloats(types));
  if (static_cast<int64_t>(type_row_.size()) < hidden_) {
    return InvalidArgument("'", types, "' has ", type_row_.size(), " values; at least one row of ",
                           hidden_, " is needed");
  }
  type_row_.resize(static_cast<size_t>(hidden_));
  TQ_ASSIGN_OR_RETURN(embedding_norm_, LoadNorm("embeddings.LayerNorm"));
  for (int l = 0; l < num_layers_; ++l) {
    const std::string name = StrCat("encoder.layer.", l, ".");
    const std::string attention = name + "attention.";
    Layer layer;
    TQ_ASSIGN_OR_RETURN(layer.query, LoadLinear(attention + "self.query", hidden_, hidden_));
    TQ_ASSIGN_OR_RETURN(layer.key, LoadLinear(attention + "self.key", hidden_, hidden_));
    TQ_ASSIGN_OR_RETURN(layer.value, LoadLinear(attention + "self.value", hidden_, hidden_));
    TQ_ASSIGN_OR_RETURN(layer.attention_out,
                        LoadLinear(attention + "output.dense", hidden_, hidden_));
    TQ_ASSIGN_OR_RETURN(layer.attention_norm, LoadNorm(attention + "output.LayerNorm"));
    TQ_ASSIGN_OR_RETURN(layer.up, LoadLinear(name + "intermediate.dense", ffn_, hidden_));
    TQ_ASSIGN_OR_RETURN(layer.down, LoadLinear(name + "output.dense", hidden_, ffn_));
    TQ_ASSIGN_OR_RETURN(layer.output_norm, LoadNorm(name + "output.LayerNorm"));
    layers_.push_back(std::move(layer));
  }
  return OkStatus();
}

Result<std::vector<float>> BertEncoder::Encode(std::span<const int32_t> ids) {
  const int rows = static_cast<int>(ids.size());
  if (rows < 1 || rows > positions_) {
    return InvalidArgument(rows, " tokens to encode; 1 to ", positions_, " are possible");
  }
  const auto hidden = static_cast<size_t>(hidden_);
  const size_t n = static_cast<size_t>(rows) * hidden;
  for (std::vector<float>* buffer : {&x_, &q_, &k_, &v_, &mixed_}) buffer->resize(n);
  wide_.resize(static_cast<size_t>(rows) * static_cast<size_t>(ffn_));

  TQ_RETURN_IF_ERROR(Embed(ids));
  for (const Layer& layer : layers_) {
    Run({{&layer.query, q_.data()}, {&layer.key, k_.data()}, {&layer.value, v_.data()}}, x_.data(),
        rows);
    Attend(rows);
    Run({{&layer.attention_out, q_.data()}}, mixed_.data(), rows);
    AddAndNormalize(q_.data(), layer.attention_norm, rows);
    Run({{&layer.up, wide_.data()}}, x_.data(), rows);
    ForRows(pool_, rows, [&](int row) {
      float* values = wide_.data() + row * ffn_;
      for (int64_t i = 0; i < ffn_; ++i) values[i] = Gelu(values[i]);
    });
    Run({{&layer.down, q_.data()}}, wide_.data(), rows);
    AddAndNormalize(q_.data(), layer.output_norm, rows);
  }

  std::vector<double> sums(hidden, 0);
  for (size_t i = 0; i < n; ++i) sums[i % hidden] += x_[i];
  double square = 0;
  for (const double sum : sums) square += sum * sum;
  const double length = std::sqrt(square);
  if (!std::isfinite(length) || length == 0) {
    return DataLoss("the encoder '", weights_.path(), "' gives a vector of length ", length,
                    " for ", rows, " tokens; its weights are damaged");
  }
  std::vector<float> vector(hidden);
  for (size_t i = 0; i < hidden; ++i) vector[i] = static_cast<float>(sums[i] / length);
  return vector;
}

Status BertEncoder::Embed(std::span<const int32_t> ids) {
  const size_t bytes = SafetensorsTypeBytes(words_->type);
  for (size_t row = 0; row < ids.size(); ++row) {
    if (ids[row] < 0 || ids[row] >= vocab_) {
      return InvalidArgument("token ", ids[row], " to encode; the vocabulary has ", vocab_);
    }
    const std::byte* word = words_->data.data() + static_cast<size_t>(ids[row]) * hidden_ * bytes;
    float* x = x_.data() + row * hidden_;
    for (int64_t i = 0; i < hidden_; ++i) {
      x[i] = SafetensorsElement(words_->type, word + i * bytes) + type_row_[i] +
             position_rows_[row * hidden_ + i];
    }
    Normalize(x, embedding_norm_);
  }
  return OkStatus();
}

void BertEncoder::Run(std::initializer_list<std::pair<const Linear*, float*>> parts, const float* x,
                      int rows) {
  std::vector<Product> products;
  for (const auto& [linear, y] : parts) {
    products.push_back({&linear->matrix, y, linear->matrix.out_dim()});
  }
  Multiply(products, x, rows, scratch_, pool_);
  for (const auto& [linear, y] : parts) {
    const auto n = static_cast<int64_t>(linear->bias.size());
    for (int64_t i = 0; i < rows * n; ++i) y[i] += linear->bias[static_cast<size_t>(i % n)];
  }
}

// Every token looks at every token: softmax(q k / sqrt(head_dim)) v, head by head.
void BertEncoder::Attend(int rows) {
  const int64_t dim = hidden_ / num_heads_;
  const float scale = 1.0f / std::sqrt(static_cast<float>(dim));
  pool_.ParallelFor(static_cast<size_t>(num_heads_), [&](size_t head, int) {
    const int64_t first = static_cast<int64_t>(head) * dim;
    const auto n = static_cast<size_t>(rows);
    std::vector<float> weights(n), keys(static_cast<size_t>(dim) * n);  // keys: [dim][rows]
    for (int t = 0; t < rows; ++t) {
      for (int64_t i = 0; i < dim; ++i) keys[i * n + t] = k_[t * hidden_ + first + i];
    }
    for (int r = 0; r < rows; ++r) {
      const float* q = q_.data() + r * hidden_ + first;
      std::fill(weights.begin(), weights.end(), 0.0f);
      for (int64_t i = 0; i < dim; ++i) {
        const float* key = keys.data() + i * n;
        for (size_t t = 0; t < n; ++t) weights[t] += q[i] * scale * key[t];
      }
      const float largest = *std::max_element(weights.begin(), weights.end());
      float sum = 0;
      for (float& weight : weights) sum += weight = std::exp(weight - largest);
      float* out = mixed_.data() + r * hidden_ + first;
      std::fill_n(out, dim, 0.0f);
      for (int t = 0; t < rows; ++t) {
        const float* v = v_.data() + t * hidden_ + first;
        const float weight = weights[t] / sum;
        for (int64_t i = 0; i < dim; ++i) out[i] += weight * v[i];
      }
    }
  });
}

void BertEncoder::AddAndNormalize(const float* y, const Norm& norm, int rows) {
  ForRows(pool_, rows, [&](int row) {
    float* x = x_.data() + row * hidden_;
    for (int64_t i = 0; i < hidden_; ++i) x[i] += y[row * hidden_ + i];
    Normalize(x, norm);
  });
}

void BertEncoder::Normalize(float* row, const Norm& norm) const {
  double mean = 0, variance = 0;
  for (int64_t i = 0; i < hidden_; ++i) mean += row[i];
  mean /= static_cast<double>(hidden_);
  for (int64_t i = 0; i < hidden_; ++i) variance += (row[i] - mean) * (row[i] - mean);
  const double scale = 1.0 / std::sqrt(variance / static_cast<double>(hidden_) + norm_eps_);
  for (int64_t i = 0; i < hidden_; ++i) {
    row[i] = static_cast<float>((row[i] - mean) * scale) * norm.weight[i] + norm.bias[i];
  }
}

}  // namespace tq
