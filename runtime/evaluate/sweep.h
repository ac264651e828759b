// The job of tq eval sweep: a list of formats side by side: bits with everything counted, KL, time
// of a step, and the share of the bytes that goes to scales. Finer scales make a smaller error and
// take bits themselves: where that no longer pays is what this shows.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "runtime/evaluate/divergence.h"
#include "runtime/evaluate/kld_run.h"

namespace tq {

struct SweepOptions {
  Stream reference;
  std::vector<Stream> formats;
  std::vector<EvalText> texts;
  DivergenceOptions measure;
  // Milliseconds of a decode step at `depth`; empty: times are not measured. The reference's too.
  std::function<Result<double>(const Stream&)> step_ms;
  int64_t depth = 0;
};

struct SweepRow {
  std::string name;
  CacheConfig config;
  double bits_per_value = 0;    // of sealed blocks, scales and padding counted
  double bits_all_counted = 0;  // at the length of the windows
  double scales_share = 0;      // of the bytes of a sealed block
  DivergenceSummary all;
  std::optional<double> step_ms;
  bool on_bits_front = false;  // no other has fewer bits and a smaller KL
  bool on_time_front = false;  // no other has a shorter step and a smaller KL
  // The row with the smallest KL among those with no more bits and a KL smaller by more than the
  // standard errors of both; empty: none.
  std::string beaten_by;
};

struct SweepResult {
  std::string model_name;
  int64_t context_len = 0, windows = 0, tokens = 0, depth = 0;
  std::optional<double> plain_step_ms;
  std::vector<SweepRow> rows;         // in the order of the formats
  std::vector<std::string> findings;  // sentences on granularity, from the figures
  bool informative = true;
  std::string note;  // why not
};

Result<SweepResult> RunSweep(const SweepOptions& options);
// Marks fronts and what is beaten, and writes the findings.
void CompareSweepRows(SweepResult* result);

nlohmann::ordered_json SweepJson(const SweepResult& result);
std::string SweepSection(const SweepResult& result);

}  // namespace tq
