// Filters, tests and methods, each as Python or jinja2 defines it for the kinds of values there
// are. What would need more (another kind, an option, letters that are not ASCII) is an error that
// says so.
#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <functional>
#include <numeric>

#include "runtime/tokenizer/jinja_eval.h"

namespace tq::jinja {
namespace {

constexpr std::string_view kFilters[] = {
    "abs",        "capitalize", "count",  "d",          "default", "dictsort", "first", "indent",
    "int",        "items",      "join",   "last",       "length",  "list",     "lower", "map",
    "max",        "min",        "reject", "rejectattr", "replace", "reverse",  "safe",  "select",
    "selectattr", "sort",       "string", "tojson",     "trim",    "unique",   "upper"};
constexpr std::string_view kTests[] = {"boolean",  "defined",  "divisibleby", "eq",   "equalto",
                                       "even",     "false",    "float",       "in",   "integer",
                                       "iterable", "mapping",  "ne",          "none", "number",
                                       "odd",      "sequence", "string",      "true", "undefined"};

constexpr int64_t kAll = -1;  // of a count of replacements or splits

enum class Case { kUpper, kLower, kCapitalize };

Result<Value> ChangeCase(const std::string& text, Case to) {
  std::string out;
  for (const char c : text) {
    if (static_cast<uint8_t>(c) >= 0x80) {
      return Unsupported("changing the case of letters that are not ASCII");
    }
    const bool upper = to == Case::kUpper || (to == Case::kCapitalize && out.empty());
    const bool is_upper = c >= 'A' && c <= 'Z', is_lower = c >= 'a' && c <= 'z';
    out += static_cast<char>(upper && is_lower ? c - 32 : !upper && is_upper ? c + 32 : c);
  }
  return Value::Text(std::move(out));
}

Status NeedsText(std::string_view what, const Value& value) {
  return InvalidArgument(what, " needs a string, not a value of kind ", KindName(value));
}

Result<int64_t> GetCount(const Arguments& arguments, size_t position, const char* name,
                         int64_t otherwise) {
  const Value* value = arguments.Get(position, name);
  if (value == nullptr || value->is_none()) return otherwise;
  int64_t storage = 0;
  const int64_t* count = value->int_or(storage);
  if (count == nullptr) return InvalidArgument("'", name, "' must be an integer");
  return *count;
}

Result<Value> Replace(std::string_view text, const Arguments& arguments, Budget& budget) {
  const Value* from = arguments.Get(0, "old");
  const Value* to = arguments.Get(1, "new");
  if (from == nullptr || to == nullptr || from->text() == nullptr || to->text() == nullptr) {
    return InvalidArgument("replace needs two strings");
  }
  TQ_ASSIGN_OR_RETURN(int64_t count, GetCount(arguments, 2, "count", kAll));
  if (from->text()->empty()) return Unsupported("replace of an empty string");
  std::string out;
  size_t pos = 0;
  while (count != 0) {
    const size_t hit = FindText(text, *from->text(), pos);
    if (hit == std::string_view::npos) break;
    TQ_RETURN_IF_ERROR(budget.SpendBytes(hit - pos + to->text()->size()));
    out.append(text.substr(pos, hit - pos));
    out.append(*to->text());
    pos = hit + from->text()->size();
    if (count > 0) --count;
  }
  out.append(text.substr(pos));
  return Value::Text(std::move(out));
}

Result<Value> Split(std::string_view text, const Arguments& arguments, Budget& budget) {
  const Value* separator = arguments.Get(0, "sep");
  TQ_ASSIGN_OR_RETURN(int64_t count, GetCount(arguments, 1, "maxsplit", kAll));
  List parts;
  const auto add = [&](std::string_view part) {
    parts.push_back(Value::Text(std::string(part)));
    return budget.SpendBytes(part.size());
  };
  if (separator == nullptr || separator->is_none()) {  // runs of whitespace
    for (;;) {
      text = Strip(text, "", /*left=*/true, /*right=*/false);
      if (text.empty()) break;
      if (count == 0) {
        TQ_RETURN_IF_ERROR(add(Strip(text, "", /*left=*/false, /*right=*/true)));
        break;
      }
      size_t size = 0;
      while (size < text.size() &&
             Strip(text.substr(size, 4), "", true, false).size() == text.substr(size, 4).size()) {
        ++size;
      }
      TQ_RETURN_IF_ERROR(add(text.substr(0, size)));
      text.remove_prefix(size);
      if (count > 0) --count;
    }
    return MakeList(std::move(parts));
  }
  if (separator->text() == nullptr) return NeedsText("split", *separator);
  if (separator->text()->empty()) return InvalidArgument("split needs a separator");
  size_t pos = 0;
  while (count != 0) {
    const size_t hit = FindText(text, *separator->text(), pos);
    if (hit == std::string_view::npos) break;
    TQ_RETURN_IF_ERROR(add(text.substr(pos, hit - pos)));
    pos = hit + separator->text()->size();
    if (count > 0) --count;
  }
  TQ_RETURN_IF_ERROR(add(text.substr(pos)));
  return MakeList(std::move(parts));
}

Result<Value> Join(const List& items, const std::string& separator, Budget& budget) {
  std::string out;
  for (size_t i = 0; i < items.size(); ++i) {
    TQ_RETURN_IF_ERROR(budget.SpendBytes(items[i].Cost() + separator.size()));
    if (i > 0) out += separator;
    out += ToText(items[i]);
  }
  return Value::Text(std::move(out));
}

// startswith and endswith: one text, or a list of them.
Result<Value> HasAffix(const std::string& text, const Arguments& arguments, bool at_begin) {
  if (arguments.size() != 1 || arguments.positional.empty()) {
    return Unsupported("startswith and endswith with other than one argument");
  }
  const Value& affixes = arguments.positional[0];
  const List one = {affixes};
  for (const Value& affix : affixes.list() != nullptr ? *affixes.list() : one) {
    if (affix.text() == nullptr) return NeedsText("startswith or endswith", affix);
    if (at_begin ? text.starts_with(*affix.text()) : text.ends_with(*affix.text())) {
      return Value::Bool(true);
    }
  }
  return Value::Bool(false);
}

Result<Value> StripWith(const std::string& text, const Arguments& arguments, bool left,
                        bool right) {
  const Value* chars = arguments.Get(0, "chars");
  if (chars == nullptr || chars->is_none())
    return Value::Text(std::string(Strip(text, "", left, right)));
  if (chars->text() == nullptr) return NeedsText("strip", *chars);
  if (chars->text()->empty()) return Value::Text(text);
  return Value::Text(std::string(Strip(text, *chars->text(), left, right)));
}

Result<Value> Items(const Dict& dict) {
  List items;
  for (const auto& [key, value] : dict) {
    TQ_ASSIGN_OR_RETURN(Value pair, MakeList({Value::Text(key), value}));
    items.push_back(std::move(pair));
  }
  return MakeList(std::move(items));
}

Result<Value> CallDictMethod(const Dict& dict, const std::string& name,
                             const Arguments& arguments) {
  if (name == "items") return Items(dict);
  if (name == "keys" || name == "values") {
    List items;
    for (const auto& [key, value] : dict)
      items.push_back(name == "keys" ? Value::Text(key) : value);
    return MakeList(std::move(items));
  }
  if (name == "get" && !arguments.positional.empty()) {
    const std::string* key = arguments.positional[0].text();
    const Value* value = key == nullptr ? nullptr : Find(dict, *key);
    if (value != nullptr) return *value;
    return arguments.positional.size() > 1 ? arguments.positional[1] : Value::NoneValue();
  }
  return Unsupported("method '", name,
                     "' of a dict is not supported; supported: get, items, keys, ", "values");
}

Result<Value> CallTextMethod(const std::string& text, const std::string& name,
                             const Arguments& arguments, Budget& budget) {
  if (name == "strip") return StripWith(text, arguments, true, true);
  if (name == "lstrip") return StripWith(text, arguments, true, false);
  if (name == "rstrip") return StripWith(text, arguments, false, true);
  if (name == "startswith") return HasAffix(text, arguments, true);
  if (name == "endswith") return HasAffix(text, arguments, false);
  if (name == "split") return Split(text, arguments, budget);
  if (name == "replace") return Replace(text, arguments, budget);
  if (name == "upper") return ChangeCase(text, Case::kUpper);
  if (name == "lower") return ChangeCase(text, Case::kLower);
  if (name == "capitalize") return ChangeCase(text, Case::kCapitalize);
  if (name == "join" && arguments.positional.size() == 1) {
    TQ_ASSIGN_OR_RETURN(const List items, Iterate(arguments.positional[0], budget));
    for (const Value& item : items) {
      if (item.text() == nullptr) return NeedsText("join", item);
    }
    return Join(items, text, budget);
  }
  if ((name == "removeprefix" || name == "removesuffix") && arguments.positional.size() == 1) {
    const std::string* affix = arguments.positional[0].text();
    if (affix == nullptr) return NeedsText(name, arguments.positional[0]);
    const bool prefix = name == "removeprefix";
    if (prefix ? !text.starts_with(*affix) : !text.ends_with(*affix)) return Value::Text(text);
    return Value::Text(text.substr(prefix ? affix->size() : 0, text.size() - affix->size()));
  }
  return Unsupported("method '", name, "' of a string is not supported; supported: capitalize, ",
                     "endswith, join, lower, lstrip, removeprefix, removesuffix, replace, rstrip, ",
                     "split, startswith, strip, upper");
}

// select, reject, selectattr and rejectattr: ([attribute,] [test, its arguments...]).
Result<Value> FilterByTest(const Value& input, const Arguments& arguments, bool by_attribute,
                           bool keep, Budget& budget) {
  const std::vector<Value>& given = arguments.positional;
  const size_t test_at = by_attribute ? 1 : 0;
  if (given.size() < test_at || (by_attribute && given[0].text() == nullptr)) {
    return InvalidArgument("selectattr and rejectattr need the name of an attribute");
  }
  std::string test;
  Arguments rest;
  if (given.size() > test_at) {
    if (given[test_at].text() == nullptr || !IsKnownTest(*given[test_at].text())) {
      return Unsupported("test '", ToText(given[test_at]), "' is not supported");
    }
    test = *given[test_at].text();
    rest.positional.assign(given.begin() + static_cast<ptrdiff_t>(test_at) + 1, given.end());
  }
  if (!Truth(input)) return MakeList({});
  TQ_ASSIGN_OR_RETURN(const List items, Iterate(input, budget));
  List kept;
  for (const Value& item : items) {
    const Value tested = by_attribute ? GetAttribute(item, *given[0].text()) : item;
    bool holds = Truth(tested);
    TQ_RETURN_IF_ERROR(budget.SpendBytes(tested.Cost()));
    for (const Value& value : rest.positional) {
      TQ_RETURN_IF_ERROR(budget.SpendBytes(value.Cost()));
    }
    if (!test.empty()) {
      TQ_ASSIGN_OR_RETURN(holds, ApplyTest(test, tested, rest));
    }
    if (holds == keep) kept.push_back(item);
  }
  return MakeList(std::move(kept));
}

Result<Value> Map(const Value& input, const Arguments& arguments, Budget& budget) {
  const Value* attribute = arguments.Get(SIZE_MAX, "attribute");
  if (attribute == nullptr || attribute->text() == nullptr || arguments.size() != 1) {
    return Unsupported("map without attribute='...'");
  }
  if (!Truth(input)) return MakeList({});
  TQ_ASSIGN_OR_RETURN(const List items, Iterate(input, budget));
  List mapped;
  for (const Value& item : items) mapped.push_back(GetAttribute(item, *attribute->text()));
  return MakeList(std::move(mapped));
}

// Lines but the first (and empty ones) get `width` blanks in front.
Result<Value> Indent(const std::string& text, const Arguments& arguments, Budget& budget) {
  TQ_ASSIGN_OR_RETURN(const int64_t width, GetCount(arguments, 0, "width", 4));
  const Value* first = arguments.Get(1, "first");
  const Value* blank = arguments.Get(2, "blank");
  if (width < 0 || width > 1000 || text.find('\r') != std::string::npos) {
    return Unsupported("indent by ", width, " blanks, or of text with \\r");
  }
  std::string out;
  bool at_begin = first != nullptr && Truth(*first);
  const bool blank_lines = blank != nullptr && Truth(*blank);
  for (size_t i = 0; i < text.size(); ++i) {
    if (at_begin && (blank_lines || text[i] != '\n')) {
      TQ_RETURN_IF_ERROR(budget.SpendBytes(static_cast<size_t>(width)));
      out.append(static_cast<size_t>(width), ' ');
    }
    out += text[i];
    at_begin = text[i] == '\n';
  }
  return Value::Text(std::move(out));
}

Result<Value> ToInteger(const Value& value, const Arguments& arguments) {
  int64_t storage = 0;
  if (const int64_t* i = value.int_or(storage)) return Value::Int(*i);
  if (const double* d = std::get_if<double>(&value.v); d != nullptr && std::abs(*d) < 9e18) {
    return Value::Int(static_cast<int64_t>(*d));
  }
  if (value.text() != nullptr) {
    const std::string_view digits = Strip(*value.text(), "", true, true);
    int64_t i = 0;
    const auto got = std::from_chars(digits.data(), digits.data() + digits.size(), i);
    if (got.ec == std::errc() && got.ptr == digits.data() + digits.size()) return Value::Int(i);
  }
  const Value* otherwise = arguments.Get(0, "default");
  return otherwise != nullptr ? *otherwise : Value::Int(0);
}

Result<Value> Json(const Value& input, const Arguments& arguments, Budget& budget) {
  for (const auto& [name, value] : arguments.named) {
    const bool is_plain = name == "ensure_ascii" && !Truth(value);
    if (name != "indent" && !is_plain) return Unsupported("option '", name, "' of tojson");
  }
  if (!arguments.positional.empty()) return Unsupported("tojson with unnamed arguments");
  TQ_ASSIGN_OR_RETURN(const int64_t indent, GetCount(arguments, SIZE_MAX, "indent", -1));
  if (indent > 16) return Unsupported("tojson with indent ", indent);
  // With an indent, each item may add a line of blanks.
  TQ_RETURN_IF_ERROR(budget.SpendBytes(input.Cost() * (indent > 0 ? 64 : 1)));
  TQ_ASSIGN_OR_RETURN(std::string json, ToJson(input, static_cast<int>(indent)));
  return Value::Text(std::move(json));
}

Result<Value> Length(const Value& input) {
  if (input.text() != nullptr) {
    return Value::Int(static_cast<int64_t>(Characters(*input.text()).size()));
  }
  if (input.list() != nullptr) return Value::Int(static_cast<int64_t>(input.list()->size()));
  if (input.dict() != nullptr) return Value::Int(static_cast<int64_t>(input.dict()->size()));
  if (input.is_undefined()) return Value::Int(0);
  return InvalidArgument("a value of kind ", KindName(input), " has no length");
}

// What sort, unique, min and max compare: an attribute or the item itself, without its case.
Result<List> SortKeys(const List& items, const Value* attribute, bool case_sensitive) {
  List keys;
  for (const Value& item : items) {
    Value key = attribute == nullptr ? item : GetAttribute(item, ToText(*attribute));
    if (key.text() != nullptr && !case_sensitive) {
      TQ_ASSIGN_OR_RETURN(key, ChangeCase(*key.text(), Case::kLower));
    }
    if (const double* d = std::get_if<double>(&key.v); d != nullptr && std::isnan(*d)) {
      return InvalidArgument("NaN has no place in an order");
    }
    keys.push_back(std::move(key));
  }
  return keys;
}

// Positions of the items, least first; equals stay as they stand.
Result<std::vector<size_t>> SortedOrder(const List& keys, bool reverse, Budget& budget) {
  size_t cost = 0;
  for (const Value& key : keys) {
    // All of them compare with the first: they are all numbers or all texts.
    TQ_RETURN_IF_ERROR(Compare(keys.front(), key).status());
    cost += key.Cost() + 16;
  }
  TQ_RETURN_IF_ERROR(budget.SpendBytes(cost * static_cast<size_t>(std::bit_width(keys.size()))));
  std::vector<size_t> order(keys.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const Result<int> compared = Compare(keys[a], keys[b]);
    TQ_CHECK(compared.ok());
    return reverse ? *compared > 0 : *compared < 0;
  });
  return order;
}

bool Flag(const Arguments& arguments, size_t position, std::string_view name) {
  const Value* value = arguments.Get(position, name);
  return value != nullptr && Truth(*value);
}

Result<Value> Sort(const Value& input, const Arguments& arguments, Budget& budget) {
  TQ_ASSIGN_OR_RETURN(const List items, Iterate(input, budget));
  TQ_ASSIGN_OR_RETURN(const List keys, SortKeys(items, arguments.Get(2, "attribute"),
                                                Flag(arguments, 1, "case_sensitive")));
  TQ_ASSIGN_OR_RETURN(const std::vector<size_t> order,
                      SortedOrder(keys, Flag(arguments, 0, "reverse"), budget));
  List sorted;
  for (const size_t i : order) sorted.push_back(items[i]);
  return MakeList(std::move(sorted));
}

Result<Value> DictSort(const Value& input, const Arguments& arguments, Budget& budget) {
  if (input.dict() == nullptr) return InvalidArgument("dictsort needs a dict");
  const Value* by = arguments.Get(1, "by");
  const std::string what = by == nullptr ? "key" : ToText(*by);
  if (what != "key" && what != "value") {
    return InvalidArgument("dictsort sorts by 'key' or 'value', not by '", what, "'");
  }
  List items;
  for (const auto& [key, value] : *input.dict()) {
    items.push_back(what == "key" ? Value::Text(key) : value);
  }
  TQ_ASSIGN_OR_RETURN(const List keys,
                      SortKeys(items, nullptr, Flag(arguments, 0, "case_sensitive")));
  TQ_ASSIGN_OR_RETURN(const std::vector<size_t> order,
                      SortedOrder(keys, Flag(arguments, 2, "reverse"), budget));
  Dict sorted;
  for (const size_t i : order) sorted.push_back((*input.dict())[i]);
  return Items(sorted);
}

// The first of equal items stays.
Result<Value> Unique(const Value& input, const Arguments& arguments, Budget& budget) {
  TQ_ASSIGN_OR_RETURN(const List items, Iterate(input, budget));
  TQ_ASSIGN_OR_RETURN(const List keys, SortKeys(items, arguments.Get(1, "attribute"),
                                                Flag(arguments, 0, "case_sensitive")));
  List kept;
  for (size_t i = 0; i < items.size(); ++i) {
    TQ_RETURN_IF_ERROR(budget.SpendBytes((keys[i].Cost() + 16) * i));
    const auto end = keys.begin() + static_cast<ptrdiff_t>(i);
    const bool known =
        std::any_of(keys.begin(), end, [&](const Value& key) { return Equal(key, keys[i]); });
    if (!known) kept.push_back(items[i]);
  }
  return MakeList(std::move(kept));
}

Result<Value> Extreme(const Value& input, const Arguments& arguments, bool greatest,
                      Budget& budget) {
  TQ_ASSIGN_OR_RETURN(const List items, Iterate(input, budget));
  if (items.empty()) return Value::Missing("there is no item to choose from");
  TQ_ASSIGN_OR_RETURN(const List keys, SortKeys(items, arguments.Get(1, "attribute"),
                                                Flag(arguments, 0, "case_sensitive")));
  TQ_ASSIGN_OR_RETURN(const std::vector<size_t> order, SortedOrder(keys, greatest, budget));
  return items[order.front()];
}

// Filters of any value; those of texts follow in ApplyFilter.
Result<Value> ApplyToSequence(const std::string& name, const Value& input,
                              const Arguments& arguments, Budget& budget) {
  TQ_ASSIGN_OR_RETURN(List items, Iterate(input, budget));
  if (name == "first" || name == "last") {
    if (items.empty()) return Value::Missing(StrCat("the ", name, " item of nothing is undefined"));
    return name == "first" ? items.front() : items.back();
  }
  if (name == "reverse") {
    std::reverse(items.begin(), items.end());
    if (input.text() != nullptr) return Join(items, "", budget);
  }
  if (name != "join") return MakeList(std::move(items));
  const Value* separator = arguments.Get(0, "d");
  if (const Value* attribute = arguments.Get(1, "attribute"); attribute != nullptr) {
    for (Value& item : items) item = GetAttribute(item, ToText(*attribute));
  }
  return Join(items, separator == nullptr ? "" : ToText(*separator), budget);
}

}  // namespace

