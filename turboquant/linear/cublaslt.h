// cuBLASLt behind plain C++: loaded when it is first needed, so that programs start without it.
//
// Internal to this folder. cublaslt.cc is compiled where its header was found, else
// cublaslt_none.cc.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "turboquant/base/device.h"
#include "turboquant/base/status.h"
#include "turboquant/linear/weight.h"

namespace tq {

struct FloatProductParams {
  WeightType type = WeightType::kBF16;  // of weights and x: kF32, kF16 or kBF16
  const void* weights = nullptr;        // [out_dim][in_dim]
  int64_t out_dim = 0, in_dim = 0, rows = 0;
  const void* x = nullptr;         // [rows][in_dim]
  void* y = nullptr;               // [rows][out_dim]
  DeviceIo y_io = DeviceIo::kF32;  // the type of x or kF32
  void* workspace = nullptr;
  size_t workspace_bytes = 0;  // the same in all calls
};

// A handle of the library and what it chose for the shapes that were asked for.
class CublasLt {
 public:
  // Names of the library that are tried, in turn; empty in builds without it.
  static std::vector<std::string> Files();
  // kUnsupported in builds without its header; kUnavailable where no file can be loaded, and where
  // the library finds no device.
  static Result<std::unique_ptr<CublasLt>> Create(std::span<const std::string> files);
  virtual ~CublasLt() = default;

  virtual std::string version() const = 0;  // "13.1.0"
  // `stream`: a cudaStream_t. kUnsupported where the library has no algorithm.
  virtual Status Multiply(const FloatProductParams& params, void* stream) = 0;
};

}  // namespace tq
