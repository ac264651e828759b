// From a model and the user's text to a profile: statistics, sensitivity in place, allocation,
// alignment layer by layer, proof on held-out text. calibrate.cc reads from top to bottom.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/calibrate/attention_error.h"
#include "runtime/calibrate/journal.h"
#include "runtime/calibrate/observe.h"
#include "runtime/evaluate/divergence.h"
#include "runtime/evaluate/kld_run.h"
#include "runtime/model/model.h"
#include "runtime/tokenizer/tokenizer.h"
#include "turboquant/base/sinks.h"
#include "turboquant/base/status.h"
#include "turboquant/base/thread_pool.h"
#include "turboquant/calibrate/format_choice.h"
#include "turboquant/calibrate/profile.h"

namespace tq {

// What is minimized: the predicted KL of the next token, or the error of attention outputs.
enum class Objective { kKld, kCosine };

// Of the search and of the proof, whatever their tokens: one window has no spread to judge by.
inline constexpr size_t kCalibrateLeastWindows = 2;

struct CalibrateOptions {
  HeadFormat base;  // axes of all formats but their bits: trellis, groups, anchors
  std::vector<int> bits = {2, 3, 4, 5, 6, 8};  // what may be given; the first is the floor
  std::vector<int> group_lens = {kGroupHead};  // of scales, for each width; see MakeLadder
  int64_t context_len = 2048;
  int recent_len = 256, sink_len = 4;
  // Every head gets `base` as it is; only statistics are measured, and the proof.
  bool uniform = false;
  // With a budget (bits per value of sealed blocks, everything counted) the least KL within it;
  // without one the fewest bits that reach the target.
  std::optional<double> budget_bits;
  // A budget too: what one sequence of context_len tokens may hold, window and sinks counted.
  std::optional<size_t> max_cache_bytes;
  double target_kld = kDefaultTargetKld;
  bool gate = true;  // the target decides whether the profile passes
  Objective objective = Objective::kKld;
  std::optional<Granularity> granularity;  // empty: what measures better
  // Text of each kind of run. Sites are the largest part of the work.
  int64_t site_tokens = 4096, search_tokens = 8192, held_out_tokens = 16384;
  double measured_heads = 0.25;        // share of the heads' K and V that get runs of their own
  size_t max_bytes = size_t{2} << 30;  // of caches side by side
  ThreadPool* pool = nullptr;          // the model's
  Journal* journal = nullptr;          // nullptr: an interruption loses everything
  LogSink log;
  ProgressSink progress;
  const std::atomic<bool>* cancel = nullptr;
};

// An allocation that was measured end to end.
struct CalibrateTrial {
  std::string name;                       // "layers", "heads, V x 0.5", "uniform k3v2"
  std::vector<std::array<int, 2>> rungs;  // [num_layers * num_kv_heads]
  double bits = 0, predicted = 0;         // predicted: the objective
  std::vector<double> window_means;       // KL
  std::vector<int64_t> window_positions;  // that are in them: what a window weighs
  double kld() const;
};

// What one layer needs, got, and looks like.
struct CalibrateLayer {
  // Mean KL with only this layer's K or V at the fewest bits, and its standard error over windows.
  double k_kld = 0, v_kld = 0, k_stderr = 0, v_stderr = 0;
  double k_bits = 0, v_bits = 0;  // mean over heads, as chosen
  // Of the chosen formats, nothing propagated: relative error and cosine of the attention output,
  // agreement of attention weights (1 - total variation).
  double output_error = 0, output_cosine = 0, score_agreement = 0;
  double run_cosine = 0;  // of attention outputs in the whole quantized run
  bool raised = false;    // by the alignment
};

struct CalibrateResult {
  Profile profile;
  ModelStatistics statistics;
  std::vector<CalibrateLayer> layers;
  std::vector<CalibrateTrial> trials;  // of the search, in order
  CalibrateTrial chosen;               // of the search and the alignment; on the search windows
  std::string uniform_name;            // what it had to beat on held-out text
  double uniform_bits = 0;
  bool kept_uniform = false;         // it did not, beyond its standard error
  double gain = 0, gain_stderr = 0;  // mean KL of the uniform one minus that of the allocation
  double scale = 0;                  // measured over predicted KL
  std::string not_informative;       // why the held-out text proves nothing; empty: it does
  StreamScores held_out, held_out_uniform, held_out_floor;
  std::vector<std::string> log;
};

// `calibration` and `held_out` are windows of at most context_len tokens. kInvalidArgument: no
// windows, windows too short to read sealed tokens, a budget below the smallest formats;
// kUnsupported: nothing to choose (all layers have a sliding window); kCancelled. A target that no
// format reaches gives the best profile that there is, which does not pass. Deterministic: the same
// inputs give the same profile, interrupted or not.
Result<CalibrateResult> Calibrate(Model& model, std::span<const std::vector<TokenId>> calibration,
                                  std::span<const std::vector<TokenId>> held_out,
                                  const CalibrateOptions& options);

// "k3v2-anchor1" of a format whose rungs are these.
std::string RungsName(const FormatLadder& ladder, int k_rung, int v_rung);

nlohmann::ordered_json CalibrateJson(const CalibrateResult& result);
std::string CalibrateText(const CalibrateResult& result);     // for a terminal
std::string CalibrateSection(const CalibrateResult& result);  // HTML for a report

}  // namespace tq
