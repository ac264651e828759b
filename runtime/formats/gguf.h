// Model files under one interface, memory-mapped and checked before use: GGUF (version 2 and 3,
// split or whole), and Hugging Face folders, which are shown with GGUF's names (hf_folder.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "turboquant/base/mapped_file.h"
#include "turboquant/base/status.h"

namespace tq {

// ggml's tensor types, by their number in the file.
enum class GgmlType : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ8_1 = 9,
  kQ2_K = 10,
  kQ3_K = 11,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kQ8_K = 15,
  kBF16 = 30,
};
// Types of metadata values, by their number in the file.
enum class GgufType : uint32_t {
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kF64 = 12,
};
// "Q4_1"; "type 77" for numbers that are not known.
std::string GgmlTypeName(GgmlType type);
// Values and bytes of one block; {0, 0} for types whose layout is not known here.
struct GgmlTypeShape {
  int block_len = 0;
  int block_bytes = 0;
};
GgmlTypeShape GgmlShape(GgmlType type);

// How a tensor is made whose bytes lie otherwise in the file: rows in another order, experts one by
// one, a norm without its 1.
struct TensorAssembly {
  using Parts = std::vector<std::span<const std::byte>>;
  Parts parts;  // inside a map
  std::function<void(const Parts& parts, std::span<std::byte> out)> make;
};

struct GgufTensor {
  std::string name;
  GgmlType type = GgmlType::kF32;
  std::vector<int64_t> shape;       // ggml order: shape[0] is the contiguous dimension
  std::span<const std::byte> data;  // inside the map; empty with an assembly: use GgufFile::Data
  std::shared_ptr<const TensorAssembly> assembly;
  int64_t num_elements() const;
  size_t num_bytes() const;
};

// The bytes of a tensor: a view of the map, or a buffer of its own.
class TensorData {
 public:
  explicit TensorData(std::span<const std::byte> view) : view_(view) {}
  explicit TensorData(std::vector<std::byte> owned) : owned_(std::move(owned)), view_(owned_) {}
  TensorData(TensorData&&) = default;
  TensorData& operator=(TensorData&&) = default;
  std::span<const std::byte> bytes() const { return view_; }

 private:
  std::vector<std::byte> owned_;
  std::span<const std::byte> view_;
};

// A metadata value: every integer is widened, arrays are of one kind.
using GgufValue = std::variant<uint64_t, int64_t, double, bool, std::string, std::vector<int64_t>,
                               std::vector<double>, std::vector<std::string>>;

// A metadata value as it lies in the file: what a copy of the file has to hold.
struct GgufRawValue {
  std::string key;
  GgufType type = GgufType::kU32;
  std::span<const std::byte> bytes;  // inside the map
};

struct GgufContents {
  std::string path;
  uint32_t version = 3;
  std::map<std::string, GgufValue> metadata;
  std::vector<GgufRawValue> raw_metadata;  // in the order of the file; none of a folder
  std::vector<GgufTensor> tensors;
  std::vector<std::shared_ptr<MappedFile>> maps;  // what the tensors point into
  size_t file_bytes = 0;
};

class GgufFile {
 public:
  // A GGUF file, the first part of a split one (NAME-00001-of-0000N.gguf; the others are opened
  // with it), or a Hugging Face folder. kNotFound, kUnavailable, kDataLoss (what is wrong, at which
  // byte), kUnsupported (version, big-endian, a tensor type of unknown layout, arrays of arrays;
  // a checkpoint that is quantized in a way that is not read, with the way out).
  static Result<GgufFile> Open(const std::string& path);
  // One whole GGUF file in memory, for tests and fuzzing; the bytes must outlive the result.
  static Result<GgufFile> Parse(std::span<const std::byte> bytes, const std::string& name);
  // kDataLoss: two tensors of one name.
  static Result<GgufFile> FromContents(GgufContents contents);

  const std::string& path() const { return contents_.path; }
  uint32_t version() const { return contents_.version; }
  const std::map<std::string, GgufValue>& metadata() const { return contents_.metadata; }
  // Those of a GGUF file; empty for a folder.
  const std::vector<GgufRawValue>& raw_metadata() const { return contents_.raw_metadata; }
  const std::vector<GgufTensor>& tensors() const { return contents_.tensors; }
  const GgufTensor* FindTensor(std::string_view name) const;  // nullptr: not there

  // Typed access. kNotFound names the key; kInvalidArgument names the type that was found. Where a
  // float is asked for, an integer will do.
  Result<int64_t> GetInt(const std::string& key) const;
  Result<double> GetFloat(const std::string& key) const;
  Result<std::string> GetString(const std::string& key) const;
  Result<bool> GetBool(const std::string& key) const;
  Result<std::vector<std::string>> GetStrings(const std::string& key) const;
  Result<std::vector<int64_t>> GetInts(const std::string& key) const;
  Result<std::vector<double>> GetFloats(const std::string& key) const;
  bool Has(const std::string& key) const { return metadata().count(key) != 0; }

  // The bytes of a tensor of this file, put together where they are not mapped as they are.
  TensorData Data(const GgufTensor& tensor) const;
  // The kernel may drop the pages behind a tensor (after its contents were repacked).
  void Release(const GgufTensor& tensor) const;
  size_t file_bytes() const { return contents_.file_bytes; }

 private:
  Result<const GgufValue*> Get(const std::string& key) const;

  GgufContents contents_;
  std::map<std::string, size_t, std::less<>> tensor_index_;
};

}  // namespace tq
