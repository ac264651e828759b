#include "runtime/tokenizer/tokenizer.h"

#include <algorithm>

#include "runtime/tokenizer/bpe_tokenizer.h"
#include "runtime/tokenizer/sentencepiece_tokenizer.h"
#include "runtime/tokenizer/utf8.h"

namespace tq {

Result<std::unique_ptr<Tokenizer>> Tokenizer::FromGguf(const GgufFile& file) {
  const Result<std::string> found = file.GetString("tokenizer.ggml.model");
  if (found.status().code() == StatusCode::kNotFound) {
    return NotFound(found.status().message(),
                    "; a Hugging Face folder needs a tokenizer.json, which ",
                    "save_pretrained of a fast tokenizer of transformers writes");
  }
  TQ_RETURN_IF_ERROR(found.status());
  const std::string& model = *found;
  // A list of merges decides where there is one; scores do not tell ties apart.
  if (model == "gpt2" || model == "gemma4" ||
      (model == "llama" && file.Has("tokenizer.ggml.merges"))) {
    return BpeTokenizer::FromGguf(file);
  }
  if (model == "llama" || model == "t5") return SentencePieceTokenizer::FromGguf(file);
  return Unsupported("tokenizer model '", model,
                     "' is not supported; supported: gpt2, llama, gemma4, t5");
}

std::string Tokenizer::Decode(const std::vector<TokenId>& ids, bool skip_special) const {
  std::string text;
  for (const TokenId id : ids) {
    if (!skip_special || !IsSpecial(id)) text += TokenBytes(id);
  }
  if (begins_with_blank_ && !text.empty() && text[0] == ' ') text.erase(0, 1);
  return text;
}

bool Tokenizer::IsStop(TokenId id) const {
  return std::find(stop_tokens_.begin(), stop_tokens_.end(), id) != stop_tokens_.end();
}

std::string Tokenizer::Describe() const {
  return description_;
}

std::string StreamDecoder::Push(TokenId id) {
  pending_ += tokenizer_.TokenBytes(id);
  std::string text;
  std::string_view rest = pending_;
  while (!rest.empty()) {
    const Utf8Char c = DecodeUtf8(rest);
    if (c.incomplete) break;
    if (c.size == 0) {
      AppendUtf8(kReplacementChar, text);
      rest.remove_prefix(1);
    } else {
      text += rest.substr(0, static_cast<size_t>(c.size));
      rest.remove_prefix(static_cast<size_t>(c.size));
    }
  }
  pending_ = std::string(rest);
  return text;
}

std::string StreamDecoder::Finish() {
  std::string text;
  if (!pending_.empty()) AppendUtf8(kReplacementChar, text);
  pending_.clear();
  return text;
}

}  // namespace tq
