// Builds without CUDA: nothing can be made, and every attempt says why.
#include "turboquant/base/device.h"

namespace tq {
namespace {

Status NoCuda() {
  return Unavailable(
      "cuda: this build has no CUDA kernels; configure with --preset cuda "
      "(-DTURBOQUANT_CUDA=ON) where nvcc is installed");
}

}  // namespace

Result<CudaDeviceInfo> GetCudaDeviceInfo() {
  return NoCuda();
}
Result<DeviceStream> DeviceStream::Create() {
  return NoCuda();
}
Status DeviceStream::Synchronize() const {
  return NoCuda();
}
Result<DeviceEvent> DeviceEvent::Create() {
  return NoCuda();
}
Status DeviceEvent::Record(const DeviceStream&) const {
  return NoCuda();
}
Result<float> DeviceEvent::Milliseconds(const DeviceEvent&, const DeviceEvent&) {
  return NoCuda();
}
Result<DeviceBuffer> DeviceBuffer::Allocate(size_t) {
  return NoCuda();
}
Status DeviceBuffer::Upload(const void*, size_t, size_t, const DeviceStream&) const {
  return NoCuda();
}
Status DeviceBuffer::Download(void*, size_t, size_t, const DeviceStream&) const {
  return NoCuda();
}
Status DeviceBuffer::Copy(const DeviceBuffer&, size_t, size_t, size_t, const DeviceStream&) const {
  return NoCuda();
}
Status DeviceBuffer::Fill(uint8_t, const DeviceStream&) const {
  return NoCuda();
}
Status DeviceGraph::Begin(const DeviceStream&) {
  return NoCuda();
}
Result<DeviceGraph> DeviceGraph::End(const DeviceStream&) {
  return NoCuda();
}
Status DeviceGraph::Launch(const DeviceStream&) const {
  return NoCuda();
}

}  // namespace tq
