// Needles: facts in a long text and questions about them, of six kinds.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/evaluate/tasks/haystack.h"
#include "runtime/evaluate/tasks/trial.h"

namespace tq {

// single, multi_key, multi_value, variables, common_words, indirect.
std::span<const TrialKind> NeedleKinds();

struct NeedleOptions {
  std::vector<std::string> kinds;                     // empty: all
  std::vector<int64_t> lengths = {1024, 2048, 4096};  // tokens of the prompt
  std::string length_flag = "--lengths";              // that gave them, for messages; or empty
  std::vector<double> depths = {0.1, 0.3, 0.5, 0.7, 0.9};
  int samples = 1;  // texts of each kind, length (and depth of single)
  uint64_t seed = 0;
  std::string text_name, text;  // what the facts are planted in
  TrialOptions run;
};

struct NeedleResult {
  std::string text_name;
  std::vector<int64_t> lengths;
  std::vector<double> depths;
  std::vector<std::string> kinds;
  int samples = 1;
  uint64_t seed = 0;
  TrialsResult trials;
};

// The questions, in an order in which texts share long beginnings. kInvalidArgument: an unknown
// kind (lists those known), a depth outside 0..1, no length, a text that is too short.
Result<std::vector<Trial>> MakeNeedleTrials(const Haystack& haystack, const NeedleOptions& options);

// Several candidates against one baseline.
Result<NeedleResult> RunNeedle(Responder& baseline, std::span<Responder* const> candidates,
                               const NeedleOptions& options);

// What --json prints, and a section of a report.
nlohmann::ordered_json NeedleJson(const NeedleResult& result);
std::string NeedleSection(const NeedleResult& result);

}  // namespace tq
