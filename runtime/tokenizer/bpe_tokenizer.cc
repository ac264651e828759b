#include "runtime/tokenizer/bpe_tokenizer.h"

#include <bit>
#include <unordered_map>
#include <utility>

#include "runtime/tokenizer/utf8.h"

namespace tq {
namespace {

// Longer pieces are rarely met again, and more of them would only cost memory.
constexpr size_t kMaxCachedBytes = 64;
constexpr size_t kMaxCachedPieces = 1 << 17;

}  // namespace

// --- MergeTable ---

void MergeTable::Reserve(size_t num_merges) {
  slots_.assign(std::bit_ceil(2 * num_merges + 1), Slot{});
}

size_t MergeTable::SlotOf(uint64_t key) const {
  const size_t mask = slots_.size() - 1;
  size_t i = static_cast<size_t>((key * 0x9E3779B97F4A7C15ull) >> 32) & mask;
  while (slots_[i].step.rank >= 0 && slots_[i].key != key) i = (i + 1) & mask;
  return i;
}

void MergeTable::Add(TokenId left, TokenId right, MergeStep step) {
  const uint64_t key = static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right);
  Slot& slot = slots_[SlotOf(key)];
  if (slot.step.rank < 0) slot = {key, step};
}

MergeStep MergeTable::Find(TokenId left, TokenId right) const {
  return slots_[SlotOf(static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right))].step;
}

// --- Loading ---

Result<std::unique_ptr<Tokenizer>> BpeTokenizer::FromGguf(const GgufFile& file) {
  std::unique_ptr<BpeTokenizer> tokenizer(new BpeTokenizer());
  TQ_ASSIGN_OR_RETURN(const std::string model, file.GetString("tokenizer.ggml.model"));
  const bool byte_level = model == "gpt2";
  std::string pre;
  if (byte_level) {
    if (!file.Has("tokenizer.ggml.pre")) {
      return Unsupported("'", file.path(),
                         "' does not say which pre-tokenizer its vocabulary needs ",
                         "(tokenizer.ggml.pre); convert the model again with a newer converter");
    }
    TQ_ASSIGN_OR_RETURN(pre, file.GetString("tokenizer.ggml.pre"));
    if (file.Has("tokenizer.tq.pre_regex")) {
      TQ_ASSIGN_OR_RETURN(const std::vector<std::string> regex,
                          file.GetStrings("tokenizer.tq.pre_regex"));
      TQ_ASSIGN_OR_RETURN(tokenizer->pre_tokenizer_, PreTokenizer::FromRegex(regex));
    } else {
      TQ_ASSIGN_OR_RETURN(tokenizer->pre_tokenizer_, PreTokenizer::Create(pre));
    }
    tokenizer->ignore_merges_ = tokenizer->pre_tokenizer_->ignore_merges();
    if (file.Has("tokenizer.tq.ignore_merges")) {
      TQ_ASSIGN_OR_RETURN(tokenizer->ignore_merges_, file.GetBool("tokenizer.tq.ignore_merges"));
    }
  }
  TQ_ASSIGN_OR_RETURN(tokenizer->normalizer_, TextNormalizer::FromGguf(file));
  if (byte_level && tokenizer->pre_tokenizer_->nfc() && !file.Has("tokenizer.tq.normalizer")) {
    tokenizer->normalizer_ = TextNormalizer::Nfc();
  }
  const Spelling spelling = byte_level ? Spelling::kByteAlphabet : Spelling::kMetaBlanks;
  TQ_RETURN_IF_ERROR(tokenizer->LoadTokens(file, spelling));
  TQ_ASSIGN_OR_RETURN(const std::vector<std::string> merges,
                      file.GetStrings("tokenizer.ggml.merges"));
  TQ_RETURN_IF_ERROR(tokenizer->LoadMerges(merges, spelling));
  if (!byte_level && file.Has("tokenizer.ggml.unknown_token_id")) {
    TQ_ASSIGN_OR_RETURN(const int64_t unknown, file.GetInt("tokenizer.ggml.unknown_token_id"));
    if (unknown >= 0 && unknown < tokenizer->vocab_size_) {
      tokenizer->unknown_ = static_cast<TokenId>(unknown);
    }
  }
  TQ_RETURN_IF_ERROR(
      tokenizer->LoadSpecials(file, byte_level ? tokenizer->pre_tokenizer_->add_bos() : true));
  tokenizer->description_ =
      byte_level ? StrCat("gpt2 byte-level BPE, pre-tokenizer ", pre, ", ", tokenizer->vocab_size_,
                          " tokens")
                 : StrCat(model, " BPE by characters, ", tokenizer->vocab_size_, " tokens");
  return std::unique_ptr<Tokenizer>(std::move(tokenizer));
}

