#include "runtime/quantize/input_statistics.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <numeric>

#include "turboquant/linear/encode_feedback.h"
#include "turboquant/linear/matmul.h"

namespace tq {
namespace {

using ProductInput = Model::ProductInput;

// Which input a tensor multiplies, by its name without the layer.
struct TensorInput {
  const char* kind;
  ProductInput input;
};
constexpr TensorInput kInputs[] = {
    {"attn_q.weight", ProductInput::kAttention},
    {"attn_k.weight", ProductInput::kAttention},
    {"attn_v.weight", ProductInput::kAttention},
    {"attn_qkv.weight", ProductInput::kAttention},
    {"attn_output.weight", ProductInput::kAttentionOutput},
    {"ffn_gate.weight", ProductInput::kFfn},
    {"ffn_up.weight", ProductInput::kFfn},
    {"ffn_gate_exps.weight", ProductInput::kFfn},
    {"ffn_up_exps.weight", ProductInput::kFfn},
    {"ffn_down.weight", ProductInput::kFfnDown},
    {"ffn_down_exps.weight", ProductInput::kFfnDown},
    {"output.weight", ProductInput::kHead},
};

constexpr int kChunk = 256;      // tokens of a call
constexpr double kFloor = 0.01;  // of the mean: a column that was not used may be tomorrow

constexpr double kDamping = 0.01;  // of second moments

// Adds x^T x of [rows][n] to `moments`: the products of this library with the columns of x as rows
// of a matrix and as activations.
class MomentSums {
 public:
  explicit MomentSums(ThreadPool& pool) : pool_(pool) {}
  Status Add(const float* x, int rows, int64_t n, std::vector<float>* moments) {
    const auto columns = static_cast<size_t>(n), height = static_cast<size_t>(rows);
    transposed_.resize(columns * height);
    for (size_t r = 0; r < height; ++r) {
      for (size_t i = 0; i < columns; ++i) transposed_[i * height + r] = x[r * columns + i];
    }
    TQ_ASSIGN_OR_RETURN(const PackedMatrix packed,
                        PackedMatrix::Pack(WeightType::kF32, n, rows,
                                           std::as_bytes(std::span(transposed_)), {}, pool_));
    products_.resize(columns * columns);
    const Product product = {&packed, products_.data(), n};
    Multiply({&product, 1}, transposed_.data(), static_cast<int>(n), scratch_, pool_);
    moments->resize(columns * columns);
    for (size_t i = 0; i < products_.size(); ++i) (*moments)[i] += products_[i];
    return OkStatus();
  }

 private:
  ThreadPool& pool_;
  std::vector<float> transposed_, products_;
  MatmulScratch scratch_;
};

// Means of 1, none below kFloor.
std::vector<float> Normalized(std::span<const double> squares) {
  const double mean =
      std::accumulate(squares.begin(), squares.end(), 0.0) / static_cast<double>(squares.size());
  std::vector<float> out(squares.size(), 1.f);
  if (!(mean > 0)) return out;
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = static_cast<float>(std::max(squares[i] / mean, kFloor));
  }
  return out;
}

}  // namespace

Result<InputStatistics> InputStatistics::Collect(Model& model,
                                                 std::span<const std::vector<int32_t>> windows,
                                                 const StatisticsOptions& options,
                                                 ThreadPool& pool) {
  InputStatistics out;
  out.num_experts_ = model.arch().num_experts;
  out.tied_ = model.arch().tied_embeddings;
  size_t total = 0, done = 0, moment_bytes = 0;
  for (const auto& w : windows) total += w.size();
  MomentSums moments(pool);
  Status status;
  model.set_input_probe([&](ProductInput input, int layer, int expert, const float* x, int rows,
                            int64_t n) {
    const auto [it, is_new] = out.sums_.try_emplace({input, layer, expert});
    Sums& s = it->second;
    s.squares.resize(static_cast<size_t>(n));
    s.rows += rows;
    const size_t bytes = static_cast<size_t>(n * n) * sizeof(float);
    // Experts see too few tokens each, and the head is stored in many bits.
    const bool wanted =
        is_new && model.arch().num_experts == 0 && layer >= 0 && n <= options.max_moment_columns;
    if (wanted && moment_bytes + bytes <= options.max_moment_bytes) {
      moment_bytes += bytes;
      s.moments.resize(static_cast<size_t>(n * n));
    } else if (wanted) {
      s.lost = StrCat("second moments of all inputs do not fit into ", options.max_moment_bytes,
                      " bytes");
    }
    if (!s.moments.empty() && status.ok()) status = moments.Add(x, rows, n, &s.moments);
    for (int r = 0; r < rows; ++r, x += n) {
      for (int64_t i = 0; i < n; ++i) s.squares[static_cast<size_t>(i)] += double{x[i]} * x[i];
    }
  });
  const auto run = [&]() -> Status {
    std::vector<float> logits;
    for (const std::vector<int32_t>& window : windows) {
      TQ_ASSIGN_OR_RETURN(auto cache, KvCache::Create(model.MakeCacheConfig()));
      const SeqId seq = cache->NewSequence();
      for (size_t at = 0; at < window.size(); at += kChunk) {
        const size_t n = std::min<size_t>(kChunk, window.size() - at);
        const ForwardItem item = {seq, std::span(window).subspan(at, n), true};
        TQ_RETURN_IF_ERROR(model.Forward(*cache, {&item, 1}, &logits));
        TQ_RETURN_IF_ERROR(status);
        done += n;
        if (!ReportProgress(options.progress, done, total, "calibrating")) {
          return Cancelled("the calibration was cancelled");
        }
      }
    }
    return OkStatus();
  };
  const Status ran = run();
  model.set_input_probe({});
  TQ_RETURN_IF_ERROR(ran);
  out.tokens_ = static_cast<int64_t>(done);
  TQ_RETURN_IF_ERROR(out.MakeFactors(options, pool));
  return out;
}

