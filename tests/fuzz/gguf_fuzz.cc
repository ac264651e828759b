// Any bytes as a GGUF file: an error, or tensors that can be read to the last byte.
#include <cstddef>
#include <cstdint>

#include "runtime/formats/gguf.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto* bytes = reinterpret_cast<const std::byte*>(data);
  const tq::Result<tq::GgufFile> file = tq::GgufFile::Parse({bytes, size}, "fuzz");
  if (!file.ok()) {
    TQ_CHECK(!file.status().message().empty());
    return 0;
  }
  volatile size_t sum = 0;
  for (const tq::GgufTensor& tensor : file->tensors()) {
    TQ_CHECK(file->FindTensor(tensor.name) == &tensor);
    TQ_CHECK(tensor.num_elements() > 0 && !tensor.data.empty());
    sum = sum + static_cast<size_t>(tensor.data.front()) + static_cast<size_t>(tensor.data.back());
  }
  for (const auto& [key, value] : file->metadata()) {
    // Each value is of exactly one kind, except that integers also serve as floats.
    const int kinds = file->GetInt(key).ok() + file->GetString(key).ok() + file->GetBool(key).ok() +
                      file->GetStrings(key).ok() + file->GetInts(key).ok();
    TQ_CHECK(kinds <= 1);
    sum = sum + file->GetFloat(key).ok() + file->GetFloats(key).ok();
  }
  return 0;
}
