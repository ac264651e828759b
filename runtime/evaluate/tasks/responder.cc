// Reading answers; the responders themselves are in local_responder.cc and endpoint_responder.cc.
#include "runtime/evaluate/tasks/responder.h"

#include <algorithm>
#include <utility>

namespace tq {
namespace {

using nlohmann::ordered_json;

std::string StringOr(const ordered_json& object, const char* key, const std::string& other) {
  const auto it = object.find(key);
  return it != object.end() && it->is_string() ? it->get<std::string>() : other;
}

// logprobs.content[].token of chats, logprobs.tokens[] of completions.
std::vector<std::string> TokensOf(const ordered_json& choice) {
  std::vector<std::string> tokens;
  const auto logprobs = choice.find("logprobs");
  if (logprobs == choice.end() || !logprobs->is_object()) return tokens;
  if (const auto content = logprobs->find("content");
      content != logprobs->end() && content->is_array()) {
    for (const ordered_json& token : *content) {
      if (token.is_object()) tokens.push_back(StringOr(token, "token", ""));
    }
  } else if (const auto list = logprobs->find("tokens");
             list != logprobs->end() && list->is_array()) {
    for (const ordered_json& token : *list) {
      if (token.is_string()) tokens.push_back(token.get<std::string>());
    }
  }
  return tokens;
}

Result<Reply> ParseChoice(const ordered_json& choice) {
  if (!choice.is_object()) return InvalidArgument("a response's choice is not an object");
  Reply reply;
  reply.finish_reason = StringOr(choice, "finish_reason", "");
  reply.tokens = TokensOf(choice);
  const auto message = choice.find("message");
  if (message == choice.end()) {
    const auto text = choice.find("text");
    if (text == choice.end() || !text->is_string()) {
      return InvalidArgument("a response's choice has neither a message nor a text");
    }
    reply.text = text->get<std::string>();
    return reply;
  }
  if (!message->is_object()) return InvalidArgument("a response's message is not an object");
  reply.text = StringOr(*message, "content", "");
  if (const auto calls = message->find("tool_calls");
      calls != message->end() && calls->is_array()) {
    reply.tool_calls = *calls;
  }
  return reply;
}

}  // namespace

Result<std::vector<Reply>> ParseReplies(const ordered_json& response) {
  const auto choices = response.is_object() ? response.find("choices") : response.end();
  if (!response.is_object() || choices == response.end() || !choices->is_array() ||
      choices->empty()) {
    return InvalidArgument("the response has no choices");
  }
  int64_t prompt_tokens = -1;
  if (const auto usage = response.find("usage"); usage != response.end() && usage->is_object()) {
    const auto count = usage->find("prompt_tokens");
    if (count != usage->end() && count->is_number_integer()) prompt_tokens = *count;
  }
  std::vector<std::pair<int64_t, Reply>> found;
  for (const ordered_json& choice : *choices) {
    TQ_ASSIGN_OR_RETURN(Reply reply, ParseChoice(choice));
    reply.prompt_tokens = prompt_tokens;
    const auto index = choice.find("index");
    found.emplace_back(index != choice.end() && index->is_number_integer()
                           ? index->get<int64_t>()
                           : static_cast<int64_t>(found.size()),
                       std::move(reply));
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<Reply> replies;
  for (auto& [index, reply] : found) replies.push_back(std::move(reply));
  return replies;
}

Result<Reply> Ask(Responder& responder, const ordered_json& request,
                  const std::atomic<bool>* cancel) {
  TQ_ASSIGN_OR_RETURN(const ordered_json response, responder.Respond(request, cancel));
  TQ_ASSIGN_OR_RETURN(std::vector<Reply> replies, ParseReplies(response));
  return std::move(replies.front());
}

bool IsErrorOfOneRequest(const Status& status) {
  return status.code() == StatusCode::kInvalidArgument || status.code() == StatusCode::kUnsupported;
}

}  // namespace tq
