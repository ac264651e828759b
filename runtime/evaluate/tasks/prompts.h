// The prompts of tq eval generate: short questions, details of long texts, adversarial long texts,
// and long answers; made from a text, or taken from recorded requests.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "runtime/evaluate/corpus.h"
#include "runtime/evaluate/tasks/haystack.h"
#include "turboquant/base/status.h"

namespace tq {

enum class PromptGroup { kShort, kLong, kAdversarial, kLongAnswer };
inline constexpr int kNumPromptGroups = 4;
const char* PromptGroupName(PromptGroup group);   // "short", "long", "adversarial", "long_answer"
const char* PromptGroupTitle(PromptGroup group);  // for reports: "Short questions"

struct Prompt {
  std::string name;  // "short 1", "log.jsonl, line 17"
  PromptGroup group = PromptGroup::kShort;
  // An OpenAI body with max_tokens; temperature and seed are set by who asks.
  nlohmann::ordered_json request = {};
  std::string question = {};  // what a report shows: the end of the prompt
  std::string expected = {};  // what a right answer holds; empty: nothing certain
};

struct PromptOptions {
  int64_t long_tokens = 1024;                   // of a long prompt
  std::string length_flag = "--prompt-tokens";  // that gave it, for messages
  int per_group = 4;                            // of each group but kLongAnswer, at most
  int long_answers = 2;                         // of kLongAnswer
  int answer_tokens = 64;                       // of an answer
  int long_answer_tokens = 512;                 // of kLongAnswer
  bool chat = true;   // false: completions only, for models without a chat template
  uint64_t seed = 0;  // of numbers and places
};

// The same options give the same prompts. kInvalidArgument: the text is too short (both numbers).
Result<std::vector<Prompt>> MakePrompts(const Haystack& haystack, const PromptOptions& options);

// One prompt for each request, with the group that its length puts it in (kLong from half of
// long_tokens on), per_group of each at most, and long_answers of them once more with long answers;
// adversarial prompts are those of MakePrompts. Texts are left out. kInvalidArgument: no requests.
Result<std::vector<Prompt>> PromptsFromRequests(const std::vector<CorpusItem>& items,
                                                const Haystack& haystack,
                                                const PromptOptions& options);

}  // namespace tq
