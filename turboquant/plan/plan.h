// The plan of a model: memory line by line, time by the roofline, what fits, what is longest.
//
// A Planner answers for one model, one cache format, one weight format and one machine; commands
// make one for every combination they show. All bytes are those of the device that holds the most.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "turboquant/base/status.h"
#include "turboquant/plan/cache_plan.h"
#include "turboquant/plan/devices.h"
#include "turboquant/plan/model_spec.h"

namespace tq {

struct WeightChoice {
  std::string name = "file";
  double bits = 0;  // a value of a matrix, scales included; 0 = as the file has it
};
// "file", a name or alias of the table kWeights in plan.cc, or a number of bits from 1 to 32; the
// error for any other lists the names.
Result<WeightChoice> ParseWeightChoice(std::string_view name);

struct PlanOptions {
  WeightChoice weights;
  Machine machine;
  int num_devices = 1;
  int chunk_len = 0;  // tokens of a prefill step; 0 = 128 on the host, 2048 on an accelerator
  int threads = 1;    // of the host
  int64_t shared_prefix = 0;  // tokens that all sequences have in common, held once
  bool center = true;         // keys with a bias are centred
};

struct MemoryLine {
  std::string name;
  size_t bytes = 0;
  std::string note;
  bool uncertain = false;  // an estimate, not arithmetic over sizes
};

struct MemoryPlan {
  std::vector<MemoryLine> lines;
  size_t weights_bytes = 0;
  size_t cache_bytes = 0;        // held at the length: what KvCache::Bytes() will say
  size_t f16_bytes = 0;          // plain FP16 cache of the same tokens
  size_t total_bytes = 0;        // all lines: the peak
  CacheParts sequence;           // of one sequence
  size_t largest_uncertain = 0;  // index of a line; lines.size() when nothing is uncertain
  double ratio() const;          // f16_bytes / cache_bytes
};

// Time of one decode step by the roofline: bytes over bandwidth, or arithmetic where that is more.
struct StepTime {
  double weight_bytes = 0, cache_bytes = 0;  // read on one device
  double flops = 0;
  std::optional<double> ms;  // empty: no bandwidth is known
  bool compute_bound = false;
};

struct BreakEven {
  std::optional<int64_t> context;  // smallest at which a step is 5 % faster than with f16
  std::string reason;
};

// What keeping the overflow outside the device would cost, beside holding it there.
struct Overflow {
  size_t bytes = 0;                    // beyond the device's memory
  std::optional<double> swap_ms;       // each step: the overflow read over the link
  std::optional<double> recompute_ms;  // each step: the overflow's tokens computed again
  std::optional<double> resident_ms;   // the step's own roofline, were it all there
};

class Planner {
 public:
  static Result<Planner> Create(ModelSpec spec, CacheFormat format, PlanOptions options);

  const ModelSpec& spec() const { return spec_; }
  const CacheFormat& format() const { return format_; }
  const PlanOptions& options() const { return options_; }
  const CachePlan& cache() const { return cache_; }

  // kInvalidArgument for a context or batch below 1 or beyond 2^30 and 2^20.
  Result<MemoryPlan> Memory(int64_t context, int64_t batch) const;
  // Peak bytes alone.
  size_t TotalBytes(int64_t context, int64_t batch) const;
  // Longest context of `batch` sequences within `capacity` bytes of a device; 0 = none fits.
  int64_t MaxContext(int64_t batch, size_t capacity) const;
  // Most sequences of `context` tokens.
  int64_t MaxSequences(int64_t context, size_t capacity) const;

  StepTime Decode(int64_t context, int64_t batch) const;
  // Seconds from a prompt of `context` tokens to the first token; empty: no FLOP/s are known.
  std::optional<double> FirstTokenSeconds(int64_t context, int64_t batch) const;
  // Against the same plan with an f16 cache.
  Result<BreakEven> FindBreakEven(int64_t batch) const;
  Overflow PriceOverflow(int64_t context, int64_t batch, size_t capacity) const;

  static constexpr int64_t kMaxContext = int64_t{1} << 30;
  static constexpr int64_t kMaxBatch = 1 << 20;
  static constexpr double kPays = 0.05;  // gain below which quantizing is not worth it

 private:
  Planner(ModelSpec spec, CacheFormat format, PlanOptions options, CachePlan cache)
      : spec_(std::move(spec)),
        format_(std::move(format)),
        options_(std::move(options)),
        cache_(std::move(cache)) {}
  size_t GroupBytes(const WeightGroup& group) const;
  size_t WeightsBytes() const;
  std::vector<MemoryLine> FixedLines(int64_t context, int64_t batch) const;
  double PrefillFlops(int64_t context) const;
  // Held bytes of `batch` sequences whose shared prefix is held once.
  CacheParts AllSequences(int64_t context, int64_t batch) const;

  ModelSpec spec_;
  CacheFormat format_;
  PlanOptions options_;
  CachePlan cache_;
};

}  // namespace tq
