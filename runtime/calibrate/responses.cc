#include "runtime/calibrate/responses.h"

#include <algorithm>

#include "runtime/calibrate/plain.h"
#include "runtime/engine/session.h"
#include "turboquant/base/numeric.h"

namespace tq {
namespace {

// The tokens of one answer, over the plain cache.
Result<std::vector<TokenId>> Answer(Model& model, const Tokenizer& tokenizer,
                                    std::span<const TokenId> prompt, uint64_t seed,
                                    const ResponseOptions& options) {
  TQ_ASSIGN_OR_RETURN(
      const auto session,
      Session::Create(model, PlainConfig(model, options.context_len), options.context_len));
  TQ_RETURN_IF_ERROR(session->Prefill(prompt, {}, {}, options.cancel));
  GenerateOptions generate;
  generate.max_tokens = static_cast<int>(std::min<int64_t>(
      options.max_tokens, options.context_len - static_cast<int64_t>(prompt.size())));
  generate.sampling.temperature = static_cast<float>(options.temperature);
  generate.sampling.seed = seed;
  generate.cancel = options.cancel;
  TQ_ASSIGN_OR_RETURN(const GenerateResult answer, session->Generate(tokenizer, generate));
  if (answer.finish_reason == FinishReason::kCancelled) {
    return Cancelled("generating answers was stopped");
  }
  return answer.tokens;
}

}  // namespace

Result<Responses> AddResponses(Model& model, const Tokenizer& tokenizer,
                               const CorpusEncoder& encoder, std::span<const CorpusItem> items,
                               const ResponseOptions& options, Journal* journal) {
  Responses out;
  struct Prompt {
    TokenSequence sequence;
    uint64_t hash;
  };
  std::vector<Prompt> prompts;
  int64_t total = 0;
  const auto answer = [&](const Prompt& prompt, int round) -> Status {
    TQ_ASSIGN_OR_RETURN(
        const nlohmann::json tokens,
        journal->Get(StrCat("answer ", prompt.hash, " ", round), [&]() -> Result<nlohmann::json> {
          TQ_ASSIGN_OR_RETURN(const std::vector<TokenId> words,
                              Answer(model, tokenizer, prompt.sequence.tokens,
                                     options.seed + static_cast<uint64_t>(round), options));
          return nlohmann::json(words);
        }));
    TokenSequence whole = prompt.sequence;
    for (const auto& id : tokens) whole.tokens.push_back(id.get<TokenId>());
    out.answer_tokens += static_cast<int64_t>(tokens.size());
    ++out.generated;
    total += static_cast<int64_t>(whole.tokens.size());
    out.sequences.push_back(std::move(whole));
    if (!ReportProgress(options.progress, static_cast<size_t>(total),
                        static_cast<size_t>(std::max(total, options.total_tokens)),
                        "generating answers")) {
      return Cancelled("generating answers was stopped");
    }
    return OkStatus();
  };
  for (size_t i = 0; i < items.size() && total < options.total_tokens; ++i) {
    const CorpusItem& item = items[i];
    Result<TokenSequence> sequence = encoder.Encode(item);
    // A request that the template refuses is not part of the traffic that can be served.
    if (!sequence.ok()) continue;
    const bool answered = item.kind == CorpusItem::Kind::kText || item.answer.has_value();
    out.recorded += item.answer.has_value();
    const auto prompt_len = static_cast<int64_t>(sequence->tokens.size());
    if (answered || options.rounds == 0 || prompt_len + 1 >= options.context_len) {
      total += prompt_len;
      out.sequences.push_back(*std::move(sequence));
      continue;
    }
    const std::string text = item.body + item.text;
    prompts.push_back({*std::move(sequence), Hash64(text.data(), text.size(), 0)});
    TQ_RETURN_IF_ERROR(answer(prompts.back(), 0));
  }
  // Another answer to a prompt says less than another prompt: each has one before any has two.
  for (int round = 1; round < options.rounds; ++round) {
    for (size_t i = 0; i < prompts.size() && total < options.total_tokens; ++i) {
      TQ_RETURN_IF_ERROR(answer(prompts[i], round));
    }
  }
  return out;
}

}  // namespace tq
