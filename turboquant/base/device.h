// A CUDA device behind plain C++: memory, streams, events, graphs.
//
// device_cuda.cc implements it with the CUDA runtime, device_none.cc for builds without: there, and
// on a machine without a driver or a card, every call that makes something is kUnavailable and says
// which of the three is missing. Objects own what they name and move; work is asynchronous on a
// stream unless a function says that it waits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "turboquant/base/status.h"

namespace tq {

// Numbers that a caller hands to kernels and gets back.
enum class DeviceIo : int32_t { kF32, kF16, kBF16 };

struct CudaDeviceInfo {
  std::string name;
  int compute_major = 0, compute_minor = 0;
  int num_multiprocessors = 0;
  size_t memory_bytes = 0, free_bytes = 0;
  size_t l2_bytes = 0;
  size_t shared_bytes_per_block = 0;            // with opt-in
  int driver_version = 0, runtime_version = 0;  // 13000 = 13.0
};

// Of the current device. kUnavailable without CUDA in the build, a driver or a device.
Result<CudaDeviceInfo> GetCudaDeviceInfo();

// An opaque handle that is moved, not copied, and destroyed by its owner.
class DeviceHandle {
 public:
  DeviceHandle() = default;
  DeviceHandle(void* handle, void (*destroy)(void*)) : handle_(handle), destroy_(destroy) {}
  DeviceHandle(DeviceHandle&& o) noexcept
      : handle_(std::exchange(o.handle_, nullptr)), destroy_(o.destroy_) {}
  DeviceHandle& operator=(DeviceHandle&& o) noexcept {
    std::swap(handle_, o.handle_);
    std::swap(destroy_, o.destroy_);
    return *this;
  }
  ~DeviceHandle() {
    if (handle_ != nullptr) destroy_(handle_);
  }
  void* get() const { return handle_; }

 private:
  void* handle_ = nullptr;
  void (*destroy_)(void*) = nullptr;
};

class DeviceStream {
 public:
  static Result<DeviceStream> Create();
  // Waits for all work on it; also where errors of earlier kernels come to light.
  Status Synchronize() const;
  // For the launchers: a cudaStream_t.
  void* handle() const { return handle_.get(); }

 private:
  DeviceHandle handle_;
};

class DeviceEvent {
 public:
  static Result<DeviceEvent> Create();
  Status Record(const DeviceStream& stream) const;
  // Waits for `end`. Both have been recorded.
  static Result<float> Milliseconds(const DeviceEvent& start, const DeviceEvent& end);

 private:
  DeviceHandle handle_;
};

// Device memory. Copies are ordered on the stream; host memory must stay until it is synchronized.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  // kResourceExhausted with the bytes asked for and the bytes free.
  static Result<DeviceBuffer> Allocate(size_t bytes);
  std::byte* data() const { return static_cast<std::byte*>(handle_.get()); }
  template <typename T>
  T* as() const {
    return static_cast<T*>(handle_.get());
  }
  size_t size() const { return bytes_; }
  Status Upload(const void* from, size_t bytes, size_t offset, const DeviceStream& stream) const;
  Status Download(void* to, size_t bytes, size_t offset, const DeviceStream& stream) const;
  // From another place of device memory, also of this buffer if the ranges do not overlap.
  Status Copy(const DeviceBuffer& from, size_t bytes, size_t from_offset, size_t offset,
              const DeviceStream& stream) const;
  // Every byte = value.
  Status Fill(uint8_t value, const DeviceStream& stream) const;

 private:
  DeviceHandle handle_;
  size_t bytes_ = 0;
};

// Work recorded once and replayed with little overhead.
class DeviceGraph {
 public:
  // Between these, work on the stream is recorded, not run.
  static Status Begin(const DeviceStream& stream);
  static Result<DeviceGraph> End(const DeviceStream& stream);
  Status Launch(const DeviceStream& stream) const;

 private:
  DeviceHandle handle_;
};

}  // namespace tq