bool IsKnownFilter(std::string_view name) {
  return std::find(std::begin(kFilters), std::end(kFilters), name) != std::end(kFilters);
}
bool IsKnownTest(std::string_view name) {
  return std::find(std::begin(kTests), std::end(kTests), name) != std::end(kTests);
}

Status Budget::Spend(size_t steps) {
  if (steps > left_) {
    return InvalidArgument("the template does more work or writes more text than is allowed");
  }
  left_ -= steps;
  return OkStatus();
}

const Value* Arguments::Get(size_t position, std::string_view name) const {
  if (position < positional.size()) return &positional[position];
  for (const auto& [key, value] : named) {
    if (key == name) return &value;
  }
  return nullptr;
}

Result<Value> ApplyFilter(const std::string& name, const Value& input, const Arguments& arguments,
                          Budget& budget) {
  TQ_RETURN_IF_ERROR(budget.SpendBytes(input.Cost()));
  if (name == "default" || name == "d") {
    const Value* otherwise = arguments.Get(0, "default_value");
    const Value* boolean = arguments.Get(1, "boolean");
    const bool replace =
        input.is_undefined() || (boolean != nullptr && Truth(*boolean) && !Truth(input));
    if (!replace) return input;
    return otherwise == nullptr ? Value::Text("") : *otherwise;
  }
  if (name == "length" || name == "count") return Length(input);
  if (name == "tojson") return Json(input, arguments, budget);
  if (name == "int") return ToInteger(input, arguments);
  if (name == "map") return Map(input, arguments, budget);
  if (name == "sort") return Sort(input, arguments, budget);
  if (name == "dictsort") return DictSort(input, arguments, budget);
  if (name == "unique") return Unique(input, arguments, budget);
  if (name == "min" || name == "max") return Extreme(input, arguments, name == "max", budget);
  if (name == "select") return FilterByTest(input, arguments, false, true, budget);
  if (name == "reject") return FilterByTest(input, arguments, false, false, budget);
  if (name == "selectattr") return FilterByTest(input, arguments, true, true, budget);
  if (name == "rejectattr") return FilterByTest(input, arguments, true, false, budget);
  if (name == "items") {
    if (input.is_undefined()) return MakeList({});
    if (input.dict() == nullptr) return InvalidArgument("items needs a dict");
    return Items(*input.dict());
  }
  if (name == "abs") {
    if (const double* d = std::get_if<double>(&input.v)) return Value::Float(std::abs(*d));
    int64_t storage = 0;
    const int64_t* i = input.int_or(storage);
    if (i == nullptr || *i == INT64_MIN) return InvalidArgument("abs needs a number");
    return Value::Int(std::abs(*i));
  }
  for (const char* sequence : {"first", "last", "reverse", "list", "join"}) {
    if (name == sequence) return ApplyToSequence(name, input, arguments, budget);
  }
  const std::string text = ToText(input);
  if (name == "trim") return StripWith(text, arguments, true, true);
  if (name == "upper") return ChangeCase(text, Case::kUpper);
  if (name == "lower") return ChangeCase(text, Case::kLower);
  if (name == "capitalize") return ChangeCase(text, Case::kCapitalize);
  if (name == "replace") return Replace(text, arguments, budget);
  if (name == "indent") return Indent(text, arguments, budget);
  return Value::Text(text);  // string, safe
}

