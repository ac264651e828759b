#include "runtime/formats/gguf.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <limits>
#include <type_traits>
#include <utility>

#include "runtime/formats/gguf_split.h"
#include "runtime/formats/hf_folder.h"
#include "turboquant/base/file.h"
#include "turboquant/base/numeric.h"

namespace tq {
namespace {

static_assert(std::endian::native == std::endian::little, "tensors are used in place");

constexpr char kMagic[] = {'G', 'G', 'U', 'F'};
constexpr uint64_t kDefaultAlignment = 32;
constexpr const char* kAlignmentKey = "general.alignment";
constexpr uint64_t kMaxNameBytes = 65535;
constexpr uint32_t kMaxDims = 4;
// The least that one entry takes in the file: bounds the counts before anything is allocated.
constexpr uint64_t kMinKeyValueBytes = 8 + 1 + 4 + 1;
constexpr uint64_t kMinTensorBytes = 8 + 1 + 4 + 8 + 4 + 8;

struct TypeInfo {
  uint32_t number;
  const char* name;
  GgmlTypeShape shape;
};
// Every type with a public layout, so that a file with types that cannot be computed with can be
// listed and refused by name.
constexpr TypeInfo kTypes[] = {
    {0, "F32", {1, 4}},         {1, "F16", {1, 2}},         {2, "Q4_0", {32, 18}},
    {3, "Q4_1", {32, 20}},      {6, "Q5_0", {32, 22}},      {7, "Q5_1", {32, 24}},
    {8, "Q8_0", {32, 34}},      {9, "Q8_1", {32, 36}},      {10, "Q2_K", {256, 84}},
    {11, "Q3_K", {256, 110}},   {12, "Q4_K", {256, 144}},   {13, "Q5_K", {256, 176}},
    {14, "Q6_K", {256, 210}},   {15, "Q8_K", {256, 292}},   {16, "IQ2_XXS", {256, 66}},
    {17, "IQ2_XS", {256, 74}},  {18, "IQ3_XXS", {256, 98}}, {19, "IQ1_S", {256, 50}},
    {20, "IQ4_NL", {32, 18}},   {21, "IQ3_S", {256, 110}},  {22, "IQ2_S", {256, 82}},
    {23, "IQ4_XS", {256, 136}}, {24, "I8", {1, 1}},         {25, "I16", {1, 2}},
    {26, "I32", {1, 4}},        {27, "I64", {1, 8}},        {28, "F64", {1, 8}},
    {29, "IQ1_M", {256, 56}},   {30, "BF16", {1, 2}},       {34, "TQ1_0", {256, 54}},
    {35, "TQ2_0", {256, 66}},   {39, "MXFP4", {32, 17}},    {40, "NVFP4", {64, 36}},
    {41, "Q1_0", {128, 18}},
};

const TypeInfo* FindType(GgmlType type) {
  for (const TypeInfo& info : kTypes) {
    if (info.number == static_cast<uint32_t>(type)) return &info;
  }
  return nullptr;
}

// Metadata types (GgufType) as the numbers that are read.
enum : uint32_t {
  kU8 = static_cast<uint32_t>(GgufType::kU8),
  kI8 = static_cast<uint32_t>(GgufType::kI8),
  kU16 = static_cast<uint32_t>(GgufType::kU16),
  kI16 = static_cast<uint32_t>(GgufType::kI16),
  kU32 = static_cast<uint32_t>(GgufType::kU32),
  kI32 = static_cast<uint32_t>(GgufType::kI32),
  kF32 = static_cast<uint32_t>(GgufType::kF32),
  kBool = static_cast<uint32_t>(GgufType::kBool),
  kString = static_cast<uint32_t>(GgufType::kString),
  kArray = static_cast<uint32_t>(GgufType::kArray),
  kU64 = static_cast<uint32_t>(GgufType::kU64),
  kI64 = static_cast<uint32_t>(GgufType::kI64),
  kF64 = static_cast<uint32_t>(GgufType::kF64),
};
constexpr const char* kValueTypeNames[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                           "bool", "string", "array", "u64", "i64", "f64"};
constexpr uint64_t kValueTypeBytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 8, 12, 8, 8, 8};  // at least

bool IsFloat(uint32_t type) {
  return type == kF32 || type == kF64;
}

// Reads forward through the header; every read is checked against the end.
class Cursor {
 public:
  explicit Cursor(std::span<const std::byte> bytes) : bytes_(bytes) {}
  uint64_t position() const { return position_; }
  uint64_t remaining() const { return bytes_.size() - position_; }

