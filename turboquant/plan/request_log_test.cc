#include "turboquant/plan/request_log.h"

#include <gtest/gtest.h>

namespace tq {
namespace {

LoggedRequest Parse(const std::string& line, const TextFilter& filter = {}) {
  Result<LoggedRequest> r = ParseLogLine(line, filter);
  EXPECT_TRUE(r.ok()) << r.status().ToString() << "\n" << line;
  return r.ok() ? *std::move(r) : LoggedRequest{};
}

constexpr char kChat[] = R"({"model":"m","messages":[{"role":"user","content":"hi"}],"seed":1})";

TEST(ParseLogLine, FindsTheRequestInEveryEnvelope) {
  const std::string chat = kChat;
  const std::string quoted = nlohmann::json(chat).dump();
  for (const std::string& line :
       {chat, R"({"body": )" + chat + "}", R"({"request": )" + chat + "}",
        R"({"request": {"url": "/v1", "body": )" + chat + "}}", R"({"request": )" + quoted + "}",
        R"({"custom_id": "a", "body": )" + quoted + "}"}) {
    const LoggedRequest r = Parse(line);
    EXPECT_TRUE(r.is_chat);
    ASSERT_EQ(r.messages.size(), 1u) << line;
    EXPECT_EQ(r.messages[0].content, "hi");
    EXPECT_EQ(r.body.dump(), chat);
    EXPECT_FALSE(r.answer);
  }
}

TEST(ParseLogLine, AFlatLineGivesABodyWithoutWhatTheLogAdds) {
  const LoggedRequest r =
      Parse(R"({"id": 7, "prompt": ["once"], "max_tokens": 9, "usage": {"prompt_tokens": 3},)"
            R"( "choices": [{"text": " upon", "finish_reason": "length"}], "latency": 0.5})");
  EXPECT_FALSE(r.is_chat);
  EXPECT_EQ(r.prompt, "once");
  EXPECT_EQ(r.body.dump(), R"({"prompt":["once"],"max_tokens":9})");
  ASSERT_TRUE(r.answer);
  EXPECT_EQ(r.answer->message.content, " upon");
  EXPECT_EQ(r.answer->finish_reason, "length");
  EXPECT_EQ(*r.prompt_tokens, 3);
  EXPECT_EQ(*r.duration, 0.5);
}

TEST(ParseLogLine, PutsStreamsTogether) {
  const std::string chunks[] = {
      R"({"choices":[{"index":0,"delta":{"role":"assistant","content":"Hel"}}]})",
      R"({"choices":[{"index":1,"delta":{"content":"other choice"}}]})",
      R"({"choices":[{"index":0,"delta":{"content":"lo"}}]})",
      R"({"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]})",
      R"({"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":2}})"};
  std::string array, events = ": comment\n\n";
  for (const std::string& c : chunks) {
    array += (array.empty() ? "" : ",") + c;
    events += "data: " + c + "\r\n\r\n";
  }
  events += "data: [DONE]\n\n";
  const std::string head = std::string(R"({"request": )") + kChat + R"(, "response": )";
  for (const std::string& response :
       {"[" + array + "]", nlohmann::json(events).dump(),
        R"({"status": 200, "body": )" + nlohmann::json(events).dump() + "}"}) {
    const LoggedRequest r = Parse(head + response + "}");
    ASSERT_TRUE(r.answer) << response;
    EXPECT_EQ(r.answer->message.content, "Hello");
    EXPECT_EQ(r.answer->finish_reason, "stop");
    EXPECT_EQ(*r.prompt_tokens, 5);
    EXPECT_EQ(*r.completion_tokens, 2);
  }
}

