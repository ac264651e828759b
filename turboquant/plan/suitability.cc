// The verdict on a traffic: memory, time and concurrency of its requests, plain cache against
// quantized.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include "turboquant/base/format_count.h"
#include "turboquant/plan/survey.h"
#include "turboquant/plan/traffic.h"

namespace tq {
namespace {

// Share of requests from which "most" is said.
constexpr double kMost = 0.8;

std::string Percent(double share) {
  char text[32];
  std::snprintf(text, sizeof text, "%.0f %%", 100 * share);
  return text;
}

std::string Times(double factor) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f", factor);
  return text;
}

// From arrivals and durations; a request without a logged duration takes the roofline's time.
std::optional<Concurrency> FindConcurrency(const Traffic& traffic, const Planner& plain,
                                           bool* estimated) {
  struct Event {
    double time;
    int change;
  };
  std::vector<Event> events;
  double busy = 0;
  for (const TrafficRequest& r : traffic.requests) {
    if (!r.arrival) return {};
    double seconds = 0;
    if (r.duration) {
      seconds = *r.duration;
    } else {
      const int64_t context = std::max<int64_t>(1, r.context());
      const StepTime step = plain.Decode(context, 1);
      if (!step.ms) return {};
      const double first =
          plain.FirstTokenSeconds(std::max<int64_t>(1, r.prompt_tokens), 1).value_or(0);
      seconds = first + 1e-3 * *step.ms * static_cast<double>(r.completion_tokens);
      *estimated = true;
    }
    busy += seconds;
    events.push_back({*r.arrival, 1});
    events.push_back({*r.arrival + seconds, -1});
  }
  // One that ends when another begins is not beside it.
  std::sort(events.begin(), events.end(), [](const Event& a, const Event& b) {
    return a.time != b.time ? a.time < b.time : a.change < b.change;
  });
  Concurrency c;
  const double span = events.back().time - events.front().time;
  int64_t now = 0;
  for (const Event& e : events) {
    now += e.change;
    c.peak = std::max(c.peak, now);
  }
  c.mean = span > 0 ? busy / span : 1;
  c.requests_per_second = span > 0 ? static_cast<double>(traffic.requests.size()) / span : 0;
  return c;
}

}  // namespace

