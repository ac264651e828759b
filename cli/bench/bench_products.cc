// tq bench products: products of quantized weights with few rows, on a CUDA device, beside those of
// float weights through cuBLASLt.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/bench/bench.h"
#include "cli/bench/device_read.h"
#include "cli/bench/graph_times.h"
#include "cli/bench/measure.h"
#include "cli/table.h"
#include "turboquant/base/numeric.h"
#include "turboquant/linear/device_float_product.h"
#include "turboquant/linear/device_product.h"

namespace tq::cli {
namespace {

struct ProductFlags {
  OutputFlags output;
  std::string types = "BF16,Q4_0,Q4_1,Q4_K,Q8_0", rows = "1,4,8,16";
  int runs = 7;
};

struct Shape {
  std::string name;
  int64_t out_dim, in_dim;
};
// The matrices of a layer of an 8B model of the Llama family.
const Shape kShapes[] = {
    {"qkv", 6144, 4096}, {"o", 4096, 4096}, {"gate and up", 28672, 4096}, {"down", 4096, 14336}};

// Of activations and results.
DeviceIo IoOf(WeightType type) {
  return type == WeightType::kF32    ? DeviceIo::kF32
         : type == WeightType::kBF16 ? DeviceIo::kBF16
                                     : DeviceIo::kF16;
}

// Rows of a file with small scales; what they are takes no time.
std::vector<std::byte> FileRows(WeightType type, const Shape& s) {
  std::vector<std::byte> rows(
      static_cast<size_t>(s.out_dim * s.in_dim / WeightBlockLen(type) * WeightBlockBytes(type)));
  uint64_t state = 1;
  for (size_t i = 0; i + 8 <= rows.size(); i += 8) {
    const uint64_t bits = SplitMix64(state) & 0xBFBFBFBFBFBFBFBFull;  // no half is infinite
    std::memcpy(&rows[i], &bits, sizeof bits);
  }
  return rows;
}

class ProductBench {
 public:
  explicit ProductBench(const ProductFlags& flags) : flags_(flags), pool_(0) {}

  Result<int> Run() {
    TQ_ASSIGN_OR_RETURN(const std::vector<int64_t> rows,
                        ParseCounts("--rows", flags_.rows, 1, kMaxProductRows));
    std::vector<WeightType> types;
    for (const std::string& name : SplitList(flags_.types, ',')) {
      TQ_ASSIGN_OR_RETURN(const WeightType type, WeightTypeOf(name));
      TQ_RETURN_IF_ERROR(DeviceMatrix::Check(type));
      types.push_back(type);
    }
    // Floats first: the others are compared with them.
    std::stable_partition(types.begin(), types.end(), [](WeightType t) { return !IsBlockType(t); });
    TQ_ASSIGN_OR_RETURN(const CudaDeviceInfo info, GetCudaDeviceInfo());
    TQ_ASSIGN_OR_RETURN(stream_, DeviceStream::Create());
    TQ_ASSIGN_OR_RETURN(
        read_, MeasureDeviceRead(std::min(size_t{8} << 30, info.free_bytes / 2), 9, stream_));
    l2_bytes_ = info.l2_bytes;
    document_ = BenchDocument(LoadAverage());
    document_["device"] = {{"name", info.name}, {"multiprocessors", info.num_multiprocessors}};
    document_["read_bytes_per_second"] = read_;
    if (!types.empty() && !IsBlockType(types[0])) {
      auto made = DeviceFloatProducts::Create();
      if (made.ok()) {
        floats_ = std::make_unique<DeviceFloatProducts>(std::move(*made));
      } else if (!IsBlockType(types.back())) {
        return made.status();
      } else {
        skipped_ = made.status().message();
      }
    }
    for (const WeightType type : types) {
      if (!IsBlockType(type) && floats_ == nullptr) {
        document_["results"].push_back({{"name", WeightTypeName(type)}, {"skipped", skipped_}});
        continue;
      }
      std::vector<double> us(rows.size());  // of all shapes
      size_t bytes = 0;
      for (const Shape& shape : kShapes) {
        TQ_ASSIGN_OR_RETURN(const size_t one, Measure(type, shape, rows, &us));
        bytes += one;
      }
      for (size_t i = 0; i < rows.size(); ++i) Add(type, "a layer", rows[i], us[i], bytes);
    }
    if (flags_.output.json) {
      PrintOut(document_.dump(2) + "\n");
      return kDone;
    }
    PrintOut(table_.ToString());
    PrintOut(fmt::format(
        "\n{}, median of {} runs, replayed from a graph; one quantization of the activations for "
        "each product of quantized weights{}; read bandwidth {:.0f} GB/s (measured)\n",
        info.name, flags_.runs, floats_ != nullptr ? ", floats by " + floats_->library() : "",
        read_ / 1e9));
    if (!skipped_.empty()) PrintOut(fmt::format("Floats were skipped: {}\n", skipped_));
    return kDone;
  }

