// A CUDA error as a Status: for the files that include the CUDA runtime themselves.
#pragma once

#include "turboquant/base/status.h"

namespace tq {

// `error` is a cudaError_t. OK for cudaSuccess.
Status DeviceStatus(int error, const char* what);

}  // namespace tq

#define TQ_CUDA(expr) ::tq::DeviceStatus(static_cast<int>(expr), #expr)
