#include "runtime/formats/hf_tokenizer.h"

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include "runtime/formats/pre_patterns.h"
#include "runtime/formats/token_kind.h"

namespace tq {
namespace {

using nlohmann::json;

using enum TokenKind;
constexpr int64_t kMaxTokens = 1 << 24;
constexpr const char* kMeta = "\xE2\x96\x81";  // U+2581, which stands for a blank

// What is read of tokenizer.json.
struct Pipeline {
  bool byte_level = false;
  std::vector<std::string> regex;       // of a byte-level one
  std::vector<std::string> normalizer;  // words of tokenizer.tq.normalizer
  bool replaces_blanks = false;         // with kMeta
  bool adds_prefix = false;
  std::string charsmap;
};

Status NotBuilt(const char* what, const JsonObject& step) {
  const auto type = step.Text("type");
  return Unsupported("the ", what, " '", type.ok() ? type->value_or("?") : "?", "' of '",
                     step.name(), "' is not supported");
}

// Applies `read` to a step, or to the steps of a Sequence.
template <typename Read>
Status ForEachStep(const JsonObject& owner, const char* key, const char* list, Read&& read) {
  const json* step = owner.Find(key);
  if (step == nullptr) return OkStatus();
  const JsonObject object(*step, owner.name());
  TQ_ASSIGN_OR_RETURN(const std::optional<std::string> type, object.Text("type"));
  if (type != "Sequence") return read(object, type.value_or(""));
  const json* steps = object.Find(list);
  if (steps == nullptr || !steps->is_array()) return object.Wrong(list, "a list");
  for (const json& inner : *steps) {
    const JsonObject one(inner, owner.name());
    TQ_ASSIGN_OR_RETURN(const std::optional<std::string> inner_type, one.Text("type"));
    TQ_RETURN_IF_ERROR(read(one, inner_type.value_or("")));
  }
  return OkStatus();
}

int DecodeBase64Digit(char c) {
  if (c >= 'A' && c <= 'Z') return c - 'A';
  if (c >= 'a' && c <= 'z') return c - 'a' + 26;
  if (c >= '0' && c <= '9') return c - '0' + 52;
  return c == '+' ? 62 : c == '/' ? 63 : -1;
}

std::string DecodeBase64(const std::string& text) {
  std::string out;
  uint32_t bits = 0;
  int count = 0;
  for (const char c : text) {
    const int digit = DecodeBase64Digit(c);
    if (digit < 0) break;
    bits = bits << 6 | static_cast<uint32_t>(digit);
    count += 6;
    if (count < 8) continue;
    count -= 8;
    out.push_back(static_cast<char>(bits >> count));
  }
  return out;
}

Status ReadNormalizerStep(const JsonObject& step, const std::string& type, Pipeline& out) {
  for (const auto& [name, word] :
       {std::pair{"NFC", "nfc"}, {"NFD", "nfd"}, {"NFKC", "nfkc"}, {"NFKD", "nfkd"}}) {
    if (type != name) continue;
    out.normalizer.emplace_back(word);
    return OkStatus();
  }
  if (type == "Prepend") {
    TQ_ASSIGN_OR_RETURN(const std::optional<std::string> text, step.Text("prepend"));
    if (text != kMeta) return NotBuilt("normalizer", step);
    out.adds_prefix = true;
    return OkStatus();
  }
  if (type == "Replace") {
    const JsonObject pattern = step.Object("pattern");
    TQ_ASSIGN_OR_RETURN(const std::optional<std::string> text, pattern.Text("String"));
    TQ_ASSIGN_OR_RETURN(const std::optional<std::string> regex, pattern.Text("Regex"));
    TQ_ASSIGN_OR_RETURN(const std::optional<std::string> to, step.Text("content"));
    if (text == " " && to == kMeta) {
      out.replaces_blanks = true;
    } else if (regex == " {2,}" && (to == " " || to == kMeta)) {
      out.normalizer.emplace_back("collapse");
    } else {
      return NotBuilt("normalizer", step);
    }
    return OkStatus();
  }
  if (type == "Strip") {
    TQ_ASSIGN_OR_RETURN(const std::optional<bool> left, step.Bool("strip_left"));
    TQ_ASSIGN_OR_RETURN(const std::optional<bool> right, step.Bool("strip_right"));
    if (left.value_or(false)) out.normalizer.emplace_back("lstrip");
    if (right.value_or(false)) out.normalizer.emplace_back("rstrip");
    return OkStatus();
  }
  if (type == "Precompiled") {
    TQ_ASSIGN_OR_RETURN(const std::optional<std::string> map, step.Text("precompiled_charsmap"));
    out.charsmap = DecodeBase64(map.value_or(""));
    return OkStatus();
  }
  return NotBuilt("normalizer", step);
}

// Metaspace: blanks become U+2581, the text gets one in front.
Status ReadMetaspace(const JsonObject& step, Pipeline& out) {
  TQ_ASSIGN_OR_RETURN(const std::optional<std::string> text, step.Text("replacement"));
  TQ_ASSIGN_OR_RETURN(const std::optional<bool> old, step.Bool("add_prefix_space"));
  TQ_ASSIGN_OR_RETURN(const std::optional<std::string> given, step.Text("prepend_scheme"));
  TQ_ASSIGN_OR_RETURN(const std::optional<bool> split, step.Bool("split"));
  if (text && text != kMeta) return NotBuilt("pre-tokenizer", step);
  out.replaces_blanks = true;
  const std::string scheme = given.value_or(old.value_or(true) ? "always" : "never");
  if (scheme == "always") out.normalizer.emplace_back("prefix_missing");
  if (scheme == "first") out.normalizer.emplace_back("prefix_first");
  out.adds_prefix = scheme != "never";
  if (split.value_or(true)) out.normalizer.emplace_back("split_words");
  return OkStatus();
}

Status ReadPreTokenizerStep(const JsonObject& step, const std::string& type, Pipeline& out) {
  if (type == "ByteLevel") {
    out.byte_level = true;
    TQ_ASSIGN_OR_RETURN(const std::optional<bool> prefix, step.Bool("add_prefix_space"));
    TQ_ASSIGN_OR_RETURN(const std::optional<bool> regex, step.Bool("use_regex"));
    if (prefix.value_or(true)) return NotBuilt("add_prefix_space of the pre-tokenizer", step);
    if (regex.value_or(true)) out.regex.emplace_back(kByteLevelRegex);
    return OkStatus();
  }
  if (type == "Digits") {
    TQ_ASSIGN_OR_RETURN(const std::optional<bool> single, step.Bool("individual_digits"));
    out.regex.emplace_back(single.value_or(false) ? R"(\p{N})" : R"(\p{N}+)");
    return OkStatus();
  }
  if (type == "Split") {
    const JsonObject pattern = step.Object("pattern");
    TQ_ASSIGN_OR_RETURN(const std::optional<std::string> regex, pattern.Text("Regex"));
    TQ_ASSIGN_OR_RETURN(const std::optional<std::string> text, pattern.Text("String"));
    TQ_ASSIGN_OR_RETURN(const std::optional<std::string> behavior, step.Text("behavior"));
    TQ_ASSIGN_OR_RETURN(const std::optional<bool> invert, step.Bool("invert"));
    // Cutting at blanks where none are left cuts nothing (Gemma).
    if (text == " " && out.replaces_blanks) return OkStatus();
    const bool isolated = behavior == "Isolated" && !invert.value_or(false);
    const bool matches_are_kept = behavior == "Removed" && invert.value_or(false);
    if (!regex || (!isolated && !matches_are_kept)) return NotBuilt("pre-tokenizer", step);
    out.regex.push_back(*regex);
    return OkStatus();
  }
  if (type == "Metaspace") return ReadMetaspace(step, out);
  if (type == "WhitespaceSplit") {
    for (const char* word : {"white", "collapse", "lstrip", "rstrip"}) {
      out.normalizer.emplace_back(word);
    }
    return OkStatus();
  }
  return NotBuilt("pre-tokenizer", step);
}

class TokenizerReader {
 public:
  TokenizerReader(const FolderFiles& files, const json& config, int64_t vocab_size,
                  std::map<std::string, GgufValue>& out)
      : files_(files), config_(config, "config.json"), vocab_size_(vocab_size), out_(out) {}

