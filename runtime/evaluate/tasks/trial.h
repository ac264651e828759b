// One question about a long text whose answer can be scored exactly, what two or more responders
// made of it, and the counts over many of them.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "runtime/evaluate/tasks/responder.h"
#include "runtime/evaluate/tasks/statistics.h"
#include "turboquant/base/sinks.h"

namespace tq {

// How a question is put: as the beginning of its answer, which the model goes on writing (a
// completion: what small models can do), or as a question in a chat.
enum class AskForm { kPrimed, kChat };

enum class ScoreRule {
  kValue,  // the first word of a primed answer; in a chat: said, and none of the wrong ones
  kAll,    // the share of the expected values that the answer holds
  kCopy,   // the answer begins with the expected text (in a chat: holds it), byte by byte
};

struct Trial {
  std::string kind;
  int64_t length = 0;  // tokens asked for, question included
  double depth = -1;   // of what is asked for; below 0: it has no single place
  std::shared_ptr<const std::string> text;
  std::string primer, question;  // of the two forms
  ScoreRule rule = ScoreRule::kValue;
  std::vector<std::string> expected;  // several only for kAll
  std::vector<std::string> wrong;     // for kValue in chats
  int max_tokens = 16;                // of the answer
};

struct Outcome {
  std::string answer;
  double share = 0;  // of what was expected; 1: right
  bool right() const { return share >= 1; }
};

// The body of a request at temperature 0.
nlohmann::ordered_json RequestOf(const Trial& trial, AskForm form);
// 0..1; values are compared as whole words, whatever their case; copies byte by byte.
double ScoreAnswer(const Trial& trial, AskForm form, const std::string& answer);

// A kind of question, for help and reports.
struct TrialKind {
  const char* name;
  const char* what;  // one sentence, without its full stop
};
// `asked` in the order of `known`, each once; empty: all of them. kInvalidArgument lists the known.
Result<std::vector<std::string>> ChooseKinds(std::span<const TrialKind> known,
                                             const std::vector<std::string>& asked);

struct TrialOptions {
  AskForm form = AskForm::kPrimed;
  ProgressSink progress;  // trials, over all responders together
  const std::atomic<bool>* cancel = nullptr;
};

struct TrialsResult {
  AskForm form = AskForm::kPrimed;
  std::string baseline;  // names
  std::vector<std::string> candidates;
  std::vector<Trial> trials;
  std::vector<Outcome> baseline_outcomes;                // [trials]
  std::vector<std::vector<Outcome>> candidate_outcomes;  // [candidates][trials]
};

// Every trial once to the baseline and to each candidate. The first error ends it.
Result<TrialsResult> RunTrials(Responder& baseline, std::span<Responder* const> candidates,
                               std::vector<Trial> trials, const TrialOptions& options);

// --- Counts over some of the trials -------------------------------------------------------------
struct Tally {
  int64_t trials = 0, right = 0;
  double rate = 0, mean_share = 0;  // right / trials; mean share of what was expected
  Interval interval;                // of the rate
};
struct CandidateTally {
  Tally tally;
  int64_t gained = 0, lost = 0;  // right here alone; right with the baseline alone
  PairedDifference difference;   // of the rates
};
struct GroupTally {
  Tally baseline;
  std::vector<CandidateTally> candidates;
  // Whether the baseline itself can do it: a mean share of at least kInformativeShare.
  bool informative = false;
};
inline constexpr double kInformativeShare = 0.5;

// Over the trials that `wanted` accepts.
GroupTally TallyOf(const TrialsResult& result, const std::function<bool(const Trial&)>& wanted);
GroupTally TallyOfKind(const TrialsResult& result, const std::string& kind);
// Over the kinds that the baseline can do: those say something about the candidates.
GroupTally TallyOfInformative(const TrialsResult& result);
// The kinds that occur, in their order.
std::vector<std::string> KindsOf(const TrialsResult& result);

}  // namespace tq
