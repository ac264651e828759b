// First byte below 0x80: the rest is a text for a small vocabulary; otherwise it is a vocab.txt.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "runtime/tokenizer/wordpiece_tokenizer.h"

namespace {

void CheckText(const tq::WordPieceTokenizer& tokenizer, std::string_view text) {
  const auto whole = tokenizer.Encode(text, {});
  TQ_CHECK(whole.size() >= 2 && whole.front() == tokenizer.bos() &&
           whole.back() == tokenizer.eos());
  for (const tq::TokenId id : whole) TQ_CHECK(id >= 0 && id < tokenizer.vocab_size());
  const auto plain = tokenizer.Encode(text, {.add_bos = false, .parse_special = false});
  TQ_CHECK(plain.size() <= text.size() * 4);  // ideographs and accents make no more than that
  for (const tq::TokenId id : plain) {
    TQ_CHECK(id != tokenizer.bos() && id != tokenizer.eos());
    TQ_CHECK(!tokenizer.TokenBytes(id).empty());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] < 0x80) {
    static const auto kTokenizer = tq::WordPieceTokenizer::FromVocabulary(
        "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\n##a\n##b\n##ab\nabba\n.\n[\n]"
        "\n\xE4\xB8\xAD\n1\n##1\n",
        "fuzz");
    TQ_CHECK(kTokenizer.ok());
    CheckText(**kTokenizer, text);
    return 0;
  }
  const auto tokenizer = tq::WordPieceTokenizer::FromVocabulary(text, "fuzz");
  if (tokenizer.ok() && (*tokenizer)->vocab_size() > 0) {
    for (const tq::TokenId id : (*tokenizer)->Encode("ab[SEP] \xff caf\xC3\xA9 12\n", {})) {
      TQ_CHECK(id >= 0 && id < (*tokenizer)->vocab_size());
    }
  }
  return 0;
}
