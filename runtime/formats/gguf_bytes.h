// How a GGUF file holds numbers (little-endian) and texts (length, bytes).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tq {

template <typename T>
void Put(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

inline void PutText(std::string& out, std::string_view text) {
  Put(out, static_cast<uint64_t>(text.size()));
  out.append(text);
}

}  // namespace tq
