// Builds without CUDA: there is no device whose memory could be read.
#include "cli/bench/device_read.h"

namespace tq::cli {

Result<double> MeasureDeviceRead(size_t, int, const DeviceStream&) {
  return Unavailable("cuda: this build has no CUDA kernels");
}

}  // namespace tq::cli
