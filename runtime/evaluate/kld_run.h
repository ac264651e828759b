// The job of tq eval kld and ppl: texts through a reference and candidates side by side, all
// statistics of the next-token distributions, beside a noise floor, with a verdict and a gate.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/evaluate/divergence.h"
#include "turboquant/calibrate/text_sketch.h"

namespace tq {

struct EvalText {
  std::string name;
  std::vector<std::vector<TokenId>> windows;
};

// The windows of all texts, in order, with what a result says of them.
struct EvalWindows {
  std::vector<std::vector<TokenId>> windows;
  int64_t tokens = 0;
  int64_t context_len = 0;  // of the longest
};
EvalWindows AllWindows(std::span<const EvalText> texts);

// The mean KL that is asked for where nobody names one.
inline constexpr double kDefaultTargetKld = 0.005;

// What a row must keep to pass; what is not set is not asked. GateFailures is the rule.
struct KldGate {
  std::optional<double> max_kld;        // of the mean KL, beyond its standard error
  std::optional<double> max_ppl_ratio;  // of the ratio of perplexities
  std::optional<double> min_same_top;   // of the share of equal most probable tokens, 0..1
  bool any() const { return max_kld || max_ppl_ratio || min_same_top; }
};

struct KldOptions {
  Stream reference;  // the plain cache
  Stream floor;      // close to lossless; may be among the candidates
  // A second floor that nothing is judged by: the model with keys and values of 32 bits (F32Model),
  // which shows what the plain cache itself costs.
  std::optional<Stream> f32_floor;
  std::vector<Stream> candidates;
  // What each candidate was calibrated on, as far as known; empty or one for each candidate.
  std::vector<TextSketch> calibrated_on;
  std::vector<EvalText> texts;
  KldGate gate;
  DivergenceOptions measure;
};

enum class KldVerdict {
  kSame,   // within the noise floor
  kWorse,  // above it; a lower perplexity does not change that
};

// One text, or all together.
struct KldStatistics {
  std::string name;
  DivergenceSummary all, behind;  // behind: >= kBehind quantized tokens behind the position
  GroupedMean over_windows;       // of the mean KL
  std::vector<double> window_means;
};

struct KldRow {
  std::string name;
  CacheConfig config;
  double bits_per_value = 0;    // of sealed blocks
  double bits_all_counted = 0;  // at the length of the windows, recent tokens and sinks too
  double scales_share = 0;
  VSkipTotals v_skip;
  std::string kernel;
  KldStatistics total;
  std::vector<KldStatistics> texts;
  std::vector<PositionBucket> by_position;
  std::vector<double> head_cosine;  // [layers * query heads]; empty when shapes differ
  std::vector<double> layer_cosine;
  KldVerdict verdict = KldVerdict::kSame;
  std::string explanation;            // of the verdict, one sentence
  std::vector<std::string> failures;  // of the gate, one sentence each; empty: passed
  TextOverlap seen;  // what its calibration read of these texts; no pieces: not known
};

struct KldResult {
  std::string model_name, reference_name;
  int64_t context_len = 0;  // of the longest window
  int64_t windows = 0, tokens = 0;
  int64_t first_scored = 0;
  std::string floor_name;
  KldStatistics floor;
  std::optional<KldStatistics> f32_floor;
  std::vector<KldRow> rows;  // in the order of the candidates
  KldGate gate;
  // False when the plain model hardly predicts these texts: then they say nothing about a cache.
  bool informative = true;
  std::string note;  // why not
  bool passed() const;

  static constexpr int64_t kBehind = 1024;
};

// What the 16 bits of the plain cache cost, in a sentence.
std::string F32FloorWords(const KldStatistics& floor);

// That a calibration read a good part of the texts that its profile is measured on, in a sentence;
// empty where it did not, or nothing is known.
std::string SeenWords(const TextOverlap& seen);

// Why texts on which the plain model has this perplexity say little about a cache; empty where they
// say something.
std::string WhyNotInformative(double plain_ppl, int vocab_size);

// The rule of passing, for the flags of `tq eval kld` and `ppl`, the target of a calibration and
// the block `quality` of a profile alike. (Bounds of a suite's gate file are compared as they are.)
// What of `gate` these statistics do not keep, one sentence each; none: passed.
// - A mean KL passes unless it is above its bound by more than its standard error: which windows
// were
//   drawn must not decide. More tokens make the error smaller and the rule stricter.
// - A ratio of perplexities and a share of equal tokens are compared as they are.
// - `not_informative` (of WhyNotInformative): a text that says nothing of a cache fails whatever
// was
//   asked.
std::vector<std::string> GateFailures(const KldGate& gate, const DivergenceSummary& s,
                                      const std::string& not_informative);
// Fills the failures of every row.
void ApplyGate(KldResult* result);

// Errors of MeasureDivergence.
Result<KldResult> RunKld(const KldOptions& options);

// One candidate: its keys on top; several: `rows`. The keys are those of the command line.
nlohmann::ordered_json KldJson(const KldResult& result);
// A section of a report: what was measured, a table, charts.
std::string KldSection(const KldResult& result);

}  // namespace tq
