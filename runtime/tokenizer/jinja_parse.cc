// Recursive descent over the tokens, with the precedences of jinja2:
//   a if b else c  <  or  <  and  <  not  <  comparisons  <  + -  <  ~  <  * / // %  <  **
//   <  unary  <  postfix, filters and tests
#include <algorithm>
#include <charconv>
#include <utility>

#include "runtime/tokenizer/jinja_syntax.h"

namespace tq::jinja {
namespace {

// Evaluating and freeing recurse over the tree.
constexpr int kMaxDepth = 150;
constexpr size_t kMaxSourceBytes = size_t{1} << 20;

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  Result<Body> Run() {
    Body body;
    TQ_RETURN_IF_ERROR(ParseBody({}, body));
    return body;
  }

 private:
  // --- Tokens ---

  const Token& Peek(size_t ahead = 0) const {
    return tokens_[std::min(pos_ + ahead, tokens_.size() - 1)];
  }
  bool AtOperator(std::string_view text) const {
    return Peek().type == TokenType::kOperator && Peek().text == text;
  }
  bool AtName(std::string_view text, size_t ahead = 0) const {
    return Peek(ahead).type == TokenType::kName && Peek(ahead).text == text;
  }
  bool Take(std::string_view op) {
    if (!AtOperator(op)) return false;
    ++pos_;
    return true;
  }
  bool TakeName(std::string_view name) {
    if (!AtName(name)) return false;
    ++pos_;
    return true;
  }
  Status Expected(const std::string& what) const {
    const Token& token = Peek();
    const std::string found = token.type == TokenType::kEnd        ? "the end of the template"
                              : token.type == TokenType::kBlockEnd ? "%}"
                              : token.type == TokenType::kPrintEnd ? "}}"
                              : token.type == TokenType::kText     ? "text"
                                                                   : StrCat("'", token.text, "'");
    return InvalidArgument("line ", token.line, ": expected ", what, ", found ", found);
  }
  Status Expect(std::string_view op) {
    return Take(op) ? OkStatus() : Expected(StrCat("'", op, "'"));
  }
  Status ExpectType(TokenType type, const char* what) {
    if (Peek().type != type) return Expected(what);
    ++pos_;
    return OkStatus();
  }
  Result<std::string> ExpectName() {
    if (Peek().type != TokenType::kName) return Expected("a name");
    return tokens_[pos_++].text;
  }

  // --- Nodes ---

  ExprPtr New(Expr::Kind kind, std::string text = "") const {
    auto expr = std::make_unique<Expr>();
    expr->kind = kind;
    expr->line = Peek().line;
    expr->text = std::move(text);
    return expr;
  }
  Status Adopt(Expr& parent, ExprPtr child) const {
    if (child != nullptr) parent.depth = std::max(parent.depth, child->depth + 1);
    parent.args.push_back(std::move(child));
    return CheckDepth(parent.depth);
  }
  Status CheckDepth(int depth) const {
    if (depth <= kMaxDepth) return OkStatus();
    return InvalidArgument("line ", Peek().line, ": expressions or blocks nest more than ",
                           kMaxDepth, " deep");
  }
  // Counts the recursion of the parser itself.
  struct Nest {
    explicit Nest(int& n) : nesting(n) { ++nesting; }
    ~Nest() { --nesting; }
    int& nesting;
  };

  // --- Statements ---

  // Up to a tag with one of `ends`, whose name is left to be read.
  Status ParseBody(const std::vector<std::string_view>& ends, Body& body) {
    const Nest nest(nesting_);
    TQ_RETURN_IF_ERROR(CheckDepth(nesting_));
    const int begin_line = pos_ > 0 ? tokens_[pos_ - 1].line : 1;
    for (;;) {
      const Token& token = Peek();
      if (token.type == TokenType::kEnd) {
        if (ends.empty()) return OkStatus();
        return InvalidArgument("line ", begin_line, ": the block that begins here has no ",
                               ends.back());
      }
      Statement statement;
      statement.line = token.line;
      if (token.type == TokenType::kText) {
        statement.text = token.text;
        ++pos_;
      } else if (token.type == TokenType::kPrintBegin) {
        ++pos_;
        statement.kind = Statement::Kind::kPrint;
        TQ_ASSIGN_OR_RETURN(statement.expr, ParseExpr());
        TQ_RETURN_IF_ERROR(ExpectType(TokenType::kPrintEnd, "}}"));
      } else {
        TQ_RETURN_IF_ERROR(ExpectType(TokenType::kBlockBegin, "a tag"));
        if (Peek().type != TokenType::kName) return Expected("the name of a tag");
        for (const std::string_view end : ends) {
          if (AtName(end)) return OkStatus();
        }
        TQ_RETURN_IF_ERROR(ParseTag(statement, body));
        if (statement.line == 0) continue;  // the tag added its own statements
      }
      body.push_back(std::move(statement));
    }
  }

