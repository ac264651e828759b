// One cache format of tq bench decode at one depth: its cache, its steps, what they took.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cli/bench/synthetic_cache.h"
#include "cli/bench/timed_backend.h"
#include "cli/kv_choice.h"
#include "runtime/model/model.h"

namespace tq::cli {

// Where the tokens in front of a measurement come from.
enum class Filling { kNothing, kPrefill, kSynthetic };
const char* FillingName(Filling filling);  // "nothing", "prefill", "synthetic blocks"

class DecodeRun {
 public:
  DecodeRun(Model& model, const KvChoice& choice, const StepSeconds* seconds, ThreadPool& pool)
      : model_(model), choice_(choice), seconds_(seconds), pool_(pool) {}

  // Bytes that the cache will allocate for `depth` tokens and `steps` more.
  Result<size_t> CacheBytes(int64_t depth, int steps) const;
  // Empties the results and brings the cache to `depth`: by a prefill of random tokens up to
  // prefill_up_to, else by synthetic blocks.
  Status Start(int64_t depth, int64_t prefill_up_to);
  // One uncounted step, then `steps` counted ones, from the same depth every time.
  Status Steps(int steps);

  const KvChoice& choice() const { return choice_; }
  Filling filling() const { return filling_; }
  size_t read_bytes() const;  // of the cache by one step
  double bits_per_value() const { return cache_->BitsPerValue(); }
  const std::vector<double>& tokens_per_second() const { return tokens_per_second_; }
  // Milliseconds of every counted step, and what attention and writes took of it.
  const std::vector<double>& step_ms() const { return step_ms_; }
  const std::vector<double>& attention_ms() const { return attention_ms_; }
  const std::vector<double>& append_ms() const { return append_ms_; }

 private:
  int32_t NextToken();

  Model& model_;
  const KvChoice& choice_;
  const StepSeconds* seconds_;
  ThreadPool& pool_;
  std::unique_ptr<SyntheticFiller> filler_;
  std::unique_ptr<KvCache> cache_;
  SeqId base_ = 0;  // `depth` tokens; steps run on forks of it
  int64_t depth_ = 0;
  Filling filling_ = Filling::kNothing;
  uint64_t random_ = 1;
  std::vector<float> logits_;
  std::vector<double> tokens_per_second_, step_ms_, attention_ms_, append_ms_;
};

}  // namespace tq::cli
