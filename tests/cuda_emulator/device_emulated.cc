// turboquant/base/device.h in plain memory: work is done when a call returns.
#include <cstdlib>
#include <cstring>

#include "tests/cuda_emulator/emulator.h"
#include "turboquant/base/device.h"
#include "turboquant/base/device_status.h"

namespace tq {

Result<CudaDeviceInfo> GetCudaDeviceInfo() {
  CudaDeviceInfo info;
  info.name = "emulator";
  info.compute_major = 8;
  info.num_multiprocessors = 3;  // few blocks, so that units are shared among them
  info.shared_bytes_per_block = emulator::kSharedBytes;
  return info;
}
Status DeviceStatus(int error, const char*) {
  return error == 0 ? OkStatus() : Unavailable("emulator: error ", error);
}
Result<DeviceStream> DeviceStream::Create() {
  return DeviceStream();
}
Status DeviceStream::Synchronize() const {
  return OkStatus();
}
Result<DeviceEvent> DeviceEvent::Create() {
  return Unsupported("emulator: there are no times to measure");
}
Status DeviceEvent::Record(const DeviceStream&) const {
  return OkStatus();
}
Result<float> DeviceEvent::Milliseconds(const DeviceEvent&, const DeviceEvent&) {
  return Unsupported("emulator: there are no times to measure");
}

Result<DeviceBuffer> DeviceBuffer::Allocate(size_t bytes) {
  DeviceBuffer buffer;
  void* const memory = std::aligned_alloc(256, RoundUp<size_t>(bytes + 1, 256));
  std::memset(memory, 0xff, bytes);  // NaN, and not zeros as fresh memory often has
  buffer.handle_ = DeviceHandle(memory, std::free);
  buffer.bytes_ = bytes;
  return buffer;
}
Status DeviceBuffer::Upload(const void* from, size_t bytes, size_t offset,
                            const DeviceStream&) const {
  if (bytes > 0) std::memcpy(data() + offset, from, bytes);
  return OkStatus();
}
Status DeviceBuffer::Download(void* to, size_t bytes, size_t offset, const DeviceStream&) const {
  if (bytes > 0) std::memcpy(to, data() + offset, bytes);
  return OkStatus();
}
Status DeviceBuffer::Copy(const DeviceBuffer& from, size_t bytes, size_t from_offset, size_t offset,
                          const DeviceStream&) const {
  std::memcpy(data() + offset, from.data() + from_offset, bytes);
  return OkStatus();
}
Status DeviceBuffer::Fill(uint8_t value, const DeviceStream&) const {
  std::memset(data(), value, bytes_);
  return OkStatus();
}

Status DeviceGraph::Begin(const DeviceStream&) {
  return Unsupported("emulator: nothing is recorded");
}
Result<DeviceGraph> DeviceGraph::End(const DeviceStream&) {
  return Unsupported("emulator: nothing is recorded");
}
Status DeviceGraph::Launch(const DeviceStream&) const {
  return Unsupported("emulator: nothing is recorded");
}

}  // namespace tq
