// First byte below 0x80: the rest is text for one of the pre-tokenizers (a vocabulary with all
// bytes, so decoding must give the text back). Otherwise the rest is a GGUF file with a vocabulary.
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "runtime/formats/gguf_builder_for_test.h"
#include "runtime/tokenizer/tokenizer.h"
#include "runtime/tokenizer/utf8.h"

namespace {

// Those that change no character, so that decoding gives the text back.
constexpr std::array<const char*, 7> kPreTokenizers = {
    "smollm", "gpt-2", "llama-bpe", "deepseek-r1-qwen", "gpt-4o", "tekken", "deepseek-v3"};

std::unique_ptr<tq::Tokenizer> MakeTokenizer(const char* pre) {
  // The byte alphabet: printable Latin-1 stands for itself, the rest is U+0100 and up.
  std::vector<std::string> tokens;
  uint32_t next = 0x100;
  for (uint32_t b = 0; b < 256; ++b) {
    const bool printable = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
    std::string text;
    tq::AppendUtf8(printable ? b : next++, text);
    tokens.push_back(text);
  }
  std::vector<std::string> merges;
  for (const auto& [left, right] : {std::pair<int, int>{'a', 'b'},
                                    {'b', 'c'},
                                    {'a', 'a'},
                                    {256, 257},
                                    {258, 258},
                                    {' ', 'a'},
                                    {'\n', '\n'},
                                    {0xC3, 0xA9},
                                    {262, 262},
                                    {'1', '2'},
                                    {'\'', 's'}}) {
    const std::string &l = tokens[static_cast<size_t>(left)],
                      &r = tokens[static_cast<size_t>(right)];
    merges.push_back(l + " " + r);
    tokens.push_back(l + r);
  }
  std::vector<int32_t> kinds(tokens.size(), 1);
  for (const char* special : {"<|im_start|>", "<|im_end|>", "<|im_end|>\n", "<s>"}) {
    tokens.emplace_back(special);
    kinds.push_back(3);
  }
  tokens.emplace_back("<tag>");
  kinds.push_back(4);
  const std::string bytes = tq::GgufBuilder()
                                .Text("tokenizer.ggml.model", "gpt2")
                                .Text("tokenizer.ggml.pre", pre)
                                .Texts("tokenizer.ggml.tokens", tokens)
                                .I32s("tokenizer.ggml.token_type", kinds)
                                .Texts("tokenizer.ggml.merges", merges)
                                .Build();
  const auto file = tq::GgufFile::Parse(std::as_bytes(std::span(bytes)), "fuzz");
  TQ_CHECK(file.ok());
  auto tokenizer = tq::Tokenizer::FromGguf(*file);
  TQ_CHECK(tokenizer.ok());
  return *std::move(tokenizer);
}

void CheckText(const tq::Tokenizer& tokenizer, std::string_view text, bool parse_special) {
  const auto ids = tokenizer.Encode(text, {.add_bos = false, .parse_special = parse_special});
  TQ_CHECK(tokenizer.Decode(ids, /*skip_special=*/false) == text);
  tq::StreamDecoder decoder(tokenizer);
  std::string streamed;
  for (const tq::TokenId id : ids) {
    if (!parse_special) TQ_CHECK(!tokenizer.IsSpecial(id));
    const std::string part = decoder.Push(id);
    TQ_CHECK(tq::ValidUtf8Prefix(part) == part.size());
    streamed += part;
  }
  streamed += decoder.Finish();
  if (tq::ValidUtf8Prefix(text) == text.size()) TQ_CHECK(streamed == text);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] < 0x80) {
    static std::array<std::unique_ptr<tq::Tokenizer>, kPreTokenizers.size()> tokenizers;
    auto& tokenizer = tokenizers[data[0] % kPreTokenizers.size()];
    if (tokenizer == nullptr) {
      tokenizer = MakeTokenizer(kPreTokenizers[data[0] % kPreTokenizers.size()]);
    }
    CheckText(*tokenizer, text, (data[0] & 64) != 0);
    return 0;
  }
  const auto file = tq::GgufFile::Parse(std::as_bytes(std::span(text)), "fuzz");
  if (!file.ok()) return 0;
  const auto tokenizer = tq::Tokenizer::FromGguf(*file);
  if (!tokenizer.ok()) return 0;
  for (const tq::TokenId id : (*tokenizer)->Encode("ab<s> \xff caf\xC3\xA9 12\n")) {
    TQ_CHECK(id >= 0 && id < (*tokenizer)->vocab_size());
    TQ_CHECK(!(*tokenizer)->TokenBytes(id).empty());
  }
  return 0;
}
