// Answers of the baseline first (twice where it may differ from itself), then of each candidate,
// compared request by request.
#include "runtime/evaluate/tasks/replay.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "turboquant/base/json_object.h"
#include "turboquant/plan/request_log.h"

namespace tq {
namespace {

using nlohmann::ordered_json;

struct Request {
  std::string name, shown;
  ordered_json body;
  uint64_t seed = 0;
};

double TemperatureOf(const ordered_json& recorded, const ReplayOptions& options) {
  if (options.temperature) return *options.temperature;
  const auto it = recorded.find("temperature");
  return it != recorded.end() && it->is_number() ? it->get<double>() : 1;
}

// Reasons that differ in a value alone count as one; servers write numbers of each request into
// theirs, so there is an end to how many are kept.
void Skip(std::string reason, const std::string& name, ReplayResult* result) {
  constexpr size_t kMostReasons = 20;
  if (const size_t value = reason.find("': "); value != std::string::npos) reason.resize(value + 1);
  const auto is_same = [&](const ReplayResult::Skipped& s) { return s.reason == reason; };
  if (result->skipped.size() >= kMostReasons &&
      std::none_of(result->skipped.begin(), result->skipped.end(), is_same)) {
    reason = "other reasons";
  }
  for (ReplayResult::Skipped& s : result->skipped) {
    if (s.reason != reason) continue;
    ++s.count;
    return;
  }
  result->skipped.push_back({reason, 1, name});
}

// What a request asks last, for a person.
std::string LastWords(const CorpusItem& item) {
  return item.kind == CorpusItem::Kind::kChat && !item.messages.empty()
             ? item.messages.back().content
             : item.text;
}

std::vector<Request> RequestsOf(const ReplayOptions& options, ReplayResult* result) {
  std::vector<Request> requests;
  for (const CorpusItem& item : options.requests) {
    if (item.body.empty()) {
      Skip("a text, not a request", item.name, result);
      continue;
    }
    if (requests.size() == options.most_requests) continue;
    Result<ordered_json> parsed = ParseJson<ordered_json>(item.body, item.name);
    if (!parsed.ok() || !parsed->is_object()) {
      Skip("the body is not a JSON object", item.name, result);
      continue;
    }
    ordered_json body = *std::move(parsed);
    const auto seed = body.find("seed");
    const uint64_t own = seed != body.end() && seed->is_number_integer()
                             ? static_cast<uint64_t>(seed->get<int64_t>())
                             : requests.size() * 1000;
    requests.push_back({item.name, LastWords(item), std::move(body), options.seed + own});
  }
  return requests;
}

// An answer, or nothing where this request is refused; other errors end everything.
Result<std::optional<Reply>> AskOne(Responder& responder, const Request& request, uint64_t seed,
                                    const ReplayOptions& options, std::string* refusal) {
  ordered_json body = ReplayBody(request.body, options, seed);
  // Token for token where the tokens are known here; some endpoints refuse to tell them.
  if (responder.tokenizer() != nullptr) {
    if (body.contains("messages")) {
      body["logprobs"] = true;
    } else {
      body["logprobs"] = 0;
    }
  }
  Result<Reply> reply = Ask(responder, body, options.cancel);
  if (reply.ok()) return std::optional<Reply>(*std::move(reply));
  if (!IsErrorOfOneRequest(reply.status())) {
    return reply.status().code() == StatusCode::kCancelled
               ? reply.status()
               : reply.status().WithContext(responder.name());
  }
  *refusal = options.redact ? options.redact(reply.status().message()) : reply.status().message();
  return std::optional<Reply>();
}

bool CountsAsDifferent(const AnswerDifference& d, double same_from) {
  if (same_from >= 1 && !d.exact) return true;
  return d.similarity < same_from || d.is_structural();
}

struct Pair {
  const Reply* baseline = nullptr;
  AnswerDifference difference;
};

ReplaySide Summarize(const std::vector<Pair>& pairs, double same_from) {
  ReplaySide side;
  if (pairs.empty()) return side;
  const double n = static_cast<double>(pairs.size());
  std::vector<double> first;
  int64_t exact = 0, different = 0, structural = 0, baseline_pieces = 0, pieces = 0;
  for (const Pair& pair : pairs) {
    const AnswerDifference& d = pair.difference;
    exact += d.exact;
    different += CountsAsDifferent(d, same_from);
    structural += d.is_structural();
    side.similarity += d.similarity / n;
    side.repetition += d.candidate_repetition / n;
    if (d.first_difference >= 0) first.push_back(static_cast<double>(d.first_difference));
    side.json += d.baseline_is_json;
    side.json_broken += d.json_broken;
    side.shape_differs += d.shape_differs;
    side.tool_calls += !pair.baseline->tool_calls.empty();
    side.tool_names_differ += d.tool_names_differ;
    side.tool_calls_differ += d.tool_calls_differ;
    side.finish_differs += d.finish_differs;
    baseline_pieces += d.baseline_pieces;
    pieces += d.candidate_pieces;
  }
  side.exact_rate = static_cast<double>(exact) / n;
  side.different_rate = static_cast<double>(different) / n;
  side.structural_rate = static_cast<double>(structural) / n;
  if (!first.empty()) side.median_first_difference = Median(std::move(first));
  if (baseline_pieces > 0) {
    side.length_ratio = static_cast<double>(pieces) / static_cast<double>(baseline_pieces);
  }
  return side;
}

// Where all requests agree, resampling them says nothing about those that were not asked: then the
// interval of a difference of shares.
Interval ExcessInterval(const std::vector<double>& excess, uint64_t seed) {
  const auto count = [&](double value) { return std::count(excess.begin(), excess.end(), value); };
  const auto total = static_cast<int64_t>(excess.size());
  if (std::max({count(-1), count(0), count(1)}) == total) {
    return DifferenceOfShares(count(1), count(-1), total).interval;
  }
  return BootstrapMeanInterval(excess, seed);
}

std::string Percent(double share) {
  return StrCat(static_cast<double>(std::lround(1000 * share)) / 10, " %");
}

// Why a candidate fails; empty: it does not.
std::string FailureOf(const ReplayCandidate& c, const ReplayOptions& options, size_t asked,
                      bool informative) {
  if (c.answered_share < kLeastAnswered) {
    return StrCat("it answered ", c.requests, " of ", asked, " requests; at least ",
                  Percent(kLeastAnswered), " are needed to judge it");
  }
  if (!options.max_difference) return "";
  if (!informative) return "the baseline differs from itself too often to tell";
  if (c.difference_rate <= *options.max_difference) return "";
  return StrCat("a difference rate of ", Percent(c.difference_rate), "; at most ",
                Percent(*options.max_difference), " was asked for");
}

// All of an answer that is shown: its tool calls too.
Status Redact(const ReplayOptions& options, Reply* reply) {
  const TextFilter filter = [&](std::string* text) {
    *text = options.redact(*text);
    return OkStatus();
  };
  TQ_RETURN_IF_ERROR(filter(&reply->text));
  TQ_RETURN_IF_ERROR(filter(&reply->finish_reason));
  return FilterJson(filter, &reply->tool_calls);
}

Status CheckOptions(const ReplayOptions& options) {
  if (options.max_tokens < 1) {
    return InvalidArgument("replay: at most ", options.max_tokens, " tokens; expected 1 or more");
  }
  if (!(options.same_from >= 0 && options.same_from <= 1)) {
    return InvalidArgument("replay: answers are the same from ", options.same_from,
                           " on; expected 0 to 1");
  }
  if (options.temperature && !(*options.temperature >= 0 && *options.temperature <= 2)) {
    return InvalidArgument("replay: temperature ", *options.temperature, "; expected 0 to 2");
  }
  return OkStatus();
}

}  // namespace

bool ReplayResult::passed() const {
  return std::all_of(candidates.begin(), candidates.end(),
                     [](const ReplayCandidate& c) { return c.passed(); });
}

ordered_json ReplayBody(const ordered_json& recorded, const ReplayOptions& options, uint64_t seed) {
  ordered_json body = recorded;
  for (const char* key : {"stream", "stream_options", "n", "best_of", "logprobs", "top_logprobs"}) {
    body.erase(key);
  }
  const double temperature = TemperatureOf(recorded, options);
  body["temperature"] = temperature;
  body.erase("seed");
  if (temperature > 0) body["seed"] = seed;
  // One limit under the name that the request uses.
  const char* const name =
      recorded.contains("max_completion_tokens") ? "max_completion_tokens" : "max_tokens";
  const auto limit = recorded.find(name);
  const bool has_limit = limit != recorded.end() && limit->is_number_integer();
  body[name] =
      has_limit ? std::min<int64_t>(limit->get<int64_t>(), options.max_tokens) : options.max_tokens;
  return body;
}

Result<ReplayResult> RunReplay(Responder& baseline, std::span<Responder* const> candidates,
                               const ReplayOptions& options) {
  TQ_RETURN_IF_ERROR(CheckOptions(options));
  ReplayResult result;
  std::vector<Request> all = RequestsOf(options, &result);
  if (all.empty()) {
    return InvalidArgument("there is no request to replay among ", options.requests.size(),
                           " items; give a log of OpenAI chat or completion bodies as --data");
  }
  const bool some_local = baseline.tokenizer() != nullptr ||
                          std::any_of(candidates.begin(), candidates.end(),
                                      [](const Responder* c) { return c->tokenizer() != nullptr; });
  // A local model answers freely: then all sides do.
  for (Request& request : all) {
    if (some_local)
      result.unconstrained += static_cast<int64_t>(request.body.erase("response_format"));
  }
  const TextSimilarity similarity =
      options.similarity ? options.similarity : [](const std::string& a, const std::string& b) {
        return Result<double>(WordOverlap(a, b));
      };
  const bool greedy = std::all_of(all.begin(), all.end(), [&](const Request& r) {
    return TemperatureOf(r.body, options) == 0;
  });
  result.floor_is_exact = baseline.deterministic() && greedy;
  const size_t rounds = candidates.size() + (result.floor_is_exact ? 1 : 2);
  size_t done = 0;
  std::string refusal;
  // Seeds of one request: of the baseline, of the baseline again, of every candidate.
  const auto ask = [&](Responder& responder, const Request& request,
                       uint64_t offset) -> Result<std::optional<Reply>> {
    TQ_ASSIGN_OR_RETURN(std::optional<Reply> reply,
                        AskOne(responder, request, request.seed + offset, options, &refusal));
    if (!ReportProgress(options.progress, ++done, rounds * all.size(), responder.name())) {
      return Cancelled("stopped after ", done, " of ", rounds * all.size(), " answers");
    }
    return reply;
  };

  std::vector<Request> requests;  // that the baseline answers
  std::vector<Reply> plain, again;
  for (const Request& request : all) {
    TQ_ASSIGN_OR_RETURN(std::optional<Reply> reply, ask(baseline, request, 0));
    if (!reply) {
      Skip(baseline.name() + ": " + refusal, request.name, &result);
      continue;
    }
    Reply second = *reply;
    if (!result.floor_is_exact) {
      TQ_ASSIGN_OR_RETURN(std::optional<Reply> other, ask(baseline, request, 1));
      if (!other) {
        Skip(baseline.name() + ": " + refusal, request.name, &result);
        continue;
      }
      second = *std::move(other);
    }
    requests.push_back(request);
    plain.push_back(*std::move(reply));
    again.push_back(std::move(second));
  }
  if (requests.empty()) {
    return InvalidArgument("none of ", all.size(), " requests was answered; the first: ", refusal);
  }
  std::vector<Pair> floor;
  for (size_t i = 0; i < requests.size(); ++i) {
    TQ_ASSIGN_OR_RETURN(AnswerDifference d, CompareAnswers(plain[i], again[i], similarity));
    result.baseline_repetition += d.baseline_repetition / static_cast<double>(requests.size());
    floor.push_back({&plain[i], std::move(d)});
  }
  result.floor = Summarize(floor, options.same_from);
  constexpr double kTooDifferent = 0.5;
  result.informative = result.floor.different_rate < kTooDifferent;

  for (Responder* candidate : candidates) {
    ReplayCandidate out;
    std::vector<Pair> pairs;
    std::vector<double> excess, loss;
    for (size_t i = 0; i < requests.size(); ++i) {
      // At temperature 0 seeds say nothing. Otherwise a seed of its own: with the baseline's the
      // two would be tied together, and the floor is not.
      TQ_ASSIGN_OR_RETURN(std::optional<Reply> reply, ask(*candidate, requests[i], 2));
      if (!reply) {
        Skip(candidate->name() + ": " + refusal, requests[i].name, &result);
        continue;
      }
      TQ_ASSIGN_OR_RETURN(AnswerDifference d, CompareAnswers(plain[i], *reply, similarity));
      const bool differs = CountsAsDifferent(d, options.same_from);
      const bool floor_differs = CountsAsDifferent(floor[i].difference, options.same_from);
      excess.push_back((differs ? 1.0 : 0.0) - (floor_differs ? 1.0 : 0.0));
      loss.push_back(floor[i].difference.similarity - d.similarity);
      out.cases.push_back(
          {requests[i].name, requests[i].shown, plain[i], *std::move(reply), d, differs});
      pairs.push_back({&plain[i], std::move(d)});
    }
    out.name = candidate->name();
    out.requests = static_cast<int64_t>(pairs.size());
    out.side = Summarize(pairs, options.same_from);
    out.difference_rate = Mean(excess);
    out.difference_interval = ExcessInterval(excess, options.seed);
    out.similarity_loss = Mean(loss);
    out.similarity_loss_interval = BootstrapMeanInterval(loss, options.seed);
    out.answered_share = static_cast<double>(out.requests) / static_cast<double>(requests.size());
    out.failure = FailureOf(out, options, requests.size(), result.informative);
    std::stable_sort(out.cases.begin(), out.cases.end(),
                     [](const ReplayCase& a, const ReplayCase& b) {
                       const auto rank = [](const ReplayCase& c) {
                         return std::pair(!c.difference.is_structural(), c.difference.similarity);
                       };
                       return rank(a) < rank(b);
                     });
    for (ReplayCase& c : out.cases) {
      if (!options.redact) break;
      c.request = options.redact(c.request);
      for (Reply* reply : {&c.baseline, &c.candidate}) {
        TQ_RETURN_IF_ERROR(Redact(options, reply));
      }
    }
    result.candidates.push_back(std::move(out));
  }
  result.baseline = baseline.name();
  result.requests = static_cast<int64_t>(requests.size());
  result.seed = options.seed;
  result.temperature = options.temperature;
  result.max_difference = options.max_difference;
  result.same_from = options.same_from;
  result.similarity_name = options.similarity_name;
  result.num_worst = options.num_worst;
  if (!result.informative) {
    result.note = StrCat(result.baseline, " differs from itself in ",
                         std::lround(100 * result.floor.different_rate),
                         " % of the requests, so a difference can hardly be seen: replay with "
                         "--temperature 0, or count answers as the same from a lower similarity on "
                         "(--same-from 0.8)");
  }
  return result;
}

}  // namespace tq
