#include "turboquant/linear/device_float_product.h"

#include "turboquant/linear/cublaslt.h"

namespace tq {
namespace {

// What NVIDIA recommends for cards of compute capability 9.0, and more than older ones ask for.
constexpr size_t kWorkspaceBytes = size_t{32} << 20;

const char* NameOf(DeviceIo io) {
  return io == DeviceIo::kF32 ? "f32" : io == DeviceIo::kF16 ? "f16" : "bf16";
}

}  // namespace

Status DeviceFloatProducts::Check(WeightType type, DeviceIo x, DeviceIo y) {
  DeviceIo own = DeviceIo::kF32;
  switch (type) {
    case WeightType::kF32: break;
    case WeightType::kF16: own = DeviceIo::kF16; break;
    case WeightType::kBF16: own = DeviceIo::kBF16; break;
    default:
      return Unsupported("cuda products: weights of type ", WeightTypeName(type),
                         " are no floats; DeviceActivations multiplies them");
  }
  if (x == own && (y == own || y == DeviceIo::kF32)) return OkStatus();
  return Unsupported("cuda products: weights of type ", WeightTypeName(type), " with x in ",
                     NameOf(x), " and y in ", NameOf(y), "; supported: x in ", NameOf(own),
                     ", y in ", own == DeviceIo::kF32 ? "" : StrCat(NameOf(own), " or "), "f32");
}

Result<DeviceFloatProducts> DeviceFloatProducts::Create() {
  TQ_RETURN_IF_ERROR(GetCudaDeviceInfo().status());
  TQ_ASSIGN_OR_RETURN(auto library, CublasLt::Create(CublasLt::Files()));
  TQ_ASSIGN_OR_RETURN(DeviceBuffer workspace, DeviceBuffer::Allocate(kWorkspaceBytes));
  return DeviceFloatProducts(std::move(library), std::move(workspace));
}

DeviceFloatProducts::DeviceFloatProducts(std::unique_ptr<CublasLt> library, DeviceBuffer workspace)
    : library_(std::move(library)), workspace_(std::move(workspace)) {}
DeviceFloatProducts::DeviceFloatProducts(DeviceFloatProducts&&) noexcept = default;
DeviceFloatProducts& DeviceFloatProducts::operator=(DeviceFloatProducts&&) noexcept = default;
DeviceFloatProducts::~DeviceFloatProducts() = default;

std::string DeviceFloatProducts::library() const {
  return "cuBLASLt " + library_->version();
}

Status DeviceFloatProducts::Multiply(const DeviceMatrix& matrix, const void* x, DeviceIo x_io,
                                     int64_t rows, void* y, DeviceIo y_io,
                                     const DeviceStream& stream) {
  TQ_RETURN_IF_ERROR(Check(matrix.type(), x_io, y_io));
  if (rows < 1) return InvalidArgument("cuda products: ", rows, " rows of activations; at least 1");
  FloatProductParams p;
  p.type = matrix.type();
  p.weights = matrix.data();
  p.out_dim = matrix.out_dim();
  p.in_dim = matrix.in_dim();
  p.rows = rows;
  p.x = x;
  p.y = y;
  p.y_io = y_io;
  p.workspace = workspace_.data();
  p.workspace_bytes = workspace_.size();
  return library_->Multiply(p, stream.handle());
}

}  // namespace tq
