// Whole tensors of a model in another type, rows in parallel.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "runtime/formats/gguf.h"
#include "turboquant/base/status.h"
#include "turboquant/base/thread_pool.h"
#include "turboquant/linear/weight.h"

namespace tq {

// All rows of `tensor` in `type`; as they are when they have it already. `importance`: empty, one
// value for each input, or one for each input of each expert (the last dimension of the tensor).
// `factor`: empty, or U of encode_feedback.h: later columns make good the errors of earlier ones.
// The same bytes with any number of threads. kInvalidArgument: see EncodeFileRow; names the row.
Result<std::vector<std::byte>> EncodeTensor(const GgufFile& file, const GgufTensor& tensor,
                                            WeightType type, std::span<const float> importance,
                                            std::span<const float> factor, ThreadPool& pool);

// For each of `types` the sum over the tensor of importance x squared error, from at most
// `max_rows` rows spread evenly.
Result<std::vector<double>> EncodingErrors(const GgufFile& file, const GgufTensor& tensor,
                                           std::span<const WeightType> types,
                                           std::span<const float> importance, int64_t max_rows,
                                           ThreadPool& pool);

}  // namespace tq