  Status Read() {
    TQ_ASSIGN_OR_RETURN(const std::string text, files_.Read("tokenizer.json"));
    TQ_ASSIGN_OR_RETURN(const json root, ParseJsonObject(text, "tokenizer.json"));
    const JsonObject tokenizer(root, "tokenizer.json");
    TQ_ASSIGN_OR_RETURN(settings_json_, Optional("tokenizer_config.json"));
    TQ_ASSIGN_OR_RETURN(generation_json_, Optional("generation_config.json"));
    const JsonObject settings(settings_json_, "tokenizer_config.json");

    TQ_RETURN_IF_ERROR(ForEachStep(tokenizer, "normalizer", "normalizers",
                                   [&](const JsonObject& step, const std::string& type) {
                                     return ReadNormalizerStep(step, type, pipeline_);
                                   }));
    TQ_RETURN_IF_ERROR(ForEachStep(tokenizer, "pre_tokenizer", "pretokenizers",
                                   [&](const JsonObject& step, const std::string& type) {
                                     return ReadPreTokenizerStep(step, type, pipeline_);
                                   }));
    const JsonObject model = tokenizer.Object("model");
    TQ_ASSIGN_OR_RETURN(const std::optional<std::string> type, model.Text("type"));
    if (type == "BPE" || (!type && model.Find("merges") != nullptr)) {
      TQ_RETURN_IF_ERROR(ReadBpe(model));
    } else if (type == "Unigram") {
      TQ_RETURN_IF_ERROR(ReadUnigram(model));
    } else {
      return Unsupported("tokenizer.json has a model of type '", type.value_or("?"),
                         "'; supported: BPE, Unigram");
    }
    TQ_RETURN_IF_ERROR(ReadAddedTokens(tokenizer));
    TQ_RETURN_IF_ERROR(FillHoles());
    Set("tokenizer.tq.normalizer", pipeline_.normalizer);
    TQ_RETURN_IF_ERROR(ReadSpecials(settings));
    TQ_RETURN_IF_ERROR(ReadBos(tokenizer, settings));
    TQ_RETURN_IF_ERROR(ReadChatTemplate(settings));
    Set("tokenizer.ggml.tokens", std::move(tokens_));
    Set("tokenizer.ggml.token_type", std::move(kinds_));
    return OkStatus();
  }

