#include "runtime/quantize/sensitivity.h"

#include <algorithm>
#include <map>
#include <utility>

#include "runtime/evaluate/divergence.h"
#include "runtime/quantize/encode_tensor.h"
#include "turboquant/calibrate/allocation.h"

namespace tq {
namespace {

constexpr int64_t kSampledRows = 64;  // of a tensor, for the errors of all types
constexpr int kMinSites = 16;

// One tensor each while that is not too much to measure, then a kind over as many ranges of layers.
std::vector<WeightSite> MakeSites(const WeightPlan& plan, double max_work) {
  std::vector<size_t> quantized;
  int num_layers = 0;
  std::map<std::string, int> kinds;
  for (size_t i = 0; i < plan.tensors.size(); ++i) {
    const TensorPlan& t = plan.tensors[i];
    if (t.role == TensorRole::kPlain) continue;
    quantized.push_back(i);
    num_layers = std::max(num_layers, t.layer + 1);
    ++kinds[t.kind];
  }
  const double weights = static_cast<double>(plan.num_weights());
  const auto max_sites = std::max<size_t>(kMinSites, static_cast<size_t>(max_work / weights));
  int ranges = std::max(num_layers, 1);  // of layers
  if (quantized.size() > max_sites) {
    ranges = std::max(1, static_cast<int>(max_sites / kinds.size()));
    ranges = std::min(ranges, std::max(num_layers, 1));
  }
  std::vector<WeightSite> sites;
  std::map<std::pair<std::string, int>, size_t> index;
  for (const size_t i : quantized) {
    const TensorPlan& t = plan.tensors[i];
    const int range = t.layer < 0 ? -1 : t.layer * ranges / num_layers;
    const auto [it, is_new] = index.try_emplace({t.kind, range}, sites.size());
    if (is_new) sites.push_back({.name = t.tensor->name, .tensors = {}, .choices = {}});
    sites[it->second].tensors.push_back(i);
  }
  for (WeightSite& site : sites) {
    if (site.tensors.size() < 2) continue;
    const TensorPlan& first = plan.tensors[site.tensors.front()];
    const TensorPlan& last = plan.tensors[site.tensors.back()];
    site.name = StrCat(first.kind, " of layers ", first.layer, "-", last.layer);
  }
  return sites;
}

// The types that rows of a site may have, with their bytes, fewest first.
std::vector<WeightSite::Choice> ChoicesOf(const WeightSite& site, const WeightPlan& plan,
                                          const SensitivityOptions& options) {
  std::vector<WeightSite::Choice> out;
  const bool is_fixed =
      options.outer_is_fixed && plan.tensors[site.tensors.front()].role == TensorRole::kOuter;
  for (const WeightType type : is_fixed ? std::vector<WeightType>() : options.choices) {
    size_t bytes = 0;
    const bool fits = std::all_of(site.tensors.begin(), site.tensors.end(), [&](size_t i) {
      bytes += plan.tensors[i].bytes(type);
      return FitsRows(type, plan.tensors[i].tensor->shape[0]);
    });
    if (fits) out.push_back({type, bytes, 0});
  }
  if (out.empty()) {
    const WeightType type = plan.tensors[site.tensors.front()].type;
    size_t bytes = 0;
    for (const size_t i : site.tensors) bytes += plan.tensors[i].bytes(type);
    out.push_back({type, bytes, 0});
  }
  std::stable_sort(out.begin(), out.end(),
                   [](const auto& a, const auto& b) { return a.bytes < b.bytes; });
  return out;
}

// A window through the model as it is, then from any layer on with other weights.
class ShortRun {
 public:
  ShortRun(Model& model, std::span<const int32_t> tokens, ThreadPool& pool)
      : model_(model),
        tokens_(tokens.begin(), tokens.end()),
        rows_(static_cast<size_t>(model.arch().vocab_size), &pool) {}

