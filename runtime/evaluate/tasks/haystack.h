// A long text with lines planted in it, cut to a number of tokens.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/evaluate/tasks/responder.h"
#include "turboquant/base/status.h"

namespace tq {

// Tokens of a text: exact, or estimated where the tokenizer is not known.
using TokenCounter = std::function<int64_t(std::string_view text)>;

// The responder's own tokenizer; for an endpoint, the bytes per token that "usage" tells about a
// piece of `sample` (one short request), or 4 where it tells nothing.
Result<TokenCounter> CounterFor(Responder& responder, bool chat, std::string_view sample,
                                const std::atomic<bool>* cancel);

struct PlantedLine {
  double depth = 0;  // where, as a share of the text's lines
  std::string line;
};

// The length that was asked for and the flag that did, for messages; empty: no flag sets it.
struct AskedLength {
  int64_t tokens = 0;
  std::string flag;
};
// kInvalidArgument: what was asked, why it is too little, what is enough: `needed` and some more.
Status TooShort(const AskedLength& asked, int64_t needed, const std::string& why);

class Haystack {
 public:
  // kInvalidArgument when the text is empty or not UTF-8. `name` is for messages.
  static Result<Haystack> Create(std::string name, std::string text, TokenCounter counter);
  // The same, counted as CounterFor does.
  static Result<Haystack> For(Responder& responder, bool chat, std::string name, std::string text,
                              const std::atomic<bool>* cancel);

  // As much of the text as fits `tokens` with the planted lines, each on a line of its own, in the
  // order of their depths, and a line end behind. kInvalidArgument when the text is too short, or
  // when the planted lines leave it less than a quarter of the room (numbers). `asked`: of the text
  // with its question.
  Result<std::string> Build(int64_t tokens, const std::vector<PlantedLine>& planted,
                            const AskedLength& asked) const;

  int64_t tokens() const { return sums_.back(); }
  int64_t Count(std::string_view text) const { return counter_(text); }
  const std::string& name() const { return name_; }

 private:
  std::string name_, text_;
  std::vector<size_t> points_;  // of pieces of text: BreakPoints
  std::vector<int64_t> sums_;   // tokens up to a piece, [pieces + 1]
  TokenCounter counter_;
};

}  // namespace tq
