#include "runtime/tokenizer/vocabulary.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>
#include <unordered_set>
#include <utility>

#include "runtime/tokenizer/utf8.h"

namespace tq {
namespace {

// The byte alphabet: printable Latin-1 characters stand for themselves, the other 68 bytes are
// U+0100 and up, in order.
const std::vector<int16_t>& ByteOfCodePoint() {
  static const std::vector<int16_t> kTable = [] {
    std::vector<int16_t> table(0x100 + 68, -1);
    size_t next = 0x100;
    for (int b = 0; b < 256; ++b) {
      const bool printable = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
      table[printable ? static_cast<size_t>(b) : next++] = static_cast<int16_t>(b);
    }
    return table;
  }();
  return kTable;
}

// Nothing when a character is not in the alphabet: such a token was added as it is.
std::optional<std::string> DecodeByteAlphabet(const std::string& text) {
  const std::vector<int16_t>& table = ByteOfCodePoint();
  std::string bytes;
  std::string_view rest = text;
  while (!rest.empty()) {
    const Utf8Char c = DecodeUtf8(rest);
    if (c.size == 0 || c.code_point >= table.size() || table[c.code_point] < 0) return {};
    bytes.push_back(static_cast<char>(table[c.code_point]));
    rest.remove_prefix(static_cast<size_t>(c.size));
  }
  return bytes;
}

// Texts of tokens that end a turn or a document, in the families that are met in practice.
bool EndsGeneration(std::string_view text) {
  static const std::unordered_set<std::string_view> kTexts = {
      "<|endoftext|>", "<|end_of_text|>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>",
      "<|end|>",       "<end_of_turn>",   "<|return|>", "<|call|>",   "<EOT>",
      "</s>",          "<eos>",           "[EOT]",      "[EOS]",      "<end_of_utterance>",
  };
  return kTexts.count(text) != 0;
}

// The byte of "<0x0A>"; -1: the text is no such token.
int ByteOfToken(const std::string& text) {
  if (text.size() != 6 || !text.starts_with("<0x") || text[5] != '>') return -1;
  int byte = -1;
  const auto [end, error] = std::from_chars(text.data() + 3, text.data() + 5, byte, 16);
  return error == std::errc() && end == text.data() + 5 ? byte : -1;
}

// A token id of the metadata; -1 when the key is absent.
Result<TokenId> SpecialId(const GgufFile& file, const std::string& key, int vocab_size) {
  if (!file.Has(key)) return TokenId{-1};
  TQ_ASSIGN_OR_RETURN(const int64_t id, file.GetInt(key));
  if (id < 0 || id >= vocab_size) {
    return DataLoss("'", key, "' is ", id, ", but the vocabulary has ", vocab_size, " tokens");
  }
  return static_cast<TokenId>(id);
}

// Bytes of whitespace at the beginning (or end) of a text.
size_t WhitespaceBytes(std::string_view text, bool at_end) {
  size_t size = 0;
  while (size < text.size()) {
    size_t begin = size;
    if (at_end) {
      begin = text.size() - size - 1;
      while (begin > 0 && (static_cast<uint8_t>(text[begin]) & 0xC0) == 0x80) --begin;
    }
    const Utf8Char c = DecodeUtf8(text.substr(begin));
    if (c.size == 0 || !IsWhiteSpace(c.code_point)) break;
    if (at_end && begin + static_cast<size_t>(c.size) + size != text.size()) break;
    size += static_cast<size_t>(c.size);
  }
  return size;
}

}  // namespace

// --- SpecialTokens ---

void SpecialTokens::Add(std::string_view text, TokenId id, bool control) {
  if (text.empty()) return;
  begins_[static_cast<uint8_t>(text[0])] = true;
  size_t node = 0;
  for (const char c : text) {
    const auto [it, inserted] = nodes_[node].next.emplace(c, nodes_.size());
    node = it->second;
    if (inserted) nodes_.emplace_back();
  }
  if (nodes_[node].id >= 0) return;  // the first of two equal texts
  nodes_[node].id = id;
  nodes_[node].control = control;
}

SpecialTokens::Match SpecialTokens::Find(std::string_view text, size_t from,
                                         bool with_control) const {
  for (size_t begin = from; begin < text.size(); ++begin) {
    if (!begins_[static_cast<uint8_t>(text[begin])]) continue;
    Match longest;
    size_t node = 0;
    for (size_t end = begin; end < text.size(); ++end) {
      const auto it = nodes_[node].next.find(text[end]);
      if (it == nodes_[node].next.end()) break;
      node = it->second;
      const Node& n = nodes_[node];
      if (n.id >= 0 && (with_control || !n.control)) longest = {begin, end + 1 - begin, n.id};
    }
    if (longest.id >= 0) return longest;
  }
  return {text.size(), 0, -1};
}

// --- Loading ---

std::string VocabularyTokenizer::Decoded(const std::string& text, Spelling spelling) {
  return spelling == Spelling::kByteAlphabet ? DecodeByteAlphabet(text).value_or(text)
                                             : BlanksFromMeta(text);
}

size_t VocabularyTokenizer::WordEnd(std::string_view text, size_t begin) {
  const size_t word = text.find_first_not_of(' ', begin);
  return std::min(text.find(' ', std::min(word, text.size())), text.size());
}

Status VocabularyTokenizer::LoadTokens(const GgufFile& file, Spelling spelling) {
  TQ_ASSIGN_OR_RETURN(std::vector<std::string> texts, file.GetStrings("tokenizer.ggml.tokens"));
  if (texts.empty() || texts.size() > static_cast<size_t>(std::numeric_limits<TokenId>::max())) {
    return DataLoss("'tokenizer.ggml.tokens' has ", texts.size(), " tokens");
  }
  std::vector<int64_t> kinds(texts.size(), static_cast<int64_t>(TokenKind::kNormal));
  if (file.Has("tokenizer.ggml.token_type")) {
    TQ_ASSIGN_OR_RETURN(kinds, file.GetInts("tokenizer.ggml.token_type"));
  }
  if (kinds.size() != texts.size()) {
    return DataLoss("'tokenizer.ggml.token_type' has ", kinds.size(), " entries for ", texts.size(),
                    " tokens");
  }
  vocab_size_ = static_cast<int>(texts.size());
  bytes_.resize(texts.size());
  kinds_.resize(texts.size());
  byte_tokens_.fill(-1);
  std::vector<bool> as_it_is(texts.size());
  for (size_t i = 0; i < texts.size(); ++i) {
    const TokenId id = static_cast<TokenId>(i);
    // What is no kind is a normal token.
    const bool is_known = kinds[i] >= 1 && kinds[i] <= 6;
    kinds_[i] = is_known ? static_cast<TokenKind>(kinds[i]) : TokenKind::kNormal;
    const int byte = kinds_[i] == TokenKind::kByte ? ByteOfToken(texts[i]) : -1;
    if (byte >= 0) {
      bytes_[i] = std::string(1, static_cast<char>(byte));
      TokenId& token = byte_tokens_[static_cast<size_t>(byte)];
      if (token < 0) token = id;
    } else if (IsSpecial(id) || kinds_[i] == TokenKind::kUserDefined) {
      specials_.Add(texts[i], id, IsSpecial(id));
      bytes_[i] = spelling == Spelling::kMetaBlanks && !IsSpecial(id) ? BlanksFromMeta(texts[i])
                                                                      : std::move(texts[i]);
    } else {
      as_it_is[i] = spelling == Spelling::kByteAlphabet && !DecodeByteAlphabet(texts[i]);
      bytes_[i] = Decoded(texts[i], spelling);
    }
  }
  // bytes_ does not move any more: the map may point into it.
  by_bytes_.reserve(bytes_.size());
  for (const bool spelled : {true, false}) {  // a token in the alphabet goes before one as it is
    for (size_t i = 0; i < bytes_.size(); ++i) {
      const bool is_text = kinds_[i] == TokenKind::kNormal || kinds_[i] == TokenKind::kUserDefined;
      const bool is_unused = kinds_[i] == TokenKind::kUnused && spelling == Spelling::kByteAlphabet;
      if ((is_text || is_unused) && spelled != as_it_is[i]) {
        by_bytes_.emplace(bytes_[i], static_cast<TokenId>(i));
      }
    }
  }
  if (spelling == Spelling::kMetaBlanks) {
    words_are_apart_ = by_bytes_.count(" ") != 0 &&
                       std::none_of(by_bytes_.begin(), by_bytes_.end(), [](const auto& token) {
                         return WordEnd(token.first, 0) < token.first.size();
                       });
    return OkStatus();
  }
  for (int b = 0; b < 256; ++b) {
    const char byte = static_cast<char>(b);
    const auto it = by_bytes_.find(std::string_view(&byte, 1));
    byte_tokens_[static_cast<size_t>(b)] = it == by_bytes_.end() ? -1 : it->second;
  }
  return OkStatus();
}

Status VocabularyTokenizer::LoadSpecials(const GgufFile& file, bool add_bos) {
  TQ_ASSIGN_OR_RETURN(bos_, SpecialId(file, "tokenizer.ggml.bos_token_id", vocab_size_));
  TQ_ASSIGN_OR_RETURN(eos_, SpecialId(file, "tokenizer.ggml.eos_token_id", vocab_size_));
  std::vector<TokenId> stops = {eos_};
  for (const char* key : {"tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"}) {
    TQ_ASSIGN_OR_RETURN(const TokenId id, SpecialId(file, key, vocab_size_));
    stops.push_back(id);
  }
  if (file.Has("tokenizer.tq.stop_token_ids")) {
    TQ_ASSIGN_OR_RETURN(const std::vector<int64_t> ids,
                        file.GetInts("tokenizer.tq.stop_token_ids"));
    for (const int64_t id : ids) {
      if (id < 0 || id >= vocab_size_) {
        return DataLoss("'tokenizer.tq.stop_token_ids' has ", id, ", but the vocabulary has ",
                        vocab_size_, " tokens");
      }
      stops.push_back(static_cast<TokenId>(id));
    }
  }
  for (TokenId id = 0; id < vocab_size_; ++id) {
    if (IsSpecial(id) && EndsGeneration(bytes_[static_cast<size_t>(id)])) stops.push_back(id);
  }
  std::sort(stops.begin(), stops.end());
  stops.erase(std::unique(stops.begin(), stops.end()), stops.end());
  if (!stops.empty() && stops.front() < 0) stops.erase(stops.begin());
  stop_tokens_ = std::move(stops);

  begins_with_blank_ = normalizer_.adds_prefix();
  add_bos_ = add_bos;
  if (file.Has("tokenizer.ggml.add_bos_token")) {
    TQ_ASSIGN_OR_RETURN(add_bos_, file.GetBool("tokenizer.ggml.add_bos_token"));
  }
  if (file.Has("tokenizer.tq.strip")) {
    TQ_ASSIGN_OR_RETURN(const std::vector<int64_t> strip, file.GetInts("tokenizer.tq.strip"));
    if (strip.size() != bytes_.size()) {
      return DataLoss("'tokenizer.tq.strip' has ", strip.size(), " entries for ", bytes_.size(),
                      " tokens");
    }
    for (const int64_t sides : strip) strip_.push_back(static_cast<uint8_t>(sides & 3));
  } else if (const auto arch = file.GetString("general.architecture");
             arch.ok() && *arch == "phi3") {
    // Its tokenizer.json says so, its GGUF files do not.
    strip_.resize(bytes_.size());
    for (size_t i = 0; i < bytes_.size(); ++i) {
      const bool keeps = bytes_[i] == "<s>" || bytes_[i] == "<|endoftext|>" || bytes_[i] == "<unk>";
      strip_[i] = kinds_[i] == TokenKind::kControl && !keeps ? 2 : 0;
      if (bytes_[i] == "</s>") strip_[i] = 2;
    }
  }
  if (file.Has("tokenizer.chat_template")) {
    TQ_ASSIGN_OR_RETURN(chat_template_, file.GetString("tokenizer.chat_template"));
  }
  return OkStatus();
}

// --- Encoding and decoding ---

std::vector<TokenId> VocabularyTokenizer::Encode(std::string_view text,
                                                 const EncodeOptions& options) const {
  std::vector<TokenId> ids;
  if (options.add_bos && add_bos_ && bos_ >= 0) {
    const SpecialTokens::Match first = specials_.Find(text, 0, options.parse_special);
    const bool is_there = first.begin == 0 && first.id == bos_;
    if (!is_there) ids.push_back(bos_);
  }
  std::vector<Segment> segments;
  for (size_t pos = 0; pos < text.size();) {
    const SpecialTokens::Match special = specials_.Find(text, pos, options.parse_special);
    std::string_view before = text.substr(pos, special.begin - pos);
    const size_t end = special.begin + special.size;
    const uint8_t strip = special.id >= 0 && !strip_.empty() ? strip_[special.id] : 0;
    if ((strip & 1) != 0) before.remove_suffix(WhitespaceBytes(before, /*at_end=*/true));
    if (!before.empty()) segments.push_back({before, -1, pos == 0});
    if (special.id >= 0) segments.push_back({{}, special.id, false});
    pos = end;
    if ((strip & 2) != 0) pos += WhitespaceBytes(text.substr(end), /*at_end=*/false);
  }
  EncodeSegments(segments, ids);
  return ids;
}

std::string VocabularyTokenizer::TokenBytes(TokenId id) const {
  return id >= 0 && id < vocab_size_ ? bytes_[static_cast<size_t>(id)] : std::string();
}

bool VocabularyTokenizer::IsSpecial(TokenId id) const {
  if (id < 0 || id >= vocab_size_) return false;
  const TokenKind kind = kinds_[static_cast<size_t>(id)];
  return kind == TokenKind::kControl || kind == TokenKind::kUnknown;
}

}  // namespace tq