// Inputs side by side, each alone in a thread; the widest first, so that none is left for the end.
Status InputStatistics::MakeFactors(const StatisticsOptions& options, ThreadPool& pool) {
  std::vector<Sums*> all;
  for (auto& [key, sums] : sums_) {
    if (!sums.moments.empty()) all.push_back(&sums);
  }
  std::stable_sort(all.begin(), all.end(), [](const Sums* a, const Sums* b) {
    return a->squares.size() > b->squares.size();
  });
  const size_t group = static_cast<size_t>(pool.num_threads());
  for (size_t first = 0; first < all.size(); first += group) {
    pool.ParallelFor(std::min(group, all.size() - first), [&](size_t i, int) {
      Sums& s = *all[first + i];
      std::vector<double> work(s.moments.begin(), s.moments.end());
      const auto n = static_cast<int64_t>(s.squares.size());
      // Inputs that are all zero have no factor: their weights do not matter.
      if (InverseFactor(work, n, kDamping).ok()) {
        s.moments.assign(work.begin(), work.end());
      } else {
        s.moments.clear();
        s.lost = "the second moments of its inputs have no inverse";
      }
    });
    if (!ReportProgress(options.progress, first, all.size(), "relating inputs")) {
      return Cancelled("the calibration was cancelled");
    }
  }
  return OkStatus();
}

std::optional<InputStatistics::Key> InputStatistics::KeyOf(const TensorPlan& tensor) const {
  if (tied_ && tensor.kind == "token_embd.weight") return Key{ProductInput::kHead, -1, 0};
  for (const TensorInput& t : kInputs) {
    if (tensor.kind == t.kind) return Key{t.input, tensor.layer, 0};
  }
  return std::nullopt;
}

std::span<const float> InputStatistics::Factor(const TensorPlan& tensor) const {
  const std::optional<Key> key = KeyOf(tensor);
  const auto it = key ? sums_.find(*key) : sums_.end();
  if (it == sums_.end()) return {};
  return it->second.moments;
}

int InputStatistics::NumWithFeedback(const WeightPlan& plan) const {
  return static_cast<int>(std::count_if(
      plan.tensors.begin(), plan.tensors.end(),
      [&](const TensorPlan& t) { return IsBlockType(t.type) && !Factor(t).empty(); }));
}

int InputStatistics::NoteLostFeedback(WeightPlan* plan) const {
  int lost = 0;
  for (TensorPlan& t : plan->tensors) {
    const std::optional<Key> key = KeyOf(t);
    const auto it = key ? sums_.find(*key) : sums_.end();
    if (it == sums_.end() || it->second.lost.empty() || !IsBlockType(t.type)) continue;
    t.reason += "; without feedback: " + it->second.lost;
    ++lost;
  }
  return lost;
}

std::vector<float> InputStatistics::Importance(const TensorPlan& tensor) const {
  const std::optional<Key> key = KeyOf(tensor);
  if (!key) return {};
  const ProductInput input = std::get<0>(*key);
  if (tensor.kind != "ffn_down_exps.weight") {
    const auto it = sums_.find(*key);
    return it == sums_.end() ? std::vector<float>() : Normalized(it->second.squares);
  }
  const auto n = static_cast<size_t>(tensor.tensor->shape[0]);
  std::vector<double> all(n);
  for (int e = 0; e < num_experts_; ++e) {
    const auto it = sums_.find({input, tensor.layer, e});
    if (it == sums_.end()) continue;
    for (size_t i = 0; i < n; ++i) all[i] += it->second.squares[i];
  }
  std::vector<float> out;
  for (int e = 0; e < num_experts_; ++e) {
    const auto it = sums_.find({input, tensor.layer, e});
    const std::vector<float> one = Normalized(it == sums_.end() ? all : it->second.squares);
    out.insert(out.end(), one.begin(), one.end());
  }
  return out;
}

}  // namespace tq
