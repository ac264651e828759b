// Values of the template language: what Python calls str, int, list, dict..., without any way to
// reach an attribute of the program. Lists and dicts are immutable; only a namespace changes, and
// it cannot be stored in another value, so values never form a cycle.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "turboquant/base/status.h"

namespace tq::jinja {

struct Value;
using List = std::vector<Value>;
using Dict = std::vector<std::pair<std::string, Value>>;  // in the order of insertion

struct Undefined {
  std::string what;  // "'name' is undefined"
};
struct None {};
struct Namespace;

struct Value {
  // The order is that of KindName.
  std::variant<Undefined, None, bool, int64_t, double, std::shared_ptr<const std::string>,
               std::shared_ptr<const List>, std::shared_ptr<const Dict>, std::shared_ptr<Namespace>>
      v;
  int depth = 0;      // of nested lists and dicts
  size_t weight = 0;  // of a list or dict: items and bytes of text, counted as often as they occur

  static Value Text(std::string s) { return {std::make_shared<const std::string>(std::move(s))}; }
  static Value Int(int64_t i) { return {i}; }
  static Value Float(double d) { return {d}; }
  static Value Bool(bool b) { return {b}; }
  static Value NoneValue() { return {None{}}; }
  static Value Missing(std::string what) { return {Undefined{std::move(what)}}; }

  // What reading the whole value costs: also the work to print, compare or copy it.
  size_t Cost() const { return text() != nullptr ? text()->size() : weight; }

  bool is_undefined() const { return std::holds_alternative<Undefined>(v); }
  bool is_none() const { return std::holds_alternative<None>(v); }
  // nullptr: of another kind.
  const std::string* text() const;
  const List* list() const;
  const Dict* dict() const;
  Namespace* ns() const;
  // Integers, and bools as 0 and 1.
  const int64_t* int_or(int64_t& storage) const;
};

struct Namespace {
  Dict values;
};

// Fail when the value nests too deeply, weighs too much or holds a namespace.
Result<Value> MakeList(List items);
Result<Value> MakeDict(Dict items);

const char* KindName(const Value& value);  // "string"
bool Truth(const Value& value);
bool Equal(const Value& a, const Value& b);
// -1, 0 or 1. kInvalidArgument: the two have no order.
Result<int> Compare(const Value& a, const Value& b);
// What {{ value }} prints.
std::string ToText(const Value& value);
// json.dumps(ensure_ascii=False); indent < 0: one line. kInvalidArgument: undefined, a namespace.
Result<std::string> ToJson(const Value& value, int indent);
// nullptr: no such key.
const Value* Find(const Dict& dict, std::string_view key);

// The characters of a text; a byte that is not UTF-8 is one.
std::vector<std::string_view> Characters(std::string_view text);
// Position of `needle` at or behind `from`, in linear time; npos: not there.
size_t FindText(std::string_view text, std::string_view needle, size_t from = 0);
// Python's str.strip with the given characters; empty: whitespace.
std::string_view Strip(std::string_view text, std::string_view chars, bool left, bool right);
bool IsSpace(uint32_t code_point);  // Python's str.isspace

}  // namespace tq::jinja