Result<bool> ApplyTest(const std::string& name, const Value& value, const Arguments& arguments) {
  const bool is_bool = std::holds_alternative<bool>(value.v);
  const bool is_int = std::holds_alternative<int64_t>(value.v);
  const bool is_float = std::holds_alternative<double>(value.v);
  if (name == "defined") return !value.is_undefined();
  if (name == "undefined") return value.is_undefined();
  if (name == "none") return value.is_none();
  if (name == "boolean") return is_bool;
  if (name == "true" || name == "false") return is_bool && Truth(value) == (name == "true");
  if (name == "integer") return is_int;
  if (name == "float") return is_float;
  if (name == "number") return is_bool || is_int || is_float;
  if (name == "string") return value.text() != nullptr;
  if (name == "mapping") return value.dict() != nullptr;
  const bool is_sequence =
      value.text() != nullptr || value.list() != nullptr || value.dict() != nullptr;
  if (name == "sequence") return is_sequence || value.is_undefined();
  if (name == "iterable") return is_sequence || value.is_undefined();

  int64_t storage = 0, divisor_storage = 0;
  const int64_t* i = value.int_or(storage);
  if (name == "even" || name == "odd") {
    if (i == nullptr) return InvalidArgument("'", name, "' needs an integer");
    return (*i % 2 == 0) == (name == "even");
  }
  if (arguments.positional.size() != 1) return InvalidArgument("'", name, "' needs one argument");
  const Value& other = arguments.positional[0];
  if (name == "eq" || name == "equalto") return Equal(value, other);
  if (name == "ne") return !Equal(value, other);
  if (name == "in") return Contains(other, value);
  const int64_t* divisor = other.int_or(divisor_storage);
  if (i == nullptr || divisor == nullptr || *divisor == 0) {
    return InvalidArgument("'divisibleby' needs two integers, the second not 0");
  }
  return *divisor == -1 || *i % *divisor == 0;
}

