// Windows of tokens cut from whole texts, where their order and place matter: evenly over each
// text, or as another program cuts them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/evaluate/kld_run.h"
#include "runtime/tokenizer/tokenizer.h"
#include "turboquant/base/status.h"

namespace tq::cli {

enum class WindowCut {
  kSpread,  // evenly over the text, each begun as a text of its own
  kLlama,   // one after the other from the beginning, as llama-perplexity does
};

// `count` windows of `context` tokens of the text. kInvalidArgument: the text is too short (both
// numbers).
Result<EvalText> CutWindows(const Tokenizer& tokenizer, const std::string& name,
                            std::string_view text, WindowCut cut, int count, int64_t context);

}  // namespace tq::cli