  Status RunReference() {
    hidden_.assign(static_cast<size_t>(model_.arch().num_layers), {});
    model_.set_layer_probe([&](int layer, std::span<const float> hidden) {
      hidden_[static_cast<size_t>(layer)].assign(hidden.begin(), hidden.end());
    });
    const Status status = Run(-1);
    model_.set_layer_probe({});
    TQ_RETURN_IF_ERROR(status);
    rows_.Start(0);
    return rows_.Add(logits_);
  }

  // The mean KL with the weights as they are now; they differ from `layer` on (-1: everywhere).
  Result<double> MeanKld(int layer) {
    TQ_RETURN_IF_ERROR(Run(layer));
    std::vector<PositionScore> scores;
    TQ_RETURN_IF_ERROR(rows_.Score(tokens_, rule_, 0, logits_, &scores));
    return Summarize(scores).mean;
  }

 private:
  Status Run(int layer) {
    TQ_ASSIGN_OR_RETURN(auto cache, KvCache::Create(model_.MakeCacheConfig()));
    const SeqId seq = cache->NewSequence();
    rule_ = cache->rule();
    const ForwardItem item = {seq, tokens_, true};
    if (layer < 0) return model_.Forward(*cache, {&item, 1}, &logits_);
    return model_.ForwardFrom(layer, hidden_[static_cast<size_t>(layer)], *cache, item, &logits_);
  }

