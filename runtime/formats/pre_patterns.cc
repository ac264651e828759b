#include "runtime/formats/pre_patterns.h"

#include <algorithm>
#include <iterator>

namespace tq {
namespace {

#define TQ_BLANKS R"(|\s+(?!\S)|\s+)"
#define TQ_CONTRACTIONS R"((?i:'s|'t|'re|'ve|'m|'ll|'d))"

constexpr const char* kGpt2 =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+)" TQ_BLANKS;
constexpr const char* kDigit = R"(\p{N})";
constexpr const char* kThreeDigits = R"(\p{N}{1,3})";

// Llama 3, Qwen 2 and Qwen 3.5 differ in how many digits make a piece and whether marks are
// letters.
constexpr const char* kLlama3 = TQ_CONTRACTIONS
    R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+)" TQ_BLANKS;
constexpr const char* kQwen2 = TQ_CONTRACTIONS
    R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+)" TQ_BLANKS;
constexpr const char* kQwen35 =
    TQ_CONTRACTIONS R"(|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N})"
                    R"(| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+)" TQ_BLANKS;

// GPT-4o and Tekken cut words where capitals begin.
#define TQ_UPPER R"([\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])"
#define TQ_LOWER R"([\p{Ll}\p{Lm}\p{Lo}\p{M}])"
#define TQ_REST R"(| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+)" TQ_BLANKS
constexpr const char* kO200k =
    R"([^\r\n\p{L}\p{N}]?)" TQ_UPPER "*" TQ_LOWER "+" TQ_CONTRACTIONS
    R"(?|[^\r\n\p{L}\p{N}]?)" TQ_UPPER "+" TQ_LOWER "*" TQ_CONTRACTIONS R"(?|\p{N}{1,3})" TQ_REST;
constexpr const char* kTekken =
    R"([^\r\n\p{L}\p{N}]?)" TQ_UPPER "*" TQ_LOWER R"(+|[^\r\n\p{L}\p{N}]?)" TQ_UPPER "+" TQ_LOWER
    R"(*|\p{N})" TQ_REST;

constexpr const char* kDeepSeekCjk = R"([\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+)";
constexpr const char* kDeepSeekHan = R"([\x{4E00}-\x{9FA5}\x{0800}-\x{4E00}\x{AC00}-\x{D7FF}]+)";
constexpr const char* kDeepSeek3 =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+)"
    R"(| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+)" TQ_BLANKS;

#undef TQ_BLANKS
#undef TQ_CONTRACTIONS
#undef TQ_UPPER
#undef TQ_LOWER
#undef TQ_REST

constexpr PrePattern kPatterns[] = {
    {{"gpt-2", "phi-2", "mpt", "olmo", "jais", "exaone4", "gigachat"}, {kGpt2}},
    {{"smollm", "starcoder", "refact", "codeshell", "exaone", "minerva-7b"}, {kDigit, kGpt2}},
    {.names = {"command-r"}, .regex = {kDigit, kGpt2}, .nfc = true},
    {.names = {"llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral"},
     .regex = {kLlama3},
     .ignore_merges = true,
     .add_bos = true},
    {{"dbrx", "smaug-bpe", "chatglm-bpe"}, {kLlama3}},
    {.names = {"glm4"}, .regex = {kLlama3}, .ignore_merges = true},
    {.names = {"qwen2"}, .regex = {kQwen2}, .nfc = true},
    {{"deepseek-r1-qwen", "megrez", "stablelm2", "hunyuan"}, {kQwen2}},
    {{"qwen35"}, {kQwen35}},
    {{"gpt-4o", "llama4"}, {kO200k}},
    {.names = {"tekken"}, .regex = {kTekken}, .ignore_merges = true},
    {{"deepseek-coder"}, {R"([\r\n])", R"(\s?\p{L}+)", R"(\s?\p{P}+)", kDeepSeekHan, kDigit}},
    {{"deepseek-v3", "hunyuan-dense"}, {kThreeDigits, kDeepSeekCjk, kDeepSeek3}},
};

}  // namespace

const char* const kByteLevelRegex = kGpt2;

std::span<const PrePattern> PrePatterns() {
  return kPatterns;
}

std::span<const char* const> RegexOf(const PrePattern& pattern) {
  const auto end = std::find(std::begin(pattern.regex), std::end(pattern.regex), nullptr);
  return {std::begin(pattern.regex), end};
}

std::span<const char* const> NamesOf(const PrePattern& pattern) {
  const auto end = std::find(std::begin(pattern.names), std::end(pattern.names), nullptr);
  return {std::begin(pattern.names), end};
}

}  // namespace tq
