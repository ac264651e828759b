// The details of a text that must be exact: numbers, names and quoted strings. Embeddings hardly
// see them (similarity.h), so answers are compared by both.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tq {

// Sorted, each once.
struct Facts {
  // "4711", "-3.5"; commas between groups of three digits are dropped. Words that hold digits too:
  // "K4V2", "10:30".
  std::vector<std::string> numbers;
  // Words with a capital that do not begin a sentence, and words of capitals alone: "Paris",
  // "NASA".
  std::vector<std::string> names;
  // What stands between double quotes, guillemets or backticks, without blanks at its ends.
  std::vector<std::string> quotes;
  bool empty() const { return numbers.empty() && names.empty() && quotes.empty(); }
};

// Any bytes; what is no UTF-8 separates words.
Facts FindFacts(std::string_view text);

// Facts in both / facts in either, 0 to 1; nothing where neither has any.
std::optional<double> FactAgreement(const Facts& a, const Facts& b);

// All facts of all texts, each once.
Facts Union(const std::vector<Facts>& all);
// Those of `a` that `b` has not, numbers first.
std::vector<std::string> FactsOnlyIn(const Facts& a, const Facts& b);

}  // namespace tq
