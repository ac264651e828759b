#include "runtime/evaluate/tasks/responder.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "runtime/evaluate/fakes_for_test.h"
#include "runtime/evaluate/tasks/http_server_for_test.h"

namespace tq {
namespace {

using nlohmann::ordered_json;

// --- The local responder ------------------------------------------------------------------------

class LocalResponderTest : public testing::Test {
 protected:
  std::unique_ptr<LocalResponder> Make(const std::string& preset, int64_t context = 4096) {
    LocalResponderOptions options;
    options.name = preset;
    options.context = context;
    options.max_tokens = 5;
    auto responder = LocalResponder::Create(model_, tokenizer_, model_.Config(preset), options);
    EXPECT_TRUE(responder.ok()) << responder.status().ToString();
    return *std::move(responder);
  }
  static ordered_json Completion(const std::string& prompt) {
    return {{"prompt", prompt}, {"temperature", 0}, {"max_tokens", 8}};
  }
  static std::string Text(size_t length, uint64_t seed) {
    std::string text;
    while (text.size() < length) text += static_cast<char>('a' + SplitMix64(seed) % 26);
    return text;
  }

  ThreadPool pool_{1};
  TinyModel model_{pool_};
  ByteTokenizer tokenizer_;
};

TEST_F(LocalResponderTest, AnswersACompletionInOpenAisForm) {
  const auto responder = Make("k4v4");
  const auto response = responder->Respond(Completion("abc"));
  ASSERT_TRUE(response.ok()) << response.status().ToString();
  EXPECT_EQ((*response)["object"], "text_completion");
  EXPECT_EQ((*response)["usage"]["prompt_tokens"], 3);
  const auto replies = ParseReplies(*response);
  ASSERT_TRUE(replies.ok());
  ASSERT_EQ(replies->size(), 1u);
  const int64_t generated = (*response)["usage"]["completion_tokens"];
  EXPECT_EQ(replies->front().finish_reason, generated == 8 ? "length" : "stop");
  EXPECT_EQ(responder->name(), "k4v4");
}

TEST_F(LocalResponderTest, ReusedPrefixesGiveTheAnswersOfAFreshSession) {
  // Texts that share beginnings of many lengths with earlier ones, longer than the exact window.
  const std::string text = Text(1500, 3);
  std::vector<std::string> prompts;
  for (const size_t shared : {1500, 1500, 700, 1490, 1500, 20, 1100}) {
    prompts.push_back(text.substr(0, shared) + Text(90, prompts.size() + 10));
  }
  const auto responder = Make("k3v2");
  for (const std::string& prompt : prompts) {
    const auto reused = responder->Respond(Completion(prompt));
    const auto fresh = Make("k3v2")->Respond(Completion(prompt));
    ASSERT_TRUE(reused.ok() && fresh.ok());
    EXPECT_EQ(reused->dump(-1, ' ', false, ordered_json::error_handler_t::replace),
              fresh->dump(-1, ' ', false, ordered_json::error_handler_t::replace));
  }
  int64_t all = 0;
  for (const std::string& prompt : prompts) all += static_cast<int64_t>(prompt.size());
  EXPECT_EQ(responder->read_tokens() + responder->reused_tokens(), all);
  EXPECT_LT(responder->read_tokens(), 5000);  // of 8,440
}

TEST_F(LocalResponderTest, ManyQuestionsOverOneTextReadItOnce) {
  const std::string text = Text(2000, 5);
  const auto responder = Make("k3v2");
  for (uint64_t i = 0; i < 6; ++i) {
    ASSERT_TRUE(responder->Respond(Completion(text + Text(100, 20 + i))).ok());
  }
  // The text once, its part behind the last stride again for the boundary at its end, and the
  // questions.
  EXPECT_LE(responder->read_tokens(), 2000 + LocalResponder::kBoundaryStride + 600);
}

TEST_F(LocalResponderTest, SeedsDecideSampledAnswers) {
  const auto responder = Make("k8v8");
  ordered_json request = {{"prompt", "abc"}, {"max_tokens", 12}, {"n", 2}, {"seed", 4}};
  const auto first = responder->Respond(request);
  const auto again = responder->Respond(request);
  ASSERT_TRUE(first.ok() && again.ok());
  const auto replies = *ParseReplies(*first);
  ASSERT_EQ(replies.size(), 2u);
  EXPECT_EQ(replies[0].text, (*ParseReplies(*again))[0].text);
  request["n"] = 1;
  request["seed"] = 5;
  EXPECT_EQ(replies[1].text, Ask(*responder, request)->text);
  EXPECT_NE(replies[0].text, replies[1].text);
}

TEST_F(LocalResponderTest, LogprobsCarryTheTokens) {
  const auto responder = Make("f16");
  ordered_json request = Completion("hello");
  request["logprobs"] = 2;
  const auto response = responder->Respond(request);
  ASSERT_TRUE(response.ok());
  const Reply reply = ParseReplies(*response)->front();
  EXPECT_EQ(reply.tokens.size(), (*response)["usage"]["completion_tokens"].get<size_t>());
  EXPECT_EQ((*response)["choices"][0]["logprobs"]["top_logprobs"][0].size(), 2u);
}

TEST_F(LocalResponderTest, WhatItCannotDoIsSaidByName) {
  const auto responder = Make("k4v4", 64);
  const std::pair<const char*, const char*> cases[] = {
      {R"({"max_tokens": 3})", "either messages or a prompt; this one has none"},
      {R"({"prompt": "a", "messages": []})", "this one has both"},
      {R"([1])", "not a JSON object"},
      {R"({"prompt": ""})", "prompt is empty"},
      {R"({"prompt": {"a": 1}})", "'prompt' is {\"a\":1}"},
      {R"({"prompt": [1, 999]})", "the token 999; the model has 257"},
      {R"({"prompt": "a", "max_tokens": "x"})", "'max_tokens' is \"x\"; expected a whole number"},
      {R"({"prompt": "a", "max_tokens": 99999999999})", "expected a whole number"},
      {R"({"prompt": "a", "n": 0})", "expected 1 to 100"},
      {R"({"prompt": "a", "stop": [3]})", "'stop' is [3]"},
      {R"({"prompt": "a", "stop": ""})", "a stop string is empty"},
      {R"({"prompt": "a", "logit_bias": {"x": 1}})", "numbers by token id"},
      {R"({"prompt": "a", "temperature": -1})", "temperature"},
      {R"({"prompt": "a", "seed": "s"})", "'seed' is \"s\""},
      {R"({"prompt": "a", "response_format": {"type": "json_object"}})", "has 'response_format'"},
      {R"({"prompt": "a", "suffix": "z"})", "has 'suffix'"},
      {R"({"messages": [{"role": "user", "content": "hi"}]})", "no chat template"},
      {R"({"messages": [{"content": "hi"}]})", "objects with a role"},
      {R"({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})",
       "the type \"image_url\""},
      {R"({"messages": [{"role": "assistant", "content": "", "tool_calls": [{}]}]})",
       "a message has tool_calls"},
  };
  for (const auto& [body, words] : cases) {
    const auto response = responder->Respond(ordered_json::parse(body));
    ASSERT_FALSE(response.ok()) << body;
    EXPECT_TRUE(IsErrorOfOneRequest(response.status())) << body;
    EXPECT_NE(response.status().message().find(words), std::string::npos)
        << body << ": " << response.status().message();
  }
  const auto long_one = responder->Respond(Completion(std::string(64, 'a')));
  EXPECT_NE(long_one.status().message().find("64 tokens and the context is 64"), std::string::npos);
  // Fields that ask for nothing, and null, are fine.
  EXPECT_TRUE(
      responder
          ->Respond(ordered_json::parse(
                        R"({"prompt": [97, 98], "tools": [], "tool_choice": "none", "n": null,
                                    "response_format": {"type": "text"}, "user": "u", "top_k": -1,
                                    "stream": true, "temperature": 0})"),
                    nullptr)
          .ok());
}

TEST_F(LocalResponderTest, CancelEndsIt) {
  const std::atomic<bool> cancel = true;
  EXPECT_EQ(Make("k4v4")->Respond(Completion("abc"), &cancel).status().code(),
            StatusCode::kCancelled);
}

// --- The endpoint -------------------------------------------------------------------------------

constexpr char kChatAnswer[] =
    R"({"choices": [{"index": 1, "message": {"content": "second"}, "finish_reason": "length"},
                    {"index": 0, "message": {"role": "assistant", "content": null,
                      "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]},
                     "finish_reason": "tool_calls"}]})";

