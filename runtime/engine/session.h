// One model, one cache, generation from a prompt: what tq run and tq compare drive.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/engine/sampler.h"
#include "runtime/model/model.h"
#include "runtime/tokenizer/tokenizer.h"
#include "turboquant/base/status.h"
#include "turboquant/cache/cache.h"
#include "turboquant/cache/prefix_index.h"
#include "turboquant/cache/snapshot.h"

namespace tq {

struct GenerateOptions {
  int max_tokens = 256;
  SamplingParams sampling = {};
  std::vector<std::string> stop = {};  // strings that end the text; not part of it
  bool ignore_stop_tokens = false;
  int logprobs = -1;  // of each token: this many of the most probable beside it; -1: none at all
  const std::atomic<bool>* cancel = nullptr;  // set from outside: stop after the current token
  // Going on beyond the context by dropping old tokens: refused as kUnsupported.
  bool context_shift = false;

  Status Validate() const;
};

enum class FinishReason { kStop, kLength, kContext, kCancelled };
const char* FinishReasonName(FinishReason reason);  // "stop", "length", "context", "cancelled"

struct GenerateResult {
  std::string text;
  std::vector<TokenId> tokens;
  std::vector<Logprobs> logprobs;  // of each token, if asked for
  FinishReason finish_reason = FinishReason::kStop;
  int64_t prompt_tokens = 0;
  double prefill_seconds = 0, decode_seconds = 0;
  // Of each decode step; of one that several answers share, this one's part.
  std::vector<double> token_seconds;
};

class Session {
 public:
  // `model` must outlive the session. `context` = most tokens of a sequence.
  static Result<std::unique_ptr<Session>> Create(Model& model, CacheConfig cache_config,
                                                 int64_t context);
  ~Session();

  KvCache& cache() { return *cache_; }
  int64_t length() const;  // tokens in the sequence
  std::span<const TokenId> tokens() const { return history_; }
  int64_t context() const { return context_; }

  // Appends tokens in chunks. on_logits (optional) gets the logits of every token, chunk by chunk:
  // [rows][vocab_size] for positions first_pos ..; without it only the last row is computed.
  // kInvalidArgument when the context would overflow (both numbers).
  using LogitsSink = std::function<Status(int64_t first_pos, std::span<const float> logits)>;
  Status Prefill(std::span<const TokenId> tokens, const LogitsSink& on_logits = {},
                 const ProgressSink& progress = {}, const std::atomic<bool>* cancel = nullptr);
  // Logits after the last token; empty before the first.
  std::span<const float> last_logits() const { return last_logits_; }

  // Continues from the last logits. on_text streams complete characters. Every token of the result
  // is part of the sequence afterwards; a stop token is in neither. Text of special tokens is left
  // out; text that may be the beginning of a stop string is held back until that is known.
  using TextSink = std::function<void(const std::string&)>;
  Result<GenerateResult> Generate(const Tokenizer& tokenizer, const GenerateOptions& options,
                                  const TextSink& on_text = {});
  // `count` answers to the same prompt, kAnswersAtOnce side by side: answer i is what Generate
  // gives with the seed + i. on_text gets the number of the answer too, and one answer's text after
  // the other's. Afterwards the sequence is that of the first.
  using AnswerSink = std::function<void(int answer, const std::string& text)>;
  Result<std::vector<GenerateResult>> GenerateSeveral(const Tokenizer& tokenizer,
                                                      const GenerateOptions& options, int count,
                                                      const AnswerSink& on_text = {});
  // One token forward; last_logits() is renewed.
  Status Decode(TokenId token);
  Result<TruncateResult> Truncate(int64_t len);

  // Brings the sequence to the longest beginning of `tokens` that need not be read again, and
  // returns its length: what the sequence holds, cut back, or a boundary (KeepPrefixes) when that
  // is longer or cutting back would not be exact; nothing, where a sliding window has moved on. The
  // token whose logits are missing is always left to be read, so Prefill of the rest follows unless
  // all of `tokens` are there.
  Result<int64_t> StartFrom(std::span<const TokenId> tokens);
  // Holds up to max_bytes of boundaries for StartFrom; 0, the default: none. They count in
  // cache().Bytes().
  void KeepPrefixes(size_t max_bytes);
  // Records the end of the sequence as a boundary; the errors of PrefixIndex::Record.
  Status MarkBoundary();

  // The sequence as a file (docs/formats/cache_file.md): tokens, blocks, last logits. `kv` names
  // the formats in messages.
  Status SaveCache(const std::string& path, const std::string& kv) const;
  // Replaces the sequence by that of a file; what follows is what would have followed there, bit
  // for bit. Errors of Snapshot::Restore, kInvalidArgument when the context is too short,
  // kDataLoss when tokens or logits are not those of this model: the session is as it was.
  Status LoadCache(const Snapshot& snapshot);

  static constexpr int kPrefillChunk = 128;    // tokens of a forward pass in Prefill
  static constexpr size_t kAnswersAtOnce = 4;  // each holds its own tokens in the cache meanwhile

 private:
  struct Lane;
  Session() = default;
  Status CheckGenerate(const GenerateOptions& options) const;
  // Goes on until every lane has ended.
  Status Write(std::span<Lane* const> lanes);
  Model* model_ = nullptr;
  std::unique_ptr<KvCache> cache_;
  std::unique_ptr<PrefixIndex> prefixes_;  // of cache_; may be null
  SeqId seq_ = 0;
  int64_t context_ = 0;
  std::vector<float> last_logits_, next_logits_;
  std::vector<TokenId> history_;  // of the sequence
  // Prefilled since the last Generate: what its result reports.
  int64_t prefilled_tokens_ = 0;
  double prefilled_seconds_ = 0;
};

}  // namespace tq
