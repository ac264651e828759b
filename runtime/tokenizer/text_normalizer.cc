#include "runtime/tokenizer/text_normalizer.h"

#include <utf8proc.h>

#include <cstdlib>
#include <cstring>
#include <memory>

#include "runtime/tokenizer/utf8.h"

namespace tq {
namespace {

constexpr std::string_view kMeta = "\xE2\x96\x81";  // U+2581

std::string ApplyForm(std::string_view text, int options) {
  utf8proc_uint8_t* out = nullptr;
  const utf8proc_ssize_t size = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                             static_cast<utf8proc_ssize_t>(text.size()), &out,
                                             static_cast<utf8proc_option_t>(options));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(out, std::free);
  if (size < 0) return std::string(text);  // not UTF-8: as it is
  return {reinterpret_cast<const char*>(out), static_cast<size_t>(size)};
}

bool IsAscii(std::string_view text) {
  for (const char c : text) {
    if (static_cast<uint8_t>(c) >= 0x80) return false;
  }
  return true;
}

}  // namespace

bool IsWhiteSpace(uint32_t c) {
  return (c >= 9 && c <= 13) || c == ' ' || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

bool IsLetter(uint32_t c) {
  const utf8proc_category_t category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}

bool IsUpperCase(uint32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c)) == UTF8PROC_CATEGORY_LU;
}

std::string BlanksFromMeta(std::string_view text) {
  std::string out;
  for (size_t pos = 0; pos < text.size();) {
    const bool is_meta = text.substr(pos, kMeta.size()) == kMeta;
    out += is_meta ? ' ' : text[pos];
    pos += is_meta ? kMeta.size() : 1;
  }
  return out;
}

TextNormalizer TextNormalizer::Nfc() {
  TextNormalizer normalizer;
  normalizer.form_ = Form::kNfc;
  return normalizer;
}

TextNormalizer TextNormalizer::Nfd() {
  TextNormalizer normalizer;
  normalizer.form_ = Form::kNfd;
  return normalizer;
}

Result<TextNormalizer> TextNormalizer::FromGguf(const GgufFile& file) {
  TextNormalizer n;
  TQ_ASSIGN_OR_RETURN(const std::string model, file.GetString("tokenizer.ggml.model"));
  n.meta_blanks_ = model != "gpt2";
  const auto flag = [&](const char* key, bool fallback) {
    return file.Has(key) ? file.GetBool(key) : Result<bool>(fallback);
  };
  if (n.meta_blanks_) {
    TQ_ASSIGN_OR_RETURN(const bool prefix,
                        flag("tokenizer.ggml.add_space_prefix", model != "gemma4"));
    if (prefix) n.prefix_ = Prefix::kAlways;
    TQ_ASSIGN_OR_RETURN(const bool extra, flag("tokenizer.ggml.remove_extra_whitespaces", false));
    n.collapse_ = n.lstrip_ = n.rstrip_ = extra;
  }
  if (file.Has("tokenizer.ggml.precompiled_charsmap")) {
    TQ_ASSIGN_OR_RETURN(const std::vector<int64_t> map,
                        file.GetInts("tokenizer.ggml.precompiled_charsmap"));
    TQ_RETURN_IF_ERROR(n.LoadCharsMap(map));
  }
  n.meta_first_ = !file.Has("tokenizer.tq.normalizer");
  if (n.meta_first_) return n;
  TQ_ASSIGN_OR_RETURN(const std::vector<std::string> words,
                      file.GetStrings("tokenizer.tq.normalizer"));
  for (const std::string& word : words) {
    if (word == "nfc")
      n.form_ = Form::kNfc;
    else if (word == "nfd")
      n.form_ = Form::kNfd;
    else if (word == "nfkc")
      n.form_ = Form::kNfkc;
    else if (word == "nfkd")
      n.form_ = Form::kNfkd;
    else if (word == "white")
      n.white_ = true;
    else if (word == "collapse")
      n.collapse_ = true;
    else if (word == "lstrip")
      n.lstrip_ = true;
    else if (word == "rstrip")
      n.rstrip_ = true;
    else if (word == "split_words")
      n.split_words_ = true;
    else if (word == "prefix_missing")
      n.prefix_ = Prefix::kMissing;
    else if (word == "prefix_first")
      n.prefix_ = Prefix::kFirst;
    else
      return Unsupported("'", word, "' of 'tokenizer.tq.normalizer' is not known");
  }
  return n;
}