std::unique_ptr<EndpointResponder> Endpoint(const std::string& url, EndpointOptions options = {}) {
  options.url = url;
  options.backoff_seconds = 0.01;
  auto responder = EndpointResponder::Create(options);
  EXPECT_TRUE(responder.ok()) << responder.status().ToString();
  return *std::move(responder);
}

ordered_json ChatRequest() {
  return {{"messages", {{{"role", "user"}, {"content", "hi"}}}}, {"stream", true}};
}

TEST(EndpointResponder, SendsTheBodyAndReadsTheChoices) {
  HttpServerForTest::Request seen;
  HttpServerForTest server([&](const HttpServerForTest::Request& request) {
    seen = request;
    return HttpServerForTest::Response{200, kChatAnswer};
  });
  ::setenv("TQ_TEST_KEY", "secret-key", 1);
  const auto responder = Endpoint(server.url() + "/chat/completions",
                                  {.model = "m", .api_key_variable = "TQ_TEST_KEY"});
  const auto response = responder->Respond(ChatRequest());
  ASSERT_TRUE(response.ok()) << response.status().ToString();
  EXPECT_EQ(seen.line, "POST /v1/chat/completions HTTP/1.1");
  EXPECT_NE(seen.headers.find("authorization: bearer secret-key\r\n"), std::string::npos);
  const ordered_json sent = ordered_json::parse(seen.body);
  EXPECT_EQ(sent["model"], "m");
  EXPECT_FALSE(sent.contains("stream"));
  const auto replies = ParseReplies(*response);
  ASSERT_TRUE(replies.ok());
  EXPECT_EQ((*replies)[0].finish_reason, "tool_calls");
  EXPECT_EQ((*replies)[0].tool_calls[0]["function"]["name"], "f");
  EXPECT_EQ((*replies)[1].text, "second");
  EXPECT_EQ(responder->name(), server.url() + " (m)");
  EXPECT_EQ(responder->name().find("secret"), std::string::npos);
}

