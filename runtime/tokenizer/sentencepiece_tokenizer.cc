#include "runtime/tokenizer/sentencepiece_tokenizer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <unordered_map>
#include <utility>

#include "runtime/tokenizer/utf8.h"

namespace tq {
namespace {

// What an unknown character costs more than the worst token, as in SentencePiece.
constexpr double kUnknownPenalty = 10;

size_t CharacterSize(std::string_view text) {
  const Utf8Char c = DecodeUtf8(text);
  return c.size == 0 ? 1 : static_cast<size_t>(c.size);
}

}  // namespace

Result<std::unique_ptr<Tokenizer>> SentencePieceTokenizer::FromGguf(const GgufFile& file) {
  std::unique_ptr<SentencePieceTokenizer> tokenizer(new SentencePieceTokenizer());
  TQ_ASSIGN_OR_RETURN(const std::string model, file.GetString("tokenizer.ggml.model"));
  tokenizer->unigram_ = std::string_view(model) == "t5";
  TQ_ASSIGN_OR_RETURN(tokenizer->normalizer_, TextNormalizer::FromGguf(file));
  TQ_RETURN_IF_ERROR(tokenizer->LoadTokens(file, Spelling::kMetaBlanks));
  TQ_RETURN_IF_ERROR(tokenizer->LoadScores(file));
  TQ_RETURN_IF_ERROR(tokenizer->LoadSpecials(file, /*add_bos=*/!tokenizer->unigram_));
  tokenizer->description_ = StrCat("SentencePiece ", tokenizer->unigram_ ? "unigram" : "BPE", ", ",
                                   tokenizer->vocab_size_, " tokens");
  return std::unique_ptr<Tokenizer>(std::move(tokenizer));
}

Status SentencePieceTokenizer::LoadScores(const GgufFile& file) {
  TQ_ASSIGN_OR_RETURN(const std::vector<double> scores, file.GetFloats("tokenizer.ggml.scores"));
  if (scores.size() != bytes_.size()) {
    return DataLoss("'tokenizer.ggml.scores' has ", scores.size(), " entries for ", bytes_.size(),
                    " tokens");
  }
  for (const double score : scores) {
    if (!std::isfinite(score)) return DataLoss("'tokenizer.ggml.scores' has a score of ", score);
  }
  scores_ = scores;
  double_sums_ = file.Has("tokenizer.tq.normalizer");  // it comes from a tokenizer.json
  if (file.Has("tokenizer.ggml.unknown_token_id")) {
    TQ_ASSIGN_OR_RETURN(const int64_t unknown, file.GetInt("tokenizer.ggml.unknown_token_id"));
    if (unknown < 0 || unknown >= vocab_size_) {
      return DataLoss("'tokenizer.ggml.unknown_token_id' is ", unknown, ", but the vocabulary has ",
                      vocab_size_, " tokens");
    }
    unknown_ = static_cast<TokenId>(unknown);
  } else {
    const auto it = std::find(kinds_.begin(), kinds_.end(), TokenKind::kUnknown);
    if (it != kinds_.end()) unknown_ = static_cast<TokenId>(it - kinds_.begin());
  }
  std::vector<TokenId> order(scores_.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](TokenId a, TokenId b) { return scores_[a] > scores_[b]; });
  ranks_.resize(order.size());
  for (size_t i = 0; i < order.size(); ++i) {
    const bool equal = i > 0 && scores_[order[i]] == scores_[order[i - 1]];
    ranks_[order[i]] = equal ? ranks_[order[i - 1]] : static_cast<int32_t>(i);
  }
  if (!unigram_) return OkStatus();
  double worst = 0;
  for (const auto& [text, token] : by_bytes_) {
    if (text.empty()) continue;
    sorted_.push_back(token);
    worst = std::min(worst, scores_[token]);
  }
  std::sort(sorted_.begin(), sorted_.end(),
            [&](TokenId a, TokenId b) { return bytes_[a] < bytes_[b]; });
  unknown_score_ = worst - kUnknownPenalty;
  return OkStatus();
}

