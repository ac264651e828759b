#include "runtime/tokenizer/bpe_tokenizer.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <limits>
#include <unordered_set>
#include <utility>

#include "runtime/tokenizer/utf8.h"

namespace tq {
namespace {

// tokenizer.ggml.token_type.
enum TokenKind : int64_t { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4 };

// Bytes longer than this are merged in parts: positions have 32 bits.
constexpr size_t kMaxPieceBytes = size_t{1} << 30;
// Longer pieces are rarely met again, and more of them would only cost memory.
constexpr size_t kMaxCachedBytes = 64;
constexpr size_t kMaxCachedPieces = 1 << 17;

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

// The bytes that `text` stands for. A token with a character outside the alphabet was added to the
// vocabulary as it is.
std::string BytesOfToken(const std::string& text) {
  const std::vector<int16_t>& table = ByteOfCodePoint();
  std::string bytes;
  std::string_view rest = text;
  while (!rest.empty()) {
    const Utf8Char c = DecodeUtf8(rest);
    if (c.size == 0 || c.code_point >= table.size() || table[c.code_point] < 0) return text;
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

// A token id of the metadata; -1 when the key is absent.
Result<TokenId> SpecialId(const GgufFile& file, const std::string& key, int vocab_size) {
  if (!file.Has(key)) return TokenId{-1};
  TQ_ASSIGN_OR_RETURN(const int64_t id, file.GetInt(key));
  if (id < 0 || id >= vocab_size) {
    return DataLoss("'", key, "' is ", id, ", but the vocabulary has ", vocab_size, " tokens");
  }
  return static_cast<TokenId>(id);
}

}  // namespace

// --- MergeTable ---

void MergeTable::Reserve(size_t num_merges) {
  slots_.assign(std::bit_ceil(2 * num_merges + 1), Slot{});
}

size_t MergeTable::SlotOf(uint64_t key) const {
  const size_t mask = slots_.size() - 1;
  size_t i = static_cast<size_t>((key * 0x9E3779B97F4A7C15ull) >> 32) & mask;
  while (slots_[i].merge.rank >= 0 && slots_[i].key != key) i = (i + 1) & mask;
  return i;
}

void MergeTable::Add(TokenId left, TokenId right, Merge merge) {
  const uint64_t key = static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right);
  Slot& slot = slots_[SlotOf(key)];
  if (slot.merge.rank < 0) slot = {key, merge};
}

MergeTable::Merge MergeTable::Find(TokenId left, TokenId right) const {
  return slots_[SlotOf(static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right))].merge;
}

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

Result<std::unique_ptr<Tokenizer>> BpeTokenizer::FromGguf(const GgufFile& file) {
  std::unique_ptr<BpeTokenizer> tokenizer(new BpeTokenizer());
  if (!file.Has("tokenizer.ggml.pre")) {
    return Unsupported("'", file.path(), "' does not say which pre-tokenizer its vocabulary needs ",
                       "(tokenizer.ggml.pre); convert the model again with a newer converter");
  }
  TQ_ASSIGN_OR_RETURN(const std::string pre, file.GetString("tokenizer.ggml.pre"));
  TQ_ASSIGN_OR_RETURN(tokenizer->pre_tokenizer_, PreTokenizer::Create(pre));
  TQ_RETURN_IF_ERROR(tokenizer->LoadVocabulary(file));
  TQ_ASSIGN_OR_RETURN(const std::vector<std::string> merges,
                      file.GetStrings("tokenizer.ggml.merges"));
  TQ_RETURN_IF_ERROR(tokenizer->LoadMerges(merges));
  TQ_RETURN_IF_ERROR(tokenizer->LoadSpecials(file));
  tokenizer->description_ =
      StrCat("gpt2 byte-level BPE, pre-tokenizer ", pre, ", ", tokenizer->vocab_size_, " tokens");
  return std::unique_ptr<Tokenizer>(std::move(tokenizer));
}

Status BpeTokenizer::LoadVocabulary(const GgufFile& file) {
  TQ_ASSIGN_OR_RETURN(std::vector<std::string> texts, file.GetStrings("tokenizer.ggml.tokens"));
  if (texts.empty() || texts.size() > static_cast<size_t>(std::numeric_limits<TokenId>::max())) {
    return DataLoss("'tokenizer.ggml.tokens' has ", texts.size(), " tokens");
  }
  std::vector<int64_t> kinds(texts.size(), kNormal);
  if (file.Has("tokenizer.ggml.token_type")) {
    TQ_ASSIGN_OR_RETURN(kinds, file.GetInts("tokenizer.ggml.token_type"));
  }
  if (kinds.size() != texts.size()) {
    return DataLoss("'tokenizer.ggml.token_type' has ", kinds.size(), " entries for ", texts.size(),
                    " tokens");
  }
  vocab_size_ = static_cast<int>(texts.size());
  is_special_.resize(texts.size());
  bytes_.resize(texts.size());
  for (size_t i = 0; i < texts.size(); ++i) {
    const TokenId id = static_cast<TokenId>(i);
    is_special_[i] = kinds[i] == kControl || kinds[i] == kUnknown;
    if (is_special_[i] || kinds[i] == kUserDefined) {
      bytes_[i] = std::move(texts[i]);
      specials_.Add(bytes_[i], id, is_special_[i]);
    } else {
      bytes_[i] = BytesOfToken(texts[i]);
    }
  }
  // bytes_ does not move any more: the map may point into it.
  by_bytes_.reserve(bytes_.size());
  for (size_t i = 0; i < bytes_.size(); ++i) {
    if (!is_special_[i]) by_bytes_.emplace(bytes_[i], static_cast<TokenId>(i));
  }
  for (int b = 0; b < 256; ++b) {
    const char byte = static_cast<char>(b);
    const auto it = by_bytes_.find(std::string_view(&byte, 1));
    byte_tokens_[static_cast<size_t>(b)] = it == by_bytes_.end() ? -1 : it->second;
  }
  return OkStatus();
}

Status BpeTokenizer::LoadMerges(const std::vector<std::string>& merges) {
  merges_.Reserve(merges.size());
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const std::string& merge = merges[rank];
    const size_t space = merge.find(' ', 1);
    if (space == std::string::npos || space + 1 == merge.size()) {
      return DataLoss("merge ", rank, " of 'tokenizer.ggml.merges' is '", merge,
                      "'; two tokens with a space between them were expected");
    }
    const std::string left = BytesOfToken(merge.substr(0, space));
    const std::string right = BytesOfToken(merge.substr(space + 1));
    const auto l = by_bytes_.find(left), r = by_bytes_.find(right),
               whole = by_bytes_.find(left + right);
    if (l == by_bytes_.end() || r == by_bytes_.end() || whole == by_bytes_.end()) {
      return DataLoss("merge ", rank, " of 'tokenizer.ggml.merges' is '", merge, "', but ",
                      l == by_bytes_.end()   ? "its left part"
                      : r == by_bytes_.end() ? "its right part"
                                             : "its result",
                      " is not in the vocabulary");
    }
    merges_.Add(l->second, r->second, {static_cast<int32_t>(rank), whole->second});
  }
  return OkStatus();
}

