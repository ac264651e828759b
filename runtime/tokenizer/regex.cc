#include "runtime/tokenizer/regex.h"

#include <cstdint>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace tq {

struct Regex::Code {
  ~Code() {
    pcre2_match_context_free(context);
    pcre2_code_free(code);
  }
  pcre2_code* code = nullptr;
  pcre2_match_context* context = nullptr;
  bool has_jit = false;
};

struct Regex::Match::Data {
  ~Data() { pcre2_match_data_free(data); }
  pcre2_match_data* data = nullptr;
};

Regex::Regex(std::unique_ptr<Code> code) : code_(std::move(code)) {}
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;
Regex::~Regex() = default;
Regex::Match::Match(std::unique_ptr<Data> data) : data_(std::move(data)) {}
Regex::Match::Match(Match&&) noexcept = default;
Regex::Match::~Match() = default;

Result<Regex> Regex::Compile(const std::string& expression) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  auto code = std::make_unique<Code>();
  code->code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expression.data()), expression.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &offset, nullptr);
  if (code->code == nullptr) {
    char message[160] = "";
    pcre2_get_error_message(error, reinterpret_cast<PCRE2_UCHAR*>(message), sizeof message);
    return InvalidArgument("the expression '", expression, "' is not understood at character ",
                           offset, ": ", message);
  }
  // Where just-in-time code is not allowed, the interpreter gives the same matches.
  code->has_jit = pcre2_jit_compile(code->code, PCRE2_JIT_COMPLETE) == 0;
  code->context = pcre2_match_context_create(nullptr);
  TQ_CHECK(code->context != nullptr);
  pcre2_set_heap_limit(code->context, UINT32_MAX);
  return Regex(std::move(code));
}

Regex::Match Regex::MakeMatch() const {
  auto data = std::make_unique<Match::Data>();
  data->data = pcre2_match_data_create_from_pattern(code_->code, nullptr);
  TQ_CHECK(data->data != nullptr);
  return Match(std::move(data));
}

Regex::Found Regex::Search(std::string_view text, size_t pos, Match* match) const {
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  pcre2_match_data* data = match->data_->data;
  int rc = PCRE2_ERROR_JIT_STACKLIMIT;
  if (code_->has_jit) {
    rc = pcre2_jit_match(code_->code, subject, text.size(), pos, 0, data, nullptr);
  }
  if (rc < 0 && rc != PCRE2_ERROR_NOMATCH) {
    rc = pcre2_match(code_->code, subject, text.size(), pos, PCRE2_NO_JIT | PCRE2_NO_UTF_CHECK,
                     data, code_->context);
  }
  return rc >= 0 ? Found::kYes : rc == PCRE2_ERROR_NOMATCH ? Found::kNo : Found::kGaveUp;
}

size_t Regex::num_groups() const {
  uint32_t count = 0;
  pcre2_pattern_info(code_->code, PCRE2_INFO_CAPTURECOUNT, &count);
  return count;
}

size_t Regex::Match::begin() const {
  return pcre2_get_ovector_pointer(data_->data)[0];
}

size_t Regex::Match::end() const {
  return pcre2_get_ovector_pointer(data_->data)[1];
}

std::string_view Regex::Match::group(size_t i, std::string_view text) const {
  if (i >= pcre2_get_ovector_count(data_->data)) return {};
  const PCRE2_SIZE* range = pcre2_get_ovector_pointer(data_->data) + 2 * i;
  if (range[0] == PCRE2_UNSET || range[1] <= range[0]) return {};
  return text.substr(range[0], range[1] - range[0]);
}

}  // namespace tq
