// Texts that are hard for a cache that forgets details: near-duplicate facts, late contradictions,
// facts by the thousand, exact copying of code and JSON, repeated patterns.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/evaluate/tasks/haystack.h"
#include "runtime/evaluate/tasks/trial.h"

namespace tq {

// near_duplicates, contradictions, distractors, copy_code, copy_json, patterns.
std::span<const TrialKind> AdversarialKinds();

// How hard the kinds are. kEasy: fewer look-alikes, so that models of some hundred million weights
// can do it and their caches can be told apart; kHard: as many as there is room for, for models
// that get everything right otherwise.
enum class AdversarialLevel { kEasy, kHard };
// Small models are asked in primed form, and what answers in chats is asked the hard ones.
inline AdversarialLevel DefaultLevel(AskForm form) {
  return form == AskForm::kPrimed ? AdversarialLevel::kEasy : AdversarialLevel::kHard;
}

struct AdversarialOptions {
  std::vector<std::string> kinds;  // empty: all
  AdversarialLevel level = AdversarialLevel::kEasy;
  int64_t length = 2048;                 // tokens of the prompt
  std::string length_flag = "--length";  // that gave it, for messages; or empty
  int questions = 10;                    // of each kind
  uint64_t seed = 0;
  std::string text_name, text;  // what lies around the facts
  TrialOptions run;
};

struct AdversarialResult {
  std::string text_name;
  AdversarialLevel level = AdversarialLevel::kEasy;
  int64_t length = 0;
  std::vector<std::string> kinds;
  uint64_t seed = 0;
  TrialsResult trials;
};

// Deterministic from the seed. kInvalidArgument: an unknown kind, fewer than 1 question, a length
// that does not hold what the kind needs (numbers).
Result<std::vector<Trial>> MakeAdversarialTrials(const Haystack& haystack,
                                                 const AdversarialOptions& options);

// Several candidates against one baseline.
Result<AdversarialResult> RunAdversarial(Responder& baseline,
                                         std::span<Responder* const> candidates,
                                         const AdversarialOptions& options);

// What --json prints, and a section of a report.
nlohmann::ordered_json AdversarialJson(const AdversarialResult& result);
std::string AdversarialSection(const AdversarialResult& result);

}  // namespace tq
