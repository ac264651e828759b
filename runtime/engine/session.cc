// Prefill in chunks, decode token by token, stop where the request says so.
#include "runtime/engine/session.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "runtime/engine/stop_strings.h"

namespace tq {
namespace {

using Clock = std::chrono::steady_clock;
double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

bool IsSet(const std::atomic<bool>* flag) {
  return flag != nullptr && flag->load(std::memory_order_relaxed);
}

// What is said and when it ends: everything of an answer but the sequence that it goes on.
class Writer {
 public:
  Writer(const Tokenizer& tokenizer, const GenerateOptions& options, Session::TextSink on_text)
      : tokenizer_(tokenizer),
        options_(options),
        on_text_(std::move(on_text)),
        sampler_(options.sampling),
        decoder_(tokenizer),
        stops_(options.stop) {}

  // The token to go on with after `history`, whose last logits these are; none: the answer is
  // whole.
  Result<std::optional<TokenId>> Next(std::span<const float> logits,
                                      std::span<const TokenId> history, int64_t context) {
    if (stops_.stopped()) return End(FinishReason::kStop);
    if (result.tokens.size() >= static_cast<size_t>(options_.max_tokens)) {
      return End(FinishReason::kLength);
    }
    if (static_cast<int64_t>(history.size()) >= context) return End(FinishReason::kContext);
    if (IsSet(options_.cancel)) return End(FinishReason::kCancelled);
    const TokenId token = sampler_.Sample(logits, history);
    if (token < 0) {
      return DataLoss("the logits after token ", history.size(),
                      " are not numbers: the model's weights or its cache are damaged");
    }
    if (tokenizer_.IsStop(token) && !options_.ignore_stop_tokens) return End(FinishReason::kStop);
    if (options_.logprobs >= 0) {
      result.logprobs.push_back(ComputeLogprobs(logits, token, options_.logprobs));
    }
    if (!tokenizer_.IsSpecial(token)) Show(stops_.Push(decoder_.Push(token)));
    return std::optional<TokenId>(token);
  }
  // That token is part of the sequence now.
  void Took(TokenId token, double seconds) {
    result.tokens.push_back(token);
    result.token_seconds.push_back(seconds);
    result.decode_seconds += seconds;
  }

  GenerateResult result;

 private:
  std::optional<TokenId> End(FinishReason reason) {
    Show(stops_.Push(decoder_.Finish()));
    Show(stops_.Finish());
    result.finish_reason = reason;
    return std::nullopt;
  }
  void Show(const std::string& text) {
    if (text.empty()) return;
    result.text += text;
    if (on_text_) on_text_(text);
  }

  const Tokenizer& tokenizer_;
  const GenerateOptions options_;
  Session::TextSink on_text_;
  Sampler sampler_;
  StreamDecoder decoder_;
  StopStrings stops_;
};

}  // namespace

// A sequence and the answer that goes on it.
struct Session::Lane {
  SeqId seq;
  std::vector<TokenId> history;
  std::vector<float> logits;  // after the last token
  Writer writer;
  std::function<void()> on_end = {};
  TokenId token = -1;
  bool ended = false;
};

Status GenerateOptions::Validate() const {
  if (max_tokens < 0) return InvalidArgument("max_tokens = ", max_tokens, ": expected 0 or more");
  for (const std::string& text : stop) {
    if (text.empty()) return InvalidArgument("a stop string is empty");
  }
  constexpr int kMostLogprobs = 100;
  if (logprobs < -1 || logprobs > kMostLogprobs) {
    return InvalidArgument("logprobs = ", logprobs, ": expected 0 to ", kMostLogprobs,
                           ", or -1 for none");
  }
  if (context_shift) {
    return Unsupported(
        "context shift: stored keys are turned by their position and would have to be decoded, "
        "turned and stored again, which loses precision with every shift; raise the context, or "
        "start again from a shorter prompt");
  }
  return sampling.Validate();
}

const char* FinishReasonName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop: return "stop";
    case FinishReason::kLength: return "length";
    case FinishReason::kContext: return "context";
    case FinishReason::kCancelled: return "cancelled";
  }
  return "";
}

Result<std::unique_ptr<Session>> Session::Create(Model& model, CacheConfig cache_config,
                                                 int64_t context) {
  if (context < 1) return InvalidArgument("context = ", context, ": expected 1 or more tokens");
  std::unique_ptr<Session> session(new Session());
  TQ_ASSIGN_OR_RETURN(session->cache_, KvCache::Create(std::move(cache_config)));
  session->model_ = &model;
  session->seq_ = session->cache_->NewSequence();
  session->context_ = context;
  return session;
}

