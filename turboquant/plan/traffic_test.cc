#include "turboquant/plan/traffic.h"

#include <gtest/gtest.h>

namespace tq {
namespace {

Planner MakePlanner(const std::string& preset) {
  ModelSpec spec;
  spec.name = "8B";
  LayerSpec layer;
  layer.num_kv_heads = 8;
  layer.head_dim = 128;
  spec.layers.assign(32, layer);
  spec.num_q_heads = 32;
  spec.q_head_dim = 128;
  spec.weights = {{.name = "all", .params = 8e9, .active = 8e9}};
  PlanOptions options;
  options.machine = *FindDevice("h100");
  return *Planner::Create(spec, *CacheFormat::FromPreset(preset, {}), options);
}

std::string Message(const std::string& role, const std::string& content) {
  return R"({"role": ")" + role + R"(", "content": ")" + content + "\"}";
}

TEST(ReadTraffic, CountsTextBodiesAndTimes) {
  const std::string log =
      R"({"time": 1000, "prompt_tokens": 10, "completion_tokens": 5})"
      "\n\n"
      R"({"created": "1970-01-01T00:16:45.5Z", "duration": 2, "input_tokens": 7, "output_tokens": 1})"
      "\n"
      R"({"timestamp": 1796040000000, "body": {"prompt": "hello"}, "choices": [{"text": "abc"}]})"
      "\r\n";
  const auto letters = [](std::string_view s) { return static_cast<int64_t>(s.size()); };
  const Result<Traffic> traffic = ReadTraffic(log, "log", letters);
  ASSERT_TRUE(traffic.ok()) << traffic.status().ToString();
  ASSERT_EQ(traffic->requests.size(), 3u);
  EXPECT_EQ(traffic->requests[0].context(), 15);
  EXPECT_EQ(*traffic->requests[0].arrival, 1000);
  EXPECT_FALSE(traffic->requests[0].duration);
  EXPECT_EQ(*traffic->requests[1].arrival, 1005.5);
  EXPECT_EQ(*traffic->requests[1].duration, 2);
  EXPECT_EQ(traffic->requests[2].prompt_tokens, 5);
  EXPECT_EQ(traffic->requests[2].completion_tokens, 3);
  EXPECT_EQ(*traffic->requests[2].arrival, 1796040000);
  ASSERT_EQ(traffic->notes.size(), 1u);
  EXPECT_EQ(traffic->notes[0],
            "2 of 3 requests have no text: what they share with earlier ones is not known");
}

// The second request is the first conversation, its answer, and one more question.
TEST(ReadTraffic, PrefixesOfEarlierTurnsAreReused) {
  const std::string system = Message("system", std::string(600, 's'));
  const std::string first = Message("user", std::string(400, 'q'));
  const std::string answer = Message("assistant", std::string(1000, 'a'));
  const std::string second = Message("user", std::string(1000, 'r'));
  const std::string log = R"({"prompt_tokens": 100, "messages": [)" + system + "," + first +
                          R"(], "choices": [{"message": )" + answer + "}]}\n" +
                          R"({"prompt_tokens": 300, "messages": [)" + system + "," + first + "," +
                          answer + "," + second + "]}\n" +
                          R"({"prompt_tokens": 50, "messages": [)" + second + "]}\n";
  const Result<Traffic> traffic = ReadTraffic(log, "log", {});
  ASSERT_TRUE(traffic.ok()) << traffic.status().ToString();
  EXPECT_EQ(traffic->requests[0].reused_tokens, 0);
  // 2000 of 3000 characters and some framing, at multiples of 64.
  EXPECT_NEAR(traffic->requests[1].reused_tokens, 200, 8);
  EXPECT_EQ(traffic->requests[2].reused_tokens, 0);
  EXPECT_GT(traffic->longest_text.size(), 3000u);
}

TEST(ReadTraffic, ErrorsNameTheLine) {
  const struct {
    const char* log;
    StatusCode code;
    const char* message;
  } cases[] = {
      {"", StatusCode::kInvalidArgument, "'log' has no requests"},
      {"\n{", StatusCode::kDataLoss, "'log', line 2: it is not JSON"},
      {"[]", StatusCode::kInvalidArgument, "'log', line 1: a JSON object was expected"},
      {"{}", StatusCode::kInvalidArgument,
       "'log', line 1: field 'prompt_tokens', 'messages' or 'prompt' is missing"},
      {R"({"prompt_tokens": -1})", StatusCode::kInvalidArgument,
       "'log', line 1: field 'prompt_tokens' = -1; expected 0 to 1073741824"},
      {R"({"prompt_tokens": 18446744073709551615})", StatusCode::kInvalidArgument,
       "'log', line 1: field 'prompt_tokens' = 18446744073709551615; expected 0 to 1073741824"},
      {R"({"prompt_tokens": 1, "time": "noon"})", StatusCode::kInvalidArgument,
       "'log', line 1: field 'time' is string; expected seconds or "},
      {R"({"messages": "hello"})", StatusCode::kInvalidArgument,
       "'log', line 1: field 'messages' is no array"},
      {R"({"messages": [{"role": "user", "content": "hi"}]})", StatusCode::kInvalidArgument,
       "'log', line 1: field 'prompt_tokens' is missing and there is no tokenizer"},
  };
  for (const auto& c : cases) {
    const Status status = ReadTraffic(c.log, "log", {}).status();
    EXPECT_EQ(status.code(), c.code) << c.log;
    EXPECT_EQ(status.message().rfind(c.message, 0), 0u) << status.message();
  }
}

TEST(DistributionOf, QuantilesAreValues) {
  std::vector<int64_t> values;
  for (int64_t i = 1; i <= 100; ++i) values.push_back(i);
  const Distribution d = DistributionOf(values);
  EXPECT_EQ(d.mean, 50.5);
  EXPECT_EQ(d.median, 50);
  EXPECT_EQ(d.p90, 90);
  EXPECT_EQ(d.p99, 99);
  EXPECT_EQ(d.max, 100);
  EXPECT_EQ(DistributionOf({7}).p99, 7);
  EXPECT_EQ(DistributionOf({}).max, 0);
}

Traffic Requests(int count, int64_t prompt, int64_t completion, double every, double duration) {
  Traffic traffic;
  for (int i = 0; i < count; ++i) {
    TrafficRequest r;
    r.prompt_tokens = prompt;
    r.completion_tokens = completion;
    if (every > 0) {
      r.arrival = i * every;
      r.duration = duration;
    }
    traffic.requests.push_back(r);
  }
  return traffic;
}

TEST(JudgeTraffic, ShortRequestsAreNotWorthIt) {
  const Result<Suitability> s = JudgeTraffic(Requests(50, 500, 100, 0, 0), MakePlanner("k4v4"));
  ASSERT_TRUE(s.ok());
  EXPECT_FALSE(s->worth_it);
  EXPECT_EQ(s->share_below_break_even, 1);
  EXPECT_EQ(s->verdict.rfind("not worth it: 100 % of requests are under ", 0), 0u) << s->verdict;
  EXPECT_FALSE(s->concurrency);
  EXPECT_FALSE(s->prefix_reuse);
  EXPECT_EQ(s->reasons.back(), "the concurrency is not known: judged at one sequence");
}

TEST(JudgeTraffic, ManyLongRequestsAre) {
  // One a second for 40 s each: 40 at a time.
  const Result<Suitability> s =
      JudgeTraffic(Requests(400, 30000, 1000, 1, 40), MakePlanner("k4v4"));
  ASSERT_TRUE(s.ok());
  EXPECT_EQ(s->concurrency->peak, 40);
  EXPECT_NEAR(s->concurrency->mean, 36.4, 0.1);  // over 439 s, with ramp and tail
  EXPECT_LT(s->sequences_f16, 40);
  EXPECT_GT(s->sequences_kv, 40);
  EXPECT_GT(s->more_requests, 2);
  EXPECT_TRUE(s->worth_it);
  EXPECT_EQ(s->verdict.rfind("worth it: k4v4 holds ", 0), 0u) << s->verdict;
  EXPECT_GT(s->cache_memory_share, 0.8);
}

TEST(JudgeTraffic, DurationsComeFromTheRooflineWhereTheyAreNotLogged) {
  Traffic traffic = Requests(10, 30000, 1000, 1, 0);
  for (TrafficRequest& r : traffic.requests) r.duration.reset();
  const Result<Suitability> s = JudgeTraffic(traffic, MakePlanner("k4v4"));
  ASSERT_TRUE(s.ok() && s->concurrency);
  EXPECT_TRUE(s->durations_estimated);
  // 1000 steps of about 6 ms and a prefill of about 0.7 s.
  EXPECT_NEAR(static_cast<double>(s->concurrency->peak), 7, 1);
}

}  // namespace
}  // namespace tq