TEST(ParseLogLine, JoinsTheArgumentsOfStreamedToolCalls) {
  const LoggedRequest r = Parse(std::string(R"({"request": )") + kChat + R"(, "response": [
        {"choices":[{"delta":{"tool_calls":[{"index":0,"id":"c1","function":{"name":"f","arguments":"{\"a\""}}]}}]},
        {"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":":1}"}}]},"finish_reason":"tool_calls"}]}]})");
  ASSERT_TRUE(r.answer);
  const auto calls = nlohmann::json::parse(r.answer->message.tool_calls);
  EXPECT_EQ(calls[0]["id"], "c1");
  EXPECT_EQ(calls[0]["function"]["arguments"], R"({"a":1})");
}

TEST(ParseLogLine, AConversationThatEndsWithTheAssistantHasItsAnswer) {
  const LoggedRequest r = Parse(
      R"({"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url"},)"
      R"({"type":"text","text":"b"}]},{"role":"assistant","content":"c"}]})");
  ASSERT_EQ(r.messages.size(), 1u);
  EXPECT_EQ(r.messages[0].content, "ab");
  EXPECT_EQ(r.answer->message.content, "c");
  EXPECT_EQ(r.body["messages"].size(), 1u);
}

TEST(ParseLogLine, AResponseMayBePlainText) {
  EXPECT_EQ(Parse(R"({"prompt": "p", "response": "said"})").answer->message.content, "said");
  EXPECT_EQ(Parse(R"({"prompt": "p", "completion": "said"})").answer->message.content, "said");
}

// A secret in two chunks is whole only after they were joined.
TEST(ParseLogLine, TheFilterSeesWholeTextsAndAllOfThem) {
  const TextFilter filter = [](std::string* text) {
    for (size_t at; (at = text->find("secret")) != std::string::npos;) text->replace(at, 6, "***");
    return OkStatus();
  };
  const LoggedRequest r = Parse(
      R"({"request":{"messages":[{"role":"user","content":"a secret"}],"user":"secret",)"
      R"("metadata":{"secret":["secret"]}},)"
      R"("response":[{"choices":[{"delta":{"content":"sec"}}]},{"choices":[{"delta":{"content":"ret"}}]}]})",
      filter);
  EXPECT_EQ(r.messages[0].content, "a ***");
  EXPECT_EQ(r.answer->message.content, "***");
  EXPECT_EQ(r.body.dump().find("secret"), std::string::npos) << r.body.dump();
  EXPECT_EQ(
      ParseLogLine(kChat, [](std::string*) { return InvalidArgument("no"); }).status().message(),
      "no");
}

// A filter would not know a secret that is cut, or that is escaped.
TEST(ParseLogLine, MessagesShowNoTextOfTheLine) {
  for (const char* key : {"prompt_tokens", "time", "duration"}) {
    for (const std::string& value : {std::string("12 secret"), std::string(38, 'x') + "secret",
                                     std::string(38, 'x') + "\xC3\xA4secret"}) {
      const nlohmann::json line = {{"prompt", "p"}, {key, value}};
      const std::string message = ParseLogLine(line.dump()).status().message();
      EXPECT_NE(message.find(" is string; "), std::string::npos) << message;
      EXPECT_EQ(message.find("secr"), std::string::npos) << message;
      EXPECT_EQ(message.find("xx"), std::string::npos) << message;
    }
  }
  EXPECT_EQ(ParseLogLine(R"({"prompt": "p", "prompt_tokens": 1.5})").status().message(),
            "field 'prompt_tokens' is 1.5; a whole number was expected");
}

TEST(ParseLogLine, DeepAndBrokenLinesAreErrors) {
  const std::string deep =
      R"({"messages": )" + std::string(2000, '[') + std::string(2000, ']') + "}";
  EXPECT_EQ(ParseLogLine(deep).status().message(), "it nests more than 100 deep");
  EXPECT_EQ(ParseLogLine("{").status().message(), "it is not JSON");
  EXPECT_EQ(ParseLogLine(R"({"prompt": [1, 2]})").status().message(),
            "field 'prompt' is no string");
  EXPECT_EQ(ParseLogLine("3").status().message(), "a JSON object was expected");
}

}  // namespace
}  // namespace tq