Session::~Session() = default;

int64_t Session::length() const {
  return static_cast<int64_t>(history_.size());
}

Status Session::Prefill(std::span<const TokenId> tokens, const LogitsSink& on_logits,
                        const ProgressSink& progress, const std::atomic<bool>* cancel) {
  if (tokens.empty()) return InvalidArgument("there are no tokens to read: the prompt is empty");
  const auto count = static_cast<int64_t>(tokens.size());
  if (length() + count > context_) {
    return InvalidArgument("the prompt has ", count, " tokens after ", length(),
                           " in the sequence, but the context is ", context_,
                           "; shorten it or raise the context");
  }
  const Clock::time_point start = Clock::now();
  for (size_t done = 0; done < tokens.size();) {
    if (IsSet(cancel)) {
      return Cancelled("reading the prompt was cancelled after ", done, " of ", count, " tokens");
    }
    const size_t n = std::min<size_t>(kPrefillChunk, tokens.size() - done);
    const bool last = done + n == tokens.size();
    const ForwardItem item = {
        .seq = seq_, .tokens = tokens.subspan(done, n), .all_logits = static_cast<bool>(on_logits)};
    TQ_RETURN_IF_ERROR(
        model_->Forward(*cache_, {&item, 1}, on_logits || last ? &next_logits_ : nullptr));
    const int64_t first_pos = length();
    history_.insert(history_.end(), item.tokens.begin(), item.tokens.end());
    last_logits_.clear();
    if (on_logits || last) {
      const auto vocab = static_cast<std::ptrdiff_t>(model_->arch().vocab_size);
      last_logits_.assign(next_logits_.end() - vocab, next_logits_.end());
    }
    done += n;
    prefilled_tokens_ += static_cast<int64_t>(n);
    if (on_logits) TQ_RETURN_IF_ERROR(on_logits(first_pos, next_logits_));
    if (!ReportProgress(progress, done, tokens.size(), "prefill") && !last) {
      return Cancelled("reading the prompt was cancelled after ", done, " of ", count, " tokens");
    }
  }
  prefilled_seconds_ += SecondsSince(start);
  return OkStatus();
}

Status Session::Decode(TokenId token) {
  if (length() >= context_) {
    return InvalidArgument("the sequence has ", length(), " tokens and the context is ", context_,
                           ": there is no room for another");
  }
  const ForwardItem item = {.seq = seq_, .tokens = {&token, 1}};
  TQ_RETURN_IF_ERROR(model_->Forward(*cache_, {&item, 1}, &next_logits_));
  history_.push_back(token);
  std::swap(last_logits_, next_logits_);
  return OkStatus();
}

Status Session::CheckGenerate(const GenerateOptions& options) const {
  TQ_RETURN_IF_ERROR(options.Validate());
  if (last_logits_.empty()) {
    return FailedPrecondition("there is nothing to continue from: prefill a prompt first");
  }
  for (const auto& [id, bias] : options.sampling.logit_bias) {
    if (id >= model_->arch().vocab_size) {
      return InvalidArgument("logit_bias names token ", id, ", but the model has ",
                             model_->arch().vocab_size);
    }
  }
  return OkStatus();
}

// One pass of the model gives every answer its next token: the weights are read once for all.
Status Session::Write(std::span<Lane* const> lanes) {
  const auto vocab = static_cast<size_t>(model_->arch().vocab_size);
  std::vector<Lane*> active;
  std::vector<ForwardItem> items;
  for (;;) {
    active.clear();
    items.clear();
    for (Lane* lane : lanes) {
      if (lane->ended) continue;
      TQ_ASSIGN_OR_RETURN(const std::optional<TokenId> token,
                          lane->writer.Next(lane->logits, lane->history, context_));
      lane->ended = !token;
      if (lane->ended) {
        if (lane->on_end) lane->on_end();
        continue;
      }
      lane->token = *token;
      active.push_back(lane);
      items.push_back({.seq = lane->seq, .tokens = {&lane->token, 1}});
    }
    if (active.empty()) return OkStatus();
    const Clock::time_point start = Clock::now();
    TQ_RETURN_IF_ERROR(model_->Forward(*cache_, items, &next_logits_));
    const double seconds = SecondsSince(start) / static_cast<double>(active.size());
    for (size_t i = 0; i < active.size(); ++i) {
      Lane& lane = *active[i];
      lane.history.push_back(lane.token);
      if (active.size() == 1) {
        std::swap(lane.logits, next_logits_);
      } else {
        const auto row = std::span<const float>(next_logits_).subspan(i * vocab, vocab);
        lane.logits.assign(row.begin(), row.end());
      }
      lane.writer.Took(lane.token, seconds);
    }
  }
}