TEST(EndpointResponder, AsksForTheOnlyModelOnce) {
  std::vector<std::string> lines;
  std::string models = R"({"data": [{"id": "the-one"}]})";
  HttpServerForTest server([&](const HttpServerForTest::Request& request) {
    lines.push_back(request.line);
    if (request.line.starts_with("GET")) return HttpServerForTest::Response{200, models};
    EXPECT_EQ(ordered_json::parse(request.body)["model"], "the-one");
    return HttpServerForTest::Response{200, R"({"choices": [{"text": "x"}]})"};
  });
  const auto responder = Endpoint(server.url());
  const ordered_json request = {{"prompt", "a"}};
  for (int i = 0; i < 2; ++i) ASSERT_EQ(Ask(*responder, request)->text, "x");
  EXPECT_EQ(lines,
            (std::vector<std::string>{"GET /v1/models HTTP/1.1", "POST /v1/completions HTTP/1.1",
                                      "POST /v1/completions HTTP/1.1"}));
  models = R"({"data": [{"id": "a"}, {"id": "b"}]})";
  const Status status = Endpoint(server.url())->Respond(request).status();
  EXPECT_NE(status.message().find("names 2 models: a, b"), std::string::npos) << status.message();
}

TEST(EndpointResponder, AKeyGoesOnlyWhereItWasNamedForAndIsNotRepeated) {
  std::string headers;
  HttpServerForTest server([&](const HttpServerForTest::Request& request) {
    headers = request.headers;
    return HttpServerForTest::Response{401, R"({"message": "bad key secret-key of secret-key"})"};
  });
  ::setenv("OPENAI_API_KEY", "secret-key", 1);
  (void)Endpoint(server.url(), {.model = "m"})->Respond(ChatRequest());
  EXPECT_EQ(headers.find("secret-key"), std::string::npos);
  const Status refused =
      Endpoint(server.url(), {.model = "m", .api_key_variable = "OPENAI_API_KEY"})
          ->Respond(ChatRequest())
          .status();
  ::unsetenv("OPENAI_API_KEY");
  EXPECT_NE(headers.find("secret-key"), std::string::npos);
  EXPECT_NE(refused.message().find("bad key [key] of [key]"), std::string::npos);
  EXPECT_EQ(refused.message().find("secret-key"), std::string::npos);
}

TEST(EndpointResponder, TriesAgainAfterErrorsThatPass) {
  int calls = 0;
  HttpServerForTest server([&](const HttpServerForTest::Request&) {
    ++calls;
    if (calls == 1) return HttpServerForTest::Response{429, R"({"error": {"message": "slow"}})"};
    if (calls == 2) return HttpServerForTest::Response{503, "busy"};
    if (calls == 3) return HttpServerForTest::Response{.hang_up = true};
    return HttpServerForTest::Response{200, R"({"choices": [{"text": "at last"}]})"};
  });
  const auto responder = Endpoint(server.url(), {.model = "m"});
  EXPECT_EQ(Ask(*responder, {{"prompt", "a"}})->text, "at last");
  EXPECT_EQ(calls, 4);
}

