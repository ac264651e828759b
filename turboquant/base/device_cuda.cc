#include <cuda_runtime_api.h>

#include "turboquant/base/device.h"
#include "turboquant/base/device_status.h"

namespace tq {
namespace {

cudaStream_t StreamOf(const DeviceStream& stream) {
  return static_cast<cudaStream_t>(stream.handle());
}

}  // namespace

Status DeviceStatus(int error, const char* what) {
  const auto code = static_cast<cudaError_t>(error);
  if (code == cudaSuccess) return OkStatus();
  const std::string text =
      StrCat("cuda: ", what, ": ", cudaGetErrorName(code), " (", cudaGetErrorString(code), ")");
  switch (code) {
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorInitializationError:
    case cudaErrorSystemDriverMismatch:
      return Unavailable(text, "; this needs an NVIDIA card and its driver");
    case cudaErrorNoKernelImageForDevice:
      return Unsupported(text, "; kernels are built for compute capability 8.0 and 9.0 or later");
    case cudaErrorMemoryAllocation: return ResourceExhausted(text);
    case cudaErrorInvalidValue: return InvalidArgument(text);
    default: return Unavailable(text);
  }
}

Result<CudaDeviceInfo> GetCudaDeviceInfo() {
  int count = 0, device = 0;
  TQ_RETURN_IF_ERROR(TQ_CUDA(cudaGetDeviceCount(&count)));
  if (count == 0) return Unavailable("cuda: no device; this needs an NVIDIA card");
  TQ_RETURN_IF_ERROR(TQ_CUDA(cudaGetDevice(&device)));
  cudaDeviceProp p;
  TQ_RETURN_IF_ERROR(TQ_CUDA(cudaGetDeviceProperties(&p, device)));
  CudaDeviceInfo info;
  info.name = p.name;
  info.compute_major = p.major;
  info.compute_minor = p.minor;
  info.num_multiprocessors = p.multiProcessorCount;
  info.l2_bytes = static_cast<size_t>(p.l2CacheSize);
  info.shared_bytes_per_block = p.sharedMemPerBlockOptin;
  TQ_RETURN_IF_ERROR(TQ_CUDA(cudaMemGetInfo(&info.free_bytes, &info.memory_bytes)));
  TQ_RETURN_IF_ERROR(TQ_CUDA(cudaDriverGetVersion(&info.driver_version)));
  TQ_RETURN_IF_ERROR(TQ_CUDA(cudaRuntimeGetVersion(&info.runtime_version)));
  return info;
}

Result<DeviceStream> DeviceStream::Create() {
  cudaStream_t stream;
  TQ_RETURN_IF_ERROR(TQ_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking)));
  DeviceStream s;
  s.handle_ =
      DeviceHandle(stream, [](void* p) { (void)cudaStreamDestroy(static_cast<cudaStream_t>(p)); });
  return s;
}

Status DeviceStream::Synchronize() const {
  return TQ_CUDA(cudaStreamSynchronize(StreamOf(*this)));
}

Result<DeviceEvent> DeviceEvent::Create() {
  cudaEvent_t event;
  TQ_RETURN_IF_ERROR(TQ_CUDA(cudaEventCreate(&event)));
  DeviceEvent e;
  e.handle_ =
      DeviceHandle(event, [](void* p) { (void)cudaEventDestroy(static_cast<cudaEvent_t>(p)); });
  return e;
}

Status DeviceEvent::Record(const DeviceStream& stream) const {
  return TQ_CUDA(cudaEventRecord(static_cast<cudaEvent_t>(handle_.get()), StreamOf(stream)));
}

Result<float> DeviceEvent::Milliseconds(const DeviceEvent& start, const DeviceEvent& end) {
  float ms = 0;
  TQ_RETURN_IF_ERROR(TQ_CUDA(cudaEventSynchronize(static_cast<cudaEvent_t>(end.handle_.get()))));
  TQ_RETURN_IF_ERROR(
      TQ_CUDA(cudaEventElapsedTime(&ms, static_cast<cudaEvent_t>(start.handle_.get()),
                                   static_cast<cudaEvent_t>(end.handle_.get()))));
  return ms;
}

Result<DeviceBuffer> DeviceBuffer::Allocate(size_t bytes) {
  DeviceBuffer b;
  if (bytes == 0) return b;
  void* p = nullptr;
  if (const cudaError_t error = cudaMalloc(&p, bytes); error != cudaSuccess) {
    (void)cudaGetLastError();  // an allocation that failed does not poison later calls
    size_t free = 0, total = 0;
    if (error != cudaErrorMemoryAllocation || cudaMemGetInfo(&free, &total) != cudaSuccess) {
      return DeviceStatus(error, "cudaMalloc");
    }
    return ResourceExhausted("cuda: ", bytes, " bytes of device memory asked for, ", free, " of ",
                             total, " free; use fewer tokens or a format with fewer bits");
  }
  b.handle_ = DeviceHandle(p, [](void* q) { (void)cudaFree(q); });
  b.bytes_ = bytes;
  return b;
}

Status DeviceBuffer::Upload(const void* from, size_t bytes, size_t offset,
                            const DeviceStream& stream) const {
  TQ_CHECK(offset + bytes <= bytes_);
  return TQ_CUDA(
      cudaMemcpyAsync(data() + offset, from, bytes, cudaMemcpyHostToDevice, StreamOf(stream)));
}

Status DeviceBuffer::Download(void* to, size_t bytes, size_t offset,
                              const DeviceStream& stream) const {
  TQ_CHECK(offset + bytes <= bytes_);
  return TQ_CUDA(
      cudaMemcpyAsync(to, data() + offset, bytes, cudaMemcpyDeviceToHost, StreamOf(stream)));
}

Status DeviceBuffer::Copy(const DeviceBuffer& from, size_t bytes, size_t from_offset, size_t offset,
                          const DeviceStream& stream) const {
  TQ_CHECK(offset + bytes <= bytes_ && from_offset + bytes <= from.bytes_);
  return TQ_CUDA(cudaMemcpyAsync(data() + offset, from.data() + from_offset, bytes,
                                 cudaMemcpyDeviceToDevice, StreamOf(stream)));
}

Status DeviceBuffer::Fill(uint8_t value, const DeviceStream& stream) const {
  return TQ_CUDA(cudaMemsetAsync(data(), value, bytes_, StreamOf(stream)));
}

Status DeviceGraph::Begin(const DeviceStream& stream) {
  return TQ_CUDA(cudaStreamBeginCapture(StreamOf(stream), cudaStreamCaptureModeThreadLocal));
}

Result<DeviceGraph> DeviceGraph::End(const DeviceStream& stream) {
  cudaGraph_t graph;
  TQ_RETURN_IF_ERROR(TQ_CUDA(cudaStreamEndCapture(StreamOf(stream), &graph)));
  cudaGraphExec_t exec;
  const Status made = TQ_CUDA(cudaGraphInstantiate(&exec, graph, 0));
  (void)cudaGraphDestroy(graph);
  TQ_RETURN_IF_ERROR(made);
  DeviceGraph g;
  g.handle_ = DeviceHandle(
      exec, [](void* p) { (void)cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(p)); });
  return g;
}

Status DeviceGraph::Launch(const DeviceStream& stream) const {
  return TQ_CUDA(cudaGraphLaunch(static_cast<cudaGraphExec_t>(handle_.get()), StreamOf(stream)));
}

}  // namespace tq
