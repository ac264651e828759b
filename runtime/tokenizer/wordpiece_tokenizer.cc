// The steps are those of BertNormalizer, BertPreTokenizer and WordPiece of Hugging Face tokenizers.
#include "runtime/tokenizer/wordpiece_tokenizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <utility>

#include "runtime/tokenizer/utf8.h"

namespace tq {
namespace {

constexpr std::string_view kGoesOn = "##";

utf8proc_category_t Category(uint32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

bool IsRemoved(uint32_t c) {
  if (c == 0 || c == kReplacementChar) return true;
  if (c == '\t' || c == '\n' || c == '\r') return false;
  const utf8proc_category_t category = Category(c);
  return category == UTF8PROC_CATEGORY_CC || category == UTF8PROC_CATEGORY_CF ||
         category == UTF8PROC_CATEGORY_CO;
}

// Ideographs are words of their own.
bool IsIdeograph(uint32_t c) {
  static constexpr std::pair<uint32_t, uint32_t> kRanges[] = {
      {0x3400, 0x4DBF},   {0x4E00, 0x9FFF},   {0xF900, 0xFAFF},   {0x20000, 0x2A6DF},
      {0x2A700, 0x2B73F}, {0x2B740, 0x2B81F}, {0x2B920, 0x2CEAF}, {0x2F800, 0x2FA1F},
  };
  return std::any_of(std::begin(kRanges), std::end(kRanges),
                     [c](const auto& range) { return c >= range.first && c <= range.second; });
}

bool IsPunctuation(uint32_t c) {
  if (c < 0x80) {
    return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') ||
           (c >= '{' && c <= '~');
  }
  const utf8proc_category_t category = Category(c);
  return category >= UTF8PROC_CATEGORY_PC && category <= UTF8PROC_CATEGORY_PO;
}

std::string Cleaned(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const Utf8Char c = DecodeUtf8(text);
    if (c.size == 0) {  // no character
      text.remove_prefix(1);
      continue;
    }
    text.remove_prefix(static_cast<size_t>(c.size));
    if (IsRemoved(c.code_point)) continue;
    if (IsWhiteSpace(c.code_point)) {
      out += ' ';
    } else if (IsIdeograph(c.code_point)) {
      out += ' ';
      AppendUtf8(c.code_point, out);
      out += ' ';
    } else {
      AppendUtf8(c.code_point, out);
    }
  }
  return out;
}

}  // namespace

WordPieceTokenizer::WordPieceTokenizer() : decompose_(TextNormalizer::Nfd()) {}

Result<std::unique_ptr<WordPieceTokenizer>> WordPieceTokenizer::FromVocabulary(
    const std::string& vocabulary, const std::string& name) {
  std::unique_ptr<WordPieceTokenizer> t(new WordPieceTokenizer());
  for (size_t pos = 0; pos < vocabulary.size();) {
    const size_t end = std::min(vocabulary.find('\n', pos), vocabulary.size());
    size_t size = end - pos;
    if (size > 0 && vocabulary[end - 1] == '\r') --size;
    if (size == 0) return DataLoss("'", name, "': line ", t->tokens_.size() + 1, " is empty");
    t->tokens_.push_back(vocabulary.substr(pos, size));
    pos = end + 1;
  }
  for (size_t id = 0; id < t->tokens_.size(); ++id) {
    const auto [first, is_new] = t->ids_.emplace(t->tokens_[id], static_cast<TokenId>(id));
    if (!is_new) {
      return DataLoss("'", name, "': lines ", first->second + 1, " and ", id + 1, " are both '",
                      t->tokens_[id], "'");
    }
  }
  const auto find = [&](const char* text) {
    const auto it = t->ids_.find(text);
    if (it == t->ids_.end()) return TokenId{-1};
    t->specials_.Add(text, it->second, /*control=*/true);
    t->special_ids_.push_back(it->second);
    return it->second;
  };
  t->unknown_ = find("[UNK]");
  t->bos_ = find("[CLS]");
  t->eos_ = find("[SEP]");
  for (const auto& [text, id] : {std::pair<const char*, TokenId>{"[UNK]", t->unknown_},
                                 {"[CLS]", t->bos_},
                                 {"[SEP]", t->eos_}}) {
    if (id < 0) {
      return DataLoss("'", name, "' has ", t->tokens_.size(), " tokens, but no ", text,
                      "; a vocab.txt of a BERT model has one");
    }
  }
  find("[PAD]");
  find("[MASK]");
  t->vocab_size_ = static_cast<int>(t->tokens_.size());
  t->stop_tokens_ = {t->eos_};
  t->begins_with_blank_ = true;
  t->description_ = "WordPiece";
  return t;
}

std::vector<TokenId> WordPieceTokenizer::Encode(std::string_view text,
                                                const EncodeOptions& options) const {
  std::vector<TokenId> ids;
  if (options.add_bos) ids.push_back(bos_);
  for (size_t pos = 0; pos < text.size();) {
    const SpecialTokens::Match special = specials_.Find(text, pos, options.parse_special);
    EncodeText(text.substr(pos, special.begin - pos), ids);
    if (special.id >= 0) ids.push_back(special.id);
    pos = special.begin + special.size;
  }
  if (options.add_bos) ids.push_back(eos_);
  return ids;
}

void WordPieceTokenizer::EncodeText(std::string_view text, std::vector<TokenId>& ids) const {
  const std::string decomposed = decompose_.Normalize(Cleaned(text), /*first=*/false);
  std::u32string word;
  const auto flush = [&] {
    if (!word.empty()) EncodeWord(word, ids);
    word.clear();
  };
  for (std::string_view rest = decomposed; !rest.empty();) {
    const Utf8Char c = DecodeUtf8(rest);
    TQ_CHECK(c.size > 0);
    rest.remove_prefix(static_cast<size_t>(c.size));
    if (Category(c.code_point) == UTF8PROC_CATEGORY_MN) continue;  // accents
    if (IsWhiteSpace(c.code_point)) {
      flush();
      continue;
    }
    const auto lower =
        static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c.code_point)));
    const bool alone = IsPunctuation(lower);
    if (alone) flush();
    word.push_back(lower);
    if (alone) flush();
  }
  flush();
}

