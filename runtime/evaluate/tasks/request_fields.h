// A request body in OpenAI's form, read for our own engine.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "runtime/engine/session.h"
#include "runtime/tokenizer/chat_template.h"
#include "turboquant/base/status.h"

namespace tq {

struct RequestFields {
  bool is_chat = false;
  std::vector<ChatMessage> messages;  // of a chat
  std::string prompt;                 // of a completion
  std::vector<TokenId> prompt_ids;    // the same as token ids; empty: `prompt` counts
  GenerateOptions generate;           // sampling.seed only if has_seed
  bool has_seed = false;
  std::optional<int> max_tokens;
  int num_answers = 1;
};

// kInvalidArgument names the field, its value and what was expected; kUnsupported a field that
// would change the answer and is not known here.
Result<RequestFields> ReadRequest(const nlohmann::ordered_json& request);

}  // namespace tq
