// GGUF files (version 2 and 3), memory-mapped and checked before use.
#pragma once

#include <cstddef>
#include <cstdint>
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
  kF32 = 0, kF16 = 1, kQ4_0 = 2, kQ4_1 = 3, kQ5_0 = 6, kQ5_1 = 7, kQ8_0 = 8, kQ8_1 = 9,
  kQ2_K = 10, kQ3_K = 11, kQ4_K = 12, kQ5_K = 13, kQ6_K = 14, kQ8_K = 15, kBF16 = 30,
};
// "Q4_1"; "type 77" for numbers that are not known.
std::string GgmlTypeName(GgmlType type);
// Values and bytes of one block; {0, 0} for types whose layout is not known here.
struct GgmlTypeShape {
  int block_len = 0;
  int block_bytes = 0;
};
GgmlTypeShape GgmlShape(GgmlType type);

struct GgufTensor {
  std::string name;
  GgmlType type = GgmlType::kF32;
  std::vector<int64_t> shape;       // ggml order: shape[0] is the contiguous dimension
  std::span<const std::byte> data;  // inside the map
  int64_t num_elements() const;
};

// A metadata value: every integer is widened, arrays are of one kind.
using GgufValue = std::variant<uint64_t, int64_t, double, bool, std::string, std::vector<int64_t>,
                               std::vector<double>, std::vector<std::string>>;

class GgufFile {
 public:
  // kNotFound, kUnavailable, kDataLoss (what is wrong, at which byte), kUnsupported (version,
  // big-endian, a tensor type of unknown layout, arrays of arrays, one part of a split model).
  static Result<GgufFile> Open(const std::string& path);
  // The same over bytes in memory, for tests and fuzzing; the bytes must outlive the result.
  static Result<GgufFile> Parse(std::span<const std::byte> bytes, const std::string& name);

  const std::string& path() const { return path_; }
  uint32_t version() const { return version_; }
  const std::map<std::string, GgufValue>& metadata() const { return metadata_; }
  const std::vector<GgufTensor>& tensors() const { return tensors_; }
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
  bool Has(const std::string& key) const { return metadata_.count(key) != 0; }

  // The kernel may drop these pages (after their contents were repacked).
  void Release(const GgufTensor& tensor) const;
  size_t file_bytes() const { return bytes_.size(); }

 private:
  Status ReadAll();
  Result<const GgufValue*> Get(const std::string& key) const;

  std::string path_;
  uint32_t version_ = 0;
  std::shared_ptr<MappedFile> map_;  // null for Parse
  std::span<const std::byte> bytes_;
  std::map<std::string, GgufValue> metadata_;
  std::vector<GgufTensor> tensors_;
  std::map<std::string, size_t, std::less<>> tensor_index_;
};

}  // namespace tq
