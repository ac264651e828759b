#include "runtime/tokenizer/pre_tokenizer.h"

#include <cstdint>

#include "runtime/formats/pre_patterns.h"

namespace tq {
namespace {

// Unicode's White_Space, which is what \s means to the reference tokenizers, for use inside a
// character class. PCRE2's own \s also takes U+180E.
constexpr std::string_view kWhite =
    R"(\t-\r \x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";

// An expression of tokenizer.json in PCRE2's words.
Result<std::string> Translate(std::string_view expression) {
  std::string out;
  bool in_class = false;
  for (size_t i = 0; i < expression.size(); ++i) {
    const char c = expression[i];
    if (c == '\\' && i + 1 < expression.size()) {
      const char next = expression[++i];
      if (next == 's') {
        out += in_class ? std::string(kWhite) : StrCat("[", kWhite, "]");
      } else if (next == 'S') {
        if (in_class) return Unsupported("\\S inside a character class");
        out += StrCat("[^", kWhite, "]");
      } else {
        out += c;
        out += next;
      }
      continue;
    }
    if (c == '[' && !in_class) in_class = true;
    if (c == ']') in_class = false;
    out += c;
  }
  return out;
}

// Matches are pieces, and so is what lies between them.
void SplitBy(const Regex& regex, std::string_view text, std::vector<std::string_view>& pieces) {
  Regex::Match match = regex.MakeMatch();
  size_t from = 0, pos = 0;
  // An expression of a file may need more steps than PCRE2 allows; the text then stays whole.
  while (pos < text.size() && regex.Search(text, pos, &match) == Regex::Found::kYes) {
    const size_t begin = match.begin(), end = match.end();
    if (end <= begin) {  // an empty match cuts nothing
      pos = begin + 1;
      while (pos < text.size() && (static_cast<uint8_t>(text[pos]) & 0xC0) == 0x80) ++pos;
      continue;
    }
    if (begin > from) pieces.push_back(text.substr(from, begin - from));
    pieces.push_back(text.substr(begin, end - begin));
    from = pos = end;
  }
  if (from < text.size()) pieces.push_back(text.substr(from));
}

}  // namespace

Result<std::unique_ptr<PreTokenizer>> PreTokenizer::Create(const std::string& name) {
  std::string known;
  for (const PrePattern& pattern : PrePatterns()) {
    for (const char* candidate : NamesOf(pattern)) {
      known += (known.empty() ? "" : ", ") + std::string(candidate);
      if (name != candidate) continue;
      const std::span<const char* const> regex = RegexOf(pattern);
      TQ_ASSIGN_OR_RETURN(std::unique_ptr<PreTokenizer> result,
                          FromRegex({regex.begin(), regex.end()}));
      result->ignore_merges_ = pattern.ignore_merges;
      result->add_bos_ = pattern.add_bos;
      result->nfc_ = pattern.nfc;
      return result;
    }
  }
  return Unsupported("pre-tokenizer '", name, "' is not supported; supported: ", known);
}

Result<std::unique_ptr<PreTokenizer>> PreTokenizer::FromRegex(
    const std::vector<std::string>& expressions) {
  std::unique_ptr<PreTokenizer> result(new PreTokenizer());
  for (const std::string& expression : expressions) {
    const Result<std::string> translated = Translate(expression);
    Result<Regex> regex = translated.ok() ? Regex::Compile(*translated) : translated.status();
    if (!regex.ok()) {
      return Unsupported("the expression '", expression,
                         "' of the pre-tokenizer is not understood");
    }
    result->stages_.push_back(*std::move(regex));
  }
  return result;
}

void PreTokenizer::Split(std::string_view text, std::vector<std::string_view>& pieces) const {
  if (text.empty()) return;
  if (stages_.empty()) {
    pieces.push_back(text);
    return;
  }
  std::vector<std::string_view> coarse = {text};
  for (size_t stage = 0; stage + 1 < stages_.size(); ++stage) {
    std::vector<std::string_view> fine;
    for (const std::string_view piece : coarse) SplitBy(stages_[stage], piece, fine);
    coarse = std::move(fine);
  }
  for (const std::string_view piece : coarse) SplitBy(stages_.back(), piece, pieces);
}

}  // namespace tq
