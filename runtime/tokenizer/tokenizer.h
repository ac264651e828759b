// Text to token ids and back: byte-level BPE, and the SentencePiece kinds.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/formats/gguf.h"
#include "turboquant/base/status.h"

namespace tq {

using TokenId = int32_t;

struct EncodeOptions {
  bool add_bos = true;        // only if the model asks for one; never twice
  bool parse_special = true;  // "<|im_start|>" in the text becomes its token
};

class Tokenizer {
 public:
  // From the tokenizer.ggml.* keys. kUnsupported names the tokenizer model or pre-tokenizer found
  // and lists those supported.
  static Result<std::unique_ptr<Tokenizer>> FromGguf(const GgufFile& file);
  virtual ~Tokenizer() = default;

  // Any bytes are accepted. A byte that is not valid UTF-8 is a piece of its own: the token of that
  // byte, or the tokens of U+FFFD (byte-level) or the unknown token where the vocabulary has none.
  virtual std::vector<TokenId> Encode(std::string_view text,
                                      const EncodeOptions& options = {}) const = 0;
  // The bytes of one token (may be part of a character). Special tokens give their text.
  virtual std::string TokenBytes(TokenId id) const = 0;
  virtual bool IsSpecial(TokenId id) const = 0;

  // A text from its beginning: the blank that encoding put in front is taken away.
  std::string Decode(const std::vector<TokenId>& ids, bool skip_special = true) const;

  int vocab_size() const { return vocab_size_; }
  TokenId bos() const { return bos_; }  // -1: none
  TokenId eos() const { return eos_; }
  // Every token that ends a generation (eos, end of turn).
  const std::vector<TokenId>& stop_tokens() const { return stop_tokens_; }
  bool IsStop(TokenId id) const;
  const std::string& chat_template() const { return chat_template_; }  // empty: none
  std::string Describe() const;  // "gpt2 byte-level BPE, pre-tokenizer smollm, 49152 tokens"

 protected:
  int vocab_size_ = 0;
  bool begins_with_blank_ = false;
  TokenId bos_ = -1, eos_ = -1;
  std::vector<TokenId> stop_tokens_;
  std::string chat_template_;
  std::string description_;
};

// Bytes of tokens to text as it comes: holds back the bytes of an unfinished character.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}
  // The text that is complete with this token; may be empty.
  std::string Push(TokenId id);
  // What is left at the end; an unfinished character becomes U+FFFD.
  std::string Finish();

 private:
  const Tokenizer& tokenizer_;
  std::string pending_;
};

}  // namespace tq