Result<Value> CallMethod(const Value& object, const std::string& name, const Arguments& arguments,
                         Budget& budget) {
  TQ_RETURN_IF_ERROR(budget.SpendBytes(object.Cost()));
  if (object.text() != nullptr) return CallTextMethod(*object.text(), name, arguments, budget);
  if (object.dict() != nullptr) return CallDictMethod(*object.dict(), name, arguments);
  return Unsupported("method '", name, "' of a value of kind ", KindName(object),
                     " is not supported");
}

Result<bool> Contains(const Value& container, const Value& item) {
  if (container.text() != nullptr) {
    if (item.text() == nullptr) return NeedsText("'in'", item);
    return FindText(*container.text(), *item.text()) != std::string::npos;
  }
  if (container.list() != nullptr) {
    return std::any_of(container.list()->begin(), container.list()->end(),
                       [&](const Value& other) { return Equal(item, other); });
  }
  if (container.dict() != nullptr) {
    return item.text() != nullptr && Find(*container.dict(), *item.text()) != nullptr;
  }
  if (container.is_undefined()) return false;
  return InvalidArgument("a value of kind ", KindName(container), " contains nothing");
}

Value GetAttribute(const Value& object, const std::string& name) {
  const Dict* dict = object.ns() != nullptr ? &object.ns()->values : object.dict();
  const Value* value = dict == nullptr ? nullptr : Find(*dict, name);
  if (value != nullptr) return *value;
  return Value::Missing(StrCat("a value of kind ", KindName(object), " has no '", name, "'"));
}

Result<List> Iterate(const Value& value, Budget& budget) {
  List items;
  if (value.list() != nullptr) {
    items = *value.list();
  } else if (value.dict() != nullptr) {
    for (const auto& item : *value.dict()) items.push_back(Value::Text(item.first));
  } else if (value.text() != nullptr) {
    TQ_RETURN_IF_ERROR(budget.Spend(4 * value.text()->size()));
    for (const std::string_view c : Characters(*value.text())) {
      items.push_back(Value::Text(std::string(c)));
    }
  } else if (!value.is_undefined()) {
    return InvalidArgument("a value of kind ", KindName(value), " cannot be iterated over");
  }
  TQ_RETURN_IF_ERROR(budget.Spend(1 + items.size()));
  return items;
}

}  // namespace tq::jinja
