// Recorded requests through a baseline and candidates: how often do answers differ, beyond how
// often the baseline differs from itself?
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/evaluate/corpus.h"
#include "runtime/evaluate/tasks/answer_difference.h"
#include "runtime/evaluate/tasks/responder.h"
#include "runtime/evaluate/tasks/statistics.h"
#include "turboquant/base/sinks.h"

namespace tq {

struct ReplayOptions {
  std::vector<CorpusItem> requests;   // texts among them are passed over
  size_t most_requests = SIZE_MAX;    // of them; texts do not count
  std::optional<double> temperature;  // instead of the recorded ones
  int max_tokens = 256;               // of an answer, where the request allows more or says nothing
  uint64_t seed = 0;
  // Answers count as different below this similarity, and where JSON, tool calls or the reason to
  // end differ. 1: as soon as they are not the same text.
  double same_from = 1;
  // Of difference_rate: a candidate above it fails, and any where the result is not informative.
  std::optional<double> max_difference;
  int num_worst = 10;         // cases that a report shows
  TextSimilarity similarity;  // empty: WordOverlap
  std::string similarity_name = "word overlap";
  std::function<std::string(const std::string&)> redact;  // on all that is shown
  ProgressSink progress;                                  // answers
  const std::atomic<bool>* cancel = nullptr;
};

// Means over requests that both sides answered.
struct ReplaySide {
  double exact_rate = 0, different_rate = 0;  // of `same_from`
  double similarity = 0;
  double structural_rate = 0;           // JSON, tool calls or the reason to end
  double median_first_difference = -1;  // piece, over those that differ; -1: none does
  int64_t json = 0, json_broken = 0, shape_differs = 0;  // answers of the baseline that are JSON
  int64_t tool_calls = 0, tool_names_differ = 0, tool_calls_differ = 0;
  int64_t finish_differs = 0;
  double length_ratio = 1;  // pieces of these answers / pieces of the baseline's
  double repetition = 0;    // RepeatedShare of these answers
};

struct ReplayCase {
  std::string name;     // "log.jsonl, line 17"
  std::string request;  // its last message or prompt
  Reply baseline, candidate;
  AnswerDifference difference;
  bool counts_as_different = false;
};

struct ReplayCandidate {
  std::string name;
  ReplaySide side;
  int64_t requests = 0;  // that it answered too
  // different_rate minus the floor's, over these requests, with the interval of a bootstrap over
  // requests (where all of them agree: DifferenceOfShares). The floor: the baseline against itself
  // with another seed, or at temperature 0 asked again; exactly 0 for a local baseline at
  // temperature 0.
  double difference_rate = 0;
  Interval difference_interval;
  double similarity_loss = 0;  // similarity of the floor minus this one's
  Interval similarity_loss_interval;
  std::vector<ReplayCase> cases;  // the most different first
  // Why it fails: above max_difference, or less than kLeastAnswered of the requests answered.
  // Empty: it passed.
  std::string failure;
  bool passed() const { return failure.empty(); }
  double answered_share = 0;  // requests / those that the baseline answered
};

struct ReplayResult {
  std::string baseline;
  int64_t requests = 0;  // that the baseline answered
  struct Skipped {
    std::string reason;
    int64_t count = 0;
    std::string example;  // the name of the first
  };
  std::vector<Skipped> skipped;
  int64_t unconstrained = 0;    // requests whose response_format was left out for a local model
  bool floor_is_exact = false;  // the baseline cannot differ from itself: it was not asked again
  ReplaySide floor;
  double baseline_repetition = 0;
  std::vector<ReplayCandidate> candidates;
  uint64_t seed = 0;
  std::optional<double> temperature, max_difference;
  double same_from = 1;
  std::string similarity_name;
  int num_worst = 10;
  bool informative = true;
  std::string note;
  bool passed() const;
};

// The body that is sent: with the given temperature and limit, without `stream`; `seed` where it is
// sampled.
nlohmann::ordered_json ReplayBody(const nlohmann::ordered_json& recorded,
                                  const ReplayOptions& options, uint64_t seed);

// kInvalidArgument: no requests, an option out of range, none that the baseline answers (with the
// first reason). Requests that one side refuses are left out and counted.
Result<ReplayResult> RunReplay(Responder& baseline, std::span<Responder* const> candidates,
                               const ReplayOptions& options);

// What --json prints, and a section of a report with the worst cases side by side.
nlohmann::ordered_json ReplayJson(const ReplayResult& result);
std::string ReplaySection(const ReplayResult& result);

}  // namespace tq