  Status EndOfTag() { return ExpectType(TokenType::kBlockEnd, "%}"); }

  Status ParseTag(Statement& statement, Body& body) {
    if (TakeName("if")) return ParseIf(statement);
    if (TakeName("for")) return ParseFor(statement);
    if (TakeName("set")) return ParseSet(statement);
    if (TakeName("macro")) return ParseMacro(statement);
    if (AtName("break") || AtName("continue")) {
      if (loops_ == 0) {
        return InvalidArgument("line ", Peek().line, ": '", Peek().text, "' outside of a loop");
      }
      statement.kind = AtName("break") ? Statement::Kind::kBreak : Statement::Kind::kContinue;
      ++pos_;
      return EndOfTag();
    }
    if (TakeName("generation")) {  // marks what the assistant said; prints its body
      TQ_RETURN_IF_ERROR(EndOfTag());
      TQ_RETURN_IF_ERROR(ParseBody({"endgeneration"}, body));
      ++pos_;
      statement.line = 0;
      return EndOfTag();
    }
    for (const char* end :
         {"elif", "else", "endif", "endfor", "endset", "endmacro", "endgeneration"}) {
      if (!AtName(end)) continue;
      return InvalidArgument("line ", Peek().line, ": '", end, "' closes no open block");
    }
    return Unsupported("line ", Peek().line, ": '", Peek().text,
                       "' is not supported; supported tags: if, for, set, macro, break, continue");
  }

  Status ParseIf(Statement& statement) {
    statement.kind = Statement::Kind::kIf;
    for (;;) {
      TQ_ASSIGN_OR_RETURN(ExprPtr condition, ParseExpr());
      TQ_RETURN_IF_ERROR(EndOfTag());
      statement.branches.emplace_back(std::move(condition), Body());
      TQ_RETURN_IF_ERROR(ParseBody({"elif", "else", "endif"}, statement.branches.back().second));
      if (TakeName("elif")) continue;
      if (TakeName("else")) {
        TQ_RETURN_IF_ERROR(EndOfTag());
        statement.branches.emplace_back(nullptr, Body());
        TQ_RETURN_IF_ERROR(ParseBody({"endif"}, statement.branches.back().second));
      }
      ++pos_;
      return EndOfTag();
    }
  }

  Status ParseFor(Statement& statement) {
    statement.kind = Statement::Kind::kFor;
    do {
      TQ_ASSIGN_OR_RETURN(std::string name, ExpectName());
      statement.names.push_back(std::move(name));
    } while (Take(","));
    if (!TakeName("in")) return Expected("'in'");
    TQ_ASSIGN_OR_RETURN(statement.expr, ParseOr());  // an "if" that follows is the filter
    if (TakeName("if")) {
      TQ_ASSIGN_OR_RETURN(statement.filter, ParseExpr());
    }
    if (AtName("recursive")) {
      return Unsupported("line ", Peek().line, ": recursive loops are not supported");
    }
    TQ_RETURN_IF_ERROR(EndOfTag());
    ++loops_;
    TQ_RETURN_IF_ERROR(ParseBody({"else", "endfor"}, statement.body));
    --loops_;
    if (TakeName("else")) {
      TQ_RETURN_IF_ERROR(EndOfTag());
      TQ_RETURN_IF_ERROR(ParseBody({"endfor"}, statement.else_body));
    }
    ++pos_;
    return EndOfTag();
  }

