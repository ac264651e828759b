#include "runtime/quantize/write_quantized.h"

#include "runtime/formats/gguf_writer.h"
#include "runtime/quantize/encode_tensor.h"

namespace tq {
namespace {

// llama.cpp's numbers for general.file_type.
struct FileType {
  WeightType type;
  uint32_t number;
};
constexpr FileType kFileTypes[] = {
    {WeightType::kF32, 0},   {WeightType::kF16, 1},   {WeightType::kQ4_0, 2},
    {WeightType::kQ4_1, 3},  {WeightType::kQ8_0, 7},  {WeightType::kQ5_0, 8},
    {WeightType::kQ5_1, 9},  {WeightType::kQ2_K, 10}, {WeightType::kQ3_K, 12},
    {WeightType::kQ4_K, 15}, {WeightType::kQ5_K, 17}, {WeightType::kQ6_K, 18},
    {WeightType::kBF16, 32},
};
constexpr uint32_t kQuantizationVersion = 2;  // of the block layouts
constexpr std::string_view kPrefix = "tq.quantize.";

}  // namespace

std::map<std::string, std::string> QuantizeProvenance(const GgufFile& file) {
  std::map<std::string, std::string> out;
  for (const auto& [key, value] : file.metadata()) {
    const auto* text = std::get_if<std::string>(&value);
    if (text != nullptr && key.starts_with(kPrefix)) out[key.substr(kPrefix.size())] = *text;
  }
  return out;
}

Result<QuantizedFile> WriteQuantized(
    const GgufFile& source, const WeightPlan& plan, const InputStatistics* statistics,
    const std::vector<std::pair<std::string, std::string>>& provenance, const std::string& path,
    ThreadPool& pool, const ProgressSink& progress) {
  GgufMetadata metadata = GgufMetadata::Of(source);
  for (const FileType& t : kFileTypes) {
    if (t.type == plan.main_type()) metadata.U32("general.file_type", t.number);
  }
  metadata.U32("general.quantization_version", kQuantizationVersion);
  metadata.Text("general.quantized_by", "TurboQuant");
  for (const auto& [name, text] : provenance) metadata.Text(StrCat(kPrefix, name), text);
  std::vector<GgufTensorPlan> tensors;
  size_t total = 0, done = 0;
  for (const TensorPlan& t : plan.tensors) {
    tensors.push_back({t.tensor->name, GgmlTypeOf(t.type), t.tensor->shape});
    total += static_cast<size_t>(t.tensor->num_elements());
  }
  TQ_ASSIGN_OR_RETURN(GgufWriter writer, GgufWriter::Create(path, metadata, std::move(tensors)));
  for (const TensorPlan& t : plan.tensors) {
    const std::vector<float> importance =
        statistics == nullptr ? std::vector<float>() : statistics->Importance(t);
    TQ_ASSIGN_OR_RETURN(
        const std::vector<std::byte> bytes,
        EncodeTensor(source, *t.tensor, t.type, importance,
                     statistics == nullptr ? std::span<const float>() : statistics->Factor(t),
                     pool));
    TQ_RETURN_IF_ERROR(writer.Write(bytes));
    source.Release(*t.tensor);
    done += static_cast<size_t>(t.tensor->num_elements());
    if (!ReportProgress(progress, done, total, "quantizing " + t.tensor->name)) {
      return Cancelled("quantizing was cancelled; nothing of '", path, "' remains");
    }
  }
  const QuantizedFile file = {static_cast<size_t>(writer.file_bytes())};
  TQ_RETURN_IF_ERROR(writer.Commit());
  return file;
}

}  // namespace tq