Status TextNormalizer::LoadCharsMap(const std::vector<int64_t>& values) {
  if (values.empty()) return OkStatus();
  std::string bytes;
  for (const int64_t value : values) bytes.push_back(static_cast<char>(value));
  uint32_t trie_bytes = 0;
  if (bytes.size() >= 4) std::memcpy(&trie_bytes, bytes.data(), 4);
  if (bytes.size() < 4 || trie_bytes % 4 != 0 || trie_bytes > bytes.size() - 4) {
    return DataLoss("'tokenizer.ggml.precompiled_charsmap' has ", bytes.size(),
                    " bytes, which do not hold the trie of ", trie_bytes, " that they begin with");
  }
  trie_.resize(trie_bytes / 4);
  std::memcpy(trie_.data(), bytes.data() + 4, trie_bytes);
  replacements_ = bytes.substr(4 + trie_bytes);
  replacements_.push_back('\0');
  return OkStatus();
}

bool TextNormalizer::is_identity() const {
  return form_ == Form::kNone && prefix_ == Prefix::kNever && !white_ && !collapse_ && !lstrip_ &&
         !rstrip_ && trie_.empty() && !meta_blanks_;
}

// A unit of the trie, as darts-clone lays it out: bits 10 and up (times 2^8 when bit 9 is set) lead
// to its children, bit 8 says that a value follows, the low 8 bits are the byte that leads here.
std::string TextNormalizer::MapCharacters(std::string_view text) const {
  std::string out;
  while (!text.empty()) {
    size_t longest = 0, value = 0, node = 0;
    uint32_t unit = trie_.empty() ? 0 : trie_[0];
    node = (unit >> 10) << ((unit & (1u << 9)) >> 6);
    for (size_t i = 0; i < text.size() && !trie_.empty(); ++i) {
      const uint32_t byte = static_cast<uint8_t>(text[i]);
      node ^= byte;
      if (node >= trie_.size()) break;
      unit = trie_[node];
      if ((unit & 0x800000FFu) != byte) break;
      node ^= (unit >> 10) << ((unit & (1u << 9)) >> 6);
      if ((unit >> 8 & 1) == 0) continue;
      if (node >= trie_.size()) break;
      longest = i + 1;
      value = trie_[node] & 0x7FFFFFFFu;
    }
    if (longest > 0 && value < replacements_.size()) {
      out += replacements_.c_str() + value;
    } else {
      const Utf8Char c = DecodeUtf8(text);
      longest = c.size == 0 ? 1 : static_cast<size_t>(c.size);
      out += text.substr(0, longest);
    }
    text.remove_prefix(longest);
  }
  return out;
}

std::string TextNormalizer::Normalize(std::string_view text, bool first) const {
  std::string out(text);
  if (form_ != Form::kNone && !IsAscii(out)) {
    const bool compose = form_ == Form::kNfc || form_ == Form::kNfkc;
    const bool compatible = form_ == Form::kNfkc || form_ == Form::kNfkd;
    out = ApplyForm(out, UTF8PROC_STABLE | (compose ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) |
                             (compatible ? UTF8PROC_COMPAT : 0));
  }
  if (!trie_.empty()) out = MapCharacters(out);
  if (meta_blanks_ && meta_first_) out = BlanksFromMeta(out);
  if (white_) {
    std::string blank;
    for (std::string_view rest = out; !rest.empty();) {
      const Utf8Char c = DecodeUtf8(rest);
      const size_t size = c.size == 0 ? 1 : static_cast<size_t>(c.size);
      blank += c.size > 0 && IsWhiteSpace(c.code_point) ? " " : rest.substr(0, size);
      rest.remove_prefix(size);
    }
    out = std::move(blank);
  }
  if (collapse_) {
    std::string shorter;
    for (const char c : out) {
      if (c != ' ' || shorter.empty() || shorter.back() != ' ') shorter += c;
    }
    out = std::move(shorter);
  }
  if (lstrip_) out.erase(0, std::min(out.find_first_not_of(' '), out.size()));
  if (rstrip_) out.erase(out.find_last_not_of(' ') + 1);
  if (meta_blanks_) out = BlanksFromMeta(out);
  if (out.empty()) return out;
  const bool prefix = prefix_ == Prefix::kAlways ||
                      (prefix_ == Prefix::kMissing && out[0] != ' ') ||
                      (prefix_ == Prefix::kFirst && first && out[0] != ' ');
  return prefix ? " " + out : out;
}

}  // namespace tq
