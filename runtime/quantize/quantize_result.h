// What tq quantize did, as JSON and as a section of a report.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "runtime/evaluate/kld_run.h"
#include "runtime/quantize/sensitivity.h"
#include "runtime/quantize/weight_plan.h"

namespace tq {

struct QuantizeResult {
  std::string model_name, target, out_path;
  WeightPlan plan;
  size_t source_bytes = 0, file_bytes = 0;  // of the whole files
  std::vector<WeightSite> sites;            // empty: nothing was measured
  double predicted_kld = 0;                 // of the allocation
  size_t budget_bytes = 0;                  // of the tensors; 0: none
  int64_t calibration_tokens = 0;           // 0: all inputs counted the same
  bool embeddings_by_name = false;          // --embeddings TYPE
  int64_t feedback_columns = 0;  // matrices of up to so many columns were to get it; 0: none
  int feedback_tensors = 0;      // those that did
  int lost_feedback = 0;         // tensors whose reason says why they were rounded without feedback
  nlohmann::ordered_json data;   // null, or what calibration and proof were read from
  // Weights alone, cache alone, both, against the source, on held-out text.
  std::optional<KldResult> quality;
};

// "Q8_0, by default": types of embeddings and head, and why.
std::string EmbeddingsText(const QuantizeResult& result);
// "210 matrices", "off", "none: no calibration".
std::string FeedbackText(const QuantizeResult& result);

// Why there is no quality.
std::string WhyNotMeasured(const QuantizeResult& result);

// "Q4_K (120), Q6_K (30)": of the tensors with rows, the most frequent first.
std::string TypeCounts(const WeightPlan& plan);
// Type, weights and bytes of every kind of tensor: "attn_q.weight", 17.3 M, "Q4_0 (12), Q5_0 (18)".
struct KindSummary {
  std::string kind, types;
  int64_t weights = 0;
  size_t bytes = 0;
};
std::vector<KindSummary> SummarizeKinds(const WeightPlan& plan);

nlohmann::ordered_json QuantizeJson(const QuantizeResult& result);
std::string QuantizeSection(const QuantizeResult& result);

}  // namespace tq
