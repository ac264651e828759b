// Builds GGUF bytes in memory: synthetic models and vocabularies for tests and fuzz seeds.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/formats/gguf.h"

namespace tq {

class GgufBuilder {
 public:
  static constexpr uint32_t kU32 = 4, kI32 = 5, kF32 = 6, kBool = 7, kString = 8, kArray = 9;

  GgufBuilder& U32(std::string_view key, uint32_t value) { return Plain(key, kU32, value); }
  GgufBuilder& I32(std::string_view key, int32_t value) { return Plain(key, kI32, value); }
  GgufBuilder& F32(std::string_view key, float value) { return Plain(key, kF32, value); }
  GgufBuilder& Bool(std::string_view key, bool value) {
    return Plain(key, kBool, static_cast<uint8_t>(value));
  }
  GgufBuilder& Text(std::string_view key, std::string_view value) {
    Begin(key, kString);
    PutText(values_, value);
    return *this;
  }
  GgufBuilder& Texts(std::string_view key, const std::vector<std::string>& values) {
    BeginArray(key, kString, values.size());
    for (const std::string& value : values) PutText(values_, value);
    return *this;
  }
  GgufBuilder& I32s(std::string_view key, const std::vector<int32_t>& values) {
    return PlainArray(key, kI32, values);
  }
  GgufBuilder& F32s(std::string_view key, const std::vector<float>& values) {
    return PlainArray(key, kF32, values);
  }
  // Any type number and any bytes behind it.
  GgufBuilder& Raw(std::string_view key, uint32_t type, std::string_view bytes) {
    Begin(key, type);
    values_.append(bytes);
    return *this;
  }
  GgufBuilder& Tensor(std::string_view name, GgmlType type, const std::vector<uint64_t>& shape,
                      std::string_view data) {
    data_.resize((data_.size() + alignment_ - 1) / alignment_ * alignment_, '\0');
    return TensorAt(name, static_cast<uint32_t>(type), shape, data_.size(), data);
  }
  // Any type number and offset; `data` is appended where the data ends so far.
  GgufBuilder& TensorAt(std::string_view name, uint32_t type, const std::vector<uint64_t>& shape,
                        uint64_t offset, std::string_view data) {
    ++num_tensors_;
    PutText(tensors_, name);
    Put(tensors_, static_cast<uint32_t>(shape.size()));
    for (const uint64_t dim : shape) Put(tensors_, dim);
    Put(tensors_, type);
    Put(tensors_, offset);
    data_.append(data);
    return *this;
  }
  // Set it before the tensors; also writes the key.
  GgufBuilder& Alignment(uint32_t alignment) {
    alignment_ = alignment;
    return U32("general.alignment", alignment);
  }

  std::string Build(uint32_t version = 3) const {
    std::string out = "GGUF";
    Put(out, version);
    Put(out, num_tensors_);
    Put(out, num_values_);
    out += values_;
    out += tensors_;
    if (num_tensors_ > 0) out.resize((out.size() + alignment_ - 1) / alignment_ * alignment_, '\0');
    return out + data_;
  }

 private:
  template <typename T>
  static void Put(std::string& out, T value) {
    out.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  static void PutText(std::string& out, std::string_view text) {
    Put(out, static_cast<uint64_t>(text.size()));
    out.append(text);
  }
  void Begin(std::string_view key, uint32_t type) {
    ++num_values_;
    PutText(values_, key);
    Put(values_, type);
  }
  void BeginArray(std::string_view key, uint32_t type, uint64_t count) {
    Begin(key, kArray);
    Put(values_, type);
    Put(values_, count);
  }
  template <typename T>
  GgufBuilder& Plain(std::string_view key, uint32_t type, T value) {
    Begin(key, type);
    Put(values_, value);
    return *this;
  }
  template <typename T>
  GgufBuilder& PlainArray(std::string_view key, uint32_t type, const std::vector<T>& values) {
    BeginArray(key, type, values.size());
    for (const T value : values) Put(values_, value);
    return *this;
  }

  uint64_t num_values_ = 0, num_tensors_ = 0;
  size_t alignment_ = 32;
  std::string values_, tensors_, data_;
};

}  // namespace tq
