// One session answers all requests. Where a prompt parts from the one before it, and at every
// stride, a boundary is kept, from which later prompts go on exactly.
#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "runtime/engine/session.h"
#include "runtime/evaluate/footprint.h"
#include "runtime/evaluate/tasks/request_fields.h"
#include "runtime/evaluate/tasks/responder.h"
#include "runtime/tokenizer/chat_template.h"

namespace tq {
namespace {

using nlohmann::ordered_json;

// Infinity is no number in JSON.
double Finite(float logprob) {
  return std::max(logprob, std::numeric_limits<float>::lowest());
}

ordered_json ChatLogprobs(const Tokenizer& tokenizer, const GenerateResult& result) {
  ordered_json content = ordered_json::array();
  for (const Logprobs& logprobs : result.logprobs) {
    const auto entry = [&](const TokenLogprob& token) {
      return ordered_json{{"token", tokenizer.TokenBytes(token.id)},
                          {"logprob", Finite(token.logprob)}};
    };
    ordered_json one = entry(logprobs.chosen);
    one["top_logprobs"] = ordered_json::array();
    for (const TokenLogprob& top : logprobs.top) one["top_logprobs"].push_back(entry(top));
    content.push_back(std::move(one));
  }
  return {{"content", std::move(content)}};
}

ordered_json CompletionLogprobs(const Tokenizer& tokenizer, const GenerateResult& result) {
  ordered_json tokens = ordered_json::array(), values = tokens, tops = tokens;
  for (const Logprobs& logprobs : result.logprobs) {
    tokens.push_back(tokenizer.TokenBytes(logprobs.chosen.id));
    values.push_back(Finite(logprobs.chosen.logprob));
    ordered_json top = ordered_json::object();
    for (const TokenLogprob& t : logprobs.top) top[tokenizer.TokenBytes(t.id)] = Finite(t.logprob);
    tops.push_back(std::move(top));
  }
  return {{"tokens", std::move(tokens)},
          {"token_logprobs", std::move(values)},
          {"top_logprobs", std::move(tops)}};
}

}  // namespace

struct LocalResponder::State {
  const Tokenizer* tokenizer = nullptr;
  LocalResponderOptions options;
  int vocab_size = 0;
  std::optional<ChatTemplate> chat_template;
  std::unique_ptr<Session> session;
  std::vector<TokenId> last_prompt;
  int64_t read = 0, reused = 0;

