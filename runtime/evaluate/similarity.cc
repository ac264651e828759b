#include "runtime/evaluate/similarity.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "turboquant/base/file.h"
#include "turboquant/base/json_object.h"
#include "turboquant/base/numeric.h"

namespace tq {
namespace {

// Cased vocabularies need another normalization.
Status CheckUncased(const std::string& folder) {
  const std::string path = folder + "/tokenizer_config.json";
  if (!FileExists(path)) return OkStatus();
  TQ_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  TQ_ASSIGN_OR_RETURN(const nlohmann::json json, ParseJsonObject(text, path));
  TQ_ASSIGN_OR_RETURN(const std::optional<bool> lower,
                      JsonObject(json, path).Bool("do_lower_case"));
  if (lower.value_or(true)) return OkStatus();
  return Unsupported("'", path, "' says do_lower_case: false; only uncased encoders are read, as ",
                     "all-MiniLM-L6-v2 is");
}

bool HasWords(std::string_view text) {
  return text.find_first_not_of(" \t\r\n") != std::string_view::npos;
}

}  // namespace

Result<std::unique_ptr<TextEmbedder>> TextEmbedder::Load(const std::string& folder,
                                                         ThreadPool& pool) {
  std::unique_ptr<TextEmbedder> embedder(new TextEmbedder());
  TQ_RETURN_IF_ERROR(CheckUncased(folder));
  const std::string path = folder + "/vocab.txt";
  TQ_ASSIGN_OR_RETURN(const std::string vocabulary, ReadFile(path));
  TQ_ASSIGN_OR_RETURN(embedder->tokenizer_, WordPieceTokenizer::FromVocabulary(vocabulary, path));
  TQ_ASSIGN_OR_RETURN(embedder->encoder_, BertEncoder::Load(folder, pool));
  const BertEncoder& encoder = *embedder->encoder_;
  if (embedder->tokenizer_->vocab_size() != encoder.vocab_size()) {
    return InvalidArgument("'", path, "' has ", embedder->tokenizer_->vocab_size(),
                           " tokens, the encoder beside it ", encoder.vocab_size());
  }
  if (encoder.max_tokens() < 4) {
    return InvalidArgument("the encoder in '", folder, "' reads ", encoder.max_tokens(),
                           " tokens; at least 4 are needed");
  }
  return embedder;
}

Result<std::vector<float>> TextEmbedder::Embed(std::string_view text) const {
  const std::vector<TokenId> ids =
      tokenizer_->Encode(text, {.add_bos = false, .parse_special = false});
  const size_t room = static_cast<size_t>(std::min(kPieceTokens, encoder_->max_tokens())) - 2;
  std::vector<bool> goes_on;
  for (const TokenId id : ids) goes_on.push_back(tokenizer_->ContinuesWord(id));
  std::vector<double> mean(static_cast<size_t>(encoder_->dim()), 0.0);
  size_t begin = 0;
  for (const size_t end : EndsOfPieces(goes_on, room)) {
    std::vector<TokenId> tokens = {tokenizer_->bos()};
    tokens.insert(tokens.end(), ids.begin() + begin, ids.begin() + end);
    tokens.push_back(tokenizer_->eos());
    TQ_ASSIGN_OR_RETURN(const std::vector<float> vector, encoder_->Encode(tokens));
    if (begin == 0 && end == ids.size()) return vector;
    for (size_t i = 0; i < mean.size(); ++i) {
      mean[i] += static_cast<double>(end - begin) * vector[i];
    }
    begin = end;
  }
  double square = 0;
  for (const double x : mean) square += x * x;
  if (square == 0) return DataLoss("the pieces of a text of ", ids.size(), " tokens cancel out");
  std::vector<float> vector(mean.size());
  for (size_t i = 0; i < mean.size(); ++i) {
    vector[i] = static_cast<float>(mean[i] / std::sqrt(square));
  }
  return vector;
}

Result<double> TextEmbedder::Similarity(std::string_view a, std::string_view b) const {
  if (a == b) return 1.0;
  if (HasWords(a) != HasWords(b)) return 0.0;
  TQ_ASSIGN_OR_RETURN(const std::vector<float> va, Embed(a));
  TQ_ASSIGN_OR_RETURN(const std::vector<float> vb, Embed(b));
  return CosineOfUnitVectors(va, vb);
}

std::vector<size_t> EndsOfPieces(const std::vector<bool>& goes_on, size_t room) {
  TQ_CHECK(room > 0);
  const size_t n = goes_on.size();
  const size_t num_pieces = std::max<size_t>(1, DivCeil(n, room));
  std::vector<size_t> ends;
  // Cuts that move back to the beginning of a word can make a piece more.
  for (size_t begin = 0; begin < n || ends.empty();) {
    const size_t left = ends.size() < num_pieces ? num_pieces - ends.size() : 1;
    size_t end = begin + std::min(room, DivCeil(n - begin, left));
    size_t word = end;
    while (word < n && word > begin && goes_on[word]) --word;
    if (word > begin) end = word;  // else one word fills the piece
    ends.push_back(end);
    begin = end;
  }
  return ends;
}

double CosineOfUnitVectors(std::span<const float> a, std::span<const float> b) {
  TQ_CHECK(a.size() == b.size());
  if (std::equal(a.begin(), a.end(), b.begin())) return 1;
  double dot = 0;
  for (size_t i = 0; i < a.size(); ++i) dot += static_cast<double>(a[i]) * b[i];
  return std::clamp(dot, -1.0, 1.0);
}

}  // namespace tq
