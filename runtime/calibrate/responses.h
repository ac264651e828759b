// Answers of the model itself for requests whose log holds none: what a cache holds in service is
// prompts and answers.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/calibrate/journal.h"
#include "runtime/evaluate/corpus.h"
#include "runtime/model/model.h"
#include "runtime/tokenizer/tokenizer.h"
#include "turboquant/base/sinks.h"
#include "turboquant/base/status.h"

namespace tq {

struct ResponseOptions {
  int rounds = 2;        // answers to each request, with different seeds; 0: prompts alone
  int max_tokens = 128;  // of an answer
  double temperature = 0.8;
  uint64_t seed = 0;
  int64_t context_len = 2048;
  int64_t total_tokens = 100000;  // no more requests are answered once all have so many
  ProgressSink progress;
  const std::atomic<bool>* cancel = nullptr;
};

struct Responses {
  std::vector<TokenSequence> sequences;  // items with their recorded or generated answers
  int64_t recorded = 0, generated = 0, answer_tokens = 0;
};

// Every item as a sequence: texts and answered requests as they are, the others once for each
// round; the second round begins when every request has its first answer. kCancelled when asked to
// stop; what the chat template refuses is left out and counted.
Result<Responses> AddResponses(Model& model, const Tokenizer& tokenizer,
                               const CorpusEncoder& encoder, std::span<const CorpusItem> items,
                               const ResponseOptions& options, Journal* journal);

}  // namespace tq
