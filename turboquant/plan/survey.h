// Every combination of context, batch, weights and cache format for one model and machine: what
// tq plan shows, as data, with a verdict in words for each context, batch and weight format.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "turboquant/plan/plan.h"

namespace tq {

struct SurveyGrid {
  std::vector<int64_t> contexts, batches;
  std::vector<WeightChoice> weights;
  std::vector<CacheFormat> formats;
};

struct SurveyRow {
  int64_t context = 0, batch = 0;
  std::string weights, kv;
  MemoryPlan memory;
  bool fits = false;
  StepTime step;
  std::optional<double> first_token_seconds;
  int64_t max_context = 0;    // at this batch; 0 = none fits
  int64_t max_sequences = 0;  // at this context
  double bits_per_value = 0;
  int quantized_layers = 0;
  BreakEven break_even;
  Overflow overflow;
};

// For one context, batch and weight format, over all cache formats.
struct Verdict {
  int64_t context = 0, batch = 0;
  std::string weights;
  bool any_fits = false;
  std::string best;  // the format with the most bits that fits; empty: none does
  std::string text;  // "fits with k4v4 or fewer bits: ..."
};

struct Survey {
  ModelSpec spec;
  Machine machine;
  int num_devices = 1;
  std::vector<SurveyRow> rows;    // formats innermost, then weights, batches, contexts
  std::vector<Verdict> verdicts;  // one for each group of rows.size() / verdicts.size() rows
  bool all_fit() const;
};

// kInvalidArgument for an empty axis and for what Planner refuses.
Result<Survey> MakeSurvey(const ModelSpec& spec, const SurveyGrid& grid,
                          const PlanOptions& options);

// Memory and time over contexts, for charts: powers of two from 1,024 to beyond the longest of the
// grid and what the model was trained for; the first batch and weight format of the grid.
struct CurvePoint {
  int64_t context = 0;
  size_t weights = 0, codes = 0, scales = 0, open = 0, windows_and_states = 0, rest = 0;
  size_t total() const { return weights + codes + scales + open + windows_and_states + rest; }
  std::optional<double> ms;
};
struct Curve {
  std::string kv;
  std::vector<CurvePoint> points;
};
Result<std::vector<Curve>> MakeCurves(const ModelSpec& spec, const SurveyGrid& grid,
                                      const PlanOptions& options);

std::string FormatGib(double bytes);   // "64.00 GiB"
std::string FormatGb(double bytes);    // "68.72 GB"
std::string FormatBoth(double bytes);  // "64.00 GiB (68.72 GB)"; MiB and MB below 4 GiB

}  // namespace tq
