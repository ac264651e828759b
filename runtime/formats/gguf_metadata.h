// Metadata that is about to be written: values in the bytes of the file, in order.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/formats/gguf.h"
#include "turboquant/base/status.h"

namespace tq {

class GgufMetadata {
 public:
  struct Entry {
    std::string key;
    GgufType type = GgufType::kU32;
    std::string bytes;  // what follows the type number in the file
  };

  GgufMetadata() = default;
  // All values of `file`: of a GGUF file byte for byte, of a folder in the types that llama.cpp's
  // converter gives them.
  static GgufMetadata Of(const GgufFile& file);

  // Each replaces the value of a key that is there, in its place, or adds one at the end.
  GgufMetadata& U32(std::string_view key, uint32_t value);
  GgufMetadata& I32(std::string_view key, int32_t value);
  GgufMetadata& U64(std::string_view key, uint64_t value);
  GgufMetadata& F32(std::string_view key, float value);
  GgufMetadata& Bool(std::string_view key, bool value);
  GgufMetadata& Text(std::string_view key, std::string_view value);
  GgufMetadata& U8s(std::string_view key, std::span<const uint8_t> values);
  GgufMetadata& I32s(std::string_view key, std::span<const int32_t> values);
  GgufMetadata& F32s(std::string_view key, std::span<const float> values);
  GgufMetadata& Texts(std::string_view key, std::span<const std::string> values);
  // Any type, its bytes as they are to lie in the file.
  GgufMetadata& Raw(std::string_view key, GgufType type, std::string_view bytes);

  // False when there was no such key.
  bool Remove(std::string_view key);
  const Entry* Find(std::string_view key) const;  // nullptr: not there
  const std::vector<Entry>& entries() const { return entries_; }

 private:
  GgufMetadata& Value(std::string_view key, const GgufValue& value);
  std::vector<Entry> entries_;
};

}  // namespace tq
