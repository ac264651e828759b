#include "turboquant/linear/cublaslt.h"

#include <cublasLt.h>
#include <dlfcn.h>

#include <algorithm>
#include <compare>
#include <map>
#include <type_traits>

namespace tq {
namespace {

// The functions of the library that are used; of the major version whose header this is.
struct Functions {
  decltype(&cublasLtCreate) create;
  decltype(&cublasLtDestroy) destroy;
  decltype(&cublasLtGetVersion) get_version;
  decltype(&cublasLtGetStatusName) get_status_name;
  decltype(&cublasLtMatmulDescCreate) desc_create;
  decltype(&cublasLtMatmulDescDestroy) desc_destroy;
  decltype(&cublasLtMatmulDescSetAttribute) desc_set;
  decltype(&cublasLtMatrixLayoutCreate) layout_create;
  decltype(&cublasLtMatrixLayoutDestroy) layout_destroy;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create;
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set;
  decltype(&cublasLtMatmulAlgoGetHeuristic) get_heuristic;
  decltype(&cublasLtMatmul) matmul;

  // False with the name of the first that `library` has not.
  bool Load(void* library, const char** missing) {
    const auto load = [&](const char* name, auto& function) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(  //
          dlsym(library, name));
      if (function == nullptr) *missing = name;
      return function != nullptr;
    };
    return load("cublasLtCreate", create) && load("cublasLtDestroy", destroy) &&
           load("cublasLtGetVersion", get_version) &&
           load("cublasLtGetStatusName", get_status_name) &&
           load("cublasLtMatmulDescCreate", desc_create) &&
           load("cublasLtMatmulDescDestroy", desc_destroy) &&
           load("cublasLtMatmulDescSetAttribute", desc_set) &&
           load("cublasLtMatrixLayoutCreate", layout_create) &&
           load("cublasLtMatrixLayoutDestroy", layout_destroy) &&
           load("cublasLtMatmulPreferenceCreate", preference_create) &&
           load("cublasLtMatmulPreferenceDestroy", preference_destroy) &&
           load("cublasLtMatmulPreferenceSetAttribute", preference_set) &&
           load("cublasLtMatmulAlgoGetHeuristic", get_heuristic) && load("cublasLtMatmul", matmul);
  }
};

// What decides about an algorithm.
struct Shape {
  WeightType type;
  DeviceIo y_io;
  int64_t out_dim, in_dim, rows;
  uint32_t x_alignment, y_alignment;
  auto operator<=>(const Shape&) const = default;
};

// An object of the library with the function that ends it.
template <typename T>
using Owned = std::unique_ptr<T, cublasStatus_t (*)(T*)>;

struct Plan {
  Owned<cublasLtMatmulDescOpaque_t> operation;
  Owned<cublasLtMatrixLayoutOpaque_t> weights, x, y;
  cublasLtMatmulAlgo_t algorithm;
};

// Shapes whose plans are kept. Prompts have any length: beyond this all are dropped, and made again
// as they were, since the library's choice depends on the shape alone.
constexpr size_t kMaxPlans = 1024;

cudaDataType TypeOf(WeightType type) {
  return type == WeightType::kF32   ? CUDA_R_32F
         : type == WeightType::kF16 ? CUDA_R_16F
                                    : CUDA_R_16BF;
}

// Bytes, up to 256: all that the library asks for.
uint32_t AlignmentOf(const void* p) {
  const auto address = reinterpret_cast<uintptr_t>(p);
  return static_cast<uint32_t>(std::min<uintptr_t>(256, address & (~address + 1)));
}

class Loaded final : public CublasLt {
 public:
  explicit Loaded(const Functions& functions) : f_(functions) {}
  ~Loaded() override {
    plans_.clear();
    if (handle_ != nullptr) f_.destroy(handle_);
  }
  Status Start() { return Check(f_.create(&handle_), "cublasLtCreate"); }

  std::string version() const override {
    const size_t v = f_.get_version();
    return StrCat(v / 10000, ".", v / 100 % 100, ".", v % 100);
  }

  Status Multiply(const FloatProductParams& p, void* stream) override {
    const Shape shape = {p.type, p.y_io,           p.out_dim,       p.in_dim,
                         p.rows, AlignmentOf(p.x), AlignmentOf(p.y)};
    auto at = plans_.find(shape);
    if (at == plans_.end()) {
      TQ_ASSIGN_OR_RETURN(Plan plan, Choose(shape, p.workspace_bytes));
      if (plans_.size() >= kMaxPlans) plans_.clear();
      at = plans_.emplace(shape, std::move(plan)).first;
    }
    const Plan& plan = at->second;
    const float one = 1, zero = 0;
    return Check(
        f_.matmul(handle_, plan.operation.get(), &one, p.weights, plan.weights.get(), p.x,
                  plan.x.get(), &zero, p.y, plan.y.get(), p.y, plan.y.get(), &plan.algorithm,
                  p.workspace, p.workspace_bytes, static_cast<cudaStream_t>(stream)),
        "cublasLtMatmul");
  }

