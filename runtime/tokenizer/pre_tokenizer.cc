#define PCRE2_CODE_UNIT_WIDTH 8
#include "runtime/tokenizer/pre_tokenizer.h"

#include <pcre2.h>

#include <cstdint>

namespace tq {
namespace {

// Unicode's White_Space, which is what \s means to the reference tokenizers, for use inside a
// character class. PCRE2's own \s also takes U+180E.
const std::string kWhite =
    R"(\t-\r \x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";
// Whitespace before a word leaves its last blank to the word.
const std::string kBlanks = "[" + kWhite + "]+(?![^" + kWhite + "])|[" + kWhite + "]+";

const std::string kDigit = R"(\p{N})";
const std::string kGpt2 =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^)" + kWhite + R"(\p{L}\p{N}]+|)" + kBlanks;

// Llama 3 and Qwen 2 differ only in how many digits make a piece.
std::string Llama3(const std::string& digits) {
  return R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|)" + digits + "| ?[^" + kWhite +
         R"(\p{L}\p{N}]+[\r\n]*|[)" + kWhite + R"(]*[\r\n]+|)" + kBlanks;
}
const std::string kLlama3 = Llama3(R"(\p{N}{1,3})");
const std::string kQwen2 = Llama3(R"(\p{N})");

struct Kind {
  const char* name;
  std::vector<std::string> stages;
  bool ignore_merges;
  bool add_bos;
};

const std::vector<Kind>& Kinds() {
  static const std::vector<Kind> kKinds = {
      {"gpt-2", {kGpt2}, false, false},
      {"smollm", {kDigit, kGpt2}, false, false},
      {"llama-bpe", {kLlama3}, true, true},
      {"llama3", {kLlama3}, true, true},
      {"llama-v3", {kLlama3}, true, true},
      {"qwen2", {kQwen2}, false, false},
      {"deepseek-r1-qwen", {kQwen2}, false, false},
  };
  return kKinds;
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
  explicit Pattern(const std::string& expression) {
    int error = 0;
    PCRE2_SIZE offset = 0;
    code_ = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expression.c_str()), expression.size(),
                          PCRE2_UTF | PCRE2_UCP, &error, &offset, nullptr);
    TQ_CHECK(code_ != nullptr);
    // Where just-in-time code is not allowed, the interpreter gives the same matches.
    has_jit_ = pcre2_jit_compile(code_, PCRE2_JIT_COMPLETE) == 0;
    context_.reset(pcre2_match_context_create(nullptr));
    TQ_CHECK(context_ != nullptr);
    pcre2_set_match_limit(context_.get(), UINT32_MAX);
    pcre2_set_depth_limit(context_.get(), UINT32_MAX);
    pcre2_set_heap_limit(context_.get(), UINT32_MAX);
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
    size_t pos = 0;
    while (pos < text.size() && Match(text, pos, match.get())) {
      if (range[0] > pos) pieces.push_back(text.substr(pos, range[0] - pos));
      TQ_CHECK(range[1] > range[0]);
      pieces.push_back(text.substr(range[0], range[1] - range[0]));
      pos = range[1];
    }
    if (pos < text.size()) pieces.push_back(text.substr(pos));
  }

 private:
  bool Match(std::string_view text, size_t pos, pcre2_match_data* match) const {
    const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
    int rc = PCRE2_ERROR_JIT_STACKLIMIT;
    if (has_jit_) rc = pcre2_jit_match(code_, subject, text.size(), pos, 0, match, nullptr);
    if (rc < 0 && rc != PCRE2_ERROR_NOMATCH) {
      rc = pcre2_match(code_, subject, text.size(), pos, PCRE2_NO_JIT | PCRE2_NO_UTF_CHECK, match,
                       context_.get());
    }
    TQ_CHECK(rc >= 0 || rc == PCRE2_ERROR_NOMATCH);
    return rc >= 0;
  }

  pcre2_code* code_ = nullptr;
  std::unique_ptr<pcre2_match_context, FreeMatchContext> context_;
  bool has_jit_ = false;
};

PreTokenizer::~PreTokenizer() = default;

Result<std::unique_ptr<PreTokenizer>> PreTokenizer::Create(const std::string& name) {
  std::string known;
  for (const Kind& kind : Kinds()) {
    known += (known.empty() ? "" : ", ") + std::string(kind.name);
    if (name != kind.name) continue;
    std::unique_ptr<PreTokenizer> result(new PreTokenizer());
    for (const std::string& stage : kind.stages) {
      result->stages_.push_back(std::make_unique<Pattern>(stage));
    }
    result->ignore_merges_ = kind.ignore_merges;
    result->add_bos_ = kind.add_bos;
    return result;
  }
  return Unsupported("pre-tokenizer '", name, "' is not supported; supported: ", known);
}

void PreTokenizer::Split(std::string_view text, std::vector<std::string_view>& pieces) const {
  if (text.empty()) return;
  std::vector<std::string_view> coarse = {text};
  for (size_t stage = 0; stage + 1 < stages_.size(); ++stage) {
    std::vector<std::string_view> fine;
    for (const std::string_view piece : coarse) stages_[stage]->Split(piece, fine);
    coarse = std::move(fine);
  }
  for (const std::string_view piece : coarse) stages_.back()->Split(piece, pieces);
}

}  // namespace tq
