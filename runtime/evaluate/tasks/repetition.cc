#include "runtime/evaluate/tasks/repetition.h"

#include <algorithm>
#include <cctype>
#include <unordered_set>

#include "runtime/evaluate/blanks.h"

namespace tq {
namespace {

// Where the words of a text begin, and the end of the last.
std::vector<std::string_view> Words(std::string_view text) {
  std::vector<std::string_view> words;
  for (size_t pos = 0; pos < text.size();) {
    while (pos < text.size() && IsBlank(text[pos])) ++pos;
    size_t end = pos;
    while (end < text.size() && !IsBlank(text[end])) ++end;
    if (end > pos) words.push_back(text.substr(pos, end - pos));
    pos = end;
  }
  return words;
}

}  // namespace

double RepeatedShare(std::string_view text, int length) {
  const std::vector<std::string_view> words = Words(text);
  const auto n = static_cast<size_t>(length);
  if (words.size() < n + 1) return 0;
  const size_t runs = words.size() - n + 1;
  std::unordered_set<std::string> seen;
  for (size_t i = 0; i < runs; ++i) {
    std::string run;
    for (size_t k = 0; k < n; ++k) {
      for (const char c : words[i + k]) {
        run += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
      }
      run += ' ';
    }
    seen.insert(std::move(run));
  }
  return 1 - static_cast<double>(seen.size()) / static_cast<double>(runs);
}

std::vector<std::string> Quarters(std::string_view text, size_t min_words) {
  const std::vector<std::string_view> words = Words(text);
  if (words.size() < std::max<size_t>(min_words, 4)) return {};
  std::vector<std::string> parts;
  for (size_t q = 0; q < 4; ++q) {
    const std::string_view first = words[q * words.size() / 4];
    const std::string_view last = words[(q + 1) * words.size() / 4 - 1];
    parts.emplace_back(first.data(), last.data() + last.size());
  }
  return parts;
}

}  // namespace tq
