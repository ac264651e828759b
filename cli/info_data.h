// tq info --data: what requests and texts give, before hours of work go into them.
#pragma once

#include <string>

#include "cli/data_flags.h"
#include "turboquant/base/status.h"

namespace tq::cli {

// With a model (a GGUF file or a Hugging Face folder) also its tokens, in windows of `context` (0:
// as trained). Reads the model's header only.
Result<int> DataInfo(const std::string& model, const DataFlags& data, int64_t context,
                     const OutputFlags& output);

}  // namespace tq::cli
