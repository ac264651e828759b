// Typed reading of the objects of profile.json: an absent field leaves its value alone, a wrong one
// is an error that names it, and those that nobody asked for are noted.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "turboquant/base/status.h"

namespace tq {

// Reads fields of one object, names them in errors, and remembers which were read.
class Fields {
 public:
  Fields(const nlohmann::ordered_json& json, std::string where)
      : json_(json), where_(std::move(where)) {}

  Status CheckObject() const {
    if (json_.is_object()) return OkStatus();
    return InvalidArgument(where_, " is ", json_.type_name(), "; an object was expected");
  }
  bool Has(const char* key) const { return json_.contains(key); }
  Status Missing(const char* key) const { return InvalidArgument(where_, ".", key, " is missing"); }

  // An absent field leaves *out alone.
  Status Int(const char* key, int64_t low, int64_t high, int64_t* out) {
    const nlohmann::ordered_json* v = Get(key);
    if (v == nullptr) return OkStatus();
    if (!v->is_number_integer()) return Wrong(key, *v, "an integer");
    const int64_t n = v->get<int64_t>();
    if (n < low || n > high) {
      return InvalidArgument(where_, ".", key, " is ", n, "; it must be ", low, " to ", high);
    }
    *out = n;
    return OkStatus();
  }
  Status Int(const char* key, int low, int high, int* out) {
    int64_t n = *out;
    TQ_RETURN_IF_ERROR(Int(key, static_cast<int64_t>(low), static_cast<int64_t>(high), &n));
    *out = static_cast<int>(n);
    return OkStatus();
  }
  Status Number(const char* key, double* out) {
    const nlohmann::ordered_json* v = Get(key);
    if (v == nullptr) return OkStatus();
    if (!v->is_number()) return Wrong(key, *v, "a number");
    *out = v->get<double>();
    return OkStatus();
  }
  Status Bool(const char* key, bool* out) {
    const nlohmann::ordered_json* v = Get(key);
    if (v == nullptr) return OkStatus();
    if (!v->is_boolean()) return Wrong(key, *v, "true or false");
    *out = v->get<bool>();
    return OkStatus();
  }
  Status String(const char* key, std::string* out) {
    const nlohmann::ordered_json* v = Get(key);
    if (v == nullptr) return OkStatus();
    if (!v->is_string()) return Wrong(key, *v, "a string");
    *out = v->get<std::string>();
    return OkStatus();
  }
  // 64-bit hashes are hexadecimal strings: JSON numbers lose bits in many readers.
  Status Hash(const char* key, std::optional<uint64_t>* out) {
    std::string text;
    TQ_RETURN_IF_ERROR(String(key, &text));
    if (text.empty()) return OkStatus();
    uint64_t n = 0;
    const auto r = std::from_chars(text.data(), text.data() + text.size(), n, 16);
    if (r.ec != std::errc() || r.ptr != text.data() + text.size()) {
      return InvalidArgument(where_, ".", key, " is '", text, "'; a hexadecimal hash was expected");
    }
    *out = n;
    return OkStatus();
  }
  // One of `names`. Sets *out to the index.
  Status Choice(const char* key, std::initializer_list<const char*> names, int* out) {
    std::string text;
    if (!Has(key)) return OkStatus();
    TQ_RETURN_IF_ERROR(String(key, &text));
    std::string list;
    int i = 0;
    for (const char* name : names) {
      if (text == name) {
        *out = i;
        return OkStatus();
      }
      list += (list.empty() ? "" : ", ") + std::string(name);
      ++i;
    }
    return InvalidArgument(where_, ".", key, " is '", text, "'; it must be one of ", list);
  }
  const nlohmann::ordered_json* Get(const char* key) {
    read_.push_back(key);
    const auto it = json_.find(key);
    return it == json_.end() ? nullptr : &*it;
  }
  void NoteUnknown(std::vector<std::string>* notes) const {
    for (const auto& [key, value] : json_.items()) {
      if (std::find(read_.begin(), read_.end(), key) == read_.end()) {
        notes->push_back(StrCat(where_, ".", key, " is not known to this version and was ignored"));
      }
    }
  }

 private:
  Status Wrong(const char* key, const nlohmann::ordered_json& v, const char* expected) const {
    return InvalidArgument(where_, ".", key, " is ", v.type_name(), "; ", expected,
                           " was expected");
  }
  const nlohmann::ordered_json& json_;
  std::string where_;
  std::vector<std::string> read_;
};

inline std::string Hex(uint64_t n) {
  char text[17];
  const auto r = std::to_chars(text, text + 16, n, 16);
  return std::string(text, r.ptr);
}

}  // namespace tq
