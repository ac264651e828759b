#include "runtime/evaluate/redactor.h"

#include <algorithm>
#include <utility>

#include "runtime/evaluate/blanks.h"

namespace tq {
namespace {

constexpr size_t kLongestMatch = 4096;
constexpr int kMaxCuts = 256;  // an expression like "^." changes the text at every cut

bool IsContinuation(char c) {
  return (static_cast<unsigned char>(c) & 0xC0) == 0x80;
}

// Calls text(part) and group(index) for the parts of a replacement.
template <typename Text, typename Group>
void ForParts(std::string_view replacement, const Text& text, const Group& group) {
  for (size_t i = 0; i < replacement.size(); ++i) {
    const char next = i + 1 < replacement.size() ? replacement[i + 1] : '\0';
    if (replacement[i] == '$' && (next == '$' || (next >= '0' && next <= '9'))) {
      ++i;
      if (next == '$') {
        text(std::string_view("$"));
      } else {
        group(static_cast<size_t>(next - '0'));
      }
    } else {
      text(replacement.substr(i, 1));
    }
  }
}

// Where the character ends that `pos` lies in.
size_t CharAt(std::string_view text, size_t pos) {
  while (pos < text.size() && IsContinuation(text[pos])) ++pos;
  return pos;
}

// Where a search goes on after a match that took nothing.
size_t NextChar(std::string_view text, size_t pos) {
  return CharAt(text, pos + 1);
}

}  // namespace

Result<std::vector<Redaction>> ParseRedactions(std::string_view text) {
  std::vector<Redaction> out;
  size_t number = 0;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = Trim(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    ++number;
    if (line.empty() || line.front() == '#') continue;
    Redaction r;
    const size_t arrow = line.find(" => ");
    const bool removes = line.ends_with(" =>");
    r.pattern = line.substr(0, removes ? line.size() - 3 : arrow);
    if (removes) r.replacement.clear();
    if (!removes && arrow != std::string_view::npos) {
      r.replacement = std::string(line.substr(arrow + 4));
    }
    if (const Status status = Redactor::Create({r}).status(); !status.ok()) {
      return status.WithContext(StrCat("redaction, line ", number));
    }
    out.push_back(std::move(r));
  }
  return out;
}

Result<Redactor> Redactor::Create(const std::vector<Redaction>& redactions) {
  Redactor out;
  for (const Redaction& r : redactions) {
    TQ_ASSIGN_OR_RETURN(Regex regex, Regex::Compile(r.pattern));
    size_t highest = 0;
    ForParts(
        r.replacement, [](std::string_view) {},
        [&](size_t group) { highest = std::max(highest, group); });
    if (highest > regex.num_groups()) {
      return InvalidArgument("the replacement '", r.replacement, "' names group ", highest,
                             ", and the expression '", r.pattern, "' has ", regex.num_groups());
    }
    out.rules_.push_back({std::move(regex), r.replacement});
  }
  return out;
}

Status Redactor::Apply(std::string* text, int64_t* count) const {
  for (const Rule& rule : rules_) {
    Regex::Match match = rule.regex.MakeMatch();
    std::string out;
    size_t from = 0, pos = 0;
    while (pos <= text->size()) {
      const Regex::Found found = rule.regex.Search(*text, pos, &match);
      if (found == Regex::Found::kGaveUp) {
        return InvalidArgument("a redaction needs more steps than are allowed");
      }
      if (found == Regex::Found::kNo) break;
      if (match.end() <= match.begin()) {  // nothing to take out
        pos = NextChar(*text, std::max(pos, match.begin()));
        continue;
      }
      out.append(*text, from, match.begin() - from);
      ForParts(
          rule.replacement, [&](std::string_view part) { out += part; },
          [&](size_t group) { out += match.group(group, *text); });
      from = pos = match.end();
      if (count != nullptr) ++*count;
    }
    if (from == 0) continue;
    out.append(*text, from);
    *text = std::move(out);
  }
  return OkStatus();
}

size_t Redactor::SafeCut(std::string_view text, size_t cut) const {
  if (rules_.empty() || cut >= text.size()) return cut;
  const size_t behind_matches = BehindMatches(text, cut);
  size_t at = behind_matches;
  for (int tries = 0; tries < kMaxCuts && at < text.size(); ++tries) {
    const size_t begin = CharAt(text, at - std::min(at, kLongestMatch));
    const size_t end = CharAt(text, std::min(at + kLongestMatch, text.size()));
    std::string whole(text.substr(begin, end - begin));
    std::string left(text.substr(begin, at - begin)), right(text.substr(at, end - at));
    if (!Apply(&whole).ok() || !Apply(&left).ok() || !Apply(&right).ok()) return behind_matches;
    if (left + right == whole) return at;
    at = BehindMatches(text, NextChar(text, at));
  }
  return at < text.size() ? behind_matches : at;
}

size_t Redactor::BehindMatches(std::string_view text, size_t cut) const {
  for (bool moved = true; moved && cut < text.size();) {
    moved = false;
    const size_t begin = CharAt(text, cut - std::min(cut, kLongestMatch));
    const size_t end = CharAt(text, std::min(cut + kLongestMatch, text.size()));
    const std::string_view around = text.substr(begin, end - begin);
    for (const Rule& rule : rules_) {
      Regex::Match match = rule.regex.MakeMatch();
      size_t pos = 0;
      while (pos < cut - begin && rule.regex.Search(around, pos, &match) == Regex::Found::kYes) {
        if (match.begin() >= cut - begin) break;
        if (match.end() > cut - begin) {
          cut = begin + match.end();
          moved = true;
          break;
        }
        pos = match.end() > match.begin() ? match.end() : NextChar(around, match.begin());
      }
      if (moved) break;
    }
  }
  return cut;
}

}  // namespace tq
