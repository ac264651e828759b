// The long document that tq compare reads: a text cut to fit, a detail planted in it, and a
// question whose answer is that detail, phrased so that the model only has to go on writing.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/tokenizer/tokenizer.h"
#include "turboquant/base/status.h"

namespace tq {

// Where a text may be cut: after each line; inside a long line after a space, or at a character.
// The last one is its end.
std::vector<size_t> BreakPoints(std::string_view text);

// kInvalidArgument when the text is not UTF-8, or can hold no 64 tokens: what can be said before
// there is a tokenizer. `name`: of the text, for messages.
Status CheckDocumentText(const std::string& name, std::string_view text);

struct DocumentOptions {
  std::string name;        // of the text, for messages and the report
  std::string_view text;   // valid UTF-8
  int64_t max_tokens = 0;  // of the whole document, question included
  // Empty: the detail below is planted and asked for. Otherwise nothing is planted, the document
  // ends with this text and no answer is expected.
  std::string question;
  double detail_depth = 0.4;  // where the detail is planted, as a share of the text
};

struct Document {
  std::vector<TokenId> tokens;
  std::string name;
  std::string question;     // the last line
  std::string detail;       // the planted sentence; empty: none
  std::string expected;     // what a right answer holds; empty: none
  size_t text_bytes = 0;    // of the source that went in
  bool whole_text = false;  // the source fitted as it is
};

// Cuts the text at line ends (long lines: at spaces) to as much as fits. kInvalidArgument when the
// text is not UTF-8 or has fewer than 64 tokens, or when max_tokens has no room for 64 of them
// beside detail and question (both numbers).
Result<Document> BuildDocument(const Tokenizer& tokenizer, const DocumentOptions& options);

}  // namespace tq
