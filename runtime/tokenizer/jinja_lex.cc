// Tokens of a template, with the rules of jinja2 for whitespace around tags: "-" strips all of it,
// "+" none, otherwise a block or comment takes the blanks before it on its line and one newline
// behind it.
#include <algorithm>

#include "runtime/tokenizer/jinja_syntax.h"
#include "runtime/tokenizer/jinja_value.h"
#include "runtime/tokenizer/utf8.h"

namespace tq::jinja {
namespace {

bool IsNameStart(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}
bool IsDigit(char c) {
  return c >= '0' && c <= '9';
}

// Newlines become "\n", and one at the end is dropped.
std::string Normalize(std::string_view source) {
  std::string out;
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      out += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      out += source[i];
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(Normalize(source)) {}

  Result<std::vector<Token>> Run() {
    while (pos_ < source_.size()) TQ_RETURN_IF_ERROR(LexRoot());
    Add(TokenType::kEnd, "");
    return std::move(tokens_);
  }

 private:
  std::string_view rest() const { return std::string_view(source_).substr(pos_); }
  bool At(std::string_view text) const { return rest().substr(0, text.size()) == text; }
  void Advance(size_t n) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<ptrdiff_t>(pos_),
                                         source_.begin() + static_cast<ptrdiff_t>(pos_ + n), '\n'));
    pos_ += n;
  }
  void Add(TokenType type, std::string text) { tokens_.push_back({type, std::move(text), line_}); }
  Status Error(const std::string& what) const {
    return InvalidArgument("line ", line_, ": ", what);
  }
  void SkipSpace() {
    Advance(rest().size() - Strip(rest(), "", /*left=*/true, /*right=*/false).size());
  }

  // Text up to the next tag, and that tag.
  Status LexRoot() {
    size_t begin = pos_;
    while (begin < source_.size()) {
      begin = source_.find('{', begin);
      if (begin == std::string::npos || begin + 1 >= source_.size()) {
        begin = source_.size();
      } else if (source_[begin + 1] == '%' || source_[begin + 1] == '{' ||
                 source_[begin + 1] == '#') {
        break;
      } else {
        ++begin;
      }
    }
    std::string_view text = rest().substr(0, begin - pos_);
    const char tag = begin < source_.size() ? source_[begin + 1] : '\0';
    const char sign = begin + 2 < source_.size() ? source_[begin + 2] : '\0';
    if (tag != '\0' && sign == '-') {
      text = Strip(text, "", /*left=*/false, /*right=*/true);
    } else if ((tag == '%' || tag == '#') && sign != '+') {
      const size_t line_begin = text.rfind('\n') + 1;  // 0 when there is no newline
      const std::string_view blanks = text.substr(line_begin);
      if ((line_begin > 0 || at_line_begin_) && Strip(blanks, "", true, true).empty()) {
        text = text.substr(0, line_begin);
      }
    }
    if (!text.empty()) Add(TokenType::kText, std::string(text));
    Advance(begin - pos_);
    if (tag == '\0') return OkStatus();
    const bool has_sign = sign == '-' || sign == '+';
    Advance(has_sign ? 3 : 2);
    if (tag == '#') return SkipComment();
    return LexTag(tag == '%');
  }

  Status SkipComment() {
    const size_t end = source_.find("#}", pos_);
    if (end == std::string::npos) return Error("a comment is not closed");
    const char sign = end > pos_ ? source_[end - 1] : '\0';
    Advance(end + 2 - pos_);
    EndTag(sign, /*trim_newline=*/true);
    return OkStatus();
  }

  void EndTag(char sign, bool trim_newline) {
    at_line_begin_ = false;
    const size_t before = pos_;
    if (sign == '-') {
      SkipSpace();
    } else if (sign != '+' && trim_newline && At("\n")) {
      Advance(1);
    }
    at_line_begin_ = pos_ > before && source_[pos_ - 1] == '\n';
  }

  Status LexTag(bool is_block) {
    Add(is_block ? TokenType::kBlockBegin : TokenType::kPrintBegin, "");
    const char* close = is_block ? "%}" : "}}";
    const size_t first = tokens_.size();
    std::string open_brackets;
    for (;;) {
      SkipSpace();
      if (pos_ >= source_.size()) return Error(StrCat("a tag is not closed by ", close));
      if (open_brackets.empty()) {
        const char sign = At("-") || (is_block && At("+")) ? source_[pos_] : '\0';
        if (rest().substr(sign != '\0' ? 1 : 0, 2) == close) {
          Add(is_block ? TokenType::kBlockEnd : TokenType::kPrintEnd, "");
          Advance(sign != '\0' ? 3 : 2);
          EndTag(sign, is_block);
          return OkStatus();
        }
      }
      TQ_RETURN_IF_ERROR(LexOne(open_brackets));
      if (is_block && tokens_.size() == first + 1 && tokens_.back().text == "raw" &&
          tokens_.back().type == TokenType::kName) {
        return Unsupported("line ", line_, ": 'raw' is not supported");
      }
    }
  }

  Status LexOne(std::string& open_brackets) {
    const char c = source_[pos_];
    if (IsNameStart(c)) return LexName();
    if (IsDigit(c)) return LexNumber();
    if (c == '"' || c == '\'') return LexString(c);
    for (const char* op : {"**", "//", "==", "!=", "<=", ">="}) {
      if (At(op)) {
        Add(TokenType::kOperator, op);
        Advance(2);
        return OkStatus();
      }
    }
    constexpr std::string_view kOperators = "+-*/%~<>=|.,:()[]{}";
    if (kOperators.find(c) == std::string_view::npos) {
      return Error(StrCat("unexpected character '", rest().substr(0, 1), "'"));
    }
    if (c == '(' || c == '[' || c == '{') {
      open_brackets += c == '(' ? ')' : c == '[' ? ']' : '}';
    } else if (c == ')' || c == ']' || c == '}') {
      if (open_brackets.empty() || open_brackets.back() != c) {
        return Error(StrCat("unexpected '", c, "'"));
      }
      open_brackets.pop_back();
    }
    Add(TokenType::kOperator, std::string(1, c));
    Advance(1);
    return OkStatus();
  }

  Status LexName() {
    size_t n = 1;
    while (n < rest().size() && (IsNameStart(rest()[n]) || IsDigit(rest()[n]))) ++n;
    Add(TokenType::kName, std::string(rest().substr(0, n)));
    Advance(n);
    return OkStatus();
  }

  Status LexNumber() {
    const std::string_view r = rest();
    size_t n = 0;
    const auto digits = [&] {
      while (n < r.size() && (IsDigit(r[n]) || r[n] == '_')) ++n;
    };
    digits();
    bool is_float = false;
    if (n + 1 < r.size() && r[n] == '.' && IsDigit(r[n + 1])) {
      is_float = true;
      ++n;
      digits();
    }
    if (n < r.size() && (r[n] == 'e' || r[n] == 'E')) {
      const size_t sign = n + 1 < r.size() && (r[n + 1] == '+' || r[n + 1] == '-') ? 1 : 0;
      if (n + 1 + sign < r.size() && IsDigit(r[n + 1 + sign])) {
        is_float = true;
        n += 1 + sign;
        digits();
      }
    }
    std::string text(r.substr(0, n));
    text.erase(std::remove(text.begin(), text.end(), '_'), text.end());
    Add(is_float ? TokenType::kFloat : TokenType::kInteger, text);
    Advance(n);
    return OkStatus();
  }

  Status LexString(char quote) {
    size_t end = pos_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) return Error("a string is not closed");
    std::string text;
    TQ_RETURN_IF_ERROR(Unescape(std::string_view(source_).substr(pos_ + 1, end - pos_ - 1), text));
    Add(TokenType::kString, text);
    Advance(end + 1 - pos_);
    return OkStatus();
  }

  Status Unescape(std::string_view raw, std::string& out) const {
    constexpr std::string_view kFrom = "abfnrtv\\'\"", kTo = "\a\b\f\n\r\t\v\\'\"";
    for (size_t i = 0; i < raw.size(); ++i) {
      if (raw[i] != '\\' || i + 1 >= raw.size()) {
        out += raw[i];
        continue;
      }
      const char c = raw[++i];
      const size_t known = kFrom.find(c);
      if (known != std::string_view::npos) {
        out += kTo[known];
      } else if (c == '\n') {
        continue;
      } else if (c == 'x' || c == 'u' || c == 'U') {
        const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        uint32_t code_point = 0;
        for (size_t d = 0; d < digits; ++d) {
          const std::string_view digit = raw.substr(std::min(raw.size(), i + 1 + d), 1);
          const size_t value = std::string_view("0123456789abcdef")
                                   .find(digit.empty() ? 'x' : static_cast<char>(digit[0] | 0x20));
          if (value >= 16 || (!IsDigit(digit[0]) && value < 10)) {
            return Error(StrCat("\\", c, " needs ", digits, " hexadecimal digits"));
          }
          code_point = code_point << 4 | static_cast<uint32_t>(value);
        }
        i += digits;
        if (code_point > 0x10FFFF || (code_point >= 0xD800 && code_point < 0xE000)) {
          return Error("an escape is no Unicode character");
        }
        AppendUtf8(code_point, out);
      } else if (IsDigit(c) || c == 'N') {
        return Unsupported("line ", line_, ": escape \\", c, " is not supported");
      } else {
        (out += '\\') += c;
      }
    }
    return OkStatus();
  }

  const std::string source_;
  size_t pos_ = 0;
  int line_ = 1;
  bool at_line_begin_ = true;  // the previous tag ended a line
  std::vector<Token> tokens_;
};

}  // namespace

Result<std::vector<Token>> Lex(std::string_view source) {
  return Lexer(source).Run();
}

}  // namespace tq::jinja
