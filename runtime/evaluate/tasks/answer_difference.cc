#include "runtime/evaluate/tasks/answer_difference.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <set>

#include "runtime/evaluate/blanks.h"
#include "runtime/evaluate/tasks/repetition.h"
#include "turboquant/base/json_object.h"

namespace tq {
namespace {

using nlohmann::ordered_json;

// Words and single marks, with the blanks before them.
std::vector<std::string> Pieces(std::string_view text) {
  const auto is_word = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
           static_cast<unsigned char>(c) >= 0x80;
  };
  std::vector<std::string> pieces;
  for (size_t at = 0; at < text.size();) {
    size_t end = at;
    while (end < text.size() && IsBlank(text[end])) ++end;
    if (end < text.size() && !is_word(text[end])) {
      ++end;
    } else {
      while (end < text.size() && is_word(text[end])) ++end;
    }
    pieces.emplace_back(text.substr(at, end - at));
    at = end;
  }
  return pieces;
}

void AddShape(const ordered_json& value, const std::string& path, std::set<std::string>* shape) {
  // Integers and floats are one type: 1 and 1.0 are the same to most readers.
  shape->insert(path + ": " + (value.is_number() ? "number" : value.type_name()));
  if (value.is_object()) {
    for (const auto& [key, member] : value.items()) {
      AddShape(member, path + "." + key, shape);
    }
  } else if (value.is_array()) {
    for (const ordered_json& element : value) AddShape(element, path + "[]", shape);
  }
}

// Name and arguments of a call of OpenAI's form; null for what is missing.
std::pair<nlohmann::json, nlohmann::json> CallOf(const ordered_json& call) {
  const auto function = call.is_object() ? call.find("function") : call.end();
  if (!call.is_object() || function == call.end() || !function->is_object()) return {};
  std::pair<nlohmann::json, nlohmann::json> out;
  if (function->contains("name")) out.first = (*function)["name"];
  if (function->contains("arguments")) {
    const nlohmann::json arguments = (*function)["arguments"];
    out.second = arguments;
    if (arguments.is_string()) {
      // Not ordered: the order of keys does not count.
      Result<nlohmann::json> parsed = ParseJson(arguments.get<std::string>(), "arguments");
      if (parsed.ok()) out.second = *std::move(parsed);
    }
  }
  return out;
}

bool SameCalls(const ordered_json& a, const ordered_json& b, bool arguments) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    const auto x = CallOf(a[i]), y = CallOf(b[i]);
    if (x.first != y.first || (arguments && x.second != y.second)) return false;
  }
  return true;
}

}  // namespace

double WordOverlap(std::string_view a, std::string_view b) {
  std::map<std::string, int64_t> counts;
  int64_t total = 0, common = 0;
  for (const std::string& piece : Pieces(a)) {
    ++counts[std::string(Trim(piece))];
    ++total;
  }
  for (const std::string& piece : Pieces(b)) {
    const auto it = counts.find(std::string(Trim(piece)));
    if (it != counts.end() && it->second-- > 0) ++common;
    ++total;
  }
  return total == 0 ? 1 : 2 * static_cast<double>(common) / static_cast<double>(total);
}

std::optional<ordered_json> JsonOf(const std::string& answer) {
  std::string_view text = Trim(answer);
  if (text.starts_with("```")) {
    const size_t line = text.find('\n');
    const size_t end = text.rfind("```");
    if (line == std::string_view::npos || end <= line) return std::nullopt;
    text = Trim(text.substr(line, end - line));
  }
  if (text.empty() || (text.front() != '{' && text.front() != '[')) return std::nullopt;
  Result<ordered_json> json = ParseJson<ordered_json>(text, "answer");
  return json.ok() ? *std::move(json) : ordered_json(ordered_json::value_t::discarded);
}

std::vector<std::string> ShapeOf(const ordered_json& value) {
  std::set<std::string> shape;
  AddShape(value, "$", &shape);
  return {shape.begin(), shape.end()};
}

bool SameToolCallNames(const ordered_json& a, const ordered_json& b) {
  return SameCalls(a, b, false);
}

bool SameToolCalls(const ordered_json& a, const ordered_json& b) {
  return SameCalls(a, b, true);
}

Result<AnswerDifference> CompareAnswers(const Reply& baseline, const Reply& candidate,
                                        const TextSimilarity& similarity) {
  AnswerDifference d;
  d.tool_names_differ = !SameToolCallNames(baseline.tool_calls, candidate.tool_calls);
  d.tool_calls_differ = !SameToolCalls(baseline.tool_calls, candidate.tool_calls);
  d.exact = baseline.text == candidate.text && !d.tool_calls_differ;
  d.finish_differs = baseline.finish_reason != candidate.finish_reason;

  d.in_tokens = !baseline.tokens.empty() && !candidate.tokens.empty();
  const std::vector<std::string> a = d.in_tokens ? baseline.tokens : Pieces(baseline.text);
  const std::vector<std::string> b = d.in_tokens ? candidate.tokens : Pieces(candidate.text);
  d.baseline_pieces = static_cast<int64_t>(a.size());
  d.candidate_pieces = static_cast<int64_t>(b.size());
  if (a != b) d.first_difference = std::ranges::mismatch(a, b).in1 - a.begin();

  const auto json_a = JsonOf(baseline.text), json_b = JsonOf(candidate.text);
  d.baseline_is_json = json_a && !json_a->is_discarded();
  d.candidate_is_json = json_b && !json_b->is_discarded();
  d.json_broken = d.baseline_is_json && !d.candidate_is_json;
  d.shape_differs =
      d.baseline_is_json && d.candidate_is_json && ShapeOf(*json_a) != ShapeOf(*json_b);

  if (baseline.text != candidate.text) {
    TQ_ASSIGN_OR_RETURN(d.similarity, similarity(baseline.text, candidate.text));
  }
  d.baseline_repetition = RepeatedShare(baseline.text);
  d.candidate_repetition = RepeatedShare(candidate.text);
  return d;
}

}  // namespace tq
