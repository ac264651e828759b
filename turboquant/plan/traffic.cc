// The log of requests: reading it, and how much of each prompt was there before.
#include "turboquant/plan/traffic.h"

#include <algorithm>
#include <cmath>
#include <unordered_set>
#include <utility>

#include "turboquant/base/numeric.h"
#include "turboquant/plan/request_log.h"

namespace tq {
namespace {

// Prefixes are compared at multiples of this many bytes: about 16 tokens.
constexpr size_t kPrefixStep = 64;

std::string MessageText(const LoggedMessage& message) {
  return message.role + "\x1f" + message.content + "\x1e";
}

// Texts that were read or written before, as hashes of their prefixes.
class SeenPrefixes {
 public:
  // Bytes of `prompt` that an earlier text begins with; then prompt and answer are seen too.
  size_t Add(const std::string& prompt, const std::string& answer) {
    const std::string whole = prompt + answer;
    size_t reused = 0;
    bool known = true;
    uint64_t hash = 0;
    for (size_t at = 0; at + kPrefixStep <= whole.size(); at += kPrefixStep) {
      hash = Hash64(whole.data() + at, kPrefixStep, hash);
      const bool fresh = seen_.insert(hash).second;
      known = known && !fresh;
      if (known && at + kPrefixStep <= prompt.size()) reused = at + kPrefixStep;
    }
    return reused;
  }

 private:
  std::unordered_set<uint64_t> seen_;
};

struct Missing {
  size_t completion = 0, arrival = 0, text = 0;
};

Result<TrafficRequest> ReadRequest(const LoggedRequest& logged, const TokenCounter& count,
                                   SeenPrefixes* seen, Missing* missing, std::string* longest) {
  TrafficRequest r;
  std::string prompt = logged.prompt, answer;
  for (const LoggedMessage& m : logged.messages) prompt += MessageText(m);
  if (logged.answer) {
    const LoggedMessage& said = logged.answer->message;
    answer = logged.is_chat ? MessageText(said) : said.content;
  }
  if (logged.prompt_tokens) {
    r.prompt_tokens = *logged.prompt_tokens;
  } else if (prompt.empty()) {
    return InvalidArgument("field 'prompt_tokens', 'messages' or 'prompt' is missing");
  } else if (!count) {
    return InvalidArgument(
        "field 'prompt_tokens' is missing and there is no tokenizer to count "
        "the text with; name a GGUF model or a folder with its weights and tokenizer.json, or log "
        "usage");
  } else {
    r.prompt_tokens = count(prompt);
  }
  if (logged.completion_tokens) {
    r.completion_tokens = *logged.completion_tokens;
  } else if (!answer.empty() && count) {
    r.completion_tokens = count(answer);
  } else {
    ++missing->completion;
  }
  r.arrival = logged.arrival;
  r.duration = logged.duration;
  missing->arrival += !r.arrival;
  if (prompt.empty()) {
    ++missing->text;
    return r;
  }
  r.has_text = true;
  if (prompt.size() > longest->size()) *longest = prompt;
  const size_t reused = seen->Add(prompt, answer);
  r.reused_tokens = static_cast<double>(r.prompt_tokens) * static_cast<double>(reused) /
                    static_cast<double>(prompt.size());
  return r;
}

}  // namespace

Result<Traffic> ReadTraffic(std::string_view jsonl, const std::string& name,
                            const TokenCounter& count) {
  Traffic traffic;
  SeenPrefixes seen;
  Missing missing;
  size_t number = 0;
  while (!jsonl.empty()) {
    const size_t end = std::min(jsonl.find('\n'), jsonl.size());
    const std::string_view line = jsonl.substr(0, end);
    jsonl.remove_prefix(std::min(end + 1, jsonl.size()));
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const std::string where = StrCat("'", name, "', line ", number);
    const Result<LoggedRequest> logged = ParseLogLine(line);
    if (!logged.ok()) return logged.status().WithContext(where);
    Result<TrafficRequest> request =
        ReadRequest(*logged, count, &seen, &missing, &traffic.longest_text);
    if (!request.ok()) return request.status().WithContext(where);
    traffic.requests.push_back(*std::move(request));
  }
  const size_t n = traffic.requests.size();
  if (n == 0) return InvalidArgument("'", name, "' has no requests");
  const auto note = [&](size_t lines, const char* what) {
    if (lines > 0) traffic.notes.push_back(StrCat(lines, " of ", n, " requests ", what));
  };
  note(missing.completion, "do not say how many tokens were generated: counted as 0");
  note(missing.arrival, "have no time: the concurrency is not known");
  note(missing.text, "have no text: what they share with earlier ones is not known");
  return traffic;
}

Distribution DistributionOf(std::vector<int64_t> values) {
  Distribution d;
  if (values.empty()) return d;
  std::sort(values.begin(), values.end());
  double sum = 0;
  for (const int64_t v : values) sum += static_cast<double>(v);
  d.mean = sum / static_cast<double>(values.size());
  // The smallest value that at least this share of all does not exceed.
  const auto quantile = [&](size_t percent) {
    return values[DivCeil(values.size() * percent, size_t{100}) - 1];
  };
  d.median = quantile(50);
  d.p90 = quantile(90);
  d.p99 = quantile(99);
  d.max = values.back();
  return d;
}

}  // namespace tq
