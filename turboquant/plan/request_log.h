// One line of a log of requests: an OpenAI chat or completion body, or an envelope with the request
// and its response, as proxies, gateways and batch files write them (docs/guides/data.md).
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "turboquant/base/status.h"

namespace tq {

struct LoggedMessage {
  std::string role;
  std::string content;     // parts are joined; what is not text is left out
  std::string tool_calls;  // JSON array; empty: none
};

// The first choice of the recorded response; that of a stream is put together from its chunks.
struct LoggedAnswer {
  LoggedMessage message;  // role "assistant"; of a completion: its text
  std::string finish_reason;
};

struct LoggedRequest {
  // The request body in the order of its keys, without what an envelope or a response adds.
  nlohmann::ordered_json body;
  std::vector<LoggedMessage> messages;  // of a chat, without the answer
  std::string prompt;                   // of a completion
  std::optional<LoggedAnswer> answer;
  std::optional<int64_t> prompt_tokens, completion_tokens;
  std::optional<double> arrival, duration;  // seconds
  bool is_chat = false;
  bool has_text() const { return is_chat || !prompt.empty(); }
};

// Changes a text before anybody sees it; an error drops the line.
using TextFilter = std::function<Status(std::string* text)>;

// `filter` is applied to every string that the result and the messages of errors hold: whole texts,
// so after chunks and parts were joined. kDataLoss: not JSON, or nests too deeply. kInvalidArgument
// names a field of the wrong type. `copy_filter` takes its place, for who counts, on messages and
// prompt, which the body holds too.
Result<LoggedRequest> ParseLogLine(std::string_view line, const TextFilter& filter = {},
                                   const TextFilter& copy_filter = {});

// Applies `filter` to all keys and strings of `json`, which nests at most kMaxJsonDepth deep.
Status FilterJson(const TextFilter& filter, nlohmann::ordered_json* json);

}  // namespace tq
