#include "turboquant/base/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "turboquant/base/file.h"
#include "turboquant/base/numeric.h"

namespace tq {
namespace {

static_assert(std::endian::native == std::endian::little, "tensors are used in place");

using nlohmann::json;

constexpr size_t kLengthBytes = 8;
constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the limit of the reference implementation
constexpr const char* kMetadataKey = "__metadata__";

struct TypeInfo {
  SafetensorsType type;
  const char* name;
  size_t bytes;
};
constexpr TypeInfo kTypes[] = {
    {SafetensorsType::kF32, "F32", 4},   {SafetensorsType::kF16, "F16", 2},
    {SafetensorsType::kBF16, "BF16", 2}, {SafetensorsType::kI8, "I8", 1},
    {SafetensorsType::kI32, "I32", 4},   {SafetensorsType::kI64, "I64", 8},
    {SafetensorsType::kU8, "U8", 1},
};

const TypeInfo& InfoOf(SafetensorsType type) {
  for (const TypeInfo& info : kTypes) {
    if (info.type == type) return info;
  }
  TQ_CHECK(false && "unlisted safetensors type");
  return kTypes[0];
}

// Bytes of a tensor; nothing when the product does not fit.
std::optional<uint64_t> TensorBytes(const std::vector<int64_t>& shape, size_t element_bytes) {
  uint64_t bytes = element_bytes;
  for (const int64_t dim : shape) {
    if (dim < 0 || __builtin_mul_overflow(bytes, static_cast<uint64_t>(dim), &bytes)) return {};
  }
  if (bytes > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return {};
  return bytes;
}

// One entry of the header; `payload` is everything behind it.
Result<SafetensorsTensor> ParseEntry(const std::string& name, const json& entry,
                                     std::span<const std::byte> payload) {
  if (!entry.is_object()) return DataLoss("its entry is not a JSON object");
  const auto dtype = entry.find("dtype"), shape = entry.find("shape"),
             offsets = entry.find("data_offsets");
  if (dtype == entry.end() || !dtype->is_string()) return DataLoss("'dtype' is missing or no text");
  if (shape == entry.end() || !shape->is_array()) return DataLoss("'shape' is missing or no list");
  if (offsets == entry.end() || !offsets->is_array() || offsets->size() != 2 ||
      !(*offsets)[0].is_number_unsigned() || !(*offsets)[1].is_number_unsigned()) {
    return DataLoss("'data_offsets' is not a list of two unsigned integers");
  }
  SafetensorsTensor tensor;
  tensor.name = name;
  const std::string& type_name = dtype->get_ref<const std::string&>();
  const TypeInfo* info = nullptr;
  std::string supported;
  for (const TypeInfo& candidate : kTypes) {
    if (type_name == candidate.name) info = &candidate;
    supported += (supported.empty() ? "" : ", ") + std::string(candidate.name);
  }
  if (info == nullptr) {
    return Unsupported("element type '", type_name, "' is not supported; supported: ", supported);
  }
  tensor.type = info->type;
  for (const json& dim : *shape) {
    if (!dim.is_number_unsigned() ||
        dim.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return DataLoss("'shape' holds ", dim.is_number() ? dim.dump() : dim.type_name(),
                      ", which is no size");
    }
    tensor.shape.push_back(dim.get<int64_t>());
  }
  const uint64_t begin = (*offsets)[0].get<uint64_t>(), end = (*offsets)[1].get<uint64_t>();
  if (begin > end || end > payload.size()) {
    return DataLoss("its data is bytes ", begin, " to ", end, " of ", payload.size(),
                    "; the file may be truncated");
  }
  const std::optional<uint64_t> bytes = TensorBytes(tensor.shape, info->bytes);
  if (!bytes || *bytes != end - begin) {
    return DataLoss("shape ", ShapeToString(tensor.shape), " of ", info->name, " needs ",
                    bytes ? std::to_string(*bytes) : "more than 2^63", " bytes, but ", end - begin,
                    " are given");
  }
  tensor.data = payload.subspan(begin, end - begin);
  return tensor;
}

// Tensors, sorted by where they begin, must cover the payload without holes or overlaps.
Status CheckCoverage(const std::vector<SafetensorsTensor>& tensors,
                     std::span<const std::byte> payload) {
  size_t end = 0;
  for (const SafetensorsTensor& tensor : tensors) {
    const size_t begin = static_cast<size_t>(tensor.data.data() - payload.data());
    if (begin != end) {
      return DataLoss("tensor '", tensor.name, "' begins at byte ", begin,
                      " but the data before it ends at ", end,
                      begin < end ? " (they overlap)" : " (a hole)");
    }
    end = begin + tensor.data.size();
  }
  if (end != payload.size()) {
    return DataLoss("the tensors end at byte ", end, " but the file has ", payload.size(),
                    " bytes of data");
  }
  return OkStatus();
}

template <typename T>
float Load(const std::byte* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return static_cast<float>(value);
}

void AppendValues(const SafetensorsSource& source, std::string& out) {
  for (const float value : source.values) {
    if (source.type == SafetensorsType::kF32) {
      out.append(reinterpret_cast<const char*>(&value), sizeof value);
    } else {
      const uint16_t half =
          source.type == SafetensorsType::kF16 ? F16FromF32(value) : BF16FromF32(value);
      out.append(reinterpret_cast<const char*>(&half), sizeof half);
    }
  }
}

}  // namespace

const char* SafetensorsTypeName(SafetensorsType type) {
  return InfoOf(type).name;
}
size_t SafetensorsTypeBytes(SafetensorsType type) {
  return InfoOf(type).bytes;
}

std::string ShapeToString(const std::vector<int64_t>& shape) {
  std::string out = "[";
  for (size_t i = 0; i < shape.size(); ++i) out += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return out + "]";
}

float SafetensorsElement(SafetensorsType type, const std::byte* p) {
  uint16_t half;
  switch (type) {
    case SafetensorsType::kF32: return Load<float>(p);
    case SafetensorsType::kF16: std::memcpy(&half, p, 2); return F32FromF16(half);
    case SafetensorsType::kBF16: std::memcpy(&half, p, 2); return F32FromBF16(half);
    case SafetensorsType::kI8: return Load<int8_t>(p);
    case SafetensorsType::kI32: return Load<int32_t>(p);
    case SafetensorsType::kI64: return Load<int64_t>(p);
    case SafetensorsType::kU8: return Load<uint8_t>(p);
  }
  return 0;
}

int64_t SafetensorsTensor::num_elements() const {
  return static_cast<int64_t>(data.size() / SafetensorsTypeBytes(type));
}

Result<SafetensorsFile> SafetensorsFile::Parse(std::span<const std::byte> bytes,
                                               const std::string& name) {
  const std::string context = StrCat("'", name, "' is not a valid safetensors file");
  if (bytes.size() < kLengthBytes) {
    return DataLoss(context, ": it has ", bytes.size(), " bytes, the header length alone needs 8");
  }
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes.data(), kLengthBytes);
  if (header_bytes > kMaxHeaderBytes || header_bytes > bytes.size() - kLengthBytes) {
    return DataLoss(context, ": a header of ", header_bytes, " bytes in a file of ", bytes.size(),
                    " bytes (at most ", kMaxHeaderBytes, " are allowed)");
  }
  const char* header_begin = reinterpret_cast<const char*>(bytes.data()) + kLengthBytes;
  const std::span<const std::byte> payload = bytes.subspan(kLengthBytes + header_bytes);

