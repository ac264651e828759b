// tokenizer.json and what lies around it as GGUF's tokenizer.* metadata.
//
// GGUF's keys do not say everything that a tokenizer.json may ask for. What goes beyond them is in
// keys of our own:
//   tokenizer.tq.normalizer      strings: nfc nfd nfkc nfkd, white (all whitespace is a blank),
//                                collapse (runs of blanks), lstrip, rstrip, and how a text gets its
//                                first blank: prefix_missing (if it has none), prefix_first (only
//                                the first piece between special tokens); split_words
//   tokenizer.tq.pre_regex       the expressions that cut pieces, one after the other
//   tokenizer.tq.ignore_merges   bool: a piece that is a token is taken whole
//   tokenizer.tq.strip           by token: 1 it takes the whitespace on its left, 2 on its right
//   tokenizer.tq.stop_token_ids  what ends a generation
#pragma once

#include "runtime/formats/hf_config.h"
#include "runtime/formats/hf_folder.h"

namespace tq {

// Adds to `out`; nothing when there is no tokenizer.json. kDataLoss: a damaged file; kUnsupported:
// a kind of tokenizer or a step that is not built, by name.
Status ReadHfTokenizer(const FolderFiles& files, const nlohmann::json& config, int64_t vocab_size,
                       std::map<std::string, GgufValue>& out);

}  // namespace tq