 private:
  Status Check(cublasStatus_t status, const char* what) const {
    if (status == CUBLAS_STATUS_SUCCESS) return OkStatus();
    const std::string text = StrCat("cuda: ", what, ": ", f_.get_status_name(status));
    switch (status) {
      case CUBLAS_STATUS_ALLOC_FAILED: return ResourceExhausted(text);
      case CUBLAS_STATUS_INVALID_VALUE: return InvalidArgument(text);
      case CUBLAS_STATUS_ARCH_MISMATCH:
      case CUBLAS_STATUS_NOT_SUPPORTED: return Unsupported(text);
      case CUBLAS_STATUS_NOT_INITIALIZED:
        return Unavailable(text, "; this needs an NVIDIA card and a driver for its version ",
                           version());
      default: return Unavailable(text);
    }
  }

  Result<Owned<cublasLtMatrixLayoutOpaque_t>> Layout(cudaDataType type, int64_t rows,
                                                     int64_t columns) const {
    cublasLtMatrixLayout_t layout;
    TQ_RETURN_IF_ERROR(Check(f_.layout_create(&layout, type, static_cast<uint64_t>(rows),
                                              static_cast<uint64_t>(columns), rows),
                             "cublasLtMatrixLayoutCreate"));
    return Owned<cublasLtMatrixLayoutOpaque_t>(layout, f_.layout_destroy);
  }

  // The library's matrices are stored by columns: y^T = (W^T)^T x^T.
  Result<Plan> Choose(const Shape& s, uint64_t workspace_bytes) const {
    cublasLtMatmulDesc_t operation;
    TQ_RETURN_IF_ERROR(Check(f_.desc_create(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F),
                             "cublasLtMatmulDescCreate"));
    Owned<cublasLtMatmulDescOpaque_t> owned(operation, f_.desc_destroy);
    const int32_t transposed = CUBLAS_OP_T;
    TQ_RETURN_IF_ERROR(
        Check(f_.desc_set(operation, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed),
              "cublasLtMatmulDescSetAttribute"));
    const cudaDataType type = TypeOf(s.type);
    TQ_ASSIGN_OR_RETURN(auto weights, Layout(type, s.in_dim, s.out_dim));
    TQ_ASSIGN_OR_RETURN(auto x, Layout(type, s.in_dim, s.rows));
    TQ_ASSIGN_OR_RETURN(auto y,
                        Layout(s.y_io == DeviceIo::kF32 ? CUDA_R_32F : type, s.out_dim, s.rows));

    cublasLtMatmulPreference_t made;
    TQ_RETURN_IF_ERROR(Check(f_.preference_create(&made), "cublasLtMatmulPreferenceCreate"));
    const Owned<cublasLtMatmulPreferenceOpaque_t> preference(made, f_.preference_destroy);
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
      return Check(f_.preference_set(made, attribute, &value, sizeof value),
                   "cublasLtMatmulPreferenceSetAttribute");
    };
    // Parts of a sum are added in float32, whatever y is.
    constexpr uint32_t kSchemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    TQ_RETURN_IF_ERROR(prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, kSchemes));
    TQ_RETURN_IF_ERROR(prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace_bytes));
    TQ_RETURN_IF_ERROR(prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, s.x_alignment));
    TQ_RETURN_IF_ERROR(prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, s.y_alignment));
    TQ_RETURN_IF_ERROR(prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, s.y_alignment));
    cublasLtMatmulHeuristicResult_t best = {};
    int count = 0;
    const Status found = Check(f_.get_heuristic(handle_, operation, weights.get(), x.get(), y.get(),
                                                y.get(), made, 1, &best, &count),
                               "cublasLtMatmulAlgoGetHeuristic");
    if (!found.ok() && found.code() != StatusCode::kUnsupported) return found;
    if (!found.ok() || count == 0) {
      return Unsupported("cuda: cuBLASLt ", version(), " has no algorithm for ", s.rows,
                         " rows times ", WeightTypeName(s.type), " weights, ", s.out_dim, " x ",
                         s.in_dim, found.ok() ? "" : StrCat(" (", found.message(), ")"));
    }
    return Plan{std::move(owned), std::move(weights), std::move(x), std::move(y), best.algo};
  }

  const Functions f_;
  cublasLtHandle_t handle_ = nullptr;
  std::map<Shape, Plan> plans_;
};

}  // namespace

std::vector<std::string> CublasLt::Files() {
  const std::string name = StrCat("libcublasLt.so.", CUBLAS_VER_MAJOR);
  return {name, "/usr/local/cuda/lib64/" + name};
}

Result<std::unique_ptr<CublasLt>> CublasLt::Create(std::span<const std::string> files) {
  Functions functions;
  std::string tried;
  for (const std::string& file : files) {
    // Never closed: a library of CUDA's does not come back once it was unloaded.
    void* const library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    const char* missing = nullptr;
    if (library != nullptr && functions.Load(library, &missing)) {
      auto loaded = std::make_unique<Loaded>(functions);
      TQ_RETURN_IF_ERROR(loaded->Start());
      return std::unique_ptr<CublasLt>(std::move(loaded));
    }
    const char* const error = library == nullptr ? dlerror() : nullptr;
    tried += StrCat(tried.empty() ? "" : "; ", library != nullptr
                                                   ? StrCat(file, " has no ", missing)
                                                   : std::string(error != nullptr ? error : file));
  }
  return Unavailable("cuda: products of F32, F16 and BF16 weights need cuBLASLt (", tried,
                     "); install NVIDIA's package libcublas of CUDA ", CUBLAS_VER_MAJOR,
                     ", or name the folder of ", files.empty() ? "the library" : files[0],
                     " in LD_LIBRARY_PATH");
}

}  // namespace tq