Status BpeTokenizer::LoadSpecials(const GgufFile& file) {
  TQ_ASSIGN_OR_RETURN(bos_, SpecialId(file, "tokenizer.ggml.bos_token_id", vocab_size_));
  TQ_ASSIGN_OR_RETURN(eos_, SpecialId(file, "tokenizer.ggml.eos_token_id", vocab_size_));
  std::vector<TokenId> stops = {eos_};
  for (const char* key : {"tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"}) {
    TQ_ASSIGN_OR_RETURN(const TokenId id, SpecialId(file, key, vocab_size_));
    stops.push_back(id);
  }
  for (TokenId id = 0; id < vocab_size_; ++id) {
    if (IsSpecial(id) && EndsGeneration(bytes_[static_cast<size_t>(id)])) stops.push_back(id);
  }
  std::sort(stops.begin(), stops.end());
  stops.erase(std::unique(stops.begin(), stops.end()), stops.end());
  if (!stops.empty() && stops.front() < 0) stops.erase(stops.begin());
  stop_tokens_ = std::move(stops);

  add_bos_ = pre_tokenizer_->add_bos();
  if (file.Has("tokenizer.ggml.add_bos_token")) {
    TQ_ASSIGN_OR_RETURN(add_bos_, file.GetBool("tokenizer.ggml.add_bos_token"));
  }
  if (file.Has("tokenizer.chat_template")) {
    TQ_ASSIGN_OR_RETURN(chat_template_, file.GetString("tokenizer.chat_template"));
  }
  return OkStatus();
}

// --- Encoding ---

// Scratch of one call; the cache of pieces points into its text.
struct BpeTokenizer::Work {
  struct Symbol {
    TokenId token;
    int32_t previous, next;  // -1: none
  };
  std::vector<TokenId> ids;
  std::vector<std::string_view> pieces;
  std::vector<Symbol> symbols;
  std::vector<uint64_t> candidates;
  std::unordered_map<std::string_view, std::pair<size_t, size_t>> cache;  // range of cached_ids
  std::vector<TokenId> cached_ids;
};

std::vector<TokenId> BpeTokenizer::Encode(std::string_view text,
                                          const EncodeOptions& options) const {
  Work work;
  size_t pos = 0;
  if (options.add_bos && add_bos_ && bos_ >= 0) {
    const SpecialTokens::Match first = specials_.Find(text, 0, options.parse_special);
    const bool is_there = first.begin == 0 && first.id == bos_;
    if (!is_there) work.ids.push_back(bos_);
  }
  while (pos < text.size()) {
    const SpecialTokens::Match special = specials_.Find(text, pos, options.parse_special);
    EncodeText(text.substr(pos, special.begin - pos), work);
    if (special.id >= 0) work.ids.push_back(special.id);
    pos = special.begin + special.size;
  }
  return std::move(work.ids);
}