  template <typename T>
  Status Read(T& value, const char* what) {
    if (remaining() < sizeof(T)) return Truncated(what, sizeof(T));
    std::memcpy(&value, bytes_.data() + position_, sizeof(T));
    position_ += sizeof(T);
    return OkStatus();
  }
  Status ReadString(std::string& value, const char* what) {
    uint64_t size = 0;
    TQ_RETURN_IF_ERROR(Read(size, what));
    if (remaining() < size) return Truncated(what, size);
    value.assign(reinterpret_cast<const char*>(bytes_.data()) + position_, size);
    position_ += size;
    return OkStatus();
  }

 private:
  Status Truncated(const char* what, uint64_t size) const {
    return DataLoss(what, " of ", size, " bytes at byte ", position_, " does not fit into the ",
                    bytes_.size(), " bytes of the file; it is damaged or was not downloaded whole");
  }
  std::span<const std::byte> bytes_;
  uint64_t position_ = 0;
};

template <typename T>
Status ReadInt(Cursor& in, bool is_signed, uint64_t& value) {
  std::make_unsigned_t<T> raw = 0;
  TQ_RETURN_IF_ERROR(in.Read(raw, "a number"));
  value = is_signed ? static_cast<uint64_t>(static_cast<int64_t>(static_cast<T>(raw))) : raw;
  return OkStatus();
}

// An integer or bool of any width; signed ones in two's complement.
Status ReadInteger(Cursor& in, uint32_t type, uint64_t& value) {
  switch (type) {
    case kU8: return ReadInt<int8_t>(in, false, value);
    case kI8: return ReadInt<int8_t>(in, true, value);
    case kU16: return ReadInt<int16_t>(in, false, value);
    case kI16: return ReadInt<int16_t>(in, true, value);
    case kU32: return ReadInt<int32_t>(in, false, value);
    case kI32: return ReadInt<int32_t>(in, true, value);
    case kU64: return ReadInt<int64_t>(in, false, value);
    case kI64: return ReadInt<int64_t>(in, true, value);
    default: break;
  }
  TQ_CHECK(type == kBool);
  const uint64_t at = in.position();
  TQ_RETURN_IF_ERROR(ReadInt<int8_t>(in, false, value));
  if (value > 1) return DataLoss("a bool at byte ", at, " is ", value, "; 0 or 1 was expected");
  return OkStatus();
}

Status ReadFloat(Cursor& in, uint32_t type, double& value) {
  if (type == kF64) return in.Read(value, "a number");
  float narrow = 0;
  TQ_RETURN_IF_ERROR(in.Read(narrow, "a number"));
  value = narrow;
  return OkStatus();
}

bool IsUnsigned(uint32_t type) {
  return type == kU8 || type == kU16 || type == kU32 || type == kU64;
}

Result<GgufValue> ReadArray(Cursor& in) {
  uint32_t type = 0;
  uint64_t count = 0;
  const uint64_t at = in.position();
  TQ_RETURN_IF_ERROR(in.Read(type, "an element type"));
  TQ_RETURN_IF_ERROR(in.Read(count, "an array length"));
  if (type > kF64) return DataLoss("the element type at byte ", at, " is ", type, ", not 0 to 12");
  if (type == kArray) return Unsupported("arrays of arrays (at byte ", at, ") are not supported");
  if (count > in.remaining() / kValueTypeBytes[type]) {
    return DataLoss("an array of ", count, " ", kValueTypeNames[type], " at byte ", at,
                    " does not fit into the ", in.remaining(), " bytes that follow");
  }
  if (type == kString) {
    std::vector<std::string> strings(count);
    for (std::string& s : strings) TQ_RETURN_IF_ERROR(in.ReadString(s, "a string"));
    return GgufValue(std::move(strings));
  }
  if (IsFloat(type)) {
    std::vector<double> floats(count);
    for (double& f : floats) TQ_RETURN_IF_ERROR(ReadFloat(in, type, f));
    return GgufValue(std::move(floats));
  }
  std::vector<int64_t> ints(count);
  for (int64_t& i : ints) {
    uint64_t value = 0;
    TQ_RETURN_IF_ERROR(ReadInteger(in, type, value));
    i = static_cast<int64_t>(value);
    if (type == kU64 && i < 0) {
      return Unsupported("the array at byte ", at, " holds ", value, ", which exceeds 2^63 - 1");
    }
  }
  return GgufValue(std::move(ints));
}

Result<GgufValue> ReadValue(Cursor& in, uint32_t type) {
  if (type == kArray) return ReadArray(in);
  if (type == kString) {
    std::string s;
    TQ_RETURN_IF_ERROR(in.ReadString(s, "a string"));
    return GgufValue(std::move(s));
  }
  if (IsFloat(type)) {
    double f = 0;
    TQ_RETURN_IF_ERROR(ReadFloat(in, type, f));
    return GgufValue(f);
  }
  uint64_t value = 0;
  TQ_RETURN_IF_ERROR(ReadInteger(in, type, value));
  if (type == kBool) return GgufValue(value != 0);
  if (IsUnsigned(type)) return GgufValue(value);
  return GgufValue(static_cast<int64_t>(value));
}

Status ReadName(Cursor& in, const char* what, std::string& name) {
  const uint64_t at = in.position();
  TQ_RETURN_IF_ERROR(in.ReadString(name, what));
  if (name.empty()) return DataLoss(what, " at byte ", at, " is empty");
  if (name.size() > kMaxNameBytes) {
    return DataLoss(what, " at byte ", at, " has ", name.size(), " bytes; at most ", kMaxNameBytes,
                    " are allowed");
  }
  return OkStatus();
}

// A tensor of the header and where its data lies, relative to the data section.
struct TensorEntry {
  GgufTensor tensor;
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

Status ReadTensorEntry(Cursor& in, TensorEntry& entry) {
  GgufTensor& tensor = entry.tensor;
  TQ_RETURN_IF_ERROR(ReadName(in, "a tensor name", tensor.name));
  const std::string context = StrCat("tensor '", tensor.name, "'");
  uint32_t num_dims = 0, type = 0;
  uint64_t at = in.position();
  TQ_RETURN_IF_ERROR(in.Read(num_dims, "a number of dimensions").WithContext(context));
  if (num_dims < 1 || num_dims > kMaxDims) {
    return DataLoss(context, " has ", num_dims, " dimensions (at byte ", at, "); 1 to ", kMaxDims,
                    " are allowed");
  }
  // Bounded far below 2^63 bytes, so that no later product of sizes can overflow.
  uint64_t elements = 1;
  for (uint32_t d = 0; d < num_dims; ++d) {
    uint64_t dim = 0;
    at = in.position();
    TQ_RETURN_IF_ERROR(in.Read(dim, "a dimension").WithContext(context));
    constexpr uint64_t kMaxElements = uint64_t{1} << 56;
    if (dim == 0 || dim > kMaxElements || __builtin_mul_overflow(elements, dim, &elements) ||
        elements > kMaxElements) {
      return DataLoss(context, ": dimension ", d, " is ", dim, " (at byte ", at,
                      "); it must be at least 1 and all together at most 2^56");
    }
    tensor.shape.push_back(static_cast<int64_t>(dim));
  }
  at = in.position();
  TQ_RETURN_IF_ERROR(in.Read(type, "a type").WithContext(context));
  TQ_RETURN_IF_ERROR(in.Read(entry.offset, "an offset").WithContext(context));
  tensor.type = static_cast<GgmlType>(type);
  const TypeInfo* info = FindType(tensor.type);
  if (info == nullptr) {
    return Unsupported(context, " has type ", type, " (at byte ", at,
                       "), whose layout is not known; the file may be newer than this program");
  }
  const uint64_t block_len = static_cast<uint64_t>(info->shape.block_len);
  if (static_cast<uint64_t>(tensor.shape[0]) % block_len != 0) {
    return DataLoss(context, ": rows of ", tensor.shape[0], " values are no multiple of the ",
                    block_len, " values of a ", info->name, " block");
  }
  entry.bytes = elements / block_len * static_cast<uint64_t>(info->shape.block_bytes);
  return OkStatus();
}

// Finds each tensor's data behind the header. Padding after the last one may be missing.
Status PlaceTensors(std::span<const std::byte> file, uint64_t header_end, uint64_t alignment,
                    std::vector<TensorEntry>& entries) {
  if (entries.empty()) return OkStatus();
  if (header_end > std::numeric_limits<uint64_t>::max() - alignment ||
      RoundUp(header_end, alignment) > file.size()) {
    return DataLoss("the header ends at byte ", header_end, " and the data begins at the next ",
                    "multiple of ", alignment, ", but the file has ", file.size(), " bytes");
  }
  const std::span<const std::byte> data = file.subspan(RoundUp(header_end, alignment));
  for (TensorEntry& entry : entries) {
    const std::string& name = entry.tensor.name;
    if (entry.offset % alignment != 0) {
      return DataLoss("tensor '", name, "' begins at byte ", entry.offset,
                      " of the data, which is no multiple of the alignment ", alignment);
    }
    if (entry.offset > data.size() || entry.bytes > data.size() - entry.offset) {
      return DataLoss("tensor '", name, "' needs ", entry.bytes, " bytes from byte ", entry.offset,
                      " of the data, which has ", data.size(),
                      "; the file is damaged or was not downloaded whole");
    }
    entry.tensor.data = data.subspan(entry.offset, entry.bytes);
  }
  std::vector<const TensorEntry*> order;
  for (const TensorEntry& entry : entries) order.push_back(&entry);
  std::sort(order.begin(), order.end(),
            [](const auto* a, const auto* b) { return a->offset < b->offset; });
  for (size_t i = 1; i < order.size(); ++i) {
    if (order[i - 1]->offset + order[i - 1]->bytes > order[i]->offset) {
      return DataLoss("tensors '", order[i - 1]->tensor.name, "' (", order[i - 1]->bytes,
                      " bytes from byte ", order[i - 1]->offset, ") and '", order[i]->tensor.name,
                      "' (from byte ", order[i]->offset, ") overlap");
    }
  }
  return OkStatus();
}

Result<uint64_t> Alignment(const std::map<std::string, GgufValue>& metadata, bool is_u32) {
  const auto it = metadata.find(kAlignmentKey);
  if (it == metadata.end()) return kDefaultAlignment;
  if (!is_u32) return DataLoss("'", kAlignmentKey, "' is not of type u32");
  const uint64_t alignment = std::get<uint64_t>(it->second);
  if (alignment < 8 || !std::has_single_bit(alignment)) {
    return DataLoss("'", kAlignmentKey, "' is ", alignment,
                    "; a power of two of at least 8 was expected");
  }
  return alignment;
}

Status CheckVersion(uint32_t version) {
  if (version == 2 || version == 3) return OkStatus();
  if (version != 0 && (version & 0xFFFFu) == 0) {
    return Unsupported("it is big-endian (version reads as ", version,
                       "); only little-endian files are supported");
  }
  return Unsupported("its version is ", version, "; supported: 2, 3");
}

const char* ValueKind(const GgufValue& value) {
  constexpr const char* kKinds[] = {"an unsigned integer",
                                    "a signed integer",
                                    "a float",
                                    "a bool",
                                    "a string",
                                    "an array of integers",
                                    "an array of floats",
                                    "an array of strings"};
  return kKinds[value.index()];
}

Status WrongKind(const std::string& key, const char* wanted, const GgufValue& value) {
  return InvalidArgument("metadata '", key, "' is ", ValueKind(value), "; ", wanted,
                         " was expected");
}

bool HasMagic(std::span<const std::byte> bytes) {
  return bytes.size() >= sizeof kMagic && std::memcmp(bytes.data(), kMagic, sizeof kMagic) == 0;
}

Status ReadAll(std::span<const std::byte> bytes, GgufContents& out) {
  if (!HasMagic(bytes)) {
    return DataLoss("it is not a GGUF file: its ", bytes.size(),
                    " bytes do not begin with \"GGUF\"");
  }
  Cursor in(bytes);
  uint32_t magic = 0;
  TQ_RETURN_IF_ERROR(in.Read(magic, "the magic"));
  TQ_RETURN_IF_ERROR(in.Read(out.version, "the version"));
  TQ_RETURN_IF_ERROR(CheckVersion(out.version));
  uint64_t num_tensors = 0, num_values = 0;
  TQ_RETURN_IF_ERROR(in.Read(num_tensors, "the number of tensors"));
  TQ_RETURN_IF_ERROR(in.Read(num_values, "the number of metadata values"));
  if (num_values > in.remaining() / kMinKeyValueBytes ||
      num_tensors > in.remaining() / kMinTensorBytes) {
    return DataLoss(num_values, " metadata values and ", num_tensors,
                    " tensors do not fit into the ", in.remaining(), " bytes that follow");
  }
  uint32_t alignment_type = kU32;
  for (uint64_t i = 0; i < num_values; ++i) {
    std::string key;
    uint32_t type = 0;
    TQ_RETURN_IF_ERROR(ReadName(in, "a metadata key", key));
    const uint64_t at = in.position();
    TQ_RETURN_IF_ERROR(in.Read(type, "a type").WithContext(StrCat("metadata '", key, "'")));
    if (type > kF64) {
      return DataLoss("metadata '", key, "' has type ", type, " (at byte ", at, "), not 0 to 12");
    }
    const uint64_t value_at = in.position();
    Result<GgufValue> value = ReadValue(in, type);
    if (!value.ok()) return value.status().WithContext(StrCat("metadata '", key, "'"));
    if (key == kAlignmentKey) alignment_type = type;
    out.raw_metadata.push_back(
        {key, static_cast<GgufType>(type), bytes.subspan(value_at, in.position() - value_at)});
    if (!out.metadata.emplace(key, *std::move(value)).second) {
      return DataLoss("metadata '", key, "' appears twice (at byte ", at, ")");
    }
  }
  TQ_ASSIGN_OR_RETURN(const uint64_t alignment, Alignment(out.metadata, alignment_type == kU32));

  std::vector<TensorEntry> entries(num_tensors);
  for (TensorEntry& entry : entries) TQ_RETURN_IF_ERROR(ReadTensorEntry(in, entry));
  TQ_RETURN_IF_ERROR(PlaceTensors(bytes, in.position(), alignment, entries));
  for (TensorEntry& entry : entries) out.tensors.push_back(std::move(entry.tensor));
  return OkStatus();
}

}  // namespace

std::string GgmlTypeName(GgmlType type) {
  const TypeInfo* info = FindType(type);
  return info != nullptr ? info->name : StrCat("type ", static_cast<uint32_t>(type));
}

GgmlTypeShape GgmlShape(GgmlType type) {
  const TypeInfo* info = FindType(type);
  return info != nullptr ? info->shape : GgmlTypeShape{};
}

int64_t GgufTensor::num_elements() const {
  int64_t n = 1;
  for (const int64_t dim : shape) n *= dim;
  return n;
}

size_t GgufTensor::num_bytes() const {
  const GgmlTypeShape block = GgmlShape(type);
  return static_cast<size_t>(num_elements() / block.block_len * block.block_bytes);
}

Result<GgufContents> ReadGguf(std::span<const std::byte> bytes, const std::string& name) {
  GgufContents contents;
  contents.path = name;
  contents.file_bytes = bytes.size();
  const Status status = ReadAll(bytes, contents);
  if (!status.ok()) return status.WithContext(StrCat("cannot read '", name, "'"));
  return contents;
}

Result<GgufFile> GgufFile::Parse(std::span<const std::byte> bytes, const std::string& name) {
  TQ_ASSIGN_OR_RETURN(GgufContents contents, ReadGguf(bytes, name));
  TQ_ASSIGN_OR_RETURN(GgufFile file, FromContents(std::move(contents)));
  if (const Result<int64_t> parts = file.GetInt("split.count"); parts.ok() && *parts > 1) {
    return Unsupported("cannot read '", name, "': it is one of ", *parts,
                       " parts of a split model");
  }
  return file;
}

Result<GgufFile> GgufFile::FromContents(GgufContents contents) {
  GgufFile file;
  file.contents_ = std::move(contents);
  for (size_t i = 0; i < file.tensors().size(); ++i) {
    const std::string& name = file.tensors()[i].name;
    if (!file.tensor_index_.emplace(name, i).second) {
      return DataLoss("cannot read '", file.path(), "': tensor '", name, "' appears twice");
    }
  }
  return file;
}

Result<GgufFile> GgufFile::Open(const std::string& path) {
  if (IsDirectory(path)) {
    TQ_ASSIGN_OR_RETURN(GgufContents contents, OpenHuggingFaceFolder(path));
    return FromContents(std::move(contents));
  }
  TQ_ASSIGN_OR_RETURN(MappedFile mapped, MappedFile::Open(path));
  for (const char* suffix : {".safetensors", "config.json", ".bin", ".pt", ".pth"}) {
    if (path.ends_with(suffix) && !HasMagic(mapped.bytes())) {
      return InvalidArgument("'", path, "' is one file of a model; name its folder");
    }
  }
  auto map = std::make_shared<MappedFile>(std::move(mapped));
  TQ_ASSIGN_OR_RETURN(GgufContents contents, ReadGguf(map->bytes(), path));
  contents.maps.push_back(std::move(map));
  TQ_RETURN_IF_ERROR(JoinSplitParts(contents));
  return FromContents(std::move(contents));
}

const GgufTensor* GgufFile::FindTensor(std::string_view name) const {
  const auto it = tensor_index_.find(name);
  return it == tensor_index_.end() ? nullptr : &tensors()[it->second];
}

TensorData GgufFile::Data(const GgufTensor& tensor) const {
  if (tensor.assembly == nullptr) return TensorData(tensor.data);
  std::vector<std::byte> bytes(tensor.num_bytes());
  tensor.assembly->make(tensor.assembly->parts, bytes);
  return TensorData(std::move(bytes));
}

void GgufFile::Release(const GgufTensor& tensor) const {
  const auto release = [&](std::span<const std::byte> range) {
    for (const auto& map : contents_.maps) {
      const std::span<const std::byte> all = map->bytes();
      const std::less_equal<const std::byte*> before;
      if (before(all.data(), range.data()) &&
          before(range.data() + range.size(), all.data() + all.size())) {
        map->Release(range);
      }
    }
  };
  release(tensor.data);
  if (tensor.assembly == nullptr) return;
  for (const std::span<const std::byte> part : tensor.assembly->parts) release(part);
}

Result<const GgufValue*> GgufFile::Get(const std::string& key) const {
  const auto it = metadata().find(key);
  if (it == metadata().end()) return NotFound("'", path(), "' has no metadata '", key, "'");
  return &it->second;
}

Result<int64_t> GgufFile::GetInt(const std::string& key) const {
  TQ_ASSIGN_OR_RETURN(const GgufValue* value, Get(key));
  if (const int64_t* i = std::get_if<int64_t>(value)) return *i;
  const uint64_t* u = std::get_if<uint64_t>(value);
  if (u == nullptr) return WrongKind(key, "an integer", *value);
  if (*u > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    return InvalidArgument("metadata '", key, "' is ", *u, ", which exceeds 2^63 - 1");
  }
  return static_cast<int64_t>(*u);
}

Result<double> GgufFile::GetFloat(const std::string& key) const {
  TQ_ASSIGN_OR_RETURN(const GgufValue* value, Get(key));
  if (const double* f = std::get_if<double>(value)) return *f;
  if (const int64_t* i = std::get_if<int64_t>(value)) return static_cast<double>(*i);
  if (const uint64_t* u = std::get_if<uint64_t>(value)) return static_cast<double>(*u);
  return WrongKind(key, "a number", *value);
}

Result<std::string> GgufFile::GetString(const std::string& key) const {
  TQ_ASSIGN_OR_RETURN(const GgufValue* value, Get(key));
  if (const std::string* s = std::get_if<std::string>(value)) return *s;
  return WrongKind(key, "a string", *value);
}

Result<bool> GgufFile::GetBool(const std::string& key) const {
  TQ_ASSIGN_OR_RETURN(const GgufValue* value, Get(key));
  if (const bool* b = std::get_if<bool>(value)) return *b;
  return WrongKind(key, "a bool", *value);
}

Result<std::vector<std::string>> GgufFile::GetStrings(const std::string& key) const {
  TQ_ASSIGN_OR_RETURN(const GgufValue* value, Get(key));
  if (const auto* strings = std::get_if<std::vector<std::string>>(value)) return *strings;
  return WrongKind(key, "an array of strings", *value);
}

Result<std::vector<int64_t>> GgufFile::GetInts(const std::string& key) const {
  TQ_ASSIGN_OR_RETURN(const GgufValue* value, Get(key));
  if (const auto* ints = std::get_if<std::vector<int64_t>>(value)) return *ints;
  return WrongKind(key, "an array of integers", *value);
}

Result<std::vector<double>> GgufFile::GetFloats(const std::string& key) const {
  TQ_ASSIGN_OR_RETURN(const GgufValue* value, Get(key));
  if (const auto* floats = std::get_if<std::vector<double>>(value)) return *floats;
  if (const auto* ints = std::get_if<std::vector<int64_t>>(value)) {
    return std::vector<double>(ints->begin(), ints->end());
  }
  return WrongKind(key, "an array of numbers", *value);
}

}  // namespace tq
