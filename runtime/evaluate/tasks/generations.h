// The job of tq eval generate: several answers to each prompt from two responders, compared in
// meaning (embeddings) and in detail (numbers, names, quotes), against how much the baseline's own
// answers differ from each other.
//
// Answers A_1 .. A_n of the baseline and C_1 .. C_n of the candidate have the same seeds. Pairs of
// different seeds (A_i, A_j) are the floor, pairs (C_i, A_j) with i != j the measurement: were the
// candidate the baseline, both would have the same mean. The difference of the means is what the
// candidate changes; its interval is a bootstrap over prompts.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "runtime/evaluate/similarity.h"
#include "runtime/evaluate/tasks/prompts.h"
#include "runtime/evaluate/tasks/responder.h"
#include "runtime/evaluate/tasks/statistics.h"
#include "turboquant/base/sinks.h"

namespace tq {

struct GenerationsOptions {
  std::vector<Prompt> prompts;
  int generations = 3;       // of each prompt and responder, 2 to 16
  double temperature = 0.7;  // of all of them
  uint64_t seed = 0;
  std::string embeddings_name;                            // for the report
  std::function<std::string(const std::string&)> redact;  // on every answer, first of all
  ProgressSink progress;                                  // answers
  const std::atomic<bool>* cancel = nullptr;
};

// Candidate against baseline, beside baseline against itself: means over prompts.
struct Contrast {
  double candidate = 0, floor = 0, difference = 0;  // difference = candidate - floor
  std::optional<Interval> interval;  // of the difference, 95 %; of two prompts or more
  int64_t prompts = 0;               // 0: nothing to compare
};

// A share or a mean of each one's answers: means over prompts.
struct Versus {
  double baseline = 0, candidate = 0, difference = 0;
  std::optional<Interval> interval;
  int64_t prompts = 0;
};

struct GenerationsGroup {
  int64_t prompts = 0;
  Contrast similarity;      // cosine, 1: the same meaning
  Contrast facts;           // agreement of numbers, names and quotes, over prompts that have some
  double same_answers = 0;  // share of answers that are the same text for the same seed
  Versus right;             // share of answers that hold what was expected
  Versus repetition;        // RepeatedShare of 4 words
  Versus words;             // of an answer
  // Long answers only:
  Versus drift;                          // 1 - similarity of the last quarter to the first
  std::array<Contrast, 4> by_quarter{};  // similarity, quarter by quarter: do errors add up?
};

struct GenerationsCase {
  Prompt prompt;
  std::vector<std::string> baseline = {}, candidate = {};  // answers, by seed
  double similarity = 0, floor = 0;
  // Facts of all answers of one that no answer of the other has.
  std::vector<std::string> lost = {}, added = {};
  std::string error = {};  // why there are no answers; empty: there are
};

struct GenerationsResult {
  std::string baseline_name, candidate_name, embeddings_name;
  int generations = 0;
  double temperature = 0;
  uint64_t seed = 0;
  GenerationsGroup all;  // long answers too
  std::array<GenerationsGroup, kNumPromptGroups> groups;
  // Mean similarity of the baseline's answers to different prompts: what "nothing in common" is.
  double unrelated = 0;
  int64_t failed = 0;                  // prompts without answers
  double answered_share = 1;           // of the prompts that the baseline answers
  std::vector<GenerationsCase> cases;  // in the order of the prompts
  bool informative = true;
  std::string note;  // why not
};

// kInvalidArgument: no prompts, a number of generations out of range, every request refused (the
// first refusal is named). Errors of responders that end everything; kCancelled.
Result<GenerationsResult> RunGenerations(Responder& baseline, Responder& candidate,
                                         const TextEmbedder& embedder,
                                         const GenerationsOptions& options);

// Why the candidate fails; empty: it does not. It answers less than kLeastAnswered of what the
// baseline answers; or, where `max_loss` is given, its difference in meaning is below minus that
// with its whole range, or nothing can be told.
std::string FailureOf(const GenerationsResult& result, const std::optional<double>& max_loss);

nlohmann::ordered_json GenerationsJson(const GenerationsResult& result);
// A section of a report: a sentence, the table of groups, answers side by side, the most different
// first.
std::string GenerationsSection(const GenerationsResult& result);

}  // namespace tq