  Status ParseSet(Statement& statement) {
    TQ_ASSIGN_OR_RETURN(std::string name, ExpectName());
    statement.names.push_back(std::move(name));
    if (Take(".")) {
      TQ_ASSIGN_OR_RETURN(std::string attribute, ExpectName());
      statement.names.push_back(std::move(attribute));
    }
    if (AtOperator(",")) {
      return Unsupported("line ", Peek().line, ": setting several names at once is not supported");
    }
    if (Take("=")) {
      statement.kind = Statement::Kind::kSet;
      TQ_ASSIGN_OR_RETURN(statement.expr, ParseExpr());
      return EndOfTag();
    }
    if (statement.names.size() > 1 || AtOperator("|")) return Expected("'='");
    statement.kind = Statement::Kind::kSetBlock;
    TQ_RETURN_IF_ERROR(EndOfTag());
    TQ_RETURN_IF_ERROR(ParseBody({"endset"}, statement.body));
    ++pos_;
    return EndOfTag();
  }

  Status ParseMacro(Statement& statement) {
    statement.kind = Statement::Kind::kMacro;
    TQ_ASSIGN_OR_RETURN(std::string name, ExpectName());
    statement.names.push_back(std::move(name));
    TQ_RETURN_IF_ERROR(Expect("("));
    while (!Take(")")) {
      if (statement.names.size() > 1) TQ_RETURN_IF_ERROR(Expect(","));
      TQ_ASSIGN_OR_RETURN(std::string parameter, ExpectName());
      statement.names.push_back(std::move(parameter));
      statement.defaults.emplace_back();
      if (Take("=")) {
        TQ_ASSIGN_OR_RETURN(statement.defaults.back(), ParseExpr());
      } else if (statement.defaults.size() > 1 && *(statement.defaults.end() - 2) != nullptr) {
        return Expected("a default, as the parameter before has one");
      }
    }
    TQ_RETURN_IF_ERROR(EndOfTag());
    const int outer_loops = std::exchange(loops_, 0);
    TQ_RETURN_IF_ERROR(ParseBody({"endmacro"}, statement.body));
    loops_ = outer_loops;
    ++pos_;
    return EndOfTag();
  }

  // --- Expressions ---

  Result<ExprPtr> ParseExpr() {
    const Nest nest(nesting_);
    TQ_RETURN_IF_ERROR(CheckDepth(nesting_));
    TQ_ASSIGN_OR_RETURN(ExprPtr value, ParseOr());
    while (AtName("if")) {
      ExprPtr choice = New(Expr::Kind::kCondition);
      ++pos_;
      TQ_RETURN_IF_ERROR(Adopt(*choice, std::move(value)));
      TQ_ASSIGN_OR_RETURN(ExprPtr condition, ParseOr());
      TQ_RETURN_IF_ERROR(Adopt(*choice, std::move(condition)));
      ExprPtr otherwise;
      if (TakeName("else")) {
        TQ_ASSIGN_OR_RETURN(otherwise, ParseExpr());
      }
      TQ_RETURN_IF_ERROR(Adopt(*choice, std::move(otherwise)));
      value = std::move(choice);
    }
    return value;
  }

  using Rule = Result<ExprPtr> (Parser::*)();

  // left op right op right..., with `type` tokens of one of `ops`.
  Result<ExprPtr> ParseLeft(Rule operand, TokenType type,
                            std::initializer_list<std::string_view> ops) {
    TQ_ASSIGN_OR_RETURN(ExprPtr left, (this->*operand)());
    while (Peek().type == type && std::find(ops.begin(), ops.end(), Peek().text) != ops.end()) {
      ExprPtr binary = New(Expr::Kind::kBinary, Peek().text);
      ++pos_;
      TQ_RETURN_IF_ERROR(Adopt(*binary, std::move(left)));
      TQ_ASSIGN_OR_RETURN(ExprPtr right, (this->*operand)());
      TQ_RETURN_IF_ERROR(Adopt(*binary, std::move(right)));
      left = std::move(binary);
    }
    return left;
  }
  Result<ExprPtr> ParseOr() { return ParseLeft(&Parser::ParseAnd, TokenType::kName, {"or"}); }
  Result<ExprPtr> ParseAnd() { return ParseLeft(&Parser::ParseNot, TokenType::kName, {"and"}); }
  Result<ExprPtr> ParseNot() {
    if (!AtName("not")) return ParseCompare();
    const Nest nest(nesting_);
    TQ_RETURN_IF_ERROR(CheckDepth(nesting_));
    ExprPtr expr = New(Expr::Kind::kUnary, "not");
    ++pos_;
    TQ_ASSIGN_OR_RETURN(ExprPtr operand, ParseNot());
    TQ_RETURN_IF_ERROR(Adopt(*expr, std::move(operand)));
    return expr;
  }

