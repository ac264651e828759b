// The log of requests: reading it, and how much of each prompt was there before.
#include "turboquant/plan/traffic.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <unordered_set>
#include <utility>

#include "turboquant/base/numeric.h"

namespace tq {
namespace {

using Json = nlohmann::json;

// Prefixes are compared at multiples of this many bytes: about 16 tokens.
constexpr size_t kPrefixStep = 64;
constexpr int64_t kMaxTokens = int64_t{1} << 30;

// A value as a message shows it. Containers are named only: they may be deep.
std::string Show(const Json& value) {
  return value.is_structured() ? std::string(value.type_name()) : value.dump().substr(0, 40);
}

const Json* Find(const Json& object, std::initializer_list<const char*> path) {
  const Json* at = &object;
  for (const char* key : path) {
    if (!at->is_object()) return nullptr;
    const auto it = at->find(key);
    if (it == at->end() || it->is_null()) return nullptr;
    at = &*it;
  }
  return at;
}

const Json* FirstOf(const Json& object,
                    std::initializer_list<std::initializer_list<const char*>> paths) {
  for (const auto& path : paths) {
    if (const Json* found = Find(object, path)) return found;
  }
  return nullptr;
}

Result<int64_t> Tokens(const Json& value, const char* field) {
  if (!value.is_number_integer()) {
    return InvalidArgument("field '", field, "' is ", Show(value), "; a whole number was expected");
  }
  const bool huge = value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{kMaxTokens};
  const int64_t n = huge ? kMaxTokens + 1 : value.get<int64_t>();
  if (n < 0 || n > kMaxTokens) {
    return InvalidArgument("field '", field, "' = ", Show(value), "; expected 0 to ", kMaxTokens);
  }
  return n;
}

// "2026-11-30T12:00:00.5Z" as seconds since 1970; a number above 1e11 counts milliseconds.
Result<double> Seconds(const Json& value, const char* field) {
  if (value.is_number()) {
    const double n = value.get<double>();
    if (!(n >= 0 && n < 1e15)) {
      return InvalidArgument("field '", field, "' = ", Show(value), " is no time");
    }
    return n > 1e11 ? n / 1000 : n;
  }
  int year = 0, month = 0, day = 0, hour = 0, minute = 0;
  double second = 0;
  const std::string text = value.is_string() ? value.get<std::string>() : "";
  if (std::sscanf(text.c_str(), "%4d-%2d-%2d%*1[T ]%2d:%2d:%lf", &year, &month, &day, &hour,
                  &minute, &second) != 6 ||
      year < 1970 || month < 1 || month > 12 || day < 1 || day > 31 || hour > 23 || minute > 59 ||
      !(second >= 0 && second < 61)) {
    return InvalidArgument("field '", field, "' is ", Show(value),
                           "; expected seconds or \"2026-11-30T12:00:00Z\"");
  }
  // Days since 1970-01-01 of the Gregorian calendar, with years that begin in March.
  const int64_t y = month <= 2 ? year - 1 : year;
  const int64_t day_of_year = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1;
  const int64_t days = 365 * y + y / 4 - y / 100 + y / 400 + day_of_year - 719468;
  return static_cast<double>((days * 24 + hour) * 60 + minute) * 60 + second;
}

// The text of a message's content: a string, or parts of which only text counts.
std::string ContentText(const Json& content) {
  if (content.is_string()) return content.get<std::string>();
  std::string out;
  if (!content.is_array()) return out;
  for (const Json& part : content) {
    const Json* text = Find(part, {"text"});
    if (text != nullptr && text->is_string()) out += text->get<std::string>();
  }
  return out;
}

std::string MessageText(const Json& message) {
  const Json* role = Find(message, {"role"});
  const Json* content = Find(message, {"content"});
  return (role != nullptr && role->is_string() ? role->get<std::string>() : "") + "\x1f" +
         (content != nullptr ? ContentText(*content) : "") + "\x1e";
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

Result<TrafficRequest> ReadRequest(const Json& line, const TokenCounter& count, SeenPrefixes* seen,
                                   Missing* missing, std::string* longest) {
  if (!line.is_object()) return InvalidArgument("a JSON object was expected");
  TrafficRequest r;
  std::string prompt, answer;
  if (const Json* messages = FirstOf(line, {{"messages"},
                                            {"body", "messages"},
                                            {"request", "messages"},
                                            {"request", "body", "messages"}})) {
    if (!messages->is_array()) return InvalidArgument("field 'messages' is no array");
    for (const Json& m : *messages) prompt += MessageText(m);
  } else if (const Json* text =
                 FirstOf(line, {{"prompt"}, {"body", "prompt"}, {"request", "prompt"}})) {
    if (!text->is_string()) return InvalidArgument("field 'prompt' is no string");
    prompt = text->get<std::string>();
  }
  for (const Json* choices :
       {FirstOf(line, {{"choices"}, {"response", "choices"}, {"response", "body", "choices"}})}) {
    if (choices == nullptr || !choices->is_array() || choices->empty()) continue;
    if (const Json* message = Find(choices->front(), {"message"})) {
      answer = MessageText(*message);
    } else if (const Json* text = Find(choices->front(), {"text"}); text && text->is_string()) {
      answer = text->get<std::string>();
    }
  }
  const Json* prompt_tokens = FirstOf(line, {{"prompt_tokens"},
                                             {"input_tokens"},
                                             {"usage", "prompt_tokens"},
                                             {"usage", "input_tokens"},
                                             {"response", "usage", "prompt_tokens"},
                                             {"response", "body", "usage", "prompt_tokens"}});
  const Json* completion_tokens =
      FirstOf(line, {{"completion_tokens"},
                     {"output_tokens"},
                     {"usage", "completion_tokens"},
                     {"usage", "output_tokens"},
                     {"response", "usage", "completion_tokens"},
                     {"response", "body", "usage", "completion_tokens"}});
  if (prompt_tokens != nullptr) {
    TQ_ASSIGN_OR_RETURN(r.prompt_tokens, Tokens(*prompt_tokens, "prompt_tokens"));
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
  if (completion_tokens != nullptr) {
    TQ_ASSIGN_OR_RETURN(r.completion_tokens, Tokens(*completion_tokens, "completion_tokens"));
  } else if (!answer.empty() && count) {
    r.completion_tokens = count(answer);
  } else {
    ++missing->completion;
  }
  if (const Json* time = FirstOf(line, {{"time"},
                                        {"timestamp"},
                                        {"arrival"},
                                        {"created"},
                                        {"response", "created"},
                                        {"response", "body", "created"}})) {
    TQ_ASSIGN_OR_RETURN(r.arrival, Seconds(*time, "time"));
  } else {
    ++missing->arrival;
  }
  if (const Json* duration = FirstOf(line, {{"duration"}, {"latency"}})) {
    TQ_ASSIGN_OR_RETURN(r.duration, Seconds(*duration, "duration"));
  }
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
    const Json json = Json::parse(line, nullptr, false);
    const std::string where = StrCat("'", name, "', line ", number);
    if (json.is_discarded()) return DataLoss(where, ": it is not JSON");
    Result<TrafficRequest> request =
        ReadRequest(json, count, &seen, &missing, &traffic.longest_text);
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