  Result<std::vector<TokenId>> Encode(const RequestFields& fields) const;
  Status ReadPrompt(const std::vector<TokenId>& prompt, const std::atomic<bool>* cancel);
  Status ReadUpTo(const std::vector<TokenId>& prompt, int64_t end, const std::atomic<bool>* cancel);
};

LocalResponder::LocalResponder(std::unique_ptr<State> state) : state_(std::move(state)) {}
LocalResponder::~LocalResponder() = default;

const std::string& LocalResponder::name() const {
  return state_->options.name;
}
const Tokenizer* LocalResponder::tokenizer() const {
  return state_->tokenizer;
}
int64_t LocalResponder::read_tokens() const {
  return state_->read;
}
int64_t LocalResponder::reused_tokens() const {
  return state_->reused;
}

Result<std::unique_ptr<LocalResponder>> LocalResponder::Create(Model& model,
                                                               const Tokenizer& tokenizer,
                                                               CacheConfig config,
                                                               LocalResponderOptions options) {
  auto state = std::make_unique<State>();
  state->tokenizer = &tokenizer;
  state->vocab_size = model.arch().vocab_size;
  if (!tokenizer.chat_template().empty()) {
    TQ_ASSIGN_OR_RETURN(state->chat_template, ChatTemplate::Parse(tokenizer.chat_template()));
  }
  TQ_ASSIGN_OR_RETURN(state->session, Session::Create(model, config, options.context));
  state->session->KeepPrefixes(2 * CacheFootprint(config, options.context).total());
  state->options = std::move(options);
  return std::unique_ptr<LocalResponder>(new LocalResponder(std::move(state)));
}

Result<std::vector<TokenId>> LocalResponder::State::Encode(const RequestFields& fields) const {
  if (!fields.prompt_ids.empty()) {
    for (const TokenId id : fields.prompt_ids) {
      if (id < 0 || id >= vocab_size) {
        return InvalidArgument("the request's prompt has the token ", id, "; the model has ",
                               vocab_size);
      }
    }
    return fields.prompt_ids;
  }
  if (!fields.is_chat) return tokenizer->Encode(fields.prompt);
  if (!chat_template) {
    return Unsupported(
        "the request has messages, and the model has no chat template; send a prompt instead");
  }
  const auto special = [&](TokenId id) { return id < 0 ? "" : tokenizer->TokenBytes(id); };
  TQ_ASSIGN_OR_RETURN(const std::string text,
                      chat_template->Render(fields.messages, true, special(tokenizer->bos()),
                                            special(tokenizer->eos())));
  return tokenizer->Encode(text);
}

Result<std::vector<TokenId>> LocalResponder::PromptTokens(const ordered_json& request) const {
  TQ_ASSIGN_OR_RETURN(const RequestFields fields, ReadRequest(request));
  return state_->Encode(fields);
}

// Reads on to `end`, with a boundary at every multiple of the stride and at `end`, unless that is
// the end of the prompt, which no other prompt goes on from.
Status LocalResponder::State::ReadUpTo(const std::vector<TokenId>& prompt, int64_t end,
                                       const std::atomic<bool>* cancel) {
  const auto size = static_cast<int64_t>(prompt.size());
  while (session->length() < end) {
    const int64_t at = session->length();
    const int64_t next = std::min(end, (at / kBoundaryStride + 1) * kBoundaryStride);
    TQ_RETURN_IF_ERROR(session->Prefill(
        std::span(prompt).subspan(static_cast<size_t>(at), static_cast<size_t>(next - at)), {}, {},
        cancel));
    read += next - at;
    // A boundary that finds no room costs time later and nothing else.
    if (next < size) (void)session->MarkBoundary();
  }
  return OkStatus();
}

Status LocalResponder::State::ReadPrompt(const std::vector<TokenId>& prompt,
                                         const std::atomic<bool>* cancel) {
  TQ_ASSIGN_OR_RETURN(int64_t keep, session->StartFrom(prompt));
  // Going on from here would not equal reading it all again: so read it all.
  if (keep > 0 && session->MarkBoundary().code() == StatusCode::kFailedPrecondition) {
    TQ_RETURN_IF_ERROR(session->Truncate(0).status());
    keep = 0;
  }
  reused += keep;
  const int64_t same = std::ranges::mismatch(prompt, last_prompt).in1 - prompt.begin();
  last_prompt = prompt;
  if (same > session->length()) TQ_RETURN_IF_ERROR(ReadUpTo(prompt, same, cancel));
  return ReadUpTo(prompt, static_cast<int64_t>(prompt.size()), cancel);
}

Result<ordered_json> LocalResponder::Respond(const ordered_json& request,
                                             const std::atomic<bool>* cancel) {
  State& s = *state_;
  TQ_ASSIGN_OR_RETURN(RequestFields fields, ReadRequest(request));
  TQ_ASSIGN_OR_RETURN(const std::vector<TokenId> prompt, s.Encode(fields));
  const auto size = static_cast<int64_t>(prompt.size());
  if (size == 0) return InvalidArgument("the request's prompt is empty");
  if (size >= s.options.context) {
    return InvalidArgument("the request has ", size, " tokens and the context is ",
                           s.options.context, ": there is no room for an answer; raise --context");
  }
  if (!fields.max_tokens) fields.generate.max_tokens = s.options.max_tokens;
  if (!fields.has_seed) fields.generate.sampling.seed = s.options.seed;
  fields.generate.cancel = cancel;
  TQ_RETURN_IF_ERROR(s.ReadPrompt(prompt, cancel));
  TQ_ASSIGN_OR_RETURN(
      const std::vector<GenerateResult> answers,
      s.session->GenerateSeveral(*s.tokenizer, fields.generate, fields.num_answers));
  int64_t generated = 0;
  ordered_json choices = ordered_json::array();
  for (const GenerateResult& answer : answers) {
    if (answer.finish_reason == FinishReason::kCancelled) {
      return Cancelled("the answer was cancelled after ", answer.tokens.size(), " tokens");
    }
    generated += static_cast<int64_t>(answer.tokens.size());
    ordered_json choice = {{"index", choices.size()}};
    if (fields.is_chat) {
      choice["message"] = {{"role", "assistant"}, {"content", answer.text}};
    } else {
      choice["text"] = answer.text;
    }
    choice["logprobs"] = nullptr;
    if (fields.generate.logprobs >= 0) {
      choice["logprobs"] = fields.is_chat ? ChatLogprobs(*s.tokenizer, answer)
                                          : CompletionLogprobs(*s.tokenizer, answer);
    }
    choice["finish_reason"] = answer.finish_reason == FinishReason::kStop ? "stop" : "length";
    choices.push_back(std::move(choice));
  }
  return ordered_json{{"object", fields.is_chat ? "chat.completion" : "text_completion"},
                      {"model", s.options.name},
                      {"choices", std::move(choices)},
                      {"usage",
                       {{"prompt_tokens", size},
                        {"completion_tokens", generated},
                        {"total_tokens", size + generated}}}};
}

}  // namespace tq
