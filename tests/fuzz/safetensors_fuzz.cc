// Any bytes as a safetensors file: an error, or tensors whose values can be read.
#include <cstddef>
#include <cstdint>

#include "turboquant/base/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto* bytes = reinterpret_cast<const std::byte*>(data);
  const tq::Result<tq::SafetensorsFile> file = tq::SafetensorsFile::Parse({bytes, size}, "fuzz");
  if (!file.ok()) {
    TQ_CHECK(!file.status().message().empty());
    return 0;
  }
  for (const tq::SafetensorsTensor& tensor : file->tensors()) {
    TQ_CHECK(file->Find(tensor.name) == &tensor);
    const auto values = file->GetFloats(tensor.name, tensor.shape);
    TQ_CHECK(values.ok() && static_cast<int64_t>(values->size()) == tensor.num_elements());
  }
  return 0;
}
