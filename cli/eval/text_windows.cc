#include "cli/eval/text_windows.h"

#include <algorithm>
#include <utility>

namespace tq::cli {
namespace {

// More bytes than the tokens of a window take in any text that is not mostly blanks.
constexpr size_t kBytesPerToken = 12;

Status TooShort(const std::string& name, size_t tokens, int window, int64_t context) {
  return InvalidArgument(name, ": window ", window, " has ", tokens, " tokens of ", context,
                         "; use fewer or shorter windows (--windows, --context) or a longer text");
}

}  // namespace

Result<EvalText> CutWindows(const Tokenizer& tokenizer, const std::string& name,
                            std::string_view text, WindowCut cut, int count, int64_t context) {
  EvalText out;
  out.name = name;
  const auto length = static_cast<size_t>(context);
  if (cut == WindowCut::kSpread) {
    for (int w = 0; w < count; ++w) {
      const size_t start = text.size() / static_cast<size_t>(count) * static_cast<size_t>(w);
      std::vector<TokenId> tokens = tokenizer.Encode(text.substr(start, length * kBytesPerToken));
      if (tokens.size() < length) return TooShort(name, tokens.size(), w, context);
      tokens.resize(length);
      out.windows.push_back(std::move(tokens));
    }
    return out;
  }
  const std::vector<TokenId> tokens =
      tokenizer.Encode(text.substr(0, length * static_cast<size_t>(count) * kBytesPerToken));
  const bool has_bos = !tokens.empty() && tokens.front() == tokenizer.bos();
  for (int w = 0; w < count; ++w) {
    const size_t start = length * static_cast<size_t>(w);
    if (tokens.size() < start + length) {
      return TooShort(name, tokens.size() - std::min(tokens.size(), start), w, context);
    }
    const auto first = tokens.begin() + static_cast<std::ptrdiff_t>(start);
    std::vector<TokenId>& window = out.windows.emplace_back(first, first + context);
    if (has_bos) window.front() = tokenizer.bos();
  }
  return out;
}

}  // namespace tq::cli
