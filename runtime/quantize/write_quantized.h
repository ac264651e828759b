// The quantized model as a GGUF file: the source's metadata, with what was done to it.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "runtime/quantize/input_statistics.h"
#include "runtime/quantize/weight_plan.h"
#include "turboquant/base/sinks.h"
#include "turboquant/base/status.h"
#include "turboquant/base/thread_pool.h"

namespace tq {

// How a file that was written here was made: names (of the keys "tq.quantize.NAME") and texts.
std::map<std::string, std::string> QuantizeProvenance(const GgufFile& file);

struct QuantizedFile {
  size_t file_bytes = 0;
};

// Encodes and writes tensor by tensor; memory holds one tensor. `statistics` may be null: every
// input counts the same. `provenance`: names (without the prefix) and texts. The file at `path` is
// whole or not there. Errors of EncodeTensor and GgufWriter; kCancelled.
Result<QuantizedFile> WriteQuantized(
    const GgufFile& source, const WeightPlan& plan, const InputStatistics* statistics,
    const std::vector<std::pair<std::string, std::string>>& provenance, const std::string& path,
    ThreadPool& pool, const ProgressSink& progress = {});

}  // namespace tq