Result<GenerateResult> Session::Generate(const Tokenizer& tokenizer, const GenerateOptions& options,
                                         const TextSink& on_text) {
  AnswerSink sink;
  if (on_text) sink = [&](int, const std::string& text) { on_text(text); };
  TQ_ASSIGN_OR_RETURN(std::vector<GenerateResult> results,
                      GenerateSeveral(tokenizer, options, 1, sink));
  return std::move(results.front());
}

Result<std::vector<GenerateResult>> Session::GenerateSeveral(const Tokenizer& tokenizer,
                                                             const GenerateOptions& options,
                                                             int count, const AnswerSink& on_text) {
  if (count < 1) return InvalidArgument("number of answers = ", count, ": expected 1 or more");
  TQ_RETURN_IF_ERROR(CheckGenerate(options));
  // Texts go out answer by answer: what a later one says meanwhile waits for its turn.
  const auto total = static_cast<size_t>(count);
  std::vector<std::string> waiting(total);
  std::vector<bool> ended(total);
  size_t turn = 0;
  const auto say = [&](size_t answer, const std::string& text) {
    if (answer != turn) {
      waiting[answer] += text;
    } else if (on_text) {
      on_text(static_cast<int>(answer), text);
    }
  };
  const auto end = [&](size_t answer) {
    ended[answer] = true;
    while (turn < total && ended[turn]) {
      if (++turn < total && !waiting[turn].empty()) say(turn, std::exchange(waiting[turn], {}));
    }
  };
  const auto lane = [&](size_t answer, SeqId seq, std::vector<TokenId> history,
                        std::vector<float> logits) {
    GenerateOptions own = options;
    own.sampling.seed += answer;
    return Lane{
        seq, std::move(history), std::move(logits),
        Writer(tokenizer, own, [&say, answer](const std::string& text) { say(answer, text); }),
        [&end, answer] { end(answer); }};
  };

  // The first answer goes on in the sequence itself; the prompt stays in a fork for the others.
  std::optional<SeqId> prompt;
  if (count > 1) {
    TQ_ASSIGN_OR_RETURN(prompt, cache_->Fork(seq_));
  }
  const std::vector<TokenId> history = count > 1 ? history_ : std::vector<TokenId>();
  const std::vector<float> logits = count > 1 ? last_logits_ : std::vector<float>();
  Lane first = lane(0, seq_, std::move(history_), std::move(last_logits_));
  first.writer.result.prompt_tokens = std::exchange(prefilled_tokens_, 0);
  first.writer.result.prefill_seconds = std::exchange(prefilled_seconds_, 0.0);
  std::vector<GenerateResult> results;
  Status status;
  while (status.ok() && results.size() < total) {
    std::vector<Lane> forks;
    forks.reserve(kAnswersAtOnce);
    std::vector<Lane*> lanes;
    const bool is_first = results.empty();
    if (is_first) lanes.push_back(&first);
    while (status.ok() && lanes.size() < kAnswersAtOnce && results.size() + lanes.size() < total) {
      const Result<SeqId> fork = cache_->Fork(*prompt);
      status = fork.status();
      if (!status.ok()) break;
      forks.push_back(lane(results.size() + lanes.size(), *fork, history, logits));
      lanes.push_back(&forks.back());
    }
    if (status.ok()) status = Write(lanes);
    for (const Lane& fork : forks) {
      const Status freed = cache_->Free(fork.seq);
      if (status.ok()) status = freed;
    }
    for (Lane* done : lanes) results.push_back(std::move(done->writer.result));
    if (results.back().finish_reason == FinishReason::kCancelled) break;
  }
  history_ = std::move(first.history);
  last_logits_ = std::move(first.logits);
  if (prompt) {
    const Status freed = cache_->Free(*prompt);
    if (status.ok()) status = freed;
  }
  TQ_RETURN_IF_ERROR(status);
  return results;
}

