// The syntax tree of a template, and the parser that makes it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "turboquant/base/status.h"

namespace tq::jinja {

enum class TokenType {
  kText,
  kBlockBegin,
  kBlockEnd,
  kPrintBegin,
  kPrintEnd,
  kName,
  kString,
  kInteger,
  kFloat,
  kOperator,
  kEnd
};
struct Token {
  TokenType type = TokenType::kEnd;
  std::string text;  // of a string: with its escapes resolved
  int line = 1;
};
// Whitespace control is applied here, as with trim_blocks and lstrip_blocks.
Result<std::vector<Token>> Lex(std::string_view source);

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

struct Expr {
  enum class Kind {
    kNone,
    kBool,
    kInteger,
    kFloat,
    kString,     // literals
    kName,       // text
    kList,       // args
    kDict,       // args: key, value, key, value...
    kAttribute,  // args[0].text
    kSubscript,  // args[0][args[1]]
    kSlice,      // args[0][args[1]:args[2]:args[3]]; those missing are null
    kCall,       // args[0](args[1]..., kwargs)
    kFilter,     // args[0] | text(args[1]..., kwargs)
    kTest,       // args[0] is text(args[1]...)
    kUnary,      // text: - + not
    kBinary,     // text: + - * / // % ** ~ and or
    kCompare,    // args[0] op args[1] op args[2]..., text: operators joined by blanks
    kCondition,  // args[0] if args[1] else args[2], which may be null
  };
  Kind kind = Kind::kNone;
  int line = 1;
  int depth = 1;
  std::string text;
  int64_t integer = 0;  // also of kBool
  double number = 0;
  std::vector<ExprPtr> args;
  std::vector<std::pair<std::string, ExprPtr>> kwargs;
};

struct Statement;
using Body = std::vector<Statement>;

struct Statement {
  enum class Kind {
    kText,      // text
    kPrint,     // expr
    kIf,        // branches; the last may lack a condition
    kFor,       // names in expr if filter: body, else_body
    kSet,       // names[0] (or names[0].names[1]) = expr
    kSetBlock,  // names[0] = what body prints
    kMacro,     // names[0](names[1] = defaults[0], ...): body; a default may be null
    kBreak,
    kContinue,
  };
  Kind kind = Kind::kText;
  int line = 1;
  std::string text;
  std::vector<std::string> names;
  ExprPtr expr, filter;
  std::vector<ExprPtr> defaults;
  Body body, else_body;
  std::vector<std::pair<ExprPtr, Body>> branches;
};

// kInvalidArgument: a syntax error; kUnsupported: a construct, filter or test that is not known.
// Both name the line.
Result<Body> ParseTemplate(std::string_view source);

// Lists of what can be called, for the parser and for messages.
bool IsKnownFilter(std::string_view name);
bool IsKnownTest(std::string_view name);

}  // namespace tq::jinja
