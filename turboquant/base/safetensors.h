// Safetensors files: a JSON header, then raw little-endian tensors. Read-only and memory-mapped;
// every type, size and offset is checked before anything is used. Profiles keep their means,
// matrices and code books in this format, and Hugging Face folders their weights.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "turboquant/base/mapped_file.h"
#include "turboquant/base/status.h"

namespace tq {

enum class SafetensorsType { kF32, kF16, kBF16, kI8, kI32, kI64, kU8 };
const char* SafetensorsTypeName(SafetensorsType type);  // "BF16", as the file spells it
size_t SafetensorsTypeBytes(SafetensorsType type);
// The value at `p`, which need not be aligned, as float32 (integers: the nearest).
float SafetensorsElement(SafetensorsType type, const std::byte* p);

struct SafetensorsTensor {
  std::string name;
  SafetensorsType type = SafetensorsType::kF32;
  std::vector<int64_t> shape;       // row-major: the last dimension is contiguous; {} is a scalar
  std::span<const std::byte> data;  // inside the map, not necessarily aligned
  int64_t num_elements() const;
};

class SafetensorsFile {
 public:
  // kNotFound, kUnavailable, kDataLoss (what is wrong and where), kUnsupported (an element type
  // that is not listed above, by name).
  static Result<SafetensorsFile> Open(const std::string& path);
  // The same over bytes in memory, which must outlive the result; `name` is used in messages.
  static Result<SafetensorsFile> Parse(std::span<const std::byte> bytes, const std::string& name);

  const std::string& path() const { return path_; }
  // In the order of their data.
  const std::vector<SafetensorsTensor>& tensors() const { return tensors_; }
  // The free-form "__metadata__" of the header.
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const SafetensorsTensor* Find(std::string_view name) const;  // nullptr: not there

  // The values as float32 (integers are rounded to the nearest float32). kNotFound names the
  // tensor.
  Result<std::vector<float>> GetFloats(std::string_view name) const;
  // The same, and kInvalidArgument with both shapes unless the shape is `shape`.
  Result<std::vector<float>> GetFloats(std::string_view name,
                                       const std::vector<int64_t>& shape) const;

  // The kernel may drop these pages (after their contents were copied or repacked).
  void Release(const SafetensorsTensor& tensor) const;

 private:
  std::string path_;
  std::shared_ptr<MappedFile> map_;  // null for Parse
  std::vector<SafetensorsTensor> tensors_;
  std::map<std::string, size_t, std::less<>> index_;
  std::map<std::string, std::string> metadata_;
};

// "[2, 3]", for messages.
std::string ShapeToString(const std::vector<int64_t>& shape);

// One tensor to write: float32 values, stored as `type` (kF32, kF16 or kBF16, rounded to the
// nearest even).
struct SafetensorsSource {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<float> values;
  SafetensorsType type = SafetensorsType::kF32;
};

// The bytes of a file with these tensors. kInvalidArgument: values and shape disagree, a name is
// empty, taken twice, reserved or not UTF-8. kUnsupported: an integer type.
Result<std::string> SerializeSafetensors(const std::vector<SafetensorsSource>& tensors,
                                         const std::map<std::string, std::string>& metadata = {});
// The same into a file that is either complete or not there.
Status WriteSafetensors(const std::string& path, const std::vector<SafetensorsSource>& tensors,
                        const std::map<std::string, std::string>& metadata = {});

}  // namespace tq