void WordPieceTokenizer::EncodeWord(const std::u32string& word, std::vector<TokenId>& ids) const {
  const size_t first = ids.size();
  if (word.size() > kMaxWordChars) {
    ids.push_back(unknown_);
    return;
  }
  for (size_t pos = 0; pos < word.size();) {
    // Ends of what begins here, character by character, so that the longest is tried first.
    std::string piece(pos == 0 ? "" : kGoesOn);
    std::vector<size_t> ends;
    for (size_t i = pos; i < word.size(); ++i) {
      AppendUtf8(word[i], piece);
      ends.push_back(piece.size());
    }
    auto found = ids_.end();
    while (!ends.empty() && found == ids_.end()) {
      found = ids_.find(std::string_view(piece).substr(0, ends.back()));
      if (found == ids_.end()) ends.pop_back();
    }
    if (found == ids_.end()) {  // the whole word is unknown
      ids.resize(first);
      ids.push_back(unknown_);
      return;
    }
    ids.push_back(found->second);
    pos += ends.size();
  }
}

std::string WordPieceTokenizer::TokenBytes(TokenId id) const {
  if (id < 0 || id >= vocab_size_) return {};
  const std::string& token = tokens_[static_cast<size_t>(id)];
  if (IsSpecial(id)) return token;
  return ContinuesWord(id) ? token.substr(kGoesOn.size()) : " " + token;
}

bool WordPieceTokenizer::IsSpecial(TokenId id) const {
  return std::find(special_ids_.begin(), special_ids_.end(), id) != special_ids_.end();
}

bool WordPieceTokenizer::ContinuesWord(TokenId id) const {
  return id >= 0 && id < vocab_size_ && tokens_[static_cast<size_t>(id)].size() > kGoesOn.size() &&
         tokens_[static_cast<size_t>(id)].starts_with(kGoesOn);
}

}  // namespace tq
