// Runs a parsed template: statements and expressions in jinja_eval.cc, filters, tests and methods
// in jinja_builtins.cc.
#pragma once

#include <ctime>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/tokenizer/jinja_syntax.h"
#include "runtime/tokenizer/jinja_value.h"

namespace tq::jinja {

// Bounds the work of one rendering, and with it the memory: whatever makes or reads a text pays for
// its bytes.
class Budget {
 public:
  Status Spend(size_t steps);
  Status SpendBytes(size_t bytes) { return Spend(1 + bytes / 16); }

 private:
  size_t left_ = 10'000'000;
};

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
  // The argument at `position` or called `name`; nullptr: not given.
  const Value* Get(size_t position, std::string_view name) const;
  size_t size() const { return positional.size() + named.size(); }
};

// Errors of these have no line: the caller adds it.
Result<Value> ApplyFilter(const std::string& name, const Value& input, const Arguments& arguments,
                          Budget& budget);
Result<bool> ApplyTest(const std::string& name, const Value& value, const Arguments& arguments);
Result<Value> CallMethod(const Value& object, const std::string& name, const Arguments& arguments,
                         Budget& budget);
Result<bool> Contains(const Value& container, const Value& item);
Value GetAttribute(const Value& object, const std::string& name);
// The items that a loop visits: of a list, the keys of a dict, the characters of a text.
Result<List> Iterate(const Value& value, Budget& budget);

// What the template prints with these variables. `now`: the time of strftime_now; without it that
// function is undefined.
Result<std::string> Render(const Body& body, std::map<std::string, Value, std::less<>> variables,
                           const std::tm* now = nullptr);

}  // namespace tq::jinja
