// The bytes up to the first 0 are a template, the rest is what the user says.
#include <cstddef>
#include <cstdint>
#include <string>

#include "runtime/tokenizer/chat_template.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string all(reinterpret_cast<const char*>(data), size);
  const size_t end = all.find('\0');
  const auto chat = tq::ChatTemplate::Parse(all.substr(0, end));
  if (!chat.ok()) {
    TQ_CHECK(!chat.status().message().empty());
    return 0;
  }
  const std::string content = end == std::string::npos ? "Hi" : all.substr(end + 1);
  const std::vector<tq::ChatMessage> messages = {
      {"system", "Be kind."}, {"user", content}, {"assistant", " Hello "}, {"user", "Bye"}};
  const auto once = chat->Render(messages, true, "<s>", "</s>");
  const auto again = chat->Render(messages, true, "<s>", "</s>");
  TQ_CHECK(once.ok() == again.ok());
  if (once.ok()) TQ_CHECK(*once == *again);
  return 0;
}
