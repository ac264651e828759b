#include "runtime/tokenizer/jinja_eval.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <utility>

namespace tq::jinja {
namespace {

using Scope = std::map<std::string, Value, std::less<>>;
constexpr int64_t kMaxRange = 100000;
// Bodies, expressions and macro calls inside each other while a template runs. One of them takes up
// to 3 KiB of the stack, which has 8 MiB, and several times that under the sanitizers.
constexpr int kMaxDepth = 400;
constexpr size_t kStepsPerLoop = 16;  // the loop variable is a dict, made anew each time

Status Overflow(const std::string& op) {
  return InvalidArgument("the integers are too large for ", op);
}

Result<Value> Power(int64_t base, int64_t exponent) {
  if (exponent < 0) {
    return Value::Float(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  }
  int64_t result = 1;
  for (int64_t i = 0; i < exponent && result != 0 && (base < -1 || base > 1); ++i) {
    if (__builtin_mul_overflow(result, base, &result)) return Overflow("**");
  }
  if (base >= -1 && base <= 1 && exponent > 0) result = base == -1 && exponent % 2 == 0 ? 1 : base;
  return Value::Int(result);
}

Result<Value> IntegerArithmetic(const std::string& op, int64_t a, int64_t b) {
  int64_t result = 0;
  bool overflow = false;
  if (op == "+") {
    overflow = __builtin_add_overflow(a, b, &result);
  } else if (op == "-") {
    overflow = __builtin_sub_overflow(a, b, &result);
  } else if (op == "*") {
    overflow = __builtin_mul_overflow(a, b, &result);
  } else if (op == "**") {
    return Power(a, b);
  } else if (b == 0) {
    return InvalidArgument("division by zero");
  } else if (op == "/") {
    return Value::Float(static_cast<double>(a) / static_cast<double>(b));
  } else if (b == -1) {  // the one division that can overflow
    overflow = op == "//" && __builtin_sub_overflow(int64_t{0}, a, &result);
  } else {
    // Python rounds down, and the remainder has the sign of the divisor.
    const int64_t remainder = a % b;
    const bool adjust = remainder != 0 && (remainder < 0) != (b < 0);
    result = op == "//" ? a / b - (adjust ? 1 : 0) : remainder + (adjust ? b : 0);
  }
  if (overflow) return Overflow(op);
  return Value::Int(result);
}

Result<Value> FloatArithmetic(const std::string& op, double a, double b) {
  if (op == "+") return Value::Float(a + b);
  if (op == "-") return Value::Float(a - b);
  if (op == "*") return Value::Float(a * b);
  if (op == "**") return Value::Float(std::pow(a, b));
  if (b == 0) return InvalidArgument("division by zero");
  if (op == "/") return Value::Float(a / b);
  const double quotient = std::floor(a / b);
  return Value::Float(op == "//" ? quotient : a - quotient * b);
}

class Evaluator {
 public:
  Evaluator(Scope variables, const std::tm* now) : now_(now) {
    scopes_.push_back(std::move(variables));
  }

  Status Run(const Body& body, std::string& out) {
    const Level level(&depth_);
    TQ_RETURN_IF_ERROR(level.Check());
    for (const Statement& statement : body) {
      TQ_RETURN_IF_ERROR(AtLine(statement.line, budget_.Spend(1)));
      TQ_RETURN_IF_ERROR(Run(statement, out));
      if (flow_ != Flow::kNext) break;
    }
    return OkStatus();
  }

 private:
  enum class Flow { kNext, kBreak, kContinue };

  // One level further in, for as long as it lives.
  class Level {
   public:
    explicit Level(int* depth) : depth_(*depth) { ++depth_; }
    ~Level() { --depth_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;
    Status Check() const {
      if (depth_ <= kMaxDepth) return OkStatus();
      return InvalidArgument("blocks, expressions and macro calls nest more than ", kMaxDepth,
                             " deep");
    }

   private:
    int& depth_;
  };

  // Names the line once, however many levels of it an error passes.
  static Status AtLine(int line, const Status& status) {
    if (status.ok()) return status;
    const std::string where = StrCat("line ", line);
    return status.message().starts_with(where + ": ") ? status : status.WithContext(where);
  }
  template <typename T>
  static Result<T> AtLine(int line, Result<T> result) {
    if (result.ok()) return result;
    return AtLine(line, result.status());
  }

  // --- Statements ---

  Status Append(const std::string& text, std::string& out) {
    TQ_RETURN_IF_ERROR(budget_.SpendBytes(text.size()));
    out += text;
    return OkStatus();
  }

  Status Run(const Statement& statement, std::string& out) {
    switch (statement.kind) {
      case Statement::Kind::kText: return AtLine(statement.line, Append(statement.text, out));
      case Statement::Kind::kPrint: {
        TQ_ASSIGN_OR_RETURN(const Value value, Eval(*statement.expr));
        TQ_RETURN_IF_ERROR(AtLine(statement.line, budget_.SpendBytes(value.Cost())));
        return AtLine(statement.line, Append(ToText(value), out));
      }
      case Statement::Kind::kIf: return RunIf(statement, out);
      case Statement::Kind::kFor: return RunFor(statement, out);
      case Statement::Kind::kSet: {
        TQ_ASSIGN_OR_RETURN(Value value, Eval(*statement.expr));
        return AtLine(statement.line, Assign(statement, std::move(value)));
      }
      case Statement::Kind::kSetBlock: {
        std::string text;
        scopes_.emplace_back();
        const Status status = Run(statement.body, text);
        scopes_.pop_back();
        TQ_RETURN_IF_ERROR(status);
        return AtLine(statement.line, Assign(statement, Value::Text(std::move(text))));
      }
      case Statement::Kind::kMacro: macros_[statement.names[0]] = &statement; return OkStatus();
      case Statement::Kind::kBreak: flow_ = Flow::kBreak; return OkStatus();
      case Statement::Kind::kContinue: flow_ = Flow::kContinue; return OkStatus();
    }
    return OkStatus();
  }

  Status Assign(const Statement& statement, Value value) {
    if (statement.names.size() == 1) {
      scopes_.back()[statement.names[0]] = std::move(value);
      return OkStatus();
    }
    const Value* target = Lookup(statement.names[0]);
    if (target == nullptr || target->ns() == nullptr) {
      return InvalidArgument("'", statement.names[0], "' is no namespace");
    }
    if (value.ns() != nullptr) return Unsupported("a namespace inside a namespace");
    return Store(target->ns()->values, statement.names[1], std::move(value));
  }

  Status Store(Dict& dict, const std::string& key, Value value) {
    TQ_RETURN_IF_ERROR(budget_.Spend(1 + dict.size() / 8));
    for (auto& [name, old] : dict) {
      if (name != key) continue;
      old = std::move(value);
      return OkStatus();
    }
    dict.emplace_back(key, std::move(value));
    return OkStatus();
  }

  Status RunIf(const Statement& statement, std::string& out) {
    for (const auto& [condition, body] : statement.branches) {
      if (condition != nullptr) {
        TQ_ASSIGN_OR_RETURN(const Value value, Eval(*condition));
        if (!Truth(value)) continue;
      }
      return Run(body, out);
    }
    return OkStatus();
  }

  Status Bind(const Statement& statement, const Value& item) {
    Scope& scope = scopes_.back();
    if (statement.names.size() == 1) {
      scope[statement.names[0]] = item;
      return OkStatus();
    }
    TQ_ASSIGN_OR_RETURN(const List parts, Iterate(item, budget_));
    if (parts.size() != statement.names.size()) {
      return InvalidArgument("an item of ", parts.size(), " parts for ", statement.names.size(),
                             " names");
    }
    for (size_t i = 0; i < parts.size(); ++i) scope[statement.names[i]] = parts[i];
    return OkStatus();
  }

  Status RunFor(const Statement& statement, std::string& out) {
    TQ_ASSIGN_OR_RETURN(const Value value, Eval(*statement.expr));
    TQ_ASSIGN_OR_RETURN(List items, AtLine(statement.line, Iterate(value, budget_)));
    if (statement.filter != nullptr) TQ_RETURN_IF_ERROR(FilterItems(statement, items));
    if (items.empty()) return Run(statement.else_body, out);
    for (size_t i = 0; i < items.size(); ++i) {
      TQ_RETURN_IF_ERROR(AtLine(statement.line, budget_.Spend(kStepsPerLoop)));
      scopes_.emplace_back();
      Status status = AtLine(statement.line, Bind(statement, items[i]));
      if (status.ok()) status = AtLine(statement.line, SetLoop(items, i));
      if (status.ok()) status = Run(statement.body, out);
      scopes_.pop_back();
      TQ_RETURN_IF_ERROR(status);
      const bool stop = flow_ == Flow::kBreak;
      flow_ = Flow::kNext;
      if (stop) break;
    }
    return OkStatus();
  }

  Status FilterItems(const Statement& statement, List& items) {
    List kept;
    for (const Value& item : items) {
      TQ_RETURN_IF_ERROR(AtLine(statement.line, budget_.Spend(1)));
      scopes_.emplace_back();
      Status status = AtLine(statement.line, Bind(statement, item));
      Result<Value> holds = status.ok() ? Eval(*statement.filter) : Result<Value>(status);
      scopes_.pop_back();
      if (!holds.ok()) return holds.status();
      if (Truth(*holds)) kept.push_back(item);
    }
    items = std::move(kept);
    return OkStatus();
  }

  Status SetLoop(const List& items, size_t i) {
    const int64_t n = static_cast<int64_t>(items.size()), index = static_cast<int64_t>(i);
    Dict loop = {{"index", Value::Int(index + 1)},
                 {"index0", Value::Int(index)},
                 {"revindex", Value::Int(n - index)},
                 {"revindex0", Value::Int(n - index - 1)},
                 {"first", Value::Bool(i == 0)},
                 {"last", Value::Bool(index + 1 == n)},
                 {"length", Value::Int(n)}};
    if (i > 0) loop.emplace_back("previtem", items[i - 1]);
    if (i + 1 < items.size()) loop.emplace_back("nextitem", items[i + 1]);
    TQ_ASSIGN_OR_RETURN(scopes_.back()["loop"], MakeDict(std::move(loop)));
    return OkStatus();
  }

  const Value* Lookup(std::string_view name) const {
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
      if (const auto it = scope->find(name); it != scope->end()) return &it->second;
    }
    return nullptr;
  }

  // --- Expressions ---

  // The value of an optional operand.
  Result<Value> EvalOr(const ExprPtr& expr, Value otherwise) {
    if (expr == nullptr) return otherwise;
    return Eval(*expr);
  }

  Result<Value> Eval(const Expr& expr) {
    const Level level(&depth_);
    TQ_RETURN_IF_ERROR(AtLine(expr.line, level.Check()));
    TQ_RETURN_IF_ERROR(AtLine(expr.line, budget_.Spend(1)));
    switch (expr.kind) {
      case Expr::Kind::kNone: return Value::NoneValue();
      case Expr::Kind::kBool: return Value::Bool(expr.integer != 0);
      case Expr::Kind::kInteger: return Value::Int(expr.integer);
      case Expr::Kind::kFloat: return Value::Float(expr.number);
      case Expr::Kind::kString:
        TQ_RETURN_IF_ERROR(AtLine(expr.line, budget_.SpendBytes(expr.text.size())));
        return Value::Text(expr.text);
      case Expr::Kind::kName: {
        TQ_RETURN_IF_ERROR(AtLine(expr.line, budget_.Spend(scopes_.size())));
        const Value* value = Lookup(expr.text);
        return value != nullptr ? *value : Value::Missing(StrCat("'", expr.text, "' is undefined"));
      }
      case Expr::Kind::kList: {
        List items;
        for (const ExprPtr& arg : expr.args) {
          TQ_ASSIGN_OR_RETURN(Value item, Eval(*arg));
          items.push_back(std::move(item));
        }
        return AtLine(expr.line, MakeList(std::move(items)));
      }
      case Expr::Kind::kDict: return EvalDict(expr);
      case Expr::Kind::kAttribute:
      case Expr::Kind::kSubscript: return EvalSubscript(expr);
      case Expr::Kind::kSlice: return EvalSlice(expr);
      case Expr::Kind::kCall: return EvalCall(expr);
      case Expr::Kind::kFilter: {
        TQ_ASSIGN_OR_RETURN(const Value input, Eval(*expr.args[0]));
        TQ_ASSIGN_OR_RETURN(const Arguments arguments, EvalArguments(expr));
        return AtLine(expr.line, ApplyFilter(expr.text, input, arguments, budget_));
      }
      case Expr::Kind::kTest: {
        if (const Expr& name = *expr.args[0];
            name.kind == Expr::Kind::kName &&
            (expr.text == "defined" || expr.text == "undefined") && IsFunction(name.text)) {
          return Value::Bool(expr.text == "defined");
        }
        TQ_ASSIGN_OR_RETURN(const Value input, Eval(*expr.args[0]));
        TQ_ASSIGN_OR_RETURN(const Arguments arguments, EvalArguments(expr));
        size_t cost = input.Cost();
        for (const Value& value : arguments.positional) cost += value.Cost();
        TQ_RETURN_IF_ERROR(AtLine(expr.line, budget_.SpendBytes(cost)));
        TQ_ASSIGN_OR_RETURN(const bool holds,
                            AtLine(expr.line, ApplyTest(expr.text, input, arguments)));
        return Value::Bool(holds);
      }
      case Expr::Kind::kUnary: return EvalUnary(expr);
      case Expr::Kind::kBinary: return EvalBinary(expr);
      case Expr::Kind::kCompare: return EvalCompare(expr);
      case Expr::Kind::kCondition: {
        TQ_ASSIGN_OR_RETURN(const Value condition, Eval(*expr.args[1]));
        if (Truth(condition)) return Eval(*expr.args[0]);
        return EvalOr(expr.args[2], Value::Missing("the condition has no else part"));
      }
    }
    return Value::NoneValue();
  }

  Result<Value> EvalDict(const Expr& expr) {
    Dict dict;
    for (size_t i = 0; i < expr.args.size(); i += 2) {
      TQ_ASSIGN_OR_RETURN(const Value key, Eval(*expr.args[i]));
      TQ_ASSIGN_OR_RETURN(Value value, Eval(*expr.args[i + 1]));
      if (key.text() == nullptr) {
        return AtLine(expr.line, Unsupported("a dict key of kind ", KindName(key)));
      }
      TQ_RETURN_IF_ERROR(AtLine(expr.line, Store(dict, *key.text(), std::move(value))));
    }
    return AtLine(expr.line, MakeDict(std::move(dict)));
  }

  Result<Value> EvalSubscript(const Expr& expr) {
    TQ_ASSIGN_OR_RETURN(const Value object, Eval(*expr.args[0]));
    if (const auto* missing = std::get_if<Undefined>(&object.v)) {
      return AtLine(expr.line, InvalidArgument(missing->what));
    }
    const Dict* dict = object.ns() != nullptr ? &object.ns()->values : object.dict();
    if (dict != nullptr) TQ_RETURN_IF_ERROR(AtLine(expr.line, budget_.Spend(dict->size() / 8)));
    if (expr.kind == Expr::Kind::kAttribute) return GetAttribute(object, expr.text);
    TQ_ASSIGN_OR_RETURN(const Value index, Eval(*expr.args[1]));
    if (index.text() != nullptr) return GetAttribute(object, *index.text());
    int64_t storage = 0;
    const int64_t* i = index.int_or(storage);
    const Value missing = Value::Missing(
        StrCat("a value of kind ", KindName(object), " has no item ", ToText(index)));
    if (i == nullptr) return missing;
    const auto at = [&](size_t size) {  // counts from the end when negative; size: none
      const int64_t n = static_cast<int64_t>(size);
      const int64_t from_begin = *i < 0 ? *i + n : *i;
      return from_begin < 0 || from_begin >= n ? size : static_cast<size_t>(from_begin);
    };
    if (object.list() != nullptr) {
      const size_t item = at(object.list()->size());
      return item == object.list()->size() ? missing : (*object.list())[item];
    }
    if (object.text() != nullptr) {
      TQ_RETURN_IF_ERROR(AtLine(expr.line, budget_.SpendBytes(object.Cost())));
      const auto characters = Characters(*object.text());
      const size_t item = at(characters.size());
      return item == characters.size() ? missing : Value::Text(std::string(characters[item]));
    }
    return missing;
  }

  Result<Value> EvalSlice(const Expr& expr) {
    TQ_ASSIGN_OR_RETURN(const Value object, Eval(*expr.args[0]));
    int64_t bounds[3] = {0, 0, 1};
    bool given[3] = {};
    bool can_slice = object.list() != nullptr || object.text() != nullptr;
    for (size_t k = 0; k < 3; ++k) {
      TQ_ASSIGN_OR_RETURN(const Value bound, EvalOr(expr.args[k + 1], Value::NoneValue()));
      if (bound.is_none()) continue;
      int64_t storage = 0;
      const int64_t* i = bound.int_or(storage);
      can_slice = can_slice && i != nullptr;
      if (i == nullptr) continue;
      bounds[k] = *i;
      given[k] = true;
    }
    if (const auto* missing = std::get_if<Undefined>(&object.v)) {
      return AtLine(expr.line, InvalidArgument(missing->what));
    }
    if (!can_slice) {
      return Value::Missing(StrCat("a value of kind ", KindName(object), " has no such slice"));
    }
    const int64_t step = bounds[2];
    if (step == 0) return AtLine(expr.line, InvalidArgument("the step of a slice is 0"));
    TQ_ASSIGN_OR_RETURN(const List items, AtLine(expr.line, Iterate(object, budget_)));
    const int64_t n = static_cast<int64_t>(items.size());
    const int64_t low = step > 0 ? 0 : -1, high = step > 0 ? n : n - 1;
    const auto clamp = [&](int64_t i) { return std::clamp(i < 0 ? i + n : i, low, high); };
    const int64_t begin = given[0] ? clamp(bounds[0]) : step > 0 ? low : high;
    const int64_t end = given[1] ? clamp(bounds[1]) : step > 0 ? high : low;
    // Steps beyond the length all take one item.
    const int64_t stride = std::clamp(step, -n - 1, n + 1);
    List kept;
    for (int64_t i = begin; step > 0 ? i < end : i > end; i += stride) {
      kept.push_back(items[static_cast<size_t>(i)]);
    }
    if (object.list() != nullptr) return AtLine(expr.line, MakeList(std::move(kept)));
    std::string text;
    for (const Value& c : kept) text += *c.text();
    return Value::Text(std::move(text));
  }

  Result<Arguments> EvalArguments(const Expr& expr) {
    Arguments arguments;
    for (size_t i = 1; i < expr.args.size(); ++i) {
      TQ_ASSIGN_OR_RETURN(Value value, Eval(*expr.args[i]));
      arguments.positional.push_back(std::move(value));
    }
    for (const auto& [name, argument] : expr.kwargs) {
      TQ_ASSIGN_OR_RETURN(Value value, Eval(*argument));
      arguments.named.emplace_back(name, std::move(value));
    }
    return arguments;
  }

  Result<Value> EvalCall(const Expr& expr) {
    const Expr& callee = *expr.args[0];
    if (callee.kind == Expr::Kind::kAttribute) {
      TQ_ASSIGN_OR_RETURN(const Value object, Eval(*callee.args[0]));
      if (const auto* missing = std::get_if<Undefined>(&object.v)) {
        return AtLine(expr.line, InvalidArgument(missing->what));
      }
      TQ_ASSIGN_OR_RETURN(const Arguments arguments, EvalArguments(expr));
      return AtLine(expr.line, CallMethod(object, callee.text, arguments, budget_));
    }
    if (callee.kind != Expr::Kind::kName) {
      return AtLine(expr.line, InvalidArgument("only functions and methods can be called"));
    }
    TQ_ASSIGN_OR_RETURN(const Arguments arguments, EvalArguments(expr));
    if (Lookup(callee.text) != nullptr) {
      return AtLine(expr.line, InvalidArgument("'", callee.text, "' is no function"));
    }
    if (const auto macro = macros_.find(callee.text); macro != macros_.end()) {
      return AtLine(expr.line, CallMacro(*macro->second, arguments));
    }
    if (callee.text == "strftime_now" && now_ != nullptr) {
      return AtLine(expr.line, FormatTime(arguments));
    }
    if (callee.text == "raise_exception") {
      const Value* message = arguments.Get(0, "message");
      return InvalidArgument("the chat template refuses these messages: ",
                             message == nullptr ? "" : ToText(*message));
    }
    if (callee.text == "range") return AtLine(expr.line, Range(arguments));
    if (callee.text == "namespace") {
      auto space = std::make_shared<Namespace>();
      if (!arguments.positional.empty()) {
        return AtLine(expr.line, Unsupported("namespace() with unnamed arguments"));
      }
      for (const auto& [name, value] : arguments.named) {
        if (value.ns() != nullptr) {
          return AtLine(expr.line, Unsupported("a namespace inside a namespace"));
        }
        TQ_RETURN_IF_ERROR(AtLine(expr.line, Store(space->values, name, value)));
      }
      return Value{std::move(space)};
    }
    return AtLine(expr.line, InvalidArgument("'", callee.text, "' is undefined"));
  }

  // What can be called; a variable of the same name goes first.
  bool IsFunction(const std::string& name) const {
    if (Lookup(name) != nullptr) return false;
    return macros_.count(name) != 0 || name == "range" || name == "namespace" ||
           name == "raise_exception" || (name == "strftime_now" && now_ != nullptr);
  }

  // A macro sees its parameters and what stands outside of all loops, not the place of the call.
  Result<Value> CallMacro(const Statement& macro, const Arguments& arguments) {
    const Level level(&depth_);
    TQ_RETURN_IF_ERROR(level.Check());
    const size_t num_parameters = macro.defaults.size();
    if (arguments.positional.size() > num_parameters) {
      return InvalidArgument("macro '", macro.names[0], "' takes ", num_parameters,
                             " arguments, not ", arguments.positional.size());
    }
    for (const auto& [name, value] : arguments.named) {
      const auto at = std::find(macro.names.begin() + 1, macro.names.end(), name);
      if (at == macro.names.end() ||
          at - macro.names.begin() <= static_cast<ptrdiff_t>(arguments.positional.size())) {
        return InvalidArgument("macro '", macro.names[0], "' has no parameter '", name,
                               "' that is still free");
      }
    }
    std::vector<Scope> outer;
    std::move(scopes_.begin() + 1, scopes_.end(), std::back_inserter(outer));
    scopes_.resize(1);
    scopes_.emplace_back();
    const Flow flow = std::exchange(flow_, Flow::kNext);
    std::string text;
    Status status;
    for (size_t i = 0; i < num_parameters && status.ok(); ++i) {
      const std::string& name = macro.names[i + 1];
      if (const Value* given = arguments.Get(i, name); given != nullptr) {
        scopes_.back()[name] = *given;
      } else if (macro.defaults[i] != nullptr) {
        Result<Value> value = Eval(*macro.defaults[i]);
        status = value.status();
        if (status.ok()) scopes_.back()[name] = *std::move(value);
      } else {
        scopes_.back()[name] = Value::Missing(StrCat("'", name, "' is undefined"));
      }
    }
    if (status.ok()) status = Run(macro.body, text);
    flow_ = flow;
    scopes_.resize(1);
    std::move(outer.begin(), outer.end(), std::back_inserter(scopes_));
    TQ_RETURN_IF_ERROR(status);
    return Value::Text(std::move(text));
  }

  Result<Value> FormatTime(const Arguments& arguments) {
    const Value* format = arguments.Get(0, "format");
    constexpr size_t kMaxFormat = 100, kMaxTime = 2000;
    if (format == nullptr || format->text() == nullptr || format->text()->size() > kMaxFormat) {
      return InvalidArgument("strftime_now needs a format of at most ", kMaxFormat, " bytes");
    }
    char text[kMaxTime];
    const size_t size = std::strftime(text, sizeof text, format->text()->c_str(), now_);
    return Value::Text(std::string(text, size));
  }

  Result<Value> Range(const Arguments& arguments) {
    int64_t numbers[3] = {0, 0, 1};
    const size_t n = arguments.positional.size();
    if (n < 1 || n > 3) return InvalidArgument("range needs 1 to 3 integers");
    for (size_t i = 0; i < n; ++i) {
      int64_t storage = 0;
      const int64_t* number = arguments.positional[i].int_or(storage);
      if (number == nullptr || std::abs(static_cast<double>(*number)) > 1e15) {
        return InvalidArgument("range needs integers");
      }
      numbers[n == 1 ? 1 : i] = *number;
    }
    const auto [begin, end, step] = numbers;
    if (step == 0) return InvalidArgument("the step of range is 0");
    if ((end - begin) / step > kMaxRange) {
      return InvalidArgument("range is longer than ", kMaxRange);
    }
    List items;
    for (int64_t i = begin; step > 0 ? i < end : i > end; i += step) items.push_back(Value::Int(i));
    TQ_RETURN_IF_ERROR(budget_.Spend(items.size()));
    return MakeList(std::move(items));
  }

  Result<Value> EvalUnary(const Expr& expr) {
    TQ_ASSIGN_OR_RETURN(const Value value, Eval(*expr.args[0]));
    if (expr.text == "not") return Value::Bool(!Truth(value));
    const bool negate = expr.text == "-";
    if (const double* d = std::get_if<double>(&value.v)) return Value::Float(negate ? -*d : *d);
    int64_t storage = 0;
    const int64_t* i = value.int_or(storage);
    if (i == nullptr || *i == std::numeric_limits<int64_t>::min()) {
      return AtLine(expr.line,
                    InvalidArgument("unary ", expr.text, " of a value of kind ", KindName(value)));
    }
    return Value::Int(negate ? -*i : *i);
  }

  Result<Value> EvalBinary(const Expr& expr) {
    TQ_ASSIGN_OR_RETURN(Value a, Eval(*expr.args[0]));
    if (expr.text == "and") return Truth(a) ? Eval(*expr.args[1]) : std::move(a);
    if (expr.text == "or") return Truth(a) ? std::move(a) : Eval(*expr.args[1]);
    TQ_ASSIGN_OR_RETURN(const Value b, Eval(*expr.args[1]));
    return AtLine(expr.line, Arithmetic(expr.text, a, b));
  }

  Result<Value> Arithmetic(const std::string& op, const Value& a, const Value& b) {
    if (op == "~") {
      TQ_RETURN_IF_ERROR(budget_.SpendBytes(a.Cost() + b.Cost()));
      return Value::Text(ToText(a) + ToText(b));
    }
    for (const Value* operand : {&a, &b}) {
      if (const auto* missing = std::get_if<Undefined>(&operand->v)) {
        return InvalidArgument(missing->what);
      }
    }
    int64_t a_storage = 0, b_storage = 0;
    const int64_t* ai = a.int_or(a_storage);
    const int64_t* bi = b.int_or(b_storage);
    const double* ad = std::get_if<double>(&a.v);
    const double* bd = std::get_if<double>(&b.v);
    if (ai != nullptr && bi != nullptr) return IntegerArithmetic(op, *ai, *bi);
    if ((ai != nullptr || ad != nullptr) && (bi != nullptr || bd != nullptr)) {
      return FloatArithmetic(op, ad != nullptr ? *ad : static_cast<double>(*ai),
                             bd != nullptr ? *bd : static_cast<double>(*bi));
    }
    if (op == "+" && a.text() != nullptr && b.text() != nullptr) {
      TQ_RETURN_IF_ERROR(budget_.SpendBytes(a.Cost() + b.Cost()));
      return Value::Text(*a.text() + *b.text());
    }
    if (op == "+" && a.list() != nullptr && b.list() != nullptr) {
      TQ_RETURN_IF_ERROR(budget_.Spend(a.list()->size() + b.list()->size()));
      List items = *a.list();
      items.insert(items.end(), b.list()->begin(), b.list()->end());
      return MakeList(std::move(items));
    }
    if (op == "*" && a.text() != nullptr && bi != nullptr) {
      const size_t times = *bi < 0 ? 0 : static_cast<size_t>(*bi);
      TQ_RETURN_IF_ERROR(budget_.Spend(times));
      size_t bytes = 0;
      if (__builtin_mul_overflow(times, a.text()->size(), &bytes)) return Overflow(op);
      TQ_RETURN_IF_ERROR(budget_.SpendBytes(bytes));
      std::string text;
      for (size_t i = 0; i < times; ++i) text += *a.text();
      return Value::Text(std::move(text));
    }
    return InvalidArgument("values of kind ", KindName(a), " and ", KindName(b), " cannot be ",
                           "combined by ", op);
  }

  Result<Value> EvalCompare(const Expr& expr) {
    TQ_ASSIGN_OR_RETURN(Value left, Eval(*expr.args[0]));
    std::string_view ops = expr.text;
    for (size_t i = 1; i < expr.args.size(); ++i) {
      const std::string_view op = ops.substr(0, ops.find(' '));
      ops.remove_prefix(std::min(ops.size(), op.size() + 1));
      TQ_ASSIGN_OR_RETURN(Value right, Eval(*expr.args[i]));
      TQ_RETURN_IF_ERROR(AtLine(expr.line, budget_.SpendBytes(left.Cost() + right.Cost())));
      TQ_ASSIGN_OR_RETURN(const bool holds, AtLine(expr.line, Holds(op, left, right)));
      if (!holds) return Value::Bool(false);
      left = std::move(right);
    }
    return Value::Bool(true);
  }

  static Result<bool> Holds(std::string_view op, const Value& a, const Value& b) {
    if (op == "==") return Equal(a, b);
    if (op == "!=") return !Equal(a, b);
    if (op == "in" || op == "not-in") {
      TQ_ASSIGN_OR_RETURN(const bool contains, Contains(b, a));
      return contains == (op == "in");
    }
    TQ_ASSIGN_OR_RETURN(const int order, Compare(a, b));
    if (op == "<") return order < 0;
    if (op == "<=") return order <= 0;
    if (op == ">") return order > 0;
    return order >= 0;
  }

  std::vector<Scope> scopes_;
  std::map<std::string, const Statement*, std::less<>> macros_;
  const std::tm* now_;
  int depth_ = 0;
  Budget budget_;
  Flow flow_ = Flow::kNext;
};

}  // namespace

Result<std::string> Render(const Body& body, std::map<std::string, Value, std::less<>> variables,
                           const std::tm* now) {
  std::string out;
  Evaluator evaluator(std::move(variables), now);
  TQ_RETURN_IF_ERROR(evaluator.Run(body, out));
  return out;
}

}  // namespace tq::jinja