Result<Suitability> JudgeTraffic(const Traffic& traffic, const Planner& planner) {
  if (traffic.requests.empty()) return InvalidArgument("a traffic of no requests");
  CacheFormat plain_format;
  plain_format.window = planner.format().window;
  TQ_ASSIGN_OR_RETURN(const Planner plain,
                      Planner::Create(planner.spec(), plain_format, planner.options()));
  const std::string& kv = planner.format().name;
  Suitability s;
  s.num_requests = traffic.requests.size();
  std::vector<int64_t> contexts, prompts, completions;
  double prompt_sum = 0, completion_sum = 0, text_tokens = 0, reused = 0;
  double prefill_seconds = 0, decode_seconds = 0;
  for (const TrafficRequest& r : traffic.requests) {
    contexts.push_back(r.context());
    prompts.push_back(r.prompt_tokens);
    completions.push_back(r.completion_tokens);
    prompt_sum += static_cast<double>(r.prompt_tokens);
    completion_sum += static_cast<double>(r.completion_tokens);
    if (r.has_text) {
      text_tokens += static_cast<double>(r.prompt_tokens);
      reused += r.reused_tokens;
    }
    const int64_t context = std::clamp<int64_t>(r.context(), 1, Planner::kMaxContext);
    const auto first =
        plain.FirstTokenSeconds(std::clamp<int64_t>(r.prompt_tokens, 1, Planner::kMaxContext), 1);
    const StepTime step = plain.Decode(context, 1);
    if (first) prefill_seconds += *first;
    if (step.ms) decode_seconds += 1e-3 * *step.ms * static_cast<double>(r.completion_tokens);
  }
  s.context = DistributionOf(contexts);
  s.prompt = DistributionOf(prompts);
  s.completion = DistributionOf(completions);
  if (text_tokens > 0) s.prefix_reuse = reused / text_tokens;
  const double tokens = prompt_sum + completion_sum;
  s.prefill_token_share = tokens > 0 ? prompt_sum / tokens : 0;
  if (prefill_seconds > 0) {
    s.prefill_time_share = prefill_seconds / (prefill_seconds + decode_seconds);
  }
  s.concurrency = FindConcurrency(traffic, plain, &s.durations_estimated);

  const int64_t mean = std::clamp<int64_t>(std::llround(s.context.mean), 1, Planner::kMaxContext);
  const int64_t long_one = std::clamp<int64_t>(s.context.p90, 1, Planner::kMaxContext);
  const int64_t batch =
      s.concurrency ? std::clamp<int64_t>(std::llround(s.concurrency->mean), 1, Planner::kMaxBatch)
                    : 1;
  TQ_ASSIGN_OR_RETURN(const MemoryPlan memory, plain.Memory(mean, batch));
  const auto cache = static_cast<double>(memory.cache_bytes);
  const double bill = cache + static_cast<double>(memory.weights_bytes);
  s.cache_memory_share = bill > 0 ? cache / bill : 0;
  TQ_ASSIGN_OR_RETURN(const BreakEven even, planner.FindBreakEven(batch));
  s.break_even_context = even.context;
  const auto below = std::count_if(contexts.begin(), contexts.end(),
                                   [&](int64_t c) { return !even.context || c < *even.context; });
  s.share_below_break_even = static_cast<double>(below) / static_cast<double>(contexts.size());

  const size_t capacity = planner.options().machine.memory_bytes;
  s.sequences_f16 = plain.MaxSequences(long_one, capacity);
  s.sequences_kv = planner.MaxSequences(long_one, capacity);
  const auto per_second = [&](const Planner& p, int64_t sequences) {
    if (sequences == 0) return 0.0;
    const StepTime step = p.Decode(mean, sequences);
    return step.ms ? static_cast<double>(sequences) / *step.ms : static_cast<double>(sequences);
  };
  const double f16_rate = per_second(plain, s.sequences_f16);
  if (f16_rate > 0) s.more_requests = per_second(planner, s.sequences_kv) / f16_rate;
  const StepTime a = plain.Decode(mean, batch), b = planner.Decode(mean, batch);
  const double bytes = a.weight_bytes + a.cache_bytes;
  if (bytes > 0) s.step_gain = 1 - (b.weight_bytes + b.cache_bytes) / bytes;

  // What a device must hold: the peak where it is known, else one long request.
  const int64_t wanted = s.concurrency ? s.concurrency->peak : 1;
  const bool full = s.sequences_f16 < wanted;
  const bool holds_more = s.sequences_kv > s.sequences_f16;
  s.worth_it = (full && holds_more) || s.step_gain >= Planner::kPays;
  const auto reason = [&](std::string text) { s.reasons.push_back(std::move(text)); };
  if (full) {
    reason(StrCat("at ", FormatCount(long_one), " tokens (90 % of requests) a device holds ",
                  FormatCount(s.sequences_f16), " sequences with f16 and ",
                  FormatCount(s.sequences_kv), " with ", kv, "; ", FormatCount(wanted),
                  " are wanted at once"));
  }
  if (even.context && s.share_below_break_even > 0) {
    reason(StrCat(Percent(s.share_below_break_even), " of requests are under ",
                  FormatCount(*even.context), " tokens, below which ", kv, " gains less than ",
                  Percent(Planner::kPays), " of a step"));
  } else if (!even.context) {
    reason(StrCat(kv, " never pays here: ", even.reason));
  }
  reason(StrCat("at the mean context of ", FormatCount(mean), " tokens and ", FormatCount(batch),
                batch == 1 ? " sequence" : " sequences", " the plain cache is ",
                Percent(s.cache_memory_share), " of weights and cache, and a decode step reads ",
                Percent(std::max(0.0, s.step_gain)), " less with ", kv));
  if (s.prefill_time_share && *s.prefill_time_share > kMost) {
    reason(StrCat("prefill is ", Percent(*s.prefill_time_share),
                  " of the time, which a smaller cache does not change"));
  }
  if (s.prefix_reuse && *s.prefix_reuse >= 0.3) {
    reason(
        StrCat(Percent(*s.prefix_reuse),
               " of prompt tokens were there before: keeping prefixes saves their prefill, and a "
               "smaller cache keeps more of them"));
  }
  if (s.sequences_f16 > 0 && s.more_requests > 1) {
    reason(StrCat("a full device serves ", Times(s.more_requests), " times as many ",
                  a.ms ? "tokens a second" : "sequences", " (", FormatCount(s.sequences_f16),
                  " and ", FormatCount(s.sequences_kv), " sequences)"));
  }
  if (!s.concurrency) {
    reason("the concurrency is not known: judged at one sequence");
  }
  if (s.worth_it) {
    s.verdict =
        full && holds_more
            ? StrCat("worth it: ", kv, " holds ", FormatCount(s.sequences_kv),
                     " sequences where "
                     "f16 holds ",
                     FormatCount(s.sequences_f16))
            : StrCat("worth it: a decode step reads ", Percent(s.step_gain), " less with ", kv);
  } else if (even.context && s.share_below_break_even < 0.5) {
    s.verdict = StrCat("not worth it: at the mean context a decode step reads only ",
                       Percent(std::max(0.0, s.step_gain)), " less with ", kv);
  } else if (even.context) {
    s.verdict = StrCat("not worth it: ", Percent(s.share_below_break_even),
                       " of requests are under ", FormatCount(*even.context), " tokens");
  } else {
    s.verdict = StrCat("not worth it: ", even.reason);
  }
  return s;
}

}  // namespace tq
