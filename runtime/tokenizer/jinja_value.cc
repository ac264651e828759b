#include "runtime/tokenizer/jinja_value.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>

#include "runtime/tokenizer/utf8.h"

namespace tq::jinja {
namespace {

// Printing, comparing and freeing recurse.
constexpr int kMaxDepth = 64;
constexpr size_t kMaxWeight = size_t{1} << 28;

bool IsNumber(const Value& value) {
  return std::holds_alternative<int64_t>(value.v) || std::holds_alternative<double>(value.v) ||
         std::holds_alternative<bool>(value.v);
}

double AsDouble(const Value& value) {
  if (const auto* i = std::get_if<int64_t>(&value.v)) return static_cast<double>(*i);
  if (const auto* b = std::get_if<bool>(&value.v)) return *b ? 1.0 : 0.0;
  return std::get<double>(value.v);
}

Status CheckItem(const Value& item, Value& whole) {
  if (item.ns() != nullptr) return Unsupported("a namespace inside a list or dict");
  whole.depth = std::max(whole.depth, item.depth + 1);
  if (whole.depth > kMaxDepth) return InvalidArgument("lists nest more than ", kMaxDepth, " deep");
  whole.weight += 1 + item.Cost();
  if (whole.weight > kMaxWeight) {
    return InvalidArgument("a list or dict holds more than ", kMaxWeight, " bytes");
  }
  return OkStatus();
}

// Python's repr of a float: the shortest digits that come back.
std::string FloatText(double d) {
  if (std::isnan(d)) return "nan";
  if (std::isinf(d)) return d < 0 ? "-inf" : "inf";
  const double magnitude = std::abs(d);
  const bool fixed = d == 0 || (magnitude >= 1e-4 && magnitude < 1e16);
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, d,
                                 fixed ? std::chars_format::fixed : std::chars_format::scientific);
  std::string text(buffer, end.ptr);
  if (fixed && text.find('.') == std::string::npos) text += ".0";
  return text;
}

void AppendEscape(unsigned c, const char* format, std::string& out) {
  char buffer[8];
  std::snprintf(buffer, sizeof buffer, format, c);
  out += buffer;
}

std::string Quoted(const std::string& text) {  // Python's repr
  const bool use_double =
      text.find('\'') != std::string::npos && text.find('"') == std::string::npos;
  const char quote = use_double ? '"' : '\'';
  std::string out(1, quote);
  for (const char c : text) {
    if (c == quote || c == '\\') {
      (out += '\\') += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else if (c == '\t') {
      out += "\\t";
    } else if (static_cast<uint8_t>(c) < 0x20 || c == 0x7F) {
      AppendEscape(static_cast<uint8_t>(c), "\\x%02x", out);
    } else {
      out += c;
    }
  }
  return out + quote;
}

std::string JsonText(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    switch (c) {
      case '"': out += "\\\""; break;
      case '\\': out += "\\\\"; break;
      case '\n': out += "\\n"; break;
      case '\r': out += "\\r"; break;
      case '\t': out += "\\t"; break;
      case '\b': out += "\\b"; break;
      case '\f': out += "\\f"; break;
      default:
        if (static_cast<uint8_t>(c) < 0x20) {
          AppendEscape(static_cast<uint8_t>(c), "\\u%04x", out);
        } else {
          out += c;
        }
    }
  }
  return out + '"';
}

std::string Repr(const Value& value) {
  return value.text() != nullptr ? Quoted(*value.text()) : ToText(value);
}

Status AppendJson(const Value& value, int indent, int level, std::string& out) {
  const auto new_line = [&](int at) {
    if (indent < 0) return;
    out += '\n';
    out.append(static_cast<size_t>(indent * at), ' ');
  };
  const char* separator = indent < 0 ? ", " : ",";
  if (value.text() != nullptr) {
    out += JsonText(*value.text());
  } else if (const List* list = value.list()) {
    out += '[';
    for (size_t i = 0; i < list->size(); ++i) {
      if (i > 0) out += separator;
      new_line(level + 1);
      TQ_RETURN_IF_ERROR(AppendJson((*list)[i], indent, level + 1, out));
    }
    if (!list->empty()) new_line(level);
    out += ']';
  } else if (const Dict* dict = value.dict()) {
    out += '{';
    for (size_t i = 0; i < dict->size(); ++i) {
      if (i > 0) out += separator;
      new_line(level + 1);
      out += JsonText((*dict)[i].first) + ": ";
      TQ_RETURN_IF_ERROR(AppendJson((*dict)[i].second, indent, level + 1, out));
    }
    if (!dict->empty()) new_line(level);
    out += '}';
  } else if (value.is_none()) {
    out += "null";
  } else if (const bool* b = std::get_if<bool>(&value.v)) {
    out += *b ? "true" : "false";
  } else if (IsNumber(value)) {
    out += ToText(value);
  } else {
    return InvalidArgument("a value of kind ", KindName(value), " cannot be written as JSON");
  }
  return OkStatus();
}

template <typename T>
int Order(const T& a, const T& b) {
  return a < b ? -1 : b < a ? 1 : 0;
}

}  // namespace

