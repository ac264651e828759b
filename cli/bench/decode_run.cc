#include "cli/bench/decode_run.h"

#include <algorithm>
#include <chrono>

#include "cli/common.h"
#include "turboquant/base/numeric.h"

namespace tq::cli {

const char* FillingName(Filling filling) {
  switch (filling) {
    case Filling::kNothing: return "nothing";
    case Filling::kPrefill: return "prefill";
    case Filling::kSynthetic: return "synthetic blocks";
  }
  return "";
}

int32_t DecodeRun::NextToken() {
  return static_cast<int32_t>(SplitMix64(random_) %
                              static_cast<uint64_t>(model_.arch().vocab_size));
}

Result<size_t> DecodeRun::CacheBytes(int64_t depth, int steps) const {
  TQ_ASSIGN_OR_RETURN(const auto cache, KvCache::Create(choice_.config));
  const int64_t blocks = DivCeil<int64_t>(depth + steps + 1, kPageLen);
  const PrecisionRule& rule = cache->rule();
  const int64_t open = std::min<int64_t>(
      blocks, int64_t{rule.sink_blocks} + rule.recent_blocks + 2 +
                  DivCeil(choice_.config.rollback_len, kPageLen) + DivCeil(steps, kPageLen));
  const std::vector<int>& windows = choice_.config.windows;
  const int64_t window = windows.empty() ? 0 : *std::max_element(windows.begin(), windows.end());
  const int64_t kept = std::min(blocks, DivCeil<int64_t>(window + steps, kPageLen) + 2 +
                                            DivCeil(choice_.config.rollback_len, kPageLen));
  return static_cast<size_t>(open) * cache->open_slot_bytes() +
         static_cast<size_t>(kept) * cache->window_slot_bytes() +
         static_cast<size_t>(blocks) * cache->sealed_slot_bytes();
}

Status DecodeRun::Start(int64_t depth, int64_t prefill_up_to) {
  tokens_per_second_.clear();
  step_ms_.clear();
  attention_ms_.clear();
  append_ms_.clear();
  depth_ = depth;
  cache_.reset();  // before the next one is allocated
  TQ_ASSIGN_OR_RETURN(cache_, KvCache::Create(choice_.config));
  if (depth > prefill_up_to) {
    filling_ = Filling::kSynthetic;
    if (filler_ == nullptr) {
      TQ_ASSIGN_OR_RETURN(SyntheticFiller filler,
                          SyntheticFiller::Create(choice_.config, 1, pool_));
      filler_ = std::make_unique<SyntheticFiller>(std::move(filler));
    }
    TQ_ASSIGN_OR_RETURN(base_, filler_->Fill(*cache_, depth));
    return OkStatus();
  }
  filling_ = depth == 0 ? Filling::kNothing : Filling::kPrefill;
  base_ = cache_->NewSequence();
  constexpr int64_t kChunk = 128;
  for (int64_t done = 0; done < depth; done += kChunk) {
    if (InterruptFlag().load()) return Cancelled("the measurement was stopped");
    std::vector<int32_t> tokens(static_cast<size_t>(std::min(kChunk, depth - done)));
    for (int32_t& token : tokens) token = NextToken();
    const ForwardItem item = {.seq = base_, .tokens = tokens};
    TQ_RETURN_IF_ERROR(model_.Forward(*cache_, {&item, 1}, &logits_));
  }
  return OkStatus();
}

Status DecodeRun::Steps(int steps) {
  TQ_ASSIGN_OR_RETURN(const SeqId seq, cache_->Fork(base_));
  double total = 0;
  for (int step = -1; step < steps; ++step) {  // the first is not counted
    if (InterruptFlag().load()) return Cancelled("the measurement was stopped");
    const int32_t token = NextToken();
    const ForwardItem item = {.seq = seq, .tokens = {&token, 1}};
    const StepSeconds before = *seconds_;
    const auto start = std::chrono::steady_clock::now();
    TQ_RETURN_IF_ERROR(model_.Forward(*cache_, {&item, 1}, &logits_));
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    if (step < 0) continue;
    total += took.count();
    step_ms_.push_back(took.count() * 1e3);
    attention_ms_.push_back((seconds_->attention - before.attention) * 1e3);
    append_ms_.push_back((seconds_->append - before.append) * 1e3);
  }
  tokens_per_second_.push_back(steps / total);
  return cache_->Free(seq);
}

size_t DecodeRun::read_bytes() const {
  size_t bytes = 0;
  for (int layer = 0; layer < cache_->config().num_layers; ++layer) {
    bytes += ReadBytes(*cache_, layer, depth_ + 1);
  }
  return bytes;
}

}  // namespace tq::cli
