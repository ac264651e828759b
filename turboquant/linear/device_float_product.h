// Products of F32, F16 and BF16 weights with any number of rows of activations, on a CUDA device,
// through cuBLASLt; quantized weights: device_product.h.
//
// Sums are float32. Equal calls give equal bits; another number of rows may give other bits, since
// the library chooses an algorithm for each shape.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "turboquant/base/device.h"
#include "turboquant/base/status.h"
#include "turboquant/linear/device_product.h"

namespace tq {

class CublasLt;

// The library, its memory, and its choices. Calls share the memory: those of one object come
// from one thread at a time, and go to one stream or to streams of which each waits for the one
// before.
class DeviceFloatProducts {
 public:
  // OK where x has the type of the weights, and y that type or f32; else kUnsupported.
  static Status Check(WeightType type, DeviceIo x, DeviceIo y);
  // kUnavailable without CUDA in the build, a device, or the library, which is loaded here;
  // kUnsupported in CUDA builds that were made without its header.
  static Result<DeviceFloatProducts> Create();
  DeviceFloatProducts(DeviceFloatProducts&&) noexcept;
  DeviceFloatProducts& operator=(DeviceFloatProducts&&) noexcept;
  ~DeviceFloatProducts();

  // "cuBLASLt 13.1.0"
  std::string library() const;

  // y = x W^T. x: device memory, [rows][in_dim], 1 row or more; y: [rows][out_dim]. No waiting. The
  // first call of a shape asks the library for its algorithm; can be captured in a graph, best
  // after a first call outside, which loads the kernels.
  Status Multiply(const DeviceMatrix& matrix, const void* x, DeviceIo x_io, int64_t rows, void* y,
                  DeviceIo y_io, const DeviceStream& stream);

 private:
  DeviceFloatProducts(std::unique_ptr<CublasLt> library, DeviceBuffer workspace);

  std::unique_ptr<CublasLt> library_;
  DeviceBuffer workspace_;
};

}  // namespace tq