  Model& model_;
  std::vector<int32_t> tokens_;
  ReferenceRows rows_;
  PrecisionRule rule_;
  std::vector<std::vector<float>> hidden_;  // that enters each layer
  std::vector<float> logits_;
};

// Puts the tensors of a site into the model as `type`; returns the layer from which they matter.
Result<int> Put(Model& model, const WeightPlan& plan, const WeightSite& site, WeightType type,
                const InputStatistics& statistics,
                const std::vector<std::vector<float>>& importance, ThreadPool& pool) {
  int first = model.arch().num_layers;
  for (size_t k = 0; k < site.tensors.size(); ++k) {
    const TensorPlan& planned = plan.tensors[site.tensors[k]];
    const GgufTensor& tensor = *planned.tensor;
    TQ_ASSIGN_OR_RETURN(
        const std::vector<std::byte> bytes,
        EncodeTensor(model.file(), tensor, type, importance[k], statistics.Factor(planned), pool));
    TQ_ASSIGN_OR_RETURN(const int layer, model.ReplaceMatrix(tensor.name, type, bytes));
    first = std::min(first, layer);
  }
  return first;
}

Status Restore(Model& model, const WeightPlan& plan, const WeightSite& site) {
  for (const size_t i : site.tensors) {
    const GgufTensor& tensor = *plan.tensors[i].tensor;
    TQ_ASSIGN_OR_RETURN(const WeightType type, WeightTypeOf(GgmlTypeName(tensor.type)));
    const TensorData data = model.file().Data(tensor);
    TQ_RETURN_IF_ERROR(model.ReplaceMatrix(tensor.name, type, data.bytes()).status());
    model.file().Release(tensor);
  }
  return OkStatus();
}

}  // namespace

Result<std::vector<WeightSite>> MeasureSites(Model& model, const WeightPlan& plan,
                                             const InputStatistics& statistics,
                                             std::span<const std::vector<int32_t>> windows,
                                             const SensitivityOptions& options, ThreadPool& pool) {
  std::vector<WeightSite> sites = MakeSites(plan, options.max_work);
  const size_t num_windows = std::min(windows.size(), static_cast<size_t>(options.windows));
  if (num_windows == 0) return InvalidArgument("no text to measure tensors on");
  const size_t total = sites.size() * (num_windows + 1);
  size_t done = 0;
  const auto report = [&](const WeightSite& site) {
    return ReportProgress(options.progress, ++done, total, "measuring " + site.name)
               ? OkStatus()
               : Cancelled("the measurement was cancelled");
  };
  std::vector<std::vector<std::vector<float>>> importance(sites.size());
  std::vector<std::vector<double>> errors(sites.size());
  for (size_t s = 0; s < sites.size(); ++s) {
    WeightSite& site = sites[s];
    site.choices = ChoicesOf(site, plan, options);
    site.probe = site.choices.front().type;
    std::vector<WeightType> types;
    for (const auto& choice : site.choices) types.push_back(choice.type);
    errors[s].resize(types.size());
    for (const size_t i : site.tensors) {
      const GgufTensor& tensor = *plan.tensors[i].tensor;
      importance[s].push_back(statistics.Importance(plan.tensors[i]));
      TQ_ASSIGN_OR_RETURN(
          const std::vector<double> sums,
          EncodingErrors(model.file(), tensor, types, importance[s].back(), kSampledRows, pool));
      for (size_t t = 0; t < sums.size(); ++t) errors[s][t] += sums[t];
    }
    TQ_RETURN_IF_ERROR(report(site));
  }
  for (size_t w = 0; w < num_windows; ++w) {
    const std::vector<int32_t>& window = windows[w * windows.size() / num_windows];
    const auto length = std::min<size_t>(window.size(), static_cast<size_t>(options.window_len));
    ShortRun run(model, std::span(window).first(length), pool);
    TQ_RETURN_IF_ERROR(run.RunReference());
    for (size_t s = 0; s < sites.size(); ++s) {
      const Result<int> layer =
          Put(model, plan, sites[s], sites[s].probe, statistics, importance[s], pool);
      const Result<double> kld = layer.ok() ? run.MeanKld(*layer) : layer.status();
      TQ_RETURN_IF_ERROR(Restore(model, plan, sites[s]));
      TQ_RETURN_IF_ERROR(kld.status());
      sites[s].kld += *kld / static_cast<double>(num_windows);
      TQ_RETURN_IF_ERROR(report(sites[s]));
    }
  }
  for (size_t s = 0; s < sites.size(); ++s) {
    for (size_t t = 0; t < sites[s].choices.size(); ++t) {
      const double probe = errors[s].front();
      sites[s].choices[t].kld = probe > 0 ? sites[s].kld * errors[s][t] / probe : 0;
    }
  }
  return sites;
}

Result<double> AllocateTypes(const std::vector<WeightSite>& sites, size_t max_bytes,
                             WeightPlan* plan) {
  size_t plain = 0;
  for (const TensorPlan& t : plan->tensors) {
    if (t.role == TensorRole::kPlain) plain += t.bytes(t.type);
  }
  std::vector<AllocationSite> problem;
  size_t least = plain;
  for (const WeightSite& site : sites) {
    AllocationSite s;
    for (const WeightSite::Choice& c : site.choices) s.choices.push_back({c.bytes, c.kld});
    least += site.choices.front().bytes;
    problem.push_back(std::move(s));
  }
  if (least > max_bytes) {
    return InvalidArgument(
        "a budget of ", max_bytes, " bytes (",
        8.0 * static_cast<double>(max_bytes) / static_cast<double>(plan->num_weights()),
        " bits per weight) is too "
        "small: the smallest types take ",
        least, " (", 8.0 * static_cast<double>(least) / static_cast<double>(plan->num_weights()),
        ")");
  }
  TQ_ASSIGN_OR_RETURN(const AllocationFrontier frontier,
                      AllocationFrontier::Create(std::move(problem)));
  TQ_ASSIGN_OR_RETURN(const Allocation best, frontier.AtBytes(max_bytes - plain));
  for (size_t s = 0; s < sites.size(); ++s) {
    const auto& choice = sites[s].choices[static_cast<size_t>(best.choices[s])];
    for (const size_t i : sites[s].tensors) {
      TensorPlan& t = plan->tensors[i];
      t.type = choice.type;
      if (sites[s].choices.size() < 2) continue;  // the plan's own reason
      t.reason = StrCat("KL ", sites[s].kld, " alone in ", WeightTypeName(sites[s].probe));
    }
  }
  return best.cost;
}

}  // namespace tq
