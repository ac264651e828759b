// Takes out of texts what must not be kept or shown: regular expressions and what replaces their
// matches. Applied before anything else looks at a text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/tokenizer/regex.h"
#include "turboquant/base/status.h"

namespace tq {

// A regular expression (PCRE2, UTF-8) and what its matches become; "$1" is its first group, "$$" a
// dollar sign.
struct Redaction {
  std::string pattern;
  std::string replacement = "[redacted]";
};

// "REGEX" or "REGEX => REPLACEMENT", one a line; empty lines and those that begin with # are passed
// over. kInvalidArgument: an expression or a group that is not there, with the line.
Result<std::vector<Redaction>> ParseRedactions(std::string_view text);

class Redactor {
 public:
  Redactor() = default;
  // kInvalidArgument names the expression that is none.
  static Result<Redactor> Create(const std::vector<Redaction>& redactions);

  bool empty() const { return rules_.empty(); }
  // Replaces in *text, valid UTF-8, one expression after the other. kInvalidArgument: an expression
  // needs more steps on this text than are allowed; then the text must not be used. Adds the number
  // of matches to *count.
  Status Apply(std::string* text, int64_t* count = nullptr) const;
  // The first place at or behind `cut` at which no match is cut in two and both sides, redacted
  // apart, give what they give together (expressions may look ahead and behind), as far as 4 KiB on
  // either side tell. Where no such place is near, the first at which no match is cut.
  size_t SafeCut(std::string_view text, size_t cut) const;

 private:
  size_t BehindMatches(std::string_view text, size_t cut) const;

  struct Rule {
    Regex regex;
    std::string replacement;
  };
  std::vector<Rule> rules_;
};

}  // namespace tq
