// Is a quantized cache worth it for this traffic? From a log of requests: how long contexts are,
// how much of them was seen before, how many run at once, and what that makes of memory and time.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "turboquant/base/status.h"
#include "turboquant/plan/plan.h"

namespace tq {

struct TrafficRequest {
  int64_t prompt_tokens = 0, completion_tokens = 0;
  std::optional<double> arrival;   // seconds since any fixed time
  std::optional<double> duration;  // seconds until the last token
  double reused_tokens = 0;        // of the prompt, already in an earlier prompt or answer
  bool has_text = false;           // so that reused_tokens is known
  int64_t context() const { return prompt_tokens + completion_tokens; }
};

struct Traffic {
  std::vector<TrafficRequest> requests;  // in the order of the log
  std::vector<std::string> notes;        // what the log does not say
  std::string longest_text;              // of a prompt; empty: the log has no texts
};

// Tokens of a text; empty: there is no tokenizer.
using TokenCounter = std::function<int64_t(std::string_view)>;

// One JSON object a line (docs/guides/plan.md): an OpenAI request body or its envelope, with usage
// or with text that `count` can count, or just prompt_tokens and completion_tokens.
// kInvalidArgument names the line and the field.
Result<Traffic> ReadTraffic(std::string_view jsonl, const std::string& name,
                            const TokenCounter& count);

struct Distribution {
  double mean = 0;
  int64_t median = 0, p90 = 0, p99 = 0, max = 0;
};
Distribution DistributionOf(std::vector<int64_t> values);

struct Concurrency {
  double mean = 0;
  int64_t peak = 0;
  double requests_per_second = 0;
};

// What the plan of one model, format and machine makes of the traffic.
struct Suitability {
  size_t num_requests = 0;
  Distribution context, prompt, completion;
  std::optional<double> prefix_reuse;  // share of prompt tokens; of requests whose text is logged
  std::optional<Concurrency> concurrency;  // from arrival times and logged or estimated durations
  bool durations_estimated = false;
  double prefill_token_share = 0;
  std::optional<double> prefill_time_share;  // by the roofline
  // At the mean context and concurrency: plain cache / (weights + plain cache).
  double cache_memory_share = 0;
  std::optional<int64_t> break_even_context;
  double share_below_break_even = 0;            // of requests; 1 when it never pays
  int64_t sequences_f16 = 0, sequences_kv = 0;  // that a device holds at the 90 % context
  double more_requests = 1;  // tokens a second at those sequences by the roofline, kv / f16; or
                             // their number, where no bandwidth is known
  double step_gain = 0;      // of a decode step at the mean context and concurrency
  bool worth_it = false;
  std::string verdict;  // one line
  std::vector<std::string> reasons;
};

Result<Suitability> JudgeTraffic(const Traffic& traffic, const Planner& planner);

}  // namespace tq
