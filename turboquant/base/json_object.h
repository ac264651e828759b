// Typed reading of JSON objects that come from outside: a key of the wrong type is an error that
// names it, null counts as not there.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "turboquant/base/status.h"

namespace tq {

// JSON that nests more than this is refused when it is parsed: values are copied by recursion.
inline constexpr int kMaxJsonDepth = 100;

// Any JSON value in `text`. kDataLoss: it is none, or nests too deeply; `name` in quotes.
template <typename Json = nlohmann::json>
Result<Json> ParseJson(std::string_view text, const std::string& name) {
  bool too_deep = false;
  const auto keep = [&](int depth, typename Json::parse_event_t, const Json&) {
    too_deep |= depth > kMaxJsonDepth;
    return !too_deep;
  };
  Json json = Json::parse(text, keep, /*allow_exceptions=*/false);
  if (too_deep) return DataLoss("'", name, "' nests more than ", kMaxJsonDepth, " deep");
  if (json.is_discarded()) return DataLoss("'", name, "' is not JSON (", text.size(), " bytes)");
  return json;
}

// The object in `text`. kDataLoss: it is no JSON object, or one that nests too deeply.
inline Result<nlohmann::json> ParseJsonObject(std::string_view text, const std::string& name) {
  Result<nlohmann::json> json = ParseJson(text, name);
  if (json.ok() && json->is_object()) return json;
  if (!json.ok() && json.status().message().find(" nests ") != std::string::npos) return json;
  return DataLoss("'", name, "' is not a JSON object (", text.size(), " bytes)");
}

class JsonObject {
 public:
  // `json` must outlive this; what is no object has no keys.
  JsonObject(const nlohmann::json& json, std::string name) : json_(json), name_(std::move(name)) {}

  // nullptr: not there, or null.
  const nlohmann::json* Find(const char* key) const {
    if (!json_.is_object()) return nullptr;
    const auto it = json_.find(key);
    return it == json_.end() || it->is_null() ? nullptr : &*it;
  }
  // The key is there and says null, which often means "off" where its absence means a default.
  bool IsNull(const char* key) const {
    return json_.is_object() && json_.contains(key) && json_[key].is_null();
  }
  JsonObject Object(const char* key) const {
    static const nlohmann::json kEmpty = nlohmann::json::object();
    const nlohmann::json* value = Find(key);
    return {value == nullptr ? kEmpty : *value, name_ + "." + key};
  }
  const nlohmann::json& json() const { return json_; }
  bool empty() const { return !json_.is_object() || json_.empty(); }
  const std::string& name() const { return name_; }

  // Nothing when the key is not there.
  Result<std::optional<int64_t>> Int(const char* key) const {
    const nlohmann::json* value = Find(key);
    if (value == nullptr) return std::optional<int64_t>();
    if (!value->is_number_integer() ||
        (value->is_number_unsigned() && value->get<uint64_t>() > INT64_MAX)) {
      return Wrong(key, "an integer");
    }
    return std::optional<int64_t>(value->get<int64_t>());
  }
  Result<std::optional<double>> Number(const char* key) const {
    const nlohmann::json* value = Find(key);
    if (value == nullptr) return std::optional<double>();
    if (!value->is_number()) return Wrong(key, "a number");
    return std::optional<double>(value->get<double>());
  }
  Result<std::optional<bool>> Bool(const char* key) const {
    const nlohmann::json* value = Find(key);
    if (value == nullptr) return std::optional<bool>();
    if (!value->is_boolean()) return Wrong(key, "true or false");
    return std::optional<bool>(value->get<bool>());
  }
  Result<std::optional<std::string>> Text(const char* key) const {
    const nlohmann::json* value = Find(key);
    if (value == nullptr) return std::optional<std::string>();
    if (!value->is_string()) return Wrong(key, "a string");
    return std::optional<std::string>(value->get<std::string>());
  }
  Status Wrong(const char* key, const char* wanted) const {
    const nlohmann::json* value = Find(key);
    return InvalidArgument("'", key, "' of '", name_, "' is ",
                           value == nullptr ? "missing" : value->type_name(), "; ", wanted,
                           " was expected");
  }

 private:
  const nlohmann::json& json_;
  std::string name_;
};

}  // namespace tq
