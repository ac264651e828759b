#include "runtime/evaluate/tasks/replay.h"

#include <gtest/gtest.h>

#include "runtime/evaluate/tasks/responder_for_test.h"

namespace tq {
namespace {

using nlohmann::ordered_json;

CorpusItem Item(int number, const std::string& extra = "") {
  CorpusItem item;
  item.kind = CorpusItem::Kind::kCompletion;
  item.name = "log.jsonl, line " + std::to_string(number);
  item.text = "prompt " + std::to_string(number);
  item.body = R"({"prompt": ")" + item.text + "\"" + extra + "}";
  return item;
}

ReplayOptions Options(int requests) {
  ReplayOptions options;
  options.temperature = 0;
  for (int i = 0; i < requests; ++i) options.requests.push_back(Item(i));
  return options;
}

int NumberOf(const ordered_json& body) {
  return std::stoi(body["prompt"].get<std::string>().substr(7));
}

// Says the same, but for the numbers that `other` accepts.
FakeResponder Local(const std::string& name, std::function<bool(int)> other) {
  return {name, true, [other](const ordered_json& body) -> Result<ordered_json> {
            const int n = NumberOf(body);
            const std::string text = "answer to " + std::to_string(n);
            return ordered_json{{"text", other(n) ? text + " is another" : text},
                                {"finish_reason", "stop"}};
          }};
}

TEST(Replay, ALocalBaselineAtTemperatureZeroHasNoFloor) {
  FakeResponder plain = Local("f16", [](int) { return false; });
  FakeResponder some = Local("k3v2", [](int n) { return n % 4 == 0; });
  Responder* const candidates[] = {&some};
  const auto result = RunReplay(plain, candidates, Options(40));
  ASSERT_TRUE(result.ok()) << result.status().ToString();
  EXPECT_EQ(plain.calls, 40);
  EXPECT_TRUE(result->floor_is_exact);
  const ReplayCandidate& c = result->candidates.front();
  EXPECT_EQ(c.difference_rate, 0.25);
  EXPECT_GT(c.difference_interval.low, 0.1);
  EXPECT_LT(c.difference_interval.high, 0.4);
  EXPECT_EQ(c.side.median_first_difference, 3);
  EXPECT_GT(c.side.length_ratio, 1);
  EXPECT_TRUE(c.passed() && result->passed() && result->informative);
  // The most different come first.
  EXPECT_LT(c.cases.front().difference.similarity, 1);
  EXPECT_EQ(c.cases.back().difference.similarity, 1);
  const ordered_json j = ReplayJson(*result);
  EXPECT_EQ(j["difference_rate"], 0.25);
  EXPECT_EQ(j["floor"]["exact"], true);
  EXPECT_EQ(j["worst"].size(), 10u);
  EXPECT_EQ(j["worst"][0]["reasons"][0], "other words");
}

TEST(Replay, AnEndpointsFloorIsTakenOff) {
  // Answers change at every fourth call of it, whatever was asked; the candidate's do too.
  int calls = 0;
  const auto moody = [&](const ordered_json&) -> Result<ordered_json> {
    return ordered_json{{"text", calls++ % 4 == 3 ? "other words" : "the usual words"}};
  };
  FakeResponder plain("http://a", false, moody), candidate("http://b", false, moody);
  Responder* const candidates[] = {&candidate};
  const auto result = RunReplay(plain, candidates, Options(100));
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(plain.calls, 200);
  EXPECT_FALSE(result->floor_is_exact);
  EXPECT_EQ(result->floor.different_rate, 0.5);  // of two pairs of calls one holds a change
  const ReplayCandidate& c = result->candidates.front();
  EXPECT_NEAR(c.difference_rate, c.side.different_rate - 0.5, 1e-12);
  EXPECT_FALSE(result->informative);
  EXPECT_NE(result->note.find("differs from itself in 50 %"), std::string::npos);
}

TEST(Replay, AGateFailsWhereTheBaselineDiffersFromItself) {
  int calls = 0;
  const auto moody = [&](const ordered_json&) -> Result<ordered_json> {
    return ordered_json{{"text", std::to_string(calls++)}};
  };
  FakeResponder plain("http://a", false, moody), candidate("http://b", false, moody);
  Responder* const candidates[] = {&candidate};
  ReplayOptions options = Options(10);
  EXPECT_TRUE(RunReplay(plain, candidates, options)->passed());
  options.max_difference = 0.1;
  const auto result = RunReplay(plain, candidates, options);
  EXPECT_EQ(result->candidates[0].difference_rate, 0);
  EXPECT_FALSE(result->passed());
}

TEST(Replay, ACandidateIsNotJudgedByTheFewRequestsThatItAnswers) {
  FakeResponder plain = Local("f16", [](int) { return false; });
  FakeResponder choosy("k3v2", true, [](const ordered_json& body) -> Result<ordered_json> {
    if (NumberOf(body) >= 17) return InvalidArgument("too long");
    return ordered_json{{"text", "answer to " + std::to_string(NumberOf(body))},
                        {"finish_reason", "stop"}};
  });
  Responder* const candidates[] = {&choosy};
  EXPECT_TRUE(RunReplay(plain, candidates, Options(18))->passed());
  const auto result = RunReplay(plain, candidates, Options(20));
  EXPECT_FALSE(result->passed());
  const ordered_json j = ReplayJson(*result);
  EXPECT_EQ(j["answered_share"], 0.85);
  EXPECT_EQ(j["passed"], false);
  EXPECT_NE(ReplaySection(*result).find("it answered 17 of 20 requests"), std::string::npos);
}

TEST(Replay, TextsTakeNoRequestsPlace) {
  ReplayOptions options = Options(5);
  for (int i = 0; i < 4; ++i) {
    CorpusItem text;
    text.text = "no request";
    options.requests.insert(options.requests.begin(), text);
  }
  options.most_requests = 3;
  FakeResponder plain = Local("f16", [](int) { return false; });
  const auto result = RunReplay(plain, {}, options);
  ASSERT_TRUE(result.ok()) << result.status().ToString();
  EXPECT_EQ(result->requests, 3);
  EXPECT_EQ(plain.calls, 3);
}

TEST(Replay, ReasonsToLeaveOutAreKeptUpToANumber) {
  FakeResponder plain("f16", true, [](const ordered_json& body) -> Result<ordered_json> {
    const int n = NumberOf(body);
    if (n > 0) return InvalidArgument(n, " tokens are too many");
    return ordered_json{{"text", "a"}};
  });
  const auto result = RunReplay(plain, {}, Options(100));
  ASSERT_TRUE(result.ok()) << result.status().ToString();
  ASSERT_EQ(result->skipped.size(), 21u);
  EXPECT_EQ(result->skipped.back().reason, "other reasons");
  EXPECT_EQ(result->skipped.back().count, 79);
}

TEST(Replay, TheGateFailsAboveTheRateThatWasAskedFor) {
  FakeResponder plain = Local("f16", [](int) { return false; });
  FakeResponder some = Local("k3v2", [](int n) { return n == 0; });
  Responder* const candidates[] = {&some};
  ReplayOptions options = Options(10);
  options.max_difference = 0.1;
  EXPECT_TRUE(RunReplay(plain, candidates, options)->passed());
  options.max_difference = 0.09;
  EXPECT_FALSE(RunReplay(plain, candidates, options)->passed());
  // Near answers can count as the same; what a program would notice never does.
  options.same_from = 0.5;
  EXPECT_TRUE(RunReplay(plain, candidates, options)->passed());
}

TEST(Replay, SeesSilentlyRenamedKeys) {
  const auto says = [](const char* text) {
    return [text](const ordered_json&) -> Result<ordered_json> {
      return ordered_json{{"text", text}};
    };
  };
  FakeResponder plain("f16", true, says(R"({"name": "x", "size": 1})"));
  FakeResponder renamed("k2v2", true, says(R"({"title": "x", "size": 1})"));
  Responder* const candidates[] = {&renamed};
  ReplayOptions options = Options(3);
  options.same_from = 0.1;
  const auto result = RunReplay(plain, candidates, options);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->candidates[0].side.json, 3);
  EXPECT_EQ(result->candidates[0].side.shape_differs, 3);
  EXPECT_EQ(result->candidates[0].difference_rate, 1);
  EXPECT_LT(result->candidates[0].difference_interval.low, 1);  // three requests are few
}