Result<TruncateResult> Session::Truncate(int64_t len) {
  TQ_ASSIGN_OR_RETURN(const TruncateResult result, cache_->Truncate(seq_, len));
  if (len < length()) last_logits_.clear();
  history_.resize(static_cast<size_t>(len));
  return result;
}

Result<int64_t> Session::StartFrom(std::span<const TokenId> tokens) {
  if (tokens.empty()) return InvalidArgument("there are no tokens to read: the prompt is empty");
  const auto same = std::ranges::mismatch(history_, tokens).in1 - history_.begin();
  if (same == length() && (tokens.size() > history_.size() || !last_logits_.empty())) return same;
  const std::span<const TokenId> wanted = tokens.first(tokens.size() - 1);
  int64_t keep = std::min<int64_t>(same, static_cast<int64_t>(wanted.size()));
  // A fork is cut back, so that nothing is lost before the choice is made.
  TQ_ASSIGN_OR_RETURN(SeqId next, cache_->Fork(seq_));
  Result<TruncateResult> cut = cache_->Truncate(next, keep);
  if (!cut.ok() && cut.status().code() == StatusCode::kFailedPrecondition) {
    // A sliding window has released what the next token would see: from the start, then.
    keep = 0;
    cut = cache_->Truncate(next, keep);
  }
  if (!cut.ok()) {
    TQ_RETURN_IF_ERROR(cache_->Free(next));
    return cut.status();
  }
  if (prefixes_ != nullptr && (!cache_->IsExact(next) || prefixes_->Match(wanted) > keep)) {
    if (const auto hit = prefixes_->Find(wanted)) {
      TQ_RETURN_IF_ERROR(cache_->Free(next));
      next = hit->seq;
      keep = hit->length;
    }
  }
  TQ_RETURN_IF_ERROR(cache_->Free(seq_));
  seq_ = next;
  history_.assign(tokens.begin(), tokens.begin() + keep);
  last_logits_.clear();
  return keep;
}

void Session::KeepPrefixes(size_t max_bytes) {
  prefixes_.reset();
  if (max_bytes > 0) prefixes_ = std::make_unique<PrefixIndex>(*cache_, max_bytes);
}

Status Session::MarkBoundary() {
  if (prefixes_ == nullptr) return FailedPrecondition("this session keeps no prefixes");
  return prefixes_->Record(seq_, history_);
}

Status Session::SaveCache(const std::string& path, const std::string& kv) const {
  const SnapshotMeta meta = {.structure_hash = model_->CacheHash(),
                             .model = model_->arch().model_name.substr(0, 256),
                             .kv = kv.substr(0, 256),
                             .tokens = history_,
                             .logits = last_logits_};
  return SaveSnapshot(*cache_, seq_, meta, path);
}

Status Session::LoadCache(const Snapshot& snapshot) {
  const SnapshotMeta& meta = snapshot.meta();
  if (snapshot.length() > context_) {
    return InvalidArgument("the cache file holds ", snapshot.length(),
                           " tokens and the context is ", context_, "; raise the context");
  }
  if (model_->IsCacheHashOfAnotherContext(meta.structure_hash)) {
    return InvalidArgument(
        "the cache file was saved with another --context, for which the model turns its keys by "
        "other angles (LongRoPE) or has other windows; give the --context of that run");
  }
  TQ_ASSIGN_OR_RETURN(const SeqId restored, snapshot.Restore(*cache_, model_->CacheHash()));
  // Checked after the model's identity, whose message is the better one.
  const int vocab = model_->arch().vocab_size;
  const auto bad = std::find_if(meta.tokens.begin(), meta.tokens.end(),
                                [vocab](TokenId t) { return t < 0 || t >= vocab; });
  Status status;
  if (bad != meta.tokens.end()) {
    status = DataLoss("the cache file has the token ", *bad, "; the model has ", vocab);
  } else if (!meta.logits.empty() && meta.logits.size() != static_cast<size_t>(vocab)) {
    status = DataLoss("the cache file has ", meta.logits.size(), " logits; the model has ", vocab);
  }
  TQ_RETURN_IF_ERROR(cache_->Free(status.ok() ? seq_ : restored));
  TQ_RETURN_IF_ERROR(status);
  seq_ = restored;
  history_ = meta.tokens;
  last_logits_ = meta.logits;
  return OkStatus();
}

}  // namespace tq
