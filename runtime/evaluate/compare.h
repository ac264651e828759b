// The job of tq compare: one document through the plain 16-bit cache and through quantized ones,
// side by side: the same tokens, chunk by chunk, so that no matrix of logits is ever whole. Then
// each cache answers the document's question.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/engine/session.h"
#include "runtime/evaluate/document.h"
#include "runtime/evaluate/kld.h"
#include "runtime/model/model.h"
#include "turboquant/base/sinks.h"
#include "turboquant/base/status.h"
#include "turboquant/cache/cache.h"

namespace tq {

struct CompareFormat {
  std::string name;  // "k3v2", or the name of a profile
  CacheConfig config;
};

struct CompareOptions {
  CompareFormat plain;  // the reference: the f16 cache
  // The noise floor: a format close to lossless, measured even when it is not in `formats`.
  CompareFormat floor;
  std::vector<CompareFormat> formats;  // the rows, in order; plain or floor may be among them
  int64_t context = 0;                 // capacity: the document, the answer and nothing else
  int answer_tokens = 24;              // greedy; at least warmup_tokens + 16
  // Points inside the document at which single steps are timed, over tokens of the document.
  int depth_points = 3;
  ProgressSink progress;  // tokens through all caches together
  const std::atomic<bool>* cancel = nullptr;

  static constexpr int kWarmupTokens = 4;  // steps before the clock counts
  static constexpr int kTimedTokens = 12;  // at the points inside the document
};

struct DepthTime {
  int64_t depth = 0;     // tokens in the cache
  double median_ms = 0;  // of a step
};

struct CompareRow {
  std::string name;
  bool is_plain = false;
  CacheConfig config;
  std::string kernel;
  // At the end of the document, as allocated.
  CacheBytes bytes;
  size_t f16_bytes = 0;
  double ratio = 0, ratio_sealed = 0, ratio_at_131072 = 0, bits_per_value = 0, scales_share = 0;
  // Against the plain cache; all zero divergence for the plain row itself.
  DivergenceSummary all, behind;  // behind: >= kBehind quantized tokens behind the position
  std::vector<PositionBucket> by_position;
  double decode_ms = 0;  // median of the answer's steps
  std::vector<DepthTime> by_depth;
  std::string answer;
  bool answer_is_right = false;  // holds Document::expected
  bool on_pareto_front = false;  // no other row has both fewer bits and a smaller mean KL
};

struct CompareResult {
  std::string model_name;
  Document document;
  int64_t tokens = 0;  // of the document
  CompareRow plain;
  std::string floor_name;
  DivergenceSummary floor;
  std::vector<CompareRow> rows;  // in the order of CompareOptions::formats

  static constexpr int64_t kBehind = 1024;
};

// kInvalidArgument when the document does not fit the context; kCancelled when asked to stop.
Result<CompareResult> Compare(Model& model, const Tokenizer& tokenizer, Document document,
                              const CompareOptions& options);

// Sets on_pareto_front over (bits_per_value, mean KL).
void MarkParetoFront(std::vector<CompareRow>* rows);

// False when the plain cache misses the detail: then the answers say nothing about the formats.
bool AnswersAreInformative(const CompareResult& result);

// The kernels of a cache's formats, each once.
std::string KernelNames(const CacheConfig& config);

}  // namespace tq