const std::string* Value::text() const {
  const auto* p = std::get_if<std::shared_ptr<const std::string>>(&v);
  return p == nullptr ? nullptr : p->get();
}
const List* Value::list() const {
  const auto* p = std::get_if<std::shared_ptr<const List>>(&v);
  return p == nullptr ? nullptr : p->get();
}
const Dict* Value::dict() const {
  const auto* p = std::get_if<std::shared_ptr<const Dict>>(&v);
  return p == nullptr ? nullptr : p->get();
}
Namespace* Value::ns() const {
  const auto* p = std::get_if<std::shared_ptr<Namespace>>(&v);
  return p == nullptr ? nullptr : p->get();
}
const int64_t* Value::int_or(int64_t& storage) const {
  if (const bool* b = std::get_if<bool>(&v)) {
    storage = *b ? 1 : 0;
    return &storage;
  }
  return std::get_if<int64_t>(&v);
}

Result<Value> MakeList(List items) {
  Value whole;
  whole.depth = 1;
  for (const Value& item : items) TQ_RETURN_IF_ERROR(CheckItem(item, whole));
  whole.v = std::make_shared<const List>(std::move(items));
  return whole;
}

Result<Value> MakeDict(Dict items) {
  Value whole;
  whole.depth = 1;
  for (const auto& [key, item] : items) {
    TQ_RETURN_IF_ERROR(CheckItem(item, whole));
    whole.weight += key.size();
  }
  whole.v = std::make_shared<const Dict>(std::move(items));
  return whole;
}

const char* KindName(const Value& value) {
  constexpr const char* kNames[] = {"undefined", "none", "bool", "integer",  "float",
                                    "string",    "list", "dict", "namespace"};
  return kNames[value.v.index()];
}

bool Truth(const Value& value) {
  if (const bool* b = std::get_if<bool>(&value.v)) return *b;
  if (const int64_t* i = std::get_if<int64_t>(&value.v)) return *i != 0;
  if (const double* d = std::get_if<double>(&value.v)) return *d != 0;
  if (value.text() != nullptr) return !value.text()->empty();
  if (value.list() != nullptr) return !value.list()->empty();
  if (value.dict() != nullptr) return !value.dict()->empty();
  return value.ns() != nullptr;
}

bool Equal(const Value& a, const Value& b) {
  const int64_t* ai = std::get_if<int64_t>(&a.v);
  const int64_t* bi = std::get_if<int64_t>(&b.v);
  if (ai != nullptr && bi != nullptr) return *ai == *bi;
  if (IsNumber(a) && IsNumber(b)) return AsDouble(a) == AsDouble(b);
  if (a.v.index() != b.v.index()) return false;
  if (a.is_none() || a.is_undefined()) return true;
  if (a.text() != nullptr) return *a.text() == *b.text();
  if (a.list() != nullptr) {
    return std::equal(a.list()->begin(), a.list()->end(), b.list()->begin(), b.list()->end(),
                      Equal);
  }
  if (a.dict() == nullptr) return a.ns() == b.ns();
  if (a.dict()->size() != b.dict()->size()) return false;
  std::map<std::string_view, const Value*> others;
  for (const auto& [key, value] : *b.dict()) others.emplace(key, &value);
  return std::all_of(a.dict()->begin(), a.dict()->end(), [&](const auto& item) {
    const auto other = others.find(item.first);
    return other != others.end() && Equal(item.second, *other->second);
  });
}