Status BpeTokenizer::LoadMerges(const std::vector<std::string>& merges, Spelling spelling) {
  merges_.Reserve(merges.size());
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const std::string& merge = merges[rank];
    const size_t space = merge.find(' ', 1);
    if (space == std::string::npos || space + 1 == merge.size()) {
      return DataLoss("merge ", rank, " of 'tokenizer.ggml.merges' is '", merge,
                      "'; two tokens with a space between them were expected");
    }
    const std::string left = Decoded(merge.substr(0, space), spelling);
    const std::string right = Decoded(merge.substr(space + 1), spelling);
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

// --- Encoding ---

// Scratch of one call; the cache of pieces points into its text.
struct BpeTokenizer::Work {
  std::vector<TokenId>& ids;
  std::vector<std::string_view> pieces;
  MergeLoop loop;
  std::unordered_map<std::string_view, std::pair<size_t, size_t>> cache;  // range of cached_ids
  std::vector<TokenId> cached_ids;
};

void BpeTokenizer::EncodeSegments(const std::vector<Segment>& segments,
                                  std::vector<TokenId>& ids) const {
  Work work = {ids, {}, {}, {}, {}};
  const bool as_is = normalizer_.is_identity();
  std::vector<std::string> texts;  // the cache points into them
  texts.reserve(segments.size());
  for (const Segment& segment : segments) {
    if (segment.special >= 0) {
      ids.push_back(segment.special);
      continue;
    }
    if (as_is) {
      EncodeText(segment.text, work);
    } else {
      texts.push_back(normalizer_.Normalize(segment.text, segment.first));
      EncodeText(texts.back(), work);
    }
  }
}

void BpeTokenizer::EncodeText(std::string_view text, Work& work) const {
  while (!text.empty()) {
    const size_t valid = ValidUtf8Prefix(text);
    if (pre_tokenizer_ != nullptr) {
      work.pieces.clear();
      pre_tokenizer_->Split(text.substr(0, valid), work.pieces);
      for (const std::string_view piece : work.pieces) EncodePiece(piece, work);
    } else if (normalizer_.split_words() || words_are_apart_) {
      for (size_t begin = 0; begin < valid;) {
        const size_t end = normalizer_.split_words() ? std::min(text.find(' ', begin + 1), valid)
                                                     : WordEnd(text.substr(0, valid), begin);
        EncodePiece(text.substr(begin, end - begin), work);
        begin = end;
      }
    } else {
      for (size_t pos = 0; pos < valid; pos += kMaxPieceBytes) {
        MergeCharacters(text.substr(pos, std::min(kMaxPieceBytes, valid - pos)), work);
      }
    }
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
  const auto whole = ignore_merges_ ? by_bytes_.find(piece) : by_bytes_.end();
  if (whole != by_bytes_.end()) {
    work.ids.push_back(whole->second);
  } else {
    for (size_t pos = 0; pos < piece.size(); pos += kMaxPieceBytes) {
      const std::string_view part = piece.substr(pos, kMaxPieceBytes);
      pre_tokenizer_ != nullptr ? MergePiece(part, work) : MergeCharacters(part, work);
    }
  }
  if (piece.size() <= kMaxCachedBytes && work.cache.size() < kMaxCachedPieces) {
    work.cache[piece] = {work.cached_ids.size(), work.ids.size() - first};
    work.cached_ids.insert(work.cached_ids.end(), work.ids.begin() + static_cast<ptrdiff_t>(first),
                           work.ids.end());
  }
}

void BpeTokenizer::MergePiece(std::string_view piece, Work& work) const {
  MergeLoop& loop = work.loop;
  loop.Clear();
  for (size_t i = 0; i < piece.size(); ++i) {
    // A byte without a token vanishes, as in the reference tokenizers.
    const TokenId token = byte_tokens_[static_cast<uint8_t>(piece[i])];
    if (token >= 0) loop.Add(token, i, 1);
  }
  loop.Run([&](const MergeSymbol& left, const MergeSymbol& right) {
    return merges_.Find(left.token, right.token);
  });
  loop.ForEach([&](const MergeSymbol& symbol) { work.ids.push_back(symbol.token); });
}

void BpeTokenizer::MergeCharacters(std::string_view piece, Work& work) const {
  MergeLoop& loop = work.loop;
  loop.Clear();
  for (size_t pos = 0; pos < piece.size();) {
    const Utf8Char c = DecodeUtf8(piece.substr(pos));
    const size_t size = c.size == 0 ? 1 : static_cast<size_t>(c.size);
    const std::string_view character = piece.substr(pos, size);
    const auto it = by_bytes_.find(character);
    bool bytes_exist = it == by_bytes_.end();
    for (const char b : character) {
      bytes_exist = bytes_exist && byte_tokens_[static_cast<uint8_t>(b)] >= 0;
    }
    if (bytes_exist) {
      for (size_t i = 0; i < size; ++i) {
        loop.Add(byte_tokens_[static_cast<uint8_t>(piece[pos + i])], pos + i, 1);
      }
    } else {
      loop.Add(it == by_bytes_.end() ? unknown_ : it->second, pos, size);
    }
    pos += size;
  }
  loop.Run([&](const MergeSymbol& left, const MergeSymbol& right) {
    return merges_.Find(left.token, right.token);
  });
  TokenId last = -1;
  loop.ForEach([&](const MergeSymbol& symbol) {
    // Unknown characters side by side are one unknown token.
    if (symbol.token >= 0 && (symbol.token != unknown_ || last != unknown_)) {
      work.ids.push_back(symbol.token);
    }
    last = symbol.token;
  });
}

}  // namespace tq
