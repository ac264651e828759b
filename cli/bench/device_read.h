// How fast a CUDA device reads its memory: the ceiling of decode attention.
#pragma once

#include <cstddef>

#include "turboquant/base/device.h"
#include "turboquant/base/status.h"

namespace tq::cli {

// Bytes per second of a kernel that reads `bytes` of fresh memory and keeps nothing; median of
// `runs`. `bytes` should be many times the L2 cache.
Result<double> MeasureDeviceRead(size_t bytes, int runs, const DeviceStream& stream);

}  // namespace tq::cli