Result<int> Compare(const Value& a, const Value& b) {
  const int64_t* ai = std::get_if<int64_t>(&a.v);
  const int64_t* bi = std::get_if<int64_t>(&b.v);
  if (ai != nullptr && bi != nullptr) return Order(*ai, *bi);
  if (IsNumber(a) && IsNumber(b)) return Order(AsDouble(a), AsDouble(b));
  // Bytes of UTF-8 are in the order of code points.
  if (a.text() != nullptr && b.text() != nullptr) return Order(*a.text(), *b.text());
  return InvalidArgument("values of kind ", KindName(a), " and ", KindName(b), " have no order");
}

std::string ToText(const Value& value) {
  if (value.text() != nullptr) return *value.text();
  if (value.is_undefined()) return "";
  if (value.is_none()) return "None";
  if (const bool* b = std::get_if<bool>(&value.v)) return *b ? "True" : "False";
  if (const int64_t* i = std::get_if<int64_t>(&value.v)) return std::to_string(*i);
  if (const double* d = std::get_if<double>(&value.v)) return FloatText(*d);
  std::string out;
  if (const List* list = value.list()) {
    for (const Value& item : *list) (out += out.empty() ? "" : ", ") += Repr(item);
    return "[" + out + "]";
  }
  const Dict& dict = value.ns() != nullptr ? value.ns()->values : *value.dict();
  for (const auto& [key, item] : dict) {
    (out += out.empty() ? "" : ", ") += Quoted(key) + ": " + Repr(item);
  }
  return value.ns() != nullptr ? "<Namespace {" + out + "}>" : "{" + out + "}";
}

Result<std::string> ToJson(const Value& value, int indent) {
  std::string out;
  TQ_RETURN_IF_ERROR(AppendJson(value, indent, 0, out));
  return out;
}

const Value* Find(const Dict& dict, std::string_view key) {
  for (const auto& item : dict) {
    if (item.first == key) return &item.second;
  }
  return nullptr;
}

size_t FindText(std::string_view text, std::string_view needle, size_t from) {
  if (from > text.size()) return std::string_view::npos;
  const void* hit = ::memmem(text.data() + from, text.size() - from, needle.data(), needle.size());
  return hit == nullptr ? std::string_view::npos
                        : static_cast<size_t>(static_cast<const char*>(hit) - text.data());
}

std::vector<std::string_view> Characters(std::string_view text) {
  std::vector<std::string_view> characters;
  while (!text.empty()) {
    const size_t size = static_cast<size_t>(std::max(1, DecodeUtf8(text).size));
    characters.push_back(text.substr(0, size));
    text.remove_prefix(size);
  }
  return characters;
}

bool IsSpace(uint32_t c) {
  return (c >= 9 && c <= 13) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

std::string_view Strip(std::string_view text, std::string_view chars, bool left, bool right) {
  const std::vector<std::string_view> set = Characters(chars);
  const auto strips = [&](std::string_view c) {
    if (!set.empty()) return std::find(set.begin(), set.end(), c) != set.end();
    const Utf8Char decoded = DecodeUtf8(c);
    return decoded.size > 0 && IsSpace(decoded.code_point);
  };
  while (left && !text.empty()) {
    const size_t size = static_cast<size_t>(std::max(1, DecodeUtf8(text).size));
    if (!strips(text.substr(0, size))) break;
    text.remove_prefix(size);
  }
  while (right && !text.empty()) {
    // The last character: back over at most three continuation bytes.
    size_t size = 1;
    while (size < 4 && size < text.size() &&
           (static_cast<uint8_t>(text[text.size() - size]) & 0xC0) == 0x80) {
      ++size;
    }
    const std::string_view tail = text.substr(text.size() - size);
    if (DecodeUtf8(tail).size != static_cast<int>(size)) size = 1;
    if (!strips(text.substr(text.size() - size))) break;
    text.remove_suffix(size);
  }
  return text;
}

}  // namespace tq::jinja
