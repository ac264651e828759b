#include "runtime/evaluate/tasks/facts.h"

#include <algorithm>
#include <array>
#include <iterator>

#include "runtime/tokenizer/text_normalizer.h"
#include "runtime/tokenizer/utf8.h"

namespace tq {
namespace {

struct Char {
  uint32_t code = 0;  // 0: no character
  size_t begin = 0;   // byte
};

std::vector<Char> Characters(std::string_view text) {
  std::vector<Char> out;
  for (size_t pos = 0; pos < text.size();) {
    const Utf8Char c = DecodeUtf8(text.substr(pos));
    out.push_back({c.size > 0 ? c.code_point : 0, pos});
    pos += c.size > 0 ? static_cast<size_t>(c.size) : 1;
  }
  out.push_back({0, text.size()});
  return out;
}

bool IsDigit(uint32_t c) {
  return c >= '0' && c <= '9';
}
bool IsApostrophe(uint32_t c) {
  return c == '\'' || c == 0x2019;
}

// Between two digits or letters these belong to the word: "3.14", "10:30", "it's", "well-known".
bool JoinsWord(uint32_t c) {
  return c == '.' || c == ',' || c == ':' || c == '-' || c == '/' || IsApostrophe(c);
}

bool EndsSentence(uint32_t c) {
  return c == '.' || c == '!' || c == '?' || c == ':' || c == '\n' || c == 0x3002;
}

// "1,234,567" without its commas; anything else as it is.
std::string WithoutThousands(const std::string& number) {
  if (number.find(',') == std::string::npos) return number;
  const size_t end = std::min(number.find('.'), number.size());
  size_t group = 0;  // digits since the last comma
  bool seen = false;
  std::string out;
  for (size_t i = 0; i < end; ++i) {
    if (number[i] == ',') {
      if (seen ? group != 3 : group == 0 || group > 3) return number;
      seen = true;
      group = 0;
    } else {
      ++group;
      out += number[i];
    }
  }
  if (group != 3) return number;
  return out + number.substr(end);
}

void SortUnique(std::vector<std::string>& list) {
  std::sort(list.begin(), list.end());
  list.erase(std::unique(list.begin(), list.end()), list.end());
}

void FindQuotes(std::string_view text, const std::vector<Char>& chars, Facts& facts) {
  constexpr size_t kMostChars = 300;
  static constexpr std::array<std::pair<uint32_t, uint32_t>, 4> kPairs = {
      {{'"', '"'}, {0x201C, 0x201D}, {0xAB, 0xBB}, {'`', '`'}}};
  for (size_t i = 0; i + 1 < chars.size(); ++i) {
    for (const auto& [open, close] : kPairs) {
      if (chars[i].code != open) continue;
      // A straight quote behind a word closes, or means inches.
      if (open == close && i > 0 && (IsLetter(chars[i - 1].code) || IsDigit(chars[i - 1].code))) {
        continue;
      }
      size_t end = i + 1;
      while (end + 1 < chars.size() && end - i <= kMostChars && chars[end].code != close &&
             chars[end].code != '\n') {
        ++end;
      }
      if (end + 1 >= chars.size() || chars[end].code != close) continue;
      std::string_view inside =
          text.substr(chars[i + 1].begin, chars[end].begin - chars[i + 1].begin);
      while (!inside.empty() && inside.front() == ' ') inside.remove_prefix(1);
      while (!inside.empty() && inside.back() == ' ') inside.remove_suffix(1);
      if (!inside.empty()) facts.quotes.emplace_back(inside);
      i = end;
      break;
    }
  }
}

}  // namespace

Facts FindFacts(std::string_view text) {
  Facts facts;
  const std::vector<Char> chars = Characters(text);
  const auto is_word = [&](size_t i) { return IsDigit(chars[i].code) || IsLetter(chars[i].code); };
  bool begins_sentence = true;
  for (size_t i = 0; i + 1 < chars.size();) {
    if (!is_word(i)) {
      begins_sentence |= EndsSentence(chars[i].code);
      ++i;
      continue;
    }
    size_t end = i;
    int letters = 0, digits = 0, capitals = 0;
    while (end + 1 < chars.size()) {
      const uint32_t c = chars[end].code;
      if (!is_word(end)) {
        // A mark joins what stands on both sides; full stops, commas and colons only digits.
        const bool between_digits =
            end > i && IsDigit(chars[end - 1].code) && IsDigit(chars[end + 1].code);
        const bool between_letters = (c == '-' || IsApostrophe(c)) && is_word(end + 1);
        if (!JoinsWord(c) || !(between_digits || between_letters)) break;
      }
      letters += IsLetter(c);
      digits += IsDigit(c);
      capitals += IsUpperCase(c);
      ++end;
    }
    const bool negative = digits > 0 && letters == 0 && i > 0 && chars[i - 1].code == '-' &&
                          (i == 1 || chars[i - 2].code == ' ' || chars[i - 2].code == '(');
    const size_t begin = negative ? i - 1 : i;
    std::string word(text.substr(chars[begin].begin, chars[end].begin - chars[begin].begin));
    if (digits > 0) {
      facts.numbers.push_back(letters == 0 ? WithoutThousands(word) : word);
    } else {
      const size_t apostrophe = std::min(word.find('\''), word.find("\xE2\x80\x99"));
      const std::string stem = word.substr(0, apostrophe);
      const bool acronym = letters >= 2 && capitals == letters;
      if (IsUpperCase(chars[i].code) && stem != "I" && (!begins_sentence || acronym)) {
        facts.names.push_back(stem);
      }
    }
    // "Mr. Darcy": a full stop behind a short capitalized word ends no sentence.
    const bool abbreviation = IsUpperCase(chars[i].code) && letters <= 3 && chars[end].code == '.';
    begins_sentence = false;
    i = abbreviation ? end + 1 : end;
  }
  FindQuotes(text, chars, facts);
  for (std::vector<std::string>* list : {&facts.numbers, &facts.names, &facts.quotes}) {
    SortUnique(*list);
  }
  return facts;
}

std::optional<double> FactAgreement(const Facts& a, const Facts& b) {
  size_t both = 0, either = 0;
  for (const auto list : {&Facts::numbers, &Facts::names, &Facts::quotes}) {
    std::vector<std::string> common;
    std::set_intersection((a.*list).begin(), (a.*list).end(), (b.*list).begin(), (b.*list).end(),
                          std::back_inserter(common));
    both += common.size();
    either += (a.*list).size() + (b.*list).size() - common.size();
  }
  if (either == 0) return std::nullopt;
  return static_cast<double>(both) / static_cast<double>(either);
}

Facts Union(const std::vector<Facts>& all) {
  Facts out;
  for (const auto list : {&Facts::numbers, &Facts::names, &Facts::quotes}) {
    for (const Facts& facts : all) {
      (out.*list).insert((out.*list).end(), (facts.*list).begin(), (facts.*list).end());
    }
    SortUnique(out.*list);
  }
  return out;
}

std::vector<std::string> FactsOnlyIn(const Facts& a, const Facts& b) {
  std::vector<std::string> out;
  for (const auto list : {&Facts::numbers, &Facts::names, &Facts::quotes}) {
    std::set_difference((a.*list).begin(), (a.*list).end(), (b.*list).begin(), (b.*list).end(),
                        std::back_inserter(out));
  }
  return out;
}

}  // namespace tq