  // The comparison at the cursor, taken; empty: none.
  std::string TakeComparison() {
    if (AtName("not") && AtName("in", 1)) {
      pos_ += 2;
      return "not-in";
    }
    if (TakeName("in")) return "in";
    for (const char* op : {"==", "!=", "<=", ">=", "<", ">"}) {
      if (Take(op)) return op;
    }
    return "";
  }

  Result<ExprPtr> ParseCompare() {
    TQ_ASSIGN_OR_RETURN(ExprPtr first, ParseSum());
    ExprPtr compare = New(Expr::Kind::kCompare);
    for (std::string op = TakeComparison(); !op.empty(); op = TakeComparison()) {
      if (first != nullptr) TQ_RETURN_IF_ERROR(Adopt(*compare, std::move(first)));
      compare->text += (compare->text.empty() ? "" : " ") + op;
      TQ_ASSIGN_OR_RETURN(ExprPtr next, ParseSum());
      TQ_RETURN_IF_ERROR(Adopt(*compare, std::move(next)));
    }
    return first != nullptr ? std::move(first) : std::move(compare);
  }

  Result<ExprPtr> ParseSum() {
    return ParseLeft(&Parser::ParseConcat, TokenType::kOperator, {"+", "-"});
  }
  Result<ExprPtr> ParseConcat() {
    return ParseLeft(&Parser::ParseProduct, TokenType::kOperator, {"~"});
  }
  Result<ExprPtr> ParseProduct() {
    return ParseLeft(&Parser::ParsePower, TokenType::kOperator, {"*", "/", "//", "%"});
  }
  Result<ExprPtr> ParsePower() {
    return ParseLeft(&Parser::ParseFiltered, TokenType::kOperator, {"**"});
  }
  Result<ExprPtr> ParseFiltered() {
    TQ_ASSIGN_OR_RETURN(ExprPtr value, ParseUnary());
    return ParseFiltersAndTests(std::move(value));
  }

  Result<ExprPtr> ParseUnary() {
    if (AtOperator("-") || AtOperator("+")) {
      const Nest nest(nesting_);
      TQ_RETURN_IF_ERROR(CheckDepth(nesting_));
      ExprPtr expr = New(Expr::Kind::kUnary, Peek().text);
      ++pos_;
      TQ_ASSIGN_OR_RETURN(ExprPtr operand, ParseUnary());
      TQ_RETURN_IF_ERROR(Adopt(*expr, std::move(operand)));
      return expr;
    }
    TQ_ASSIGN_OR_RETURN(ExprPtr value, ParsePrimary());
    return ParsePostfix(std::move(value));
  }

  Result<ExprPtr> ParsePrimary() {
    const Token token = Peek();
    if (token.type == TokenType::kString) {
      ExprPtr expr = New(Expr::Kind::kString);
      while (Peek().type == TokenType::kString) expr->text += tokens_[pos_++].text;
      return expr;
    }
    if (token.type == TokenType::kInteger || token.type == TokenType::kFloat) return ParseNumber();
    if (token.type == TokenType::kName) return ParseNameOrConstant();
    if (AtOperator("(") || AtOperator("[")) return ParseListOrGroup();
    if (AtOperator("{")) return ParseDict();
    return Expected("an expression");
  }

  Result<ExprPtr> ParseNumber() {
    const Token& token = Peek();
    const char* begin = token.text.data();
    const char* end = begin + token.text.size();
    const bool is_float = token.type == TokenType::kFloat;
    ExprPtr expr = New(is_float ? Expr::Kind::kFloat : Expr::Kind::kInteger);
    const auto got = is_float ? std::from_chars(begin, end, expr->number)
                              : std::from_chars(begin, end, expr->integer);
    if (got.ec != std::errc() || got.ptr != end) {
      return Unsupported("line ", token.line, ": number ", token.text, " is out of range");
    }
    ++pos_;
    return expr;
  }