 private:
  // Adds the time of each number of rows; returns the bytes of the matrix.
  Result<size_t> Measure(WeightType type, const Shape& shape, const std::vector<int64_t>& rows,
                         std::vector<double>* total) {
    TQ_ASSIGN_OR_RETURN(
        const PackedMatrix packed,
        PackedMatrix::Pack(type, shape.out_dim, shape.in_dim, FileRows(type, shape), {}, pool_));
    // Copies enough that a run reads several times the L2 cache.
    TQ_ASSIGN_OR_RETURN(DeviceMatrix first, DeviceMatrix::Upload(packed, stream_, &pool_));
    const size_t bytes = first.bytes();
    const size_t copies = std::max<size_t>(2, DivCeil<size_t>(6 * l2_bytes_, bytes));
    std::vector<DeviceMatrix> matrices;
    matrices.push_back(std::move(first));
    while (matrices.size() < copies) {
      TQ_ASSIGN_OR_RETURN(DeviceMatrix copy, matrices[0].Copy(stream_));
      matrices.push_back(std::move(copy));
    }
    TQ_ASSIGN_OR_RETURN(DeviceActivations activations,
                        DeviceActivations::Create(shape.in_dim, stream_));
    TQ_ASSIGN_OR_RETURN(const DeviceBuffer x,
                        DeviceBuffer::Allocate(static_cast<size_t>(kMaxProductRows * shape.in_dim) *
                                               sizeof(float)));
    TQ_ASSIGN_OR_RETURN(const DeviceBuffer y,
                        DeviceBuffer::Allocate(
                            static_cast<size_t>(kMaxProductRows * shape.out_dim) * sizeof(float)));
    TQ_RETURN_IF_ERROR(x.Fill(0x3c, stream_));  // small numbers of any type
    const DeviceIo io = IoOf(type);
    for (size_t i = 0; i < rows.size(); ++i) {
      const auto multiply = [&](int copy) -> Status {
        const DeviceMatrix& matrix = matrices[static_cast<size_t>(copy)];
        if (!IsBlockType(type)) {
          return floats_->Multiply(matrix, x.data(), io, rows[i], y.data(), io, stream_);
        }
        TQ_RETURN_IF_ERROR(activations.Quantize(x.data(), static_cast<int>(rows[i]), io, stream_));
        return activations.Multiply(matrix, y.data(), io, stream_);
      };
      TQ_RETURN_IF_ERROR(multiply(0));  // what is loaded at a first call is not captured
      TQ_ASSIGN_OR_RETURN(const std::vector<double> us,
                          GraphTimes(static_cast<int>(copies), flags_.runs, stream_, multiply));
      const double median = us[us.size() / 2];
      (*total)[i] += median;
      Add(type, shape.name, rows[i], median, bytes);
    }
    return bytes;
  }

  void Add(WeightType type, const std::string& name, int64_t rows, double us, size_t bytes) {
    const double rate = static_cast<double>(bytes) / us * 1e6;
    const bool is_float = !IsBlockType(type);
    nlohmann::ordered_json ratios = nlohmann::ordered_json::object();
    std::string ratio = "-";
    if (is_float) float_us_.try_emplace({name, rows}, WeightTypeName(type), us);
    if (const auto at = float_us_.find({name, rows}); at != float_us_.end()) {
      const auto& [of, their_us] = at->second;
      ratios[of] = their_us / us;
      ratio = fmt::format("{:.2f}x {}", their_us / us, of);
    }
    document_["results"].push_back(
        {{"name", WeightTypeName(type)},
         {"peer", is_float ? nlohmann::ordered_json(floats_->library()) : nullptr},
         {"settings", {{"matrix", name}, {"rows", rows}, {"runs", flags_.runs}}},
         {"us", us},
         {"bytes", bytes},
         {"bytes_per_second", rate},
         {"share_of_bandwidth", rate / read_},
         {"ratio_to", ratios}});
    table_.Add({WeightTypeName(type), name, FormatCount(rows), fmt::format("{:.1f}", us),
                fmt::format("{:.0f}", rate / 1e9), fmt::format("{:.0f} %", 100 * rate / read_),
                ratio});
  }

  const ProductFlags& flags_;
  ThreadPool pool_;
  DeviceStream stream_;
  std::unique_ptr<DeviceFloatProducts> floats_;
  std::string skipped_;  // why there are none
  // Matrix and rows -> the first float type and its time.
  std::map<std::pair<std::string, int64_t>, std::pair<std::string, double>> float_us_;
  double read_ = 0;
  size_t l2_bytes_ = 0;
  nlohmann::ordered_json document_;
  TextTable table_{{"weights", "matrix", "rows", "us", "GB/s", "of read\nbandwidth", "speed"}};
};

}  // namespace

Command AddBenchProducts(CLI::App& app) {
  CLI::App* command =
      AddCommand(app, "products", "Products of weights with few rows, on a CUDA device",
                 "tq bench products --type BF16,Q4_0,Q4_K --rows 1,8");
  auto flags = std::make_shared<ProductFlags>();
  command->add_option("--type", flags->types, "Weight types, a list; floats by cuBLASLt");
  command->add_option("--rows", flags->rows, "Rows of activations, a list");
  command->add_option("--runs", flags->runs, "Times to run it; the median counts")
      ->check(CLI::Range(1, 1000));
  flags->output.Add(command);
  return {"products", [flags]() -> Result<int> { return ProductBench(*flags).Run(); }};
}

}  // namespace tq::cli