 private:
  void Set(const std::string& key, GgufValue value) { out_[key] = std::move(value); }

  Result<json> Optional(const char* name) const {
    if (!files_.Has(name)) return json::object();
    TQ_ASSIGN_OR_RETURN(const std::string text, files_.Read(name));
    return ParseJsonObject(text, name);
  }

  // Ids are dense but for a few holes: a forged one does not make a vast table.
  bool IsFarBeyondTokens(size_t id) const { return id > 2 * ids_.size() + 65536; }

  Status AddToken(const std::string& text, const json& id, TokenKind kind) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() >= kMaxTokens) {
      return DataLoss("tokenizer.json: a token's id is no number from 0 to ", kMaxTokens);
    }
    const auto i = static_cast<size_t>(id.get<int64_t>());
    if (IsFarBeyondTokens(i)) {
      return DataLoss("tokenizer.json: token ", i, " is far beyond the ", ids_.size(),
                      " before it");
    }
    if (i >= tokens_.size()) {
      tokens_.resize(i + 1);
      kinds_.resize(i + 1, static_cast<int64_t>(kUnused));
      is_there_.resize(i + 1);
    }
    if (is_there_[i] && tokens_[i] != text) {
      return DataLoss("tokenizer.json: token ", i, " is both '", tokens_[i], "' and '", text, "'");
    }
    tokens_[i] = text;
    kinds_[i] = static_cast<int64_t>(kind);
    is_there_[i] = true;
    ids_[text] = static_cast<int64_t>(i);
    return OkStatus();
  }

  // "<0x0A>" where bytes without a token of their own fall back to such tokens.
  static bool IsByteToken(const std::string& text) {
    return text.size() == 6 && text.starts_with("<0x") && text[5] == '>';
  }

