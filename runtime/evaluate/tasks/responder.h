// Something that answers OpenAI chat and completion bodies: a local model with a cache
// configuration, or an OpenAI-compatible endpoint. Evaluations compare two of them, the baseline
// and the candidate.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "runtime/model/model.h"
#include "runtime/tokenizer/tokenizer.h"
#include "turboquant/base/status.h"
#include "turboquant/cache/cache.h"

namespace tq {

class Responder {
 public:
  virtual ~Responder() = default;

  // The whole answer to a request body: {"messages": [...]} gives a chat.completion, {"prompt":
  // ...} a text_completion, each as OpenAI's API writes it, with "usage". `stream` is ignored.
  //
  // kInvalidArgument, kUnsupported: this request cannot be answered, another one may be.
  // kUnavailable, kResourceExhausted: nothing can be answered. kCancelled: `cancel` was set.
  virtual Result<nlohmann::ordered_json> Respond(const nlohmann::ordered_json& request,
                                                 const std::atomic<bool>* cancel = nullptr) = 0;

  // For reports: "k4v4", "http://host:8000/v1 (model)". Never holds a key.
  virtual const std::string& name() const = 0;
  // Whether the same request with the same seed gives the same answer, bit for bit.
  virtual bool deterministic() const = 0;
  // Whether a request with n answers and a seed costs less than n requests with the seed, the seed
  // + 1 and so on, and gives the same answers.
  virtual bool answers_together() const { return false; }
  // Of the text that is asked about; nullptr where it is not known here.
  virtual const Tokenizer* tokenizer() const = 0;
};

// --- A local model ------------------------------------------------------------------------------
struct LocalResponderOptions {
  std::string name;      // of the cache: "k3v2"
  int64_t context = 0;   // most tokens of prompt and answer
  int max_tokens = 512;  // of an answer whose request names no limit
  uint64_t seed = 0;     // of requests that name none
};

// `model` and `tokenizer` must outlive the responder. Answers are those of a fresh session, bit for
// bit, but what a prompt shares with earlier ones is not read again: ends of shared beginnings and
// every kBoundaryStride tokens are kept as prefix boundaries, in up to twice the bytes of a full
// context.
//
// Fields: messages (text only) or prompt (a string or token ids), max_tokens,
// max_completion_tokens, temperature (1 where it is missing, as in OpenAI's API), top_p, top_k,
// min_p, n, seed, stop, presence_penalty, frequency_penalty, repetition_penalty, logit_bias,
// logprobs, top_logprobs, ignore_eos. What would change the answer and is not known here (tools,
// response_format, images, ...) is kUnsupported by name.
class LocalResponder : public Responder {
 public:
  static Result<std::unique_ptr<LocalResponder>> Create(Model& model, const Tokenizer& tokenizer,
                                                        CacheConfig config,
                                                        LocalResponderOptions options);
  ~LocalResponder() override;

  Result<nlohmann::ordered_json> Respond(const nlohmann::ordered_json& request,
                                         const std::atomic<bool>* cancel = nullptr) override;
  const std::string& name() const override;
  bool deterministic() const override { return true; }
  bool answers_together() const override { return true; }
  const Tokenizer* tokenizer() const override;

  // The tokens that a request's prompt or messages become, template and all; as Respond reads them.
  Result<std::vector<TokenId>> PromptTokens(const nlohmann::ordered_json& request) const;
  // Prompt tokens that were computed, and those that were not because they were there.
  int64_t read_tokens() const;
  int64_t reused_tokens() const;

  static constexpr int64_t kBoundaryStride = 1024;

 private:
  struct State;
  explicit LocalResponder(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// --- An endpoint --------------------------------------------------------------------------------
struct EndpointOptions {
  // Up to the version, without user, query and fragment, "https://host:8000/v1"; a path that goes
  // on to /chat/completions or /completions is cut there.
  std::string url = {};
  // Sent as "model". Empty: the request's own, or else the only one of GET /models.
  std::string model = {};
  // The environment variable that holds the API key. Empty: OPENAI_API_KEY, if that is set and the
  // URL is https://api.openai.com; other hosts get no key that was not named for them.
  std::string api_key_variable = {};
  double connect_seconds = 10;
  double timeout_seconds = 600;  // of one attempt
  // After 408, 429, 5xx and broken connections; waits 1, 2, 4 ... times this, or what Retry-After
  // says, up to a minute.
  int max_retries = 4;
  double backoff_seconds = 1;
};

class EndpointResponder : public Responder {
 public:
  // Checks the URL and the key's variable; sends nothing yet.
  static Result<std::unique_ptr<EndpointResponder>> Create(EndpointOptions options);
  ~EndpointResponder() override;

  // Sends everything of the request but `stream` and `stream_options`. Redirects are not followed,
  // so that a key goes nowhere else. Messages hold the URL, the status and what the server said.
  Result<nlohmann::ordered_json> Respond(const nlohmann::ordered_json& request,
                                         const std::atomic<bool>* cancel = nullptr) override;
  const std::string& name() const override;
  bool deterministic() const override { return false; }
  const Tokenizer* tokenizer() const override { return nullptr; }

 private:
  struct State;
  explicit EndpointResponder(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// --- What an answer says ------------------------------------------------------------------------
struct Reply {
  std::string text;           // content or text; empty where there are only tool calls
  std::string finish_reason;  // "stop", "length", "tool_calls", ...; empty: none was given
  nlohmann::ordered_json tool_calls = nlohmann::ordered_json::array();  // as they came
  std::vector<std::string> tokens;  // of the text; empty without logprobs
  int64_t prompt_tokens = -1;       // of the request, as "usage" says; -1: it does not
};

// The choices of a response, in the order of their indices. kInvalidArgument names what is missing.
Result<std::vector<Reply>> ParseReplies(const nlohmann::ordered_json& response);

// The first choice of the answer.
Result<Reply> Ask(Responder& responder, const nlohmann::ordered_json& request,
                  const std::atomic<bool>* cancel = nullptr);

// A candidate that answers a smaller share of what the baseline answers fails: the few that it does
// answer say little about it.
inline constexpr double kLeastAnswered = 0.9;

// True for errors of one request, after which the next can be tried.
bool IsErrorOfOneRequest(const Status& status);

}  // namespace tq
