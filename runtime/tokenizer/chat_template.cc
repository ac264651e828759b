#include "runtime/tokenizer/chat_template.h"

#include <utility>

#include "runtime/tokenizer/jinja_eval.h"

namespace tq {

struct ChatTemplate::Node {
  jinja::Body body;
};

ChatTemplate::ChatTemplate() : root_(std::make_unique<Node>()) {}
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

Result<ChatTemplate> ChatTemplate::Parse(const std::string& source) {
  Result<jinja::Body> body = jinja::ParseTemplate(source);
  if (!body.ok()) return body.status().WithContext("chat template");
  ChatTemplate result;
  result.root_->body = *std::move(body);
  return result;
}

Result<std::string> ChatTemplate::Render(const std::vector<ChatMessage>& messages,
                                         bool add_generation_prompt, const std::string& bos,
                                         const std::string& eos, const std::tm* now) const {
  using jinja::Value;
  jinja::List list;
  for (const ChatMessage& message : messages) {
    TQ_ASSIGN_OR_RETURN(Value entry, jinja::MakeDict({{"role", Value::Text(message.role)},
                                                      {"content", Value::Text(message.content)}}));
    list.push_back(std::move(entry));
  }
  TQ_ASSIGN_OR_RETURN(Value all, jinja::MakeList(std::move(list)));
  // What the reference implementation passes when there are no tools.
  Result<std::string> text =
      jinja::Render(root_->body,
                    {{"messages", std::move(all)},
                     {"add_generation_prompt", Value::Bool(add_generation_prompt)},
                     {"bos_token", Value::Text(bos)},
                     {"eos_token", Value::Text(eos)},
                     {"tools", Value::NoneValue()},
                     {"documents", Value::NoneValue()}},
                    now);
  if (!text.ok()) return text.status().WithContext("chat template");
  return text;
}

}  // namespace tq