void SentencePieceTokenizer::EncodeSegments(const std::vector<Segment>& segments,
                                            std::vector<TokenId>& ids) const {
  MergeLoop loop;
  for (const Segment& segment : segments) {
    if (segment.special >= 0) {
      ids.push_back(segment.special);
      continue;
    }
    const std::string text = normalizer_.Normalize(segment.text, segment.first);
    // Words met before: where their ids begin, and how many they are.
    std::unordered_map<std::string_view, std::pair<size_t, size_t>> known;
    for (size_t begin = 0; begin < text.size();) {
      size_t end = std::min(text.size(), begin + kMaxPieceBytes);
      // Pieces begin at blanks.
      if (normalizer_.split_words()) end = std::min(text.find(' ', begin + 1), end);
      const bool by_word = !unigram_ && words_are_apart_;
      if (by_word) end = std::min(WordEnd(text, begin), end);
      const std::string_view piece = std::string_view(text).substr(begin, end - begin);
      if (by_word) {
        const auto [word, fresh] = known.try_emplace(piece, ids.size(), 0);
        auto& [first, count] = word->second;
        if (fresh) {
          MergeByScore(piece, loop, ids);
          count = ids.size() - first;
        } else {
          for (size_t i = 0; i < count; ++i) ids.push_back(ids[first + i]);
        }
      } else if (!unigram_) {
        MergeByScore(piece, loop, ids);
      } else {
        double_sums_ ? BestCut<double>(piece, ids) : BestCut<float>(piece, ids);
      }
      begin = end;
    }
  }
}

void SentencePieceTokenizer::MergeByScore(std::string_view text, MergeLoop& loop,
                                          std::vector<TokenId>& ids) const {
  loop.Clear();
  for (size_t pos = 0; pos < text.size();) {
    const size_t size = CharacterSize(text.substr(pos));
    const auto it = by_bytes_.find(text.substr(pos, size));
    loop.Add(it == by_bytes_.end() ? -1 : it->second, pos, size);
    pos += size;
  }
  loop.Run([&](const MergeSymbol& left, const MergeSymbol& right) {
    const auto it = by_bytes_.find(text.substr(left.begin, left.size + right.size));
    return it == by_bytes_.end() ? MergeStep{} : MergeStep{ranks_[it->second], it->second};
  });
  bool after_unknown = false;
  loop.ForEach([&](const MergeSymbol& symbol) {
    if (symbol.token >= 0) {
      ids.push_back(symbol.token);
    } else {
      AddUnknown(text.substr(symbol.begin, symbol.size), after_unknown, ids);
    }
    after_unknown = symbol.token < 0;
  });
}

template <typename Real>
void SentencePieceTokenizer::BestCut(std::string_view text, std::vector<TokenId>& ids) const {
  struct Step {
    Real score = -std::numeric_limits<Real>::infinity();
    size_t begin = 0;
    TokenId token = -1;  // -1: an unknown character
  };
  std::vector<Step> best(text.size() + 1);
  best[0].score = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t character = CharacterSize(text.substr(begin));
    bool single = false;  // the character itself is a token
    const auto reach = [&](size_t end, Real score, TokenId token) {
      const Real sum = best[begin].score + score;
      if (sum > best[end].score) best[end] = {sum, begin, token};
    };
    // Tokens that begin here: the range of sorted_ narrows byte by byte.
    auto low = sorted_.begin(), high = sorted_.end();
    for (size_t size = 0; begin + size < text.size(); ++size) {
      const auto byte = static_cast<uint8_t>(text[begin + size]);
      low = std::partition_point(low, high, [&](TokenId t) {
        return bytes_[t].size() <= size || static_cast<uint8_t>(bytes_[t][size]) < byte;
      });
      high = std::partition_point(
          low, high, [&](TokenId t) { return static_cast<uint8_t>(bytes_[t][size]) <= byte; });
      if (low == high) break;
      if (bytes_[*low].size() != size + 1) continue;
      const TokenId token = *low;
      // User-defined tokens always win, as in SentencePiece.
      const Real score = kinds_[token] == TokenKind::kUserDefined
                             ? static_cast<Real>(0.1) * static_cast<Real>(size + 1)
                             : static_cast<Real>(scores_[token]);
      reach(begin + size + 1, score, token);
      single = single || size + 1 == character;
    }
    if (!single) reach(begin + character, static_cast<Real>(unknown_score_), -1);
    begin += character;
  }
  std::vector<Step> path;
  for (size_t end = text.size(); end > 0; end = path.back().begin) path.push_back(best[end]);
  size_t end = 0;
  for (size_t i = path.size(); i-- > 0;) {
    const size_t begin = end;
    end = i > 0 ? path[i - 1].begin : text.size();
    if (path[i].token >= 0) {
      ids.push_back(path[i].token);
    } else {
      AddUnknown(text.substr(begin, end - begin), i + 1 < path.size() && path[i + 1].token < 0,
                 ids);
    }
  }
}

void SentencePieceTokenizer::AddUnknown(std::string_view characters, bool fuse,
                                        std::vector<TokenId>& ids) const {
  const bool bytes_exist = std::all_of(characters.begin(), characters.end(), [&](char c) {
    return byte_tokens_[static_cast<uint8_t>(c)] >= 0;
  });
  if (bytes_exist) {
    for (const char c : characters) ids.push_back(byte_tokens_[static_cast<uint8_t>(c)]);
  } else if (unknown_ >= 0 && !fuse) {
    ids.push_back(unknown_);
  }
}

}  // namespace tq
