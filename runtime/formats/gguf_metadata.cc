#include "runtime/formats/gguf_metadata.h"

#include <algorithm>
#include <limits>
#include <type_traits>
#include <variant>

#include "runtime/formats/gguf_bytes.h"

namespace tq {
namespace {

std::string ArrayHead(GgufType type, size_t count) {
  std::string out;
  Put(out, static_cast<uint32_t>(type));
  Put(out, static_cast<uint64_t>(count));
  return out;
}

template <typename T, typename Values>
std::string ArrayOf(GgufType type, const Values& values) {
  std::string out = ArrayHead(type, values.size());
  out.reserve(out.size() + values.size() * sizeof(T));
  for (const auto value : values) Put(out, static_cast<T>(value));
  return out;
}

// Arrays of integers of a folder are i32 but for these.
GgufType IntArrayType(std::string_view key) {
  if (key.ends_with(".sliding_window_pattern")) return GgufType::kBool;
  if (key == "tokenizer.ggml.precompiled_charsmap") return GgufType::kU8;
  return GgufType::kI32;
}

}  // namespace

GgufMetadata GgufMetadata::Of(const GgufFile& file) {
  GgufMetadata out;
  if (!file.raw_metadata().empty()) {
    for (const GgufRawValue& v : file.raw_metadata()) {
      out.entries_.push_back(
          {v.key, v.type, {reinterpret_cast<const char*>(v.bytes.data()), v.bytes.size()}});
    }
    return out;
  }
  // The first key says what the others are about; readers expect it first.
  constexpr const char* kFirst = "general.architecture";
  const auto first = file.metadata().find(kFirst);
  if (first != file.metadata().end()) out.Value(first->first, first->second);
  for (const auto& [key, value] : file.metadata()) {
    if (key != kFirst) out.Value(key, value);
  }
  return out;
}

GgufMetadata& GgufMetadata::Value(std::string_view key, const GgufValue& value) {
  return std::visit(
      [&](const auto& v) -> GgufMetadata& {
        using T = std::decay_t<decltype(v)>;
        if constexpr (std::is_same_v<T, uint64_t>) {
          const bool narrow = v <= std::numeric_limits<uint32_t>::max();
          return narrow ? U32(key, static_cast<uint32_t>(v)) : U64(key, v);
        } else if constexpr (std::is_same_v<T, int64_t>) {
          return I32(key, static_cast<int32_t>(v));
        } else if constexpr (std::is_same_v<T, double>) {
          return F32(key, static_cast<float>(v));
        } else if constexpr (std::is_same_v<T, bool>) {
          return Bool(key, v);
        } else if constexpr (std::is_same_v<T, std::string>) {
          return Text(key, v);
        } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
          return Texts(key, v);
        } else if constexpr (std::is_same_v<T, std::vector<double>>) {
          return Raw(key, GgufType::kArray, ArrayOf<float>(GgufType::kF32, v));
        } else {
          const GgufType type = IntArrayType(key);
          return Raw(
              key, GgufType::kArray,
              type == GgufType::kI32 ? ArrayOf<int32_t>(type, v) : ArrayOf<uint8_t>(type, v));
        }
      },
      value);
}

GgufMetadata& GgufMetadata::Raw(std::string_view key, GgufType type, std::string_view bytes) {
  const auto it =
      std::find_if(entries_.begin(), entries_.end(), [&](const Entry& e) { return e.key == key; });
  if (it != entries_.end()) {
    it->type = type;
    it->bytes = bytes;
  } else {
    entries_.push_back({std::string(key), type, std::string(bytes)});
  }
  return *this;
}

GgufMetadata& GgufMetadata::U32(std::string_view key, uint32_t value) {
  std::string bytes;
  Put(bytes, value);
  return Raw(key, GgufType::kU32, bytes);
}

GgufMetadata& GgufMetadata::I32(std::string_view key, int32_t value) {
  std::string bytes;
  Put(bytes, value);
  return Raw(key, GgufType::kI32, bytes);
}

GgufMetadata& GgufMetadata::U64(std::string_view key, uint64_t value) {
  std::string bytes;
  Put(bytes, value);
  return Raw(key, GgufType::kU64, bytes);
}

GgufMetadata& GgufMetadata::F32(std::string_view key, float value) {
  std::string bytes;
  Put(bytes, value);
  return Raw(key, GgufType::kF32, bytes);
}

GgufMetadata& GgufMetadata::Bool(std::string_view key, bool value) {
  return Raw(key, GgufType::kBool, std::string(1, value ? '\1' : '\0'));
}

GgufMetadata& GgufMetadata::Text(std::string_view key, std::string_view value) {
  std::string bytes;
  PutText(bytes, value);
  return Raw(key, GgufType::kString, bytes);
}

GgufMetadata& GgufMetadata::U8s(std::string_view key, std::span<const uint8_t> values) {
  return Raw(key, GgufType::kArray, ArrayOf<uint8_t>(GgufType::kU8, values));
}

GgufMetadata& GgufMetadata::I32s(std::string_view key, std::span<const int32_t> values) {
  return Raw(key, GgufType::kArray, ArrayOf<int32_t>(GgufType::kI32, values));
}

GgufMetadata& GgufMetadata::F32s(std::string_view key, std::span<const float> values) {
  return Raw(key, GgufType::kArray, ArrayOf<float>(GgufType::kF32, values));
}

GgufMetadata& GgufMetadata::Texts(std::string_view key, std::span<const std::string> values) {
  std::string bytes = ArrayHead(GgufType::kString, values.size());
  for (const std::string& value : values) PutText(bytes, value);
  return Raw(key, GgufType::kArray, bytes);
}

bool GgufMetadata::Remove(std::string_view key) {
  return std::erase_if(entries_, [&](const Entry& e) { return e.key == key; }) > 0;
}

const GgufMetadata::Entry* GgufMetadata::Find(std::string_view key) const {
  const auto it =
      std::find_if(entries_.begin(), entries_.end(), [&](const Entry& e) { return e.key == key; });
  return it == entries_.end() ? nullptr : &*it;
}

}  // namespace tq