  Result<ExprPtr> ParseNameOrConstant() {
    const std::string name = Peek().text;
    ExprPtr expr = New(Expr::Kind::kName, name);
    if (name == "true" || name == "True" || name == "false" || name == "False") {
      expr->kind = Expr::Kind::kBool;
      expr->integer = name == "true" || name == "True";
    } else if (name == "none" || name == "None") {
      expr->kind = Expr::Kind::kNone;
    } else {
      for (const char* word : {"and", "or", "not", "in", "is", "if", "else", "elif"}) {
        if (name == word) return Expected("an expression");
      }
    }
    ++pos_;
    return expr;
  }

  // [a, b], (a, b) and (a): tuples are lists here.
  Result<ExprPtr> ParseListOrGroup() {
    ExprPtr list = New(Expr::Kind::kList);
    const bool is_group = AtOperator("(");
    const char* close = is_group ? ")" : "]";
    bool has_comma = false;
    ++pos_;
    while (!Take(close)) {
      if (!list->args.empty()) {
        TQ_RETURN_IF_ERROR(Expect(","));
        has_comma = true;
        if (Take(close)) break;
      }
      TQ_ASSIGN_OR_RETURN(ExprPtr item, ParseExpr());
      TQ_RETURN_IF_ERROR(Adopt(*list, std::move(item)));
    }
    if (is_group && !has_comma && list->args.size() == 1) return std::move(list->args[0]);
    return list;
  }

  Result<ExprPtr> ParseDict() {
    ExprPtr dict = New(Expr::Kind::kDict);
    ++pos_;
    while (!Take("}")) {
      if (!dict->args.empty()) {
        TQ_RETURN_IF_ERROR(Expect(","));
        if (Take("}")) break;
      }
      TQ_ASSIGN_OR_RETURN(ExprPtr key, ParseExpr());
      TQ_RETURN_IF_ERROR(Adopt(*dict, std::move(key)));
      TQ_RETURN_IF_ERROR(Expect(":"));
      TQ_ASSIGN_OR_RETURN(ExprPtr value, ParseExpr());
      TQ_RETURN_IF_ERROR(Adopt(*dict, std::move(value)));
    }
    return dict;
  }

  Result<ExprPtr> ParsePostfix(ExprPtr value) {
    for (;;) {
      if (AtOperator(".")) {
        ExprPtr attribute = New(Expr::Kind::kAttribute);
        ++pos_;
        TQ_RETURN_IF_ERROR(Adopt(*attribute, std::move(value)));
        if (Peek().type == TokenType::kInteger) {  // list.0
          attribute->kind = Expr::Kind::kSubscript;
          TQ_ASSIGN_OR_RETURN(ExprPtr index, ParseNumber());
          TQ_RETURN_IF_ERROR(Adopt(*attribute, std::move(index)));
        } else {
          TQ_ASSIGN_OR_RETURN(attribute->text, ExpectName());
        }
        value = std::move(attribute);
      } else if (AtOperator("[")) {
        TQ_ASSIGN_OR_RETURN(value, ParseSubscript(std::move(value)));
      } else if (AtOperator("(")) {
        ExprPtr call = New(Expr::Kind::kCall);
        TQ_RETURN_IF_ERROR(Adopt(*call, std::move(value)));
        TQ_RETURN_IF_ERROR(ParseArguments(*call));
        value = std::move(call);
      } else {
        return value;
      }
    }
  }

  Result<ExprPtr> ParseSubscript(ExprPtr value) {
    ExprPtr subscript = New(Expr::Kind::kSubscript);
    ++pos_;
    TQ_RETURN_IF_ERROR(Adopt(*subscript, std::move(value)));
    ExprPtr parts[3];
    int colons = 0;
    while (!AtOperator("]")) {
      if (Take(":")) {
        if (++colons > 2) return Expected("']'");
        continue;
      }
      if (parts[colons] != nullptr) return Expected("']'");
      TQ_ASSIGN_OR_RETURN(parts[colons], ParseExpr());
    }
    if (colons == 0 && parts[0] == nullptr) return Expected("an index");
    ++pos_;
    if (colons == 0) {
      TQ_RETURN_IF_ERROR(Adopt(*subscript, std::move(parts[0])));
      return subscript;
    }
    subscript->kind = Expr::Kind::kSlice;
    for (ExprPtr& part : parts) TQ_RETURN_IF_ERROR(Adopt(*subscript, std::move(part)));
    return subscript;
  }

