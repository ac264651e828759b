// The tensors of safetensors files under GGUF's names, shapes and order of rows.
#pragma once

#include <string>
#include <vector>

#include "runtime/formats/hf_config.h"
#include "turboquant/base/safetensors.h"

namespace tq {

// `files` must outlive the result. kUnsupported: a tensor that has no place, by name; kDataLoss:
// experts that are missing, shapes that cannot be.
Result<std::vector<GgufTensor>> ReadHfTensors(const HfConfig& config,
                                              const std::vector<SafetensorsFile>& files);

}  // namespace tq