void BpeTokenizer::EncodeText(std::string_view text, Work& work) const {
  while (!text.empty()) {
    const size_t valid = ValidUtf8Prefix(text);
    work.pieces.clear();
    pre_tokenizer_->Split(text.substr(0, valid), work.pieces);
    for (const std::string_view piece : work.pieces) EncodePiece(piece, work);
    text.remove_prefix(valid);
    if (text.empty()) break;
    const TokenId byte = byte_tokens_[static_cast<uint8_t>(text[0])];
    if (byte >= 0) {
      work.ids.push_back(byte);
    } else {
      EncodePiece("\xEF\xBF\xBD", work);
    }
    text.remove_prefix(1);
  }
}

void BpeTokenizer::EncodePiece(std::string_view piece, Work& work) const {
  if (const auto hit = work.cache.find(piece); hit != work.cache.end()) {
    const auto [begin, count] = hit->second;
    for (size_t i = 0; i < count; ++i) work.ids.push_back(work.cached_ids[begin + i]);
    return;
  }
  const size_t first = work.ids.size();
  const auto whole = pre_tokenizer_->ignore_merges() ? by_bytes_.find(piece) : by_bytes_.end();
  if (whole != by_bytes_.end()) {
    work.ids.push_back(whole->second);
  } else {
    for (size_t pos = 0; pos < piece.size(); pos += kMaxPieceBytes) {
      MergePiece(piece.substr(pos, kMaxPieceBytes), work);
    }
  }
  if (piece.size() <= kMaxCachedBytes && work.cache.size() < kMaxCachedPieces) {
    work.cache[piece] = {work.cached_ids.size(), work.ids.size() - first};
    work.cached_ids.insert(work.cached_ids.end(), work.ids.begin() + static_cast<ptrdiff_t>(first),
                           work.ids.end());
  }
}

// Merges the pair of lowest rank, the leftmost of equals, until none is left. Candidates carry
// rank and position; one whose pair has changed meanwhile is recognized by its rank.
void BpeTokenizer::MergePiece(std::string_view piece, Work& work) const {
  auto& symbols = work.symbols;
  symbols.clear();
  for (const char c : piece) {
    // A byte without a token vanishes, as in the reference tokenizers.
    const TokenId token = byte_tokens_[static_cast<uint8_t>(c)];
    if (token < 0) continue;
    const int32_t i = static_cast<int32_t>(symbols.size());
    symbols.push_back({token, i - 1, i + 1});
  }
  if (symbols.empty()) return;
  symbols.back().next = -1;

  auto& heap = work.candidates;  // the least on top
  heap.clear();
  const auto merge_at = [&](int32_t left) {
    const Work::Symbol& symbol = symbols[static_cast<size_t>(left)];
    if (symbol.token < 0 || symbol.next < 0) return MergeTable::Merge{};
    return merges_.Find(symbol.token, symbols[static_cast<size_t>(symbol.next)].token);
  };
  const auto push = [&](int32_t left) {
    if (left < 0) return;
    const MergeTable::Merge merge = merge_at(left);
    if (merge.rank < 0) return;
    heap.push_back(static_cast<uint64_t>(merge.rank) << 32 | static_cast<uint32_t>(left));
    std::push_heap(heap.begin(), heap.end(), std::greater<>());
  };
  for (size_t i = 0; i + 1 < symbols.size(); ++i) push(static_cast<int32_t>(i));
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const uint64_t candidate = heap.back();
    heap.pop_back();
    const int32_t left = static_cast<int32_t>(candidate & 0xFFFFFFFFu);
    const MergeTable::Merge merge = merge_at(left);
    if (merge.rank != static_cast<int32_t>(candidate >> 32)) continue;
    Work::Symbol& symbol = symbols[static_cast<size_t>(left)];
    Work::Symbol& right = symbols[static_cast<size_t>(symbol.next)];
    symbol.token = merge.token;
    symbol.next = right.next;
    right.token = -1;
    if (symbol.next >= 0) symbols[static_cast<size_t>(symbol.next)].previous = left;
    push(symbol.previous);
    push(left);
  }
  for (int32_t i = 0; i >= 0; i = symbols[static_cast<size_t>(i)].next) {
    work.ids.push_back(symbols[static_cast<size_t>(i)].token);
  }
}

// --- Decoding ---

std::string BpeTokenizer::TokenBytes(TokenId id) const {
  return id >= 0 && id < vocab_size_ ? bytes_[static_cast<size_t>(id)] : std::string();
}

bool BpeTokenizer::IsSpecial(TokenId id) const {
  return id >= 0 && id < vocab_size_ && is_special_[static_cast<size_t>(id)] != 0;
}

}  // namespace tq