TEST(Replay, RequestsThatOneSideRefusesAreLeftOutAndCounted) {
  FakeResponder plain("f16", true, [](const ordered_json& body) -> Result<ordered_json> {
    if (body.contains("tools")) {
      return Unsupported("the request has 'tools': ", body["tools"].dump(), "; not known");
    }
    return ordered_json{{"text", "a"}};
  });
  FakeResponder other("k4v4", true, [](const ordered_json& body) -> Result<ordered_json> {
    if (NumberOf(body) == 7) return InvalidArgument("too long");
    return ordered_json{{"text", "a"}};
  });
  Responder* const candidates[] = {&other};
  ReplayOptions options = Options(5);
  options.requests.push_back(Item(5, R"(, "tools": [1])"));
  options.requests.push_back(Item(6, R"(, "tools": [2])"));
  options.requests.push_back(Item(7, R"(, "response_format": {"type": "json_object"})"));
  CorpusItem text;
  text.name = "notes.txt, byte 0";
  text.text = "no request";
  options.requests.push_back(text);
  const auto result = RunReplay(plain, candidates, options);
  ASSERT_TRUE(result.ok()) << result.status().ToString();
  EXPECT_EQ(result->requests, 6);
  EXPECT_EQ(result->candidates[0].requests, 5);
  EXPECT_EQ(result->unconstrained, 1);
  ASSERT_EQ(result->skipped.size(), 3u);
  EXPECT_EQ(result->skipped[0].reason, "a text, not a request");
  EXPECT_EQ(result->skipped[1].reason, "f16: the request has 'tools'");
  EXPECT_EQ(result->skipped[1].count, 2);
  EXPECT_EQ(result->skipped[1].example, "log.jsonl, line 5");
  EXPECT_EQ(result->skipped[2].reason, "k4v4: too long");
  // Other errors end it.
  FakeResponder down("http://x", false, [](const ordered_json&) -> Result<ordered_json> {
    return Unavailable("connection refused");
  });
  Responder* const gone[] = {&down};
  EXPECT_EQ(RunReplay(plain, gone, Options(2)).status().message(), "http://x: connection refused");
}

