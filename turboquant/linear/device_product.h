// Products of quantized weights with 1 to 16 rows of activations, on a CUDA device.
//
// The arithmetic is that of matmul.h: activations of 16 bits with a scale per 32 inputs, exact
// integer sums over a block, then y += (scale of the weights * scale of the activations) * sum.
// Sums over the inputs are added warp by warp: equal calls give equal bits, and a row the same bits
// among any number of rows; the CPU rounds in another order.
#pragma once

#include <cstdint>

#include "turboquant/base/device.h"
#include "turboquant/base/status.h"
#include "turboquant/base/thread_pool.h"
#include "turboquant/linear/product_params.h"
#include "turboquant/linear/weight.h"

namespace tq {

// A matrix in device memory: quantized weights in the order of the tensor cores
// (product_params.h), floats as [out_dim][in_dim].
class DeviceMatrix {
 public:
  // OK for Q4_0, Q4_1, Q4_K and Q8_0, which DeviceActivations multiplies, and for F32, F16 and
  // BF16, which DeviceFloatProducts does (device_float_product.h); else kUnsupported.
  static Status Check(WeightType type);
  // Waits. kResourceExhausted when the device is too small. Reordered by `pool`, or without one by
  // the calling thread.
  static Result<DeviceMatrix> Upload(const PackedMatrix& matrix, const DeviceStream& stream,
                                     ThreadPool* pool = nullptr);

  // Another matrix with the same numbers.
  Result<DeviceMatrix> Copy(const DeviceStream& stream) const;

  WeightType type() const { return type_; }
  int64_t out_dim() const { return out_dim_; }
  int64_t in_dim() const { return in_dim_; }
  size_t bytes() const { return data_.size(); }
  const std::byte* data() const { return data_.data(); }

 private:
  WeightType type_ = WeightType::kQ4_0;
  int64_t out_dim_ = 0, in_dim_ = 0;
  DeviceBuffer data_;
};

// Rows of activations as the kernels multiply them; memory that calls reuse.
class DeviceActivations {
 public:
  static Result<DeviceActivations> Create(int64_t in_dim, const DeviceStream& stream);
  int64_t in_dim() const { return in_dim_; }
  int rows() const { return rows_; }

  // x: device memory, [rows][in_dim], 1 to kMaxProductRows rows. No waiting.
  Status Quantize(const void* x, int rows, DeviceIo io, const DeviceStream& stream);
  // y: device memory, [rows][out_dim]: the product with the rows of the last Quantize. Quantized
  // weights only. No waiting; can be captured in a graph together with Quantize.
  Status Multiply(const DeviceMatrix& matrix, void* y, DeviceIo io,
                  const DeviceStream& stream) const;

 private:
  int64_t in_dim_ = 0;
  int rows_ = 0;
  DeviceBuffer buffer_;
};

}  // namespace tq