  // The JSON parser keeps the last of two equal keys; two readers could then see two files.
  std::set<std::string> names;
  std::string duplicate;
  const auto note_keys = [&](int depth, json::parse_event_t event, json& value) {
    if (event == json::parse_event_t::key && depth == 1 &&
        !names.insert(value.get_ref<const std::string&>()).second) {
      duplicate = value.get_ref<const std::string&>();
    }
    return true;
  };
  const json header = json::parse(header_begin, header_begin + header_bytes, note_keys,
                                  /*allow_exceptions=*/false);
  if (header.is_discarded() || !header.is_object()) {
    return DataLoss(context, ": its header of ", header_bytes, " bytes is not a JSON object");
  }
  if (!duplicate.empty()) return DataLoss(context, ": '", duplicate, "' appears twice");

  SafetensorsFile file;
  file.path_ = name;
  for (const auto& [key, entry] : header.items()) {
    if (key == kMetadataKey) {
      if (!entry.is_object()) return DataLoss(context, ": '__metadata__' is not a JSON object");
      for (const auto& [meta_key, value] : entry.items()) {
        if (!value.is_string()) {
          return DataLoss(context, ": metadata '", meta_key, "' is not a text");
        }
        file.metadata_[meta_key] = value.get<std::string>();
      }
      continue;
    }
    Result<SafetensorsTensor> tensor = ParseEntry(key, entry, payload);
    if (!tensor.ok()) return tensor.status().WithContext(StrCat(context, ": tensor '", key, "'"));
    file.tensors_.push_back(*std::move(tensor));
  }
  // Empty tensors come before the one that begins at the same byte.
  std::sort(file.tensors_.begin(), file.tensors_.end(), [](const auto& a, const auto& b) {
    if (a.data.data() != b.data.data()) return a.data.data() < b.data.data();
    if (a.data.size() != b.data.size()) return a.data.size() < b.data.size();
    return a.name < b.name;
  });
  TQ_RETURN_IF_ERROR(CheckCoverage(file.tensors_, payload).WithContext(context));
  for (size_t i = 0; i < file.tensors_.size(); ++i) file.index_[file.tensors_[i].name] = i;
  return file;
}

Result<SafetensorsFile> SafetensorsFile::Open(const std::string& path) {
  TQ_ASSIGN_OR_RETURN(MappedFile mapped, MappedFile::Open(path));
  auto map = std::make_shared<MappedFile>(std::move(mapped));
  TQ_ASSIGN_OR_RETURN(SafetensorsFile file, Parse(map->bytes(), path));
  file.map_ = std::move(map);
  return file;
}

const SafetensorsTensor* SafetensorsFile::Find(std::string_view name) const {
  const auto it = index_.find(name);
  return it == index_.end() ? nullptr : &tensors_[it->second];
}

Result<std::vector<float>> SafetensorsFile::GetFloats(std::string_view name) const {
  const SafetensorsTensor* tensor = Find(name);
  if (tensor == nullptr) {
    return NotFound("'", path_, "' has no tensor '", name, "' among its ", tensors_.size());
  }
  const size_t step = SafetensorsTypeBytes(tensor->type);
  std::vector<float> values(tensor->data.size() / step);
  const std::byte* p = tensor->data.data();
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = SafetensorsElement(tensor->type, p + i * step);
  return values;
}

Result<std::vector<float>> SafetensorsFile::GetFloats(std::string_view name,
                                                      const std::vector<int64_t>& shape) const {
  const SafetensorsTensor* tensor = Find(name);
  if (tensor != nullptr && tensor->shape != shape) {
    return InvalidArgument("tensor '", name, "' of '", path_, "' has shape ",
                           ShapeToString(tensor->shape), "; ", ShapeToString(shape),
                           " was expected");
  }
  return GetFloats(name);
}

void SafetensorsFile::Release(const SafetensorsTensor& tensor) const {
  if (map_ != nullptr) map_->Release(tensor.data);
}

Result<std::string> SerializeSafetensors(const std::vector<SafetensorsSource>& tensors,
                                         const std::map<std::string, std::string>& metadata) {
  // Wide types first, so that every tensor is aligned to its element.
  std::vector<const SafetensorsSource*> order;
  for (const SafetensorsSource& source : tensors) order.push_back(&source);
  std::stable_sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    return SafetensorsTypeBytes(a->type) > SafetensorsTypeBytes(b->type);
  });
  json header = json::object();
  if (!metadata.empty()) header[kMetadataKey] = metadata;
  std::string payload;
  for (const SafetensorsSource* source : order) {
    const std::string what = StrCat("cannot write tensor '", source->name, "'");
    if (source->name.empty() || source->name == kMetadataKey || header.contains(source->name)) {
      return InvalidArgument(what, ": the name is empty, reserved or taken");
    }
    if (source->type != SafetensorsType::kF32 && source->type != SafetensorsType::kF16 &&
        source->type != SafetensorsType::kBF16) {
      return Unsupported(what, " as ", SafetensorsTypeName(source->type),
                         "; supported: F32, F16, BF16");
    }
    const std::optional<uint64_t> elements = TensorBytes(source->shape, 1);
    if (!elements || *elements != source->values.size()) {
      return InvalidArgument(what, ": ", source->values.size(), " values for shape ",
                             ShapeToString(source->shape));
    }
    const size_t begin = payload.size();
    AppendValues(*source, payload);
    header[source->name] = {{"dtype", SafetensorsTypeName(source->type)},
                            {"shape", source->shape},
                            {"data_offsets", {begin, payload.size()}}};
  }
  // Bytes that are not UTF-8 come out changed; reading back what was written shows it.
  std::string text = header.dump(-1, ' ', false, json::error_handler_t::replace);
  text.resize(RoundUp<size_t>(text.size(), 8), ' ');
  const uint64_t header_bytes = text.size();
  std::string out(reinterpret_cast<const char*>(&header_bytes), kLengthBytes);
  out += text;
  out += payload;
  TQ_ASSIGN_OR_RETURN(const SafetensorsFile check,
                      SafetensorsFile::Parse(std::as_bytes(std::span(out)), "output"));
  for (const SafetensorsSource& source : tensors) {
    if (check.Find(source.name) == nullptr) {
      return InvalidArgument("cannot write tensor '", source.name, "': the name is not UTF-8");
    }
  }
  if (check.metadata() != metadata) return InvalidArgument("the metadata is not UTF-8");
  return out;
}

Status WriteSafetensors(const std::string& path, const std::vector<SafetensorsSource>& tensors,
                        const std::map<std::string, std::string>& metadata) {
  TQ_ASSIGN_OR_RETURN(const std::string bytes, SerializeSafetensors(tensors, metadata));
  return WriteFileAtomic(path, bytes);
}

}  // namespace tq