  Status ReadBpe(const JsonObject& model) {
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      TQ_ASSIGN_OR_RETURN(const std::optional<std::string> text, model.Text(key));
      if (text && !text->empty()) {
        return Unsupported("tokenizer.json: '", key, "' is not supported");
      }
    }
    TQ_ASSIGN_OR_RETURN(const std::optional<bool> fallback, model.Bool("byte_fallback"));
    TQ_ASSIGN_OR_RETURN(const std::optional<std::string> unknown, model.Text("unk_token"));
    const json* vocabulary = model.Find("vocab");
    if (vocabulary == nullptr || !vocabulary->is_object()) return model.Wrong("vocab", "an object");
    std::vector<std::pair<int64_t, const std::string*>> order;
    for (auto it = vocabulary->begin(); it != vocabulary->end(); ++it) {
      if (!it->is_number_integer())
        return DataLoss("tokenizer.json: the id of a token is no number");
      order.emplace_back(it->get<int64_t>(), &it.key());
    }
    std::sort(order.begin(), order.end());
    for (const auto& [id, text] : order) {
      const bool is_byte = fallback.value_or(false) && IsByteToken(*text);
      TQ_RETURN_IF_ERROR(AddToken(*text, id,
                                  is_byte            ? kByte
                                  : *text == unknown ? kUnknown
                                                     : kNormal));
    }
    TQ_RETURN_IF_ERROR(ReadMerges(model));
    if (pipeline_.byte_level) return SetByteLevel(model);
    if (!pipeline_.replaces_blanks) {
      return Unsupported("tokenizer.json: a BPE without ByteLevel and without Metaspace is not ",
                         "supported");
    }
    TQ_RETURN_IF_ERROR(RefuseRegex());
    Set("tokenizer.ggml.model", std::string("llama"));
    Set("tokenizer.ggml.pre", std::string("default"));
    Set("tokenizer.ggml.add_space_prefix", pipeline_.adds_prefix);
    if (unknown && ids_.count(*unknown) != 0) {
      Set("tokenizer.ggml.unknown_token_id", static_cast<uint64_t>(ids_[*unknown]));
    }
    return OkStatus();
  }

  Status RefuseRegex() const {
    if (pipeline_.regex.empty()) return OkStatus();
    return Unsupported("tokenizer.json: Split and Digits are supported with a BPE with ByteLevel ",
                       "only");
  }

  Status ReadMerges(const JsonObject& model) {
    const json* list = model.Find("merges");
    if (list == nullptr || !list->is_array()) return model.Wrong("merges", "a list");
    std::vector<std::string> merges;
    merges.reserve(list->size());
    for (const json& merge : *list) {
      if (merge.is_string()) {
        merges.push_back(merge.get<std::string>());
        continue;
      }
      const bool is_pair =
          merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string();
      if (!is_pair || merge[0].get_ref<const std::string&>().find(' ') != std::string::npos ||
          merge[1].get_ref<const std::string&>().find(' ') != std::string::npos) {
        return DataLoss("tokenizer.json: merge ", merges.size(), " is no pair of tokens");
      }
      merges.push_back(merge[0].get<std::string>() + " " + merge[1].get<std::string>());
    }
    Set("tokenizer.ggml.merges", std::move(merges));
    return OkStatus();
  }

  Status SetByteLevel(const JsonObject& model) {
    Set("tokenizer.ggml.model", std::string("gpt2"));
    TQ_ASSIGN_OR_RETURN(const std::optional<bool> ignore_merges, model.Bool("ignore_merges"));
    Set("tokenizer.tq.ignore_merges", ignore_merges.value_or(false));
    std::string pre = "custom";
    for (const PrePattern& known : PrePatterns()) {
      if (std::ranges::equal(RegexOf(known), pipeline_.regex)) {
        pre = NamesOf(known).front();
        break;
      }
    }
    if (pre == "custom") Set("tokenizer.tq.pre_regex", pipeline_.regex);
    Set("tokenizer.ggml.pre", pre);
    return OkStatus();
  }

  Status ReadUnigram(const JsonObject& model) {
    if (pipeline_.byte_level) {
      return Unsupported("tokenizer.json: a Unigram with ByteLevel is not supported");
    }
    if (!pipeline_.replaces_blanks) {
      return Unsupported("tokenizer.json: a Unigram without Metaspace is not supported");
    }
    TQ_RETURN_IF_ERROR(RefuseRegex());
    TQ_ASSIGN_OR_RETURN(const std::optional<bool> fallback, model.Bool("byte_fallback"));
    TQ_ASSIGN_OR_RETURN(const std::optional<int64_t> unknown, model.Int("unk_id"));
    const json* vocabulary = model.Find("vocab");
    if (vocabulary == nullptr || !vocabulary->is_array()) return model.Wrong("vocab", "a list");
    std::vector<double> scores;
    for (const json& entry : *vocabulary) {
      const auto id = static_cast<int64_t>(scores.size());
      if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string() ||
          !entry[1].is_number()) {
        return DataLoss("tokenizer.json: token ", id, " is no pair of a text and a score");
      }
      const auto& text = entry[0].get_ref<const std::string&>();
      const bool is_byte = fallback.value_or(false) && IsByteToken(text);
      TQ_RETURN_IF_ERROR(AddToken(text, id, is_byte ? kByte : id == unknown ? kUnknown : kNormal));
      scores.push_back(entry[1].get<double>());
    }
    scores_ = std::move(scores);
    if (unknown) Set("tokenizer.ggml.unknown_token_id", static_cast<uint64_t>(*unknown));
    Set("tokenizer.ggml.model", std::string("t5"));
    Set("tokenizer.ggml.pre", std::string("default"));
    Set("tokenizer.ggml.add_space_prefix", pipeline_.adds_prefix);
    Set("tokenizer.ggml.remove_extra_whitespaces", false);
    if (!pipeline_.charsmap.empty()) {
      std::vector<int64_t> bytes;
      for (const char c : pipeline_.charsmap) bytes.push_back(static_cast<uint8_t>(c));
      Set("tokenizer.ggml.precompiled_charsmap", std::move(bytes));
    }
    return OkStatus();
  }

  Status ReadAddedTokens(const JsonObject& tokenizer) {
    const json* list = tokenizer.Find("added_tokens");
    if (list == nullptr) return OkStatus();
    if (!list->is_array()) return tokenizer.Wrong("added_tokens", "a list");
    for (const json& entry : *list) {
      const JsonObject token(entry, "added_tokens");
      TQ_ASSIGN_OR_RETURN(const std::optional<std::string> text, token.Text("content"));
      if (!text || text->empty() || token.Find("id") == nullptr) {
        return DataLoss("tokenizer.json: an added token has no text or no id");
      }
      TQ_ASSIGN_OR_RETURN(const std::optional<bool> special, token.Bool("special"));
      TQ_ASSIGN_OR_RETURN(const std::optional<bool> word, token.Bool("single_word"));
      TQ_ASSIGN_OR_RETURN(const std::optional<bool> left, token.Bool("lstrip"));
      TQ_ASSIGN_OR_RETURN(const std::optional<bool> right, token.Bool("rstrip"));
      if (word.value_or(false)) {
        return Unsupported("tokenizer.json: the added token '", *text,
                           "' matches whole words only, which is not supported");
      }
      const json& id = *token.Find("id");
      TQ_RETURN_IF_ERROR(AddToken(*text, id, special.value_or(false) ? kControl : kUserDefined));
      if (left.value_or(false) || right.value_or(false)) {
        strip_.resize(std::max(strip_.size(), tokens_.size()));
        strip_[id.get<size_t>()] = (left.value_or(false) ? 1 : 0) + (right.value_or(false) ? 2 : 0);
      }
    }
    return OkStatus();
  }

  // Rows of the embedding without a token get the names that GGUF files give them.
  Status FillHoles() {
    const size_t size = std::max(tokens_.size(), static_cast<size_t>(vocab_size_));
    if (IsFarBeyondTokens(size)) {
      return DataLoss("'vocab_size' of '", config_.name(), "' is ", vocab_size_,
                      ", far beyond the ", ids_.size(), " tokens of tokenizer.json");
    }
    tokens_.resize(size);
    kinds_.resize(size, static_cast<int64_t>(kUnused));
    is_there_.resize(size);
    for (size_t i = 0; i < size; ++i) {
      if (!is_there_[i]) tokens_[i] = StrCat("[PAD", i, "]");
    }
    if (!strip_.empty()) {
      strip_.resize(size);
      Set("tokenizer.tq.strip", strip_);
    }
    if (scores_.empty() && !pipeline_.byte_level) {
      // Merges decide; readers that know scores only take the order of the tokens.
      for (size_t i = 0; i < size; ++i) scores_.push_back(-static_cast<double>(i));
    }
    scores_.resize(scores_.empty() ? 0 : size);
    if (!scores_.empty()) Set("tokenizer.ggml.scores", scores_);
    return OkStatus();
  }

  // A token as tokenizer_config.json names it: a text, or an object with one as "content".
  int64_t IdOf(const json* token) const {
    if (token != nullptr && token->is_object()) {
      const auto content = token->find("content");
      token = content == token->end() ? nullptr : &*content;
    }
    if (token == nullptr || !token->is_string()) return -1;
    const auto it = ids_.find(token->get_ref<const std::string&>());
    return it == ids_.end() ? -1 : it->second;
  }

  // One id or a list of them; those outside of the vocabulary are an error.
  Status AddIds(const JsonObject& from, const char* key, std::vector<int64_t>& ids) const {
    const json* value = from.Find(key);
    if (value == nullptr) return OkStatus();
    const size_t count = value->is_array() ? value->size() : 1;
    for (size_t n = 0; n < count; ++n) {
      const json& id = value->is_array() ? (*value)[n] : *value;
      if (!id.is_number_integer()) return from.Wrong(key, "a token id or a list of them");
      const auto i = id.get<int64_t>();
      if (i < 0 || i >= static_cast<int64_t>(tokens_.size())) {
        return InvalidArgument("'", key, "' of '", from.name(), "' is ", i,
                               ", but the vocabulary has ", tokens_.size(), " tokens");
      }
      ids.push_back(i);
    }
    return OkStatus();
  }

  Status ReadSpecials(const JsonObject& settings) {
    const JsonObject generation(generation_json_, "generation_config.json");
    for (const char* name : {"bos", "eos"}) {
      const std::string text_key = std::string(name) + "_token", id_key = text_key + "_id";
      std::vector<int64_t> ids;
      if (const int64_t id = IdOf(settings.Find(text_key.c_str())); id >= 0) ids.push_back(id);
      TQ_RETURN_IF_ERROR(AddIds(generation, id_key.c_str(), ids));
      TQ_RETURN_IF_ERROR(AddIds(config_, id_key.c_str(), ids));
      if (ids.empty()) continue;
      Set("tokenizer.ggml." + text_key + "_id", static_cast<uint64_t>(ids.front()));
      if (name != std::string("eos")) continue;
      std::sort(ids.begin(), ids.end());
      ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
      if (ids.size() > 1) Set("tokenizer.tq.stop_token_ids", std::move(ids));
    }
    return OkStatus();
  }

  // Whether a text begins with BOS: the template of the post-processor says so, or a setting.
  Status ReadBos(const JsonObject& tokenizer, const JsonObject& settings) {
    bool add = false;
    TQ_RETURN_IF_ERROR(ForEachStep(tokenizer, "post_processor", "processors",
                                   [&](const JsonObject& step, const std::string& type) -> Status {
                                     const json* single = step.Find("single");
                                     if (type != "TemplateProcessing" || single == nullptr ||
                                         !single->is_array() || single->empty()) {
                                       return OkStatus();
                                     }
                                     const JsonObject first((*single)[0], "post_processor");
                                     const int64_t id =
                                         IdOf(first.Object("SpecialToken").Find("id"));
                                     if (id < 0) return OkStatus();
                                     add = true;
                                     Set("tokenizer.ggml.bos_token_id", static_cast<uint64_t>(id));
                                     return OkStatus();
                                   }));
    TQ_ASSIGN_OR_RETURN(const std::optional<bool> setting, settings.Bool("add_bos_token"));
    Set("tokenizer.ggml.add_bos_token", setting.value_or(add));
    return OkStatus();
  }

  // A file of its own, a text, or a list of named ones.
  Status ReadChatTemplate(const JsonObject& settings) {
    std::string text;
    if (files_.Has("chat_template.jinja")) {
      TQ_ASSIGN_OR_RETURN(text, files_.Read("chat_template.jinja"));
    } else if (const json* value = settings.Find("chat_template"); value != nullptr) {
      if (value->is_string()) text = value->get<std::string>();
      for (size_t i = 0; value->is_array() && i < value->size(); ++i) {
        const JsonObject one((*value)[i], "chat_template");
        TQ_ASSIGN_OR_RETURN(const std::optional<std::string> name, one.Text("name"));
        TQ_ASSIGN_OR_RETURN(const std::optional<std::string> body, one.Text("template"));
        if (name == "default") text = body.value_or("");
      }
    }
    if (!text.empty()) Set("tokenizer.chat_template", std::move(text));
    return OkStatus();
  }

  const FolderFiles& files_;
  JsonObject config_;
  int64_t vocab_size_;
  std::map<std::string, GgufValue>& out_;
  json settings_json_, generation_json_;
  Pipeline pipeline_;
  std::vector<std::string> tokens_;
  std::vector<int64_t> kinds_, strip_;
  std::vector<bool> is_there_;
  std::vector<double> scores_;
  std::map<std::string, int64_t> ids_;
};

}  // namespace

Status ReadHfTokenizer(const FolderFiles& files, const json& config, int64_t vocab_size,
                       std::map<std::string, GgufValue>& out) {
  if (!files.Has("tokenizer.json")) return OkStatus();
  return TokenizerReader(files, config, vocab_size, out).Read();
}

}  // namespace tq
