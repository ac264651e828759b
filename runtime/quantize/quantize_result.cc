#include "runtime/quantize/quantize_result.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "runtime/evaluate/section.h"
#include "runtime/formats/type_counts.h"

namespace tq {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kShownSites = 24;

double MiB(size_t bytes) {
  return static_cast<double>(bytes) / (1 << 20);
}

// The sites that matter most, most first.
std::vector<const WeightSite*> WorstSites(const std::vector<WeightSite>& sites) {
  std::vector<const WeightSite*> out;
  for (const WeightSite& site : sites) out.push_back(&site);
  std::stable_sort(out.begin(), out.end(),
                   [](const WeightSite* a, const WeightSite* b) { return a->kld > b->kld; });
  if (out.size() > kShownSites) out.resize(kShownSites);
  return out;
}

}  // namespace

std::string WhyNotMeasured(const QuantizeResult& r) {
  return r.data.is_null() ? "No --data: all inputs counted the same and nothing was measured"
                          : "Nothing was measured: no held-out text";
}

std::string EmbeddingsText(const QuantizeResult& r) {
  std::map<WeightType, int> counts;
  for (const TensorPlan& t : r.plan.tensors) {
    if (t.role == TensorRole::kOuter) ++counts[t.type];
  }
  std::string types;
  for (const auto& [type, count] : counts) {
    types += fmt::format("{}{}", types.empty() ? "" : " and ", WeightTypeName(type));
  }
  return types + (r.embeddings_by_name ? ", as asked for"
                  : r.sites.empty()    ? ", by default"
                                       : ", by measured KL");
}

std::string FeedbackText(const QuantizeResult& r) {
  if (r.calibration_tokens == 0) return "none: no calibration";
  if (r.feedback_columns == 0) return "off";
  return fmt::format("{} matrices", r.feedback_tensors) +
         (r.lost_feedback > 0
              ? fmt::format("; {} without, whose inputs have no second moments", r.lost_feedback)
              : "");
}

std::string TypeCounts(const WeightPlan& plan) {
  std::map<std::string, int> counts;
  for (const TensorPlan& t : plan.tensors) {
    if (t.role != TensorRole::kPlain) ++counts[WeightTypeName(t.type)];
  }
  return TypeCountsText(counts);
}

std::vector<KindSummary> SummarizeKinds(const WeightPlan& plan) {
  std::vector<KindSummary> out;
  std::map<std::string, size_t> index;
  std::vector<std::map<std::string, int>> counts;
  for (const TensorPlan& t : plan.tensors) {
    const std::string kind = t.role == TensorRole::kPlain ? "norms, biases and the like" : t.kind;
    const auto [it, is_new] = index.try_emplace(kind, out.size());
    if (is_new) {
      out.push_back({.kind = kind, .types = {}});
      counts.emplace_back();
    }
    KindSummary& k = out[it->second];
    k.weights += t.tensor->num_elements();
    k.bytes += t.bytes(t.type);
    ++counts[it->second][WeightTypeName(t.type)];
  }
  for (size_t i = 0; i < out.size(); ++i) out[i].types = TypeCountsText(counts[i]);
  return out;
}

Json QuantizeJson(const QuantizeResult& r) {
  Json j;
  j["model"] = r.model_name;
  j["to"] = r.target;
  j["out"] = r.out_path;
  j["weights"] = r.plan.num_weights();
  j["source_bytes"] = r.source_bytes;
  j["file_bytes"] = r.file_bytes;
  j["tensor_bytes"] = r.plan.bytes();
  j["bits_per_weight"] = r.plan.bits_per_weight();
  if (r.budget_bytes > 0) j["budget_bytes"] = r.budget_bytes;
  j["types"] = TypeCounts(r.plan);
  j["calibration_tokens"] = r.calibration_tokens;
  j["embeddings"] = EmbeddingsText(r);
  j["feedback"] = FeedbackText(r);
  j["lost_feedback"] = r.lost_feedback;
  if (!r.data.is_null()) j["data"] = r.data;
  j["kinds"] = Json::array();
  for (const KindSummary& k : SummarizeKinds(r.plan)) {
    j["kinds"].push_back(
        {{"kind", k.kind}, {"types", k.types}, {"weights", k.weights}, {"bytes", k.bytes}});
  }
  j["tensors"] = Json::array();
  for (const TensorPlan& t : r.plan.tensors) {
    j["tensors"].push_back({{"name", t.tensor->name},
                            {"from", GgmlTypeName(t.tensor->type)},
                            {"type", WeightTypeName(t.type)},
                            {"bytes", t.bytes(t.type)},
                            {"reason", t.reason}});
  }
  if (!r.sites.empty()) {
    j["predicted_kld"] = r.predicted_kld;
    j["sites"] = Json::array();
    for (const WeightSite& s : r.sites) {
      j["sites"].push_back({{"name", s.name},
                            {"probe", WeightTypeName(s.probe)},
                            {"kld", s.kld},
                            {"type", WeightTypeName(r.plan.tensors[s.tensors.front()].type)}});
    }
  }
  j["informative"] = r.quality && r.quality->informative;
  if (!r.quality) j["note"] = WhyNotMeasured(r);
  if (r.quality && !r.quality->informative) j["note"] = r.quality->note;
  if (r.quality) j["quality"] = KldJson(*r.quality);
  return j;
}

std::string QuantizeSection(const QuantizeResult& r) {
  std::string out = SectionHead("Weights");
  out += SectionText(
      fmt::format("{:.2f} MiB became {:.2f} MiB: {:.3f} bits a weight over {:.1f} million weights.",
                  MiB(r.source_bytes), MiB(r.file_bytes), r.plan.bits_per_weight(),
                  static_cast<double>(r.plan.num_weights()) / 1e6));
  out += SectionText(fmt::format("Embeddings and head: {}. Rounding with feedback: {}.",
                                 EmbeddingsText(r), FeedbackText(r)));
  std::vector<std::vector<std::string>> rows;
  for (const KindSummary& k : SummarizeKinds(r.plan)) {
    rows.push_back({k.kind, k.types, fmt::format("{:.2f}", static_cast<double>(k.weights) / 1e6),
                    fmt::format("{:.2f}", MiB(k.bytes)),
                    fmt::format("{:.3f}", 8.0 * static_cast<double>(k.bytes) /
                                              static_cast<double>(k.weights))});
  }
  out += TableCard({"tensors", "types", "million weights", "MiB", "bits a weight"}, rows, {}, "");
  if (!r.sites.empty()) {
    Chart chart;
    chart.kind = Chart::Kind::kBars;
    chart.title = "What matters most";
    chart.note = fmt::format(
        "KL divergence of the model when one part alone is stored in few bits; the sum that is "
        "predicted for the types that were chosen is {:.5f}.",
        r.predicted_kld);
    chart.y_title = "mean KL, nats";
    chart.series.push_back({.name = "alone in few bits", .points = {}, .color = 1});
    for (const WeightSite* s : WorstSites(r.sites)) {
      chart.categories.push_back(
          fmt::format("{} → {}", s->name, WeightTypeName(r.plan.tensors[s->tensors.front()].type)));
      chart.series.back().points.emplace_back(static_cast<double>(chart.categories.size() - 1),
                                              s->kld);
    }
    out += ChartCard(chart);
  }
  if (!r.quality) {
    return out + SectionText(WhyNotMeasured(r) + ".");
  }
  return out + KldSection(*r.quality);
}

}  // namespace tq