TEST(Replay, BodiesKeepWhatWasAskedForWithinTheLimits) {
  ReplayOptions options;
  options.max_tokens = 50;
  const auto body = [&](const char* json) {
    return ReplayBody(ordered_json::parse(json), options, 9);
  };
  EXPECT_EQ(body(R"({"prompt": "a", "max_tokens": 20, "stream": true, "n": 3})").dump(),
            R"({"prompt":"a","max_tokens":20,"temperature":1.0,"seed":9})");
  EXPECT_EQ(
      body(R"({"messages": [], "max_completion_tokens": 900, "temperature": 0, "seed": 3})").dump(),
      R"({"messages":[],"max_completion_tokens":50,"temperature":0.0})");
  options.temperature = 0.5;
  EXPECT_EQ(body(R"({"prompt": "a", "temperature": 0})")["temperature"], 0.5);
}

TEST(Replay, SampledRequestsGetSeedsOfTheirOwn) {
  std::vector<uint64_t> seeds;
  FakeResponder plain("f16", true, [&](const ordered_json& body) -> Result<ordered_json> {
    seeds.push_back(body["seed"]);
    return ordered_json{{"text", "a"}};
  });
  Responder* const candidates[] = {&plain};
  ReplayOptions options = Options(2);
  options.temperature = 0.8;
  ASSERT_TRUE(RunReplay(plain, candidates, options).ok());
  EXPECT_EQ(seeds, (std::vector<uint64_t>{0, 1, 1000, 1001, 2, 1002}));
}

TEST(Replay, RedactsAndEscapesWhatItShows) {
  FakeResponder plain("f16", true, [](const ordered_json&) -> Result<ordered_json> {
    return ordered_json::parse(R"({
      "message": {"content": "call 555-1234 <b>now</b>", "tool_calls": [
          {"function": {"name": "f", "arguments": "{\"to\": \"555-4321\"}"}}]},
      "finish_reason": "dialled 555-4321"})");
  });
  FakeResponder other("k4v4", true, [](const ordered_json&) -> Result<ordered_json> {
    return ordered_json{{"text", "call 555-9876"}};
  });
  Responder* const candidates[] = {&other};
  ReplayOptions options = Options(2);
  options.redact = [](const std::string& text) {
    std::string out = text;
    for (size_t at = 0; (at = out.find("555-")) != std::string::npos;)
      out.replace(at, 8, "[phone]");
    return out;
  };
  const auto result = RunReplay(plain, candidates, options);
  ASSERT_TRUE(result.ok());
  const std::string html = ReplaySection(*result), json = ReplayJson(*result).dump();
  for (const std::string& shown : {html, json}) {
    EXPECT_EQ(shown.find("555-"), std::string::npos);
    EXPECT_NE(shown.find("[phone]"), std::string::npos);
  }
  EXPECT_EQ(html.find("<b>now"), std::string::npos);
}

TEST(Replay, RefusesWhatMakesNoSense) {
  FakeResponder plain = Local("f16", [](int) { return false; });
  EXPECT_NE(RunReplay(plain, {}, ReplayOptions()).status().message().find("no request to replay"),
            std::string::npos);
  ReplayOptions options = Options(1);
  options.same_from = 2;
  EXPECT_EQ(RunReplay(plain, {}, options).status().code(), StatusCode::kInvalidArgument);
  FakeResponder never("f16", true, [](const ordered_json&) -> Result<ordered_json> {
    return Unsupported("no template");
  });
  EXPECT_NE(RunReplay(never, {}, Options(3))
                .status()
                .message()
                .find("none of 3 requests was answered; the first: no template"),
            std::string::npos);
}

}  // namespace
}  // namespace tq
