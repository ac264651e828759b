// Several ways of computing the same text side by side: a reference and candidates, each a model
// with a cache, read the same windows of tokens chunk by chunk, and every row of logits is compared
// as it comes. No matrix of logits is ever whole, whatever the context.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/evaluate/kld.h"
#include "runtime/model/model.h"
#include "runtime/model/v_skip_totals.h"
#include "runtime/tokenizer/tokenizer.h"
#include "turboquant/base/sinks.h"
#include "turboquant/base/status.h"
#include "turboquant/base/thread_pool.h"
#include "turboquant/cache/cache.h"

namespace tq {

// One way of computing: a model and the cache that it writes.
struct Stream {
  std::string name;        // for messages and tables: "f16", "k3v2", "pin 3:0"
  Model* model = nullptr;  // may be shared by streams; must outlive the measurement
  CacheConfig config;
};

struct DivergenceOptions {
  // Candidates whose caches exist at once; the reference is read again for each such group.
  int at_once = 8;
  int64_t first_scored = 0;  // positions before it are read, not scored
  // False leaves out the last position of a window, which has no next token in it.
  bool score_last = true;
  // StreamScores::scores; without them memory does not grow with the text.
  bool keep_scores = true;
  // Of a candidate (its index), chunk by chunk as they come: each candidate's windows in order, and
  // of each chunk the candidates in order.
  std::function<void(size_t candidate, std::span<const PositionScore>)> on_scores;
  bool head_cosine = false;    // StreamScores::head_cosine; models must have equal shapes
  ThreadPool* pool = nullptr;  // compares rows; the results are the same without
  ProgressSink progress;       // tokens through all streams together
  const std::atomic<bool>* cancel = nullptr;
};

// What one candidate showed against the reference.
struct StreamScores {
  std::string name;
  std::vector<PositionScore> scores;      // windows in order, positions within them in order
  RunningMean kld;                        // over all scored positions
  std::vector<double> window_means;       // KL, one for each window
  std::vector<int64_t> window_positions;  // scored in each window: what its mean weighs
  // Cosine of attention outputs to the reference's, [num_layers * num_q_heads], mean over scored
  // positions; empty unless asked for.
  std::vector<double> head_cosine;
  VSkipTotals v_skip;  // over all positions, where the cache has v_skip
};

// Mean and standard error over windows: positions of one text depend on each other, windows hardly.
GroupedMean OverWindows(const StreamScores& scores);
// The same of the KL of `a` minus that of `b`, window by window of the same texts.
GroupedMean OverWindows(const StreamScores& a, const StreamScores& b);
// Mean cosine of each layer's heads; empty without head_cosine.
std::vector<double> LayerCosine(const StreamScores& scores, int num_q_heads);

// Every candidate's scores, in order. Windows may differ in length; each needs a scored position.
// The results depend neither on at_once nor on the other candidates nor on threads.
// kInvalidArgument: no candidates or windows, vocabularies or (for head_cosine) shapes that differ,
// a window that is too short. kCancelled when asked to stop. kDataLoss: logits that are not finite.
Result<std::vector<StreamScores>> MeasureDivergence(const Stream& reference,
                                                    std::span<const Stream> candidates,
                                                    std::span<const std::vector<TokenId>> windows,
                                                    const DivergenceOptions& options);

// The reference's rows of consecutive positions, against which candidates' rows are scored.
class ReferenceRows {
 public:
  // `pool` may be null.
  ReferenceRows(size_t vocab_size, ThreadPool* pool);
  // Forgets all rows; the next one that is added is that of `first_pos`.
  void Start(int64_t first_pos);
  // Adds [rows][vocab_size]. kDataLoss when a logit is not finite.
  Status Add(std::span<const float> logits);
  // Appends a score for each row of `logits`, the first of which is at `first_pos`. `window` holds
  // the tokens of all positions, so that each row's next token is known; `rule` is the candidate's.
  Status Score(std::span<const TokenId> window, const PrecisionRule& rule, int64_t first_pos,
               std::span<const float> logits, std::vector<PositionScore>* scores);

 private:
  struct Row {
    std::vector<float> logits;
    ReferenceRow reference;
  };
  // Runs fn(i, worker) for i below count, on the pool if there is one; the first error by index.
  Status ForEach(size_t count, const std::function<Status(size_t, int)>& fn);

  size_t vocab_size_;
  ThreadPool* pool_;
  int64_t first_pos_ = 0;
  size_t num_rows_ = 0;
  std::vector<std::unique_ptr<Row>> rows_;  // [num_rows_] are in use, others keep their memory
  std::vector<AlignedBuffer<float>> work_;  // [threads]
};

// Tokens that a query at `position` reads at low bits.
int64_t QuantizedBehind(const PrecisionRule& rule, int64_t position);

}  // namespace tq
