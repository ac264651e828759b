#define PCRE2_CODE_UNIT_WIDTH 8
#include "runtime/tokenizer/pre_tokenizer.h"

#include <pcre2.h>

#include <cstdint>

#include "runtime/formats/pre_patterns.h"

namespace tq {
namespace {

// Unicode's White_Space, which is what \s means to the reference tokenizers, for use inside a
// character class. PCRE2's own \s also takes U+180E.
constexpr std::string_view kWhite =
    R"(\t-\r \x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";

// An expression of tokenizer.json in PCRE2's words.
Result<std::string> Translate(std::string_view expression) {
  std::string out;
  bool in_class = false;
  for (size_t i = 0; i < expression.size(); ++i) {
    const char c = expression[i];
    if (c == '\\' && i + 1 < expression.size()) {
      const char next = expression[++i];
      if (next == 's') {
        out += in_class ? std::string(kWhite) : StrCat("[", kWhite, "]");
      } else if (next == 'S') {
        if (in_class) return Unsupported("\\S inside a character class");
        out += StrCat("[^", kWhite, "]");
      } else {
        out += c;
        out += next;
      }
      continue;
    }
    if (c == '[' && !in_class) in_class = true;
    if (c == ']') in_class = false;
    out += c;
  }
  return out;
}

struct FreeMatchData {
  void operator()(pcre2_match_data* p) const { pcre2_match_data_free(p); }
};
struct FreeMatchContext {
  void operator()(pcre2_match_context* p) const { pcre2_match_context_free(p); }
};

}  // namespace

class PreTokenizer::Pattern {
 public:
  // Null when `expression` is not one.
  static std::unique_ptr<Pattern> Compile(const std::string& expression) {
    int error = 0;
    PCRE2_SIZE offset = 0;
    pcre2_code* code =
        pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expression.c_str()), expression.size(),
                      PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &offset, nullptr);
    return code == nullptr ? nullptr : std::unique_ptr<Pattern>(new Pattern(code));
  }
  Pattern(const Pattern&) = delete;
  Pattern& operator=(const Pattern&) = delete;
  ~Pattern() { pcre2_code_free(code_); }

  // Matches are pieces, and so is what lies between them.
  void Split(std::string_view text, std::vector<std::string_view>& pieces) const {
    const std::unique_ptr<pcre2_match_data, FreeMatchData> match(
        pcre2_match_data_create(1, nullptr));
    TQ_CHECK(match != nullptr);
    const PCRE2_SIZE* range = pcre2_get_ovector_pointer(match.get());
    size_t from = 0, pos = 0;
    while (pos < text.size() && Match(text, pos, match.get())) {
      if (range[1] <= range[0]) {  // an empty match cuts nothing
        pos = range[0] + 1;
        while (pos < text.size() && (static_cast<uint8_t>(text[pos]) & 0xC0) == 0x80) ++pos;
        continue;
      }
      if (range[0] > from) pieces.push_back(text.substr(from, range[0] - from));
      pieces.push_back(text.substr(range[0], range[1] - range[0]));
      from = pos = range[1];
    }
    if (from < text.size()) pieces.push_back(text.substr(from));
  }

 private:
  explicit Pattern(pcre2_code* code) : code_(code) {
    // Where just-in-time code is not allowed, the interpreter gives the same matches.
    has_jit_ = pcre2_jit_compile(code_, PCRE2_JIT_COMPLETE) == 0;
    context_.reset(pcre2_match_context_create(nullptr));
    TQ_CHECK(context_ != nullptr);
    pcre2_set_heap_limit(context_.get(), UINT32_MAX);
  }

  bool Match(std::string_view text, size_t pos, pcre2_match_data* match) const {
    const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
    int rc = PCRE2_ERROR_JIT_STACKLIMIT;
    if (has_jit_) rc = pcre2_jit_match(code_, subject, text.size(), pos, 0, match, nullptr);
    if (rc < 0 && rc != PCRE2_ERROR_NOMATCH) {
      rc = pcre2_match(code_, subject, text.size(), pos, PCRE2_NO_JIT | PCRE2_NO_UTF_CHECK, match,
                       context_.get());
    }
    // An expression of a file may need more steps than PCRE2 allows; the text then stays whole.
    return rc >= 0;
  }

  pcre2_code* code_ = nullptr;
  std::unique_ptr<pcre2_match_context, FreeMatchContext> context_;
  bool has_jit_ = false;
};

PreTokenizer::~PreTokenizer() = default;

Result<std::unique_ptr<PreTokenizer>> PreTokenizer::Create(const std::string& name) {
  std::string known;
  for (const PrePattern& pattern : PrePatterns()) {
    for (const char* candidate : NamesOf(pattern)) {
      known += (known.empty() ? "" : ", ") + std::string(candidate);
      if (name != candidate) continue;
      const std::span<const char* const> regex = RegexOf(pattern);
      TQ_ASSIGN_OR_RETURN(std::unique_ptr<PreTokenizer> result,
                          FromRegex({regex.begin(), regex.end()}));
      result->ignore_merges_ = pattern.ignore_merges;
      result->add_bos_ = pattern.add_bos;
      result->nfc_ = pattern.nfc;
      return result;
    }
  }
  return Unsupported("pre-tokenizer '", name, "' is not supported; supported: ", known);
}

Result<std::unique_ptr<PreTokenizer>> PreTokenizer::FromRegex(
    const std::vector<std::string>& expressions) {
  std::unique_ptr<PreTokenizer> result(new PreTokenizer());
  for (const std::string& expression : expressions) {
    const Result<std::string> translated = Translate(expression);
    std::unique_ptr<Pattern> pattern;
    if (translated.ok()) pattern = Pattern::Compile(*translated);
    if (pattern == nullptr) {
      return Unsupported("the expression '", expression,
                         "' of the pre-tokenizer is not understood");
    }
    result->stages_.push_back(std::move(pattern));
  }
  return result;
}

void PreTokenizer::Split(std::string_view text, std::vector<std::string_view>& pieces) const {
  if (text.empty()) return;
  if (stages_.empty()) {
    pieces.push_back(text);
    return;
  }
  std::vector<std::string_view> coarse = {text};
  for (size_t stage = 0; stage + 1 < stages_.size(); ++stage) {
    std::vector<std::string_view> fine;
    for (const std::string_view piece : coarse) stages_[stage]->Split(piece, fine);
    coarse = std::move(fine);
  }
  for (const std::string_view piece : coarse) stages_.back()->Split(piece, pieces);
}

}  // namespace tq
