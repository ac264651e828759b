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

struct AdversarialOptions {
  std::vector<std::string> kinds;  // empty: all
  int64_t length = 2048;           // tokens of the prompt
  int questions = 10;              // of each kind
  uint64_t seed = 0;
  std::string text_name, text;  // what lies around the facts
  TrialOptions run;
};

struct AdversarialResult {
  std::string text_name;
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