TEST(EndpointResponder, ErrorsNameTheUrlTheStatusAndWhatTheServerSaid) {
  struct Case {
    HttpServerForTest::Response response;
    StatusCode code;
    std::string words;
  };
  const Case cases[] = {
      {{400, R"({"error": {"message": "too\nlong"}})"},
       StatusCode::kInvalidArgument,
       "/v1/completions answered 400: \"too long\""},
      {{401, R"({"message": "who?"})"}, StatusCode::kUnavailable, "no API key was sent"},
      {{404, ""}, StatusCode::kUnavailable, "answered 404: nothing; check the URL"},
      {{302, "", "Location: http://127.0.0.1:1/\r\n"},
       StatusCode::kUnavailable,
       "redirects are not followed"},
      {{500, "oh"}, StatusCode::kUnavailable, "answered 500: \"oh\" (after 1 retries)"},
      {{429, "", "Retry-After: 3600\r\n"}, StatusCode::kUnavailable, "asks to wait 3600 s"},
      {{200, std::string(500, '[')}, StatusCode::kInvalidArgument, "what is not JSON"},
      {{200, "<html>"}, StatusCode::kInvalidArgument, "not JSON: \"<html>\""},
  };
  ::unsetenv("OPENAI_API_KEY");
  for (const Case& c : cases) {
    HttpServerForTest server([&](const HttpServerForTest::Request&) { return c.response; });
    const auto responder = Endpoint(server.url(), {.model = "m", .max_retries = 1});
    const Status status = responder->Respond({{"prompt", "a"}}).status();
    EXPECT_EQ(status.code(), c.code) << status.message();
    EXPECT_NE(status.message().find(c.words), std::string::npos) << status.message();
  }
  // Nobody listens on port 1.
  const Status refused =
      Endpoint("http://127.0.0.1:1/v1", {.model = "m"})->Respond({{"prompt", "a"}}).status();
  EXPECT_EQ(refused.code(), StatusCode::kUnavailable);
  EXPECT_NE(refused.message().find("is the server running there?"), std::string::npos);
}

TEST(EndpointResponder, TimesOutAndCanBeCancelled) {
  std::atomic<bool> cancel = false;
  HttpServerForTest server([&](const HttpServerForTest::Request&) {
    std::this_thread::sleep_for(std::chrono::milliseconds(400));
    return HttpServerForTest::Response{200, "{}"};
  });
  const Status late = Endpoint(server.url(), {.model = "m", .timeout_seconds = 0.1})
                          ->Respond({{"prompt", "a"}})
                          .status();
  EXPECT_EQ(late.code(), StatusCode::kUnavailable);
  EXPECT_NE(late.message().find("did not answer within 0.1 s"), std::string::npos);
  cancel = true;
  EXPECT_EQ(
      Endpoint(server.url(), {.model = "m"})->Respond({{"prompt", "a"}}, &cancel).status().code(),
      StatusCode::kCancelled);
}

TEST(EndpointResponder, RefusesBadUrlsAndKeys) {
  for (const char* url :
       {"", "localhost:8000", "ftp://host/v1", "http://user:pw@host/v1", "http://:pw@host/v1",
        "https://host/v1?api-key=pw", "https://host/v1#pw"}) {
    const Status status = EndpointResponder::Create({.url = url}).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << url;
    EXPECT_EQ(status.message().find("pw"), std::string::npos) << status.message();
  }
  ::unsetenv("TQ_TEST_NO_KEY");
  const Status missing =
      EndpointResponder::Create({.url = "http://h/v1", .api_key_variable = "TQ_TEST_NO_KEY"})
          .status();
  EXPECT_NE(missing.message().find("TQ_TEST_NO_KEY"), std::string::npos);
  ::setenv("TQ_TEST_NO_KEY", "a\r\nInjected: b", 1);
  EXPECT_EQ(EndpointResponder::Create({.url = "http://h/v1", .api_key_variable = "TQ_TEST_NO_KEY"})
                .status()
                .code(),
            StatusCode::kInvalidArgument);
}

TEST(ParseReplies, DamagedResponsesAreErrors) {
  for (const char* body :
       {"[]", "{}", R"({"choices": []})", R"({"choices": [3]})", R"({"choices": [{}]})",
        R"({"choices": [{"message": "x"}]})", R"({"choices": [{"text": null}]})"}) {
    EXPECT_EQ(ParseReplies(ordered_json::parse(body)).status().code(), StatusCode::kInvalidArgument)
        << body;
  }
}

}  // namespace
}  // namespace tq
