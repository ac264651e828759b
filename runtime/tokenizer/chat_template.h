// Chat templates: the model's own Jinja template, rendered as jinja2 would, in a sandboxed subset.
#pragma once

#include <ctime>
#include <memory>
#include <string>
#include <vector>

#include "turboquant/base/status.h"

namespace tq {

struct ChatMessage {
  std::string role;  // "system", "user", "assistant"
  std::string content;
};

class ChatTemplate {
 public:
  // kUnsupported names the construct and its line; kInvalidArgument a syntax error.
  static Result<ChatTemplate> Parse(const std::string& source);
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ~ChatTemplate();

  // Bounded work: a template that loops or grows beyond limits is an error. raise_exception() in
  // the template becomes kInvalidArgument with its message.
  // `now`: the time that strftime_now tells; without it the template has no such function.
  Result<std::string> Render(const std::vector<ChatMessage>& messages, bool add_generation_prompt,
                             const std::string& bos = "", const std::string& eos = "",
                             const std::tm* now = nullptr) const;

 private:
  struct Node;
  ChatTemplate();
  std::unique_ptr<Node> root_;
};

}  // namespace tq