  // (a, b, name=c) behind args[0].
  Status ParseArguments(Expr& call) {
    TQ_RETURN_IF_ERROR(Expect("("));
    bool is_first = true;
    while (!Take(")")) {
      if (!is_first) {
        TQ_RETURN_IF_ERROR(Expect(","));
        if (Take(")")) break;
      }
      is_first = false;
      const bool is_keyword = Peek().type == TokenType::kName &&
                              Peek(1).type == TokenType::kOperator && Peek(1).text == "=";
      if (is_keyword) {
        const std::string name = Peek().text;
        pos_ += 2;
        TQ_ASSIGN_OR_RETURN(ExprPtr argument, ParseExpr());
        call.depth = std::max(call.depth, argument->depth + 1);
        TQ_RETURN_IF_ERROR(CheckDepth(call.depth));
        call.kwargs.emplace_back(name, std::move(argument));
      } else {
        if (!call.kwargs.empty()) return Expected("a keyword argument");
        TQ_ASSIGN_OR_RETURN(ExprPtr argument, ParseExpr());
        TQ_RETURN_IF_ERROR(Adopt(call, std::move(argument)));
      }
    }
    return OkStatus();
  }

  Result<ExprPtr> ParseFiltersAndTests(ExprPtr value) {
    for (;;) {
      if (Take("|")) {
        ExprPtr filter = New(Expr::Kind::kFilter);
        TQ_ASSIGN_OR_RETURN(filter->text, ExpectName());
        if (!IsKnownFilter(filter->text)) {
          return Unsupported("line ", filter->line, ": filter '", filter->text,
                             "' is not supported");
        }
        TQ_RETURN_IF_ERROR(Adopt(*filter, std::move(value)));
        if (AtOperator("(")) TQ_RETURN_IF_ERROR(ParseArguments(*filter));
        value = std::move(filter);
      } else if (TakeName("is")) {
        TQ_ASSIGN_OR_RETURN(value, ParseTest(std::move(value)));
      } else if (AtOperator("(")) {
        return Unsupported("line ", Peek().line, ": calling the result of a filter or test");
      } else {
        return value;
      }
    }
  }

  Result<ExprPtr> ParseTest(ExprPtr value) {
    const bool negated = TakeName("not");
    ExprPtr test = New(Expr::Kind::kTest);
    TQ_ASSIGN_OR_RETURN(test->text, ExpectName());
    if (!IsKnownTest(test->text)) {
      return Unsupported("line ", test->line, ": test '", test->text, "' is not supported");
    }
    TQ_RETURN_IF_ERROR(Adopt(*test, std::move(value)));
    const TokenType next = Peek().type;
    if (AtOperator("(")) {
      TQ_RETURN_IF_ERROR(ParseArguments(*test));
    } else if (AtName("is")) {
      return Expected("no second test");
    } else if (next == TokenType::kString || next == TokenType::kInteger ||
               next == TokenType::kFloat || AtOperator("[") || AtOperator("{") ||
               (next == TokenType::kName && !AtName("else") && !AtName("or") && !AtName("and"))) {
      // One argument without parentheses: x is divisibleby 3.
      TQ_ASSIGN_OR_RETURN(ExprPtr argument, ParsePrimary());
      TQ_ASSIGN_OR_RETURN(argument, ParsePostfix(std::move(argument)));
      TQ_RETURN_IF_ERROR(Adopt(*test, std::move(argument)));
    }
    if (!negated) return test;
    ExprPtr expr = New(Expr::Kind::kUnary, "not");
    TQ_RETURN_IF_ERROR(Adopt(*expr, std::move(test)));
    return expr;
  }

  std::vector<Token> tokens_;
  size_t pos_ = 0;
  int nesting_ = 0;
  int loops_ = 0;  // open ones
};

}  // namespace

Result<Body> ParseTemplate(std::string_view source) {
  if (source.size() > kMaxSourceBytes) {
    return InvalidArgument("the template has ", source.size(), " bytes; at most ", kMaxSourceBytes,
                           " are allowed");
  }
  TQ_ASSIGN_OR_RETURN(std::vector<Token> tokens, Lex(source));
  return Parser(std::move(tokens)).Run();
}

}  // namespace tq::jinja
