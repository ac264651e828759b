// Builds GGUF bytes in memory: synthetic models and vocabularies for tests and fuzz seeds. Files
// are written by gguf_writer.h; this one also makes what no writer may: wrong types and offsets.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/formats/gguf_writer.h"

namespace tq {

class GgufBuilder {
 public:
  GgufBuilder& U32(std::string_view key, uint32_t value) { return Set(values_.U32(key, value)); }
  GgufBuilder& I32(std::string_view key, int32_t value) { return Set(values_.I32(key, value)); }
  GgufBuilder& F32(std::string_view key, float value) { return Set(values_.F32(key, value)); }
  GgufBuilder& Bool(std::string_view key, bool value) { return Set(values_.Bool(key, value)); }
  GgufBuilder& Text(std::string_view key, std::string_view value) {
    return Set(values_.Text(key, value));
  }
  GgufBuilder& Texts(std::string_view key, const std::vector<std::string>& values) {
    return Set(values_.Texts(key, values));
  }
  GgufBuilder& I32s(std::string_view key, const std::vector<int32_t>& values) {
    return Set(values_.I32s(key, values));
  }
  GgufBuilder& F32s(std::string_view key, const std::vector<float>& values) {
    return Set(values_.F32s(key, values));
  }
  // Any type number and any bytes behind it.
  GgufBuilder& Raw(std::string_view key, uint32_t type, std::string_view bytes) {
    return Set(values_.Raw(key, static_cast<GgufType>(type), bytes));
  }
  GgufBuilder& Tensor(std::string_view name, GgmlType type, const std::vector<uint64_t>& shape,
                      std::string_view data) {
    data_.resize((data_.size() + alignment_ - 1) / alignment_ * alignment_, '\0');
    return TensorAt(name, static_cast<uint32_t>(type), shape, data_.size(), data);
  }
  // Any type number and offset; `data` is appended where the data ends so far.
  GgufBuilder& TensorAt(std::string_view name, uint32_t type, const std::vector<uint64_t>& shape,
                        uint64_t offset, std::string_view data) {
    tensors_.push_back({std::string(name), type, shape, offset});
    data_.append(data);
    return *this;
  }
  // Set it before the tensors; also writes the key.
  GgufBuilder& Alignment(uint32_t alignment) {
    alignment_ = alignment;
    return U32("general.alignment", alignment);
  }

  std::string Build(uint32_t version = 3) const {
    return GgufHeaderBytes(values_, tensors_, alignment_, version) + data_;
  }

 private:
  GgufBuilder& Set(GgufMetadata&) { return *this; }

  size_t alignment_ = 32;
  GgufMetadata values_;
  std::vector<GgufTensorEntry> tensors_;
  std::string data_;
};

}  // namespace tq
