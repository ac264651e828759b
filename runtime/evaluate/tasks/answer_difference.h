// What differs between two answers to the same request.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/evaluate/tasks/responder.h"
#include "turboquant/base/status.h"

namespace tq {

// 0 (nothing in common) to 1 (the same).
using TextSimilarity = std::function<Result<double>(const std::string& a, const std::string& b)>;

// Words in both / words in either, each as often as it stands there (Dice's coefficient); two texts
// without words: 1.
double WordOverlap(std::string_view a, std::string_view b);

// The JSON that an answer consists of, also inside a code fence; nothing where the answer does not
// begin like JSON. A value that cannot be parsed, or nests too deeply, is_discarded().
std::optional<nlohmann::ordered_json> JsonOf(const std::string& answer);

// The paths of all values with their types, sorted, each once: {"a": [1, {"b": ""}]} gives
// "$: object" and "$.a: array", "$.a[].b: string", "$.a[]: number", "$.a[]: object".
std::vector<std::string> ShapeOf(const nlohmann::ordered_json& value);

// Of tool calls: names in their order, then the arguments where they are JSON (parsed, so that
// blanks and the order of keys do not count), their text otherwise.
bool SameToolCallNames(const nlohmann::ordered_json& a, const nlohmann::ordered_json& b);
bool SameToolCalls(const nlohmann::ordered_json& a, const nlohmann::ordered_json& b);

struct AnswerDifference {
  bool exact = false;  // text and tool calls are the same
  // The first piece that differs, of the shorter answer's end at the latest; -1: none does. Pieces
  // are tokens where both answers tell theirs, words otherwise.
  int64_t first_difference = -1;
  bool in_tokens = false;
  int64_t baseline_pieces = 0, candidate_pieces = 0;
  bool baseline_is_json = false, candidate_is_json = false;  // valid
  bool json_broken = false;    // the baseline's is valid, the candidate's is not
  bool shape_differs = false;  // both are valid, with other keys or types
  bool tool_calls_differ = false, tool_names_differ = false;
  bool finish_differs = false;
  double similarity = 1;
  double baseline_repetition = 0, candidate_repetition = 0;  // repetition.h

  // Anything that a program would notice: JSON, tool calls, why it ended.
  bool is_structural() const {
    return json_broken || shape_differs || tool_calls_differ || finish_differs;
  }
};

// Errors of `similarity`.
Result<AnswerDifference> CompareAnswers(const Reply& baseline, const Reply& candidate,
                                        const TextSimilarity& similarity);

}  // namespace tq
