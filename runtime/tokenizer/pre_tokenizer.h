// Cuts text into the pieces within which byte pairs are merged: regular expressions that belong
// to the vocabulary and are as much a part of the model as its weights.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/tokenizer/regex.h"
#include "turboquant/base/status.h"

namespace tq {

class PreTokenizer {
 public:
  // `name` as in tokenizer.ggml.pre. kUnsupported lists the names that are known.
  static Result<std::unique_ptr<PreTokenizer>> Create(const std::string& name);
  // Cuts with these expressions, one after the other. kUnsupported: one that is not understood.
  static Result<std::unique_ptr<PreTokenizer>> FromRegex(
      const std::vector<std::string>& expressions);

  // Appends the pieces of `text`, valid UTF-8, in order; together they are the whole text.
  // May be called from several threads.
  void Split(std::string_view text, std::vector<std::string_view>& pieces) const;

  // A piece that is a token by itself is taken whole, without merging.
  bool ignore_merges() const { return ignore_merges_; }
  // Whether a text begins with BOS when the file does not say.
  bool add_bos() const { return add_bos_; }
  // Whether the family composes characters (NFC) before anything else.
  bool nfc() const { return nfc_; }

 private:
  PreTokenizer() = default;
  std::vector<Regex> stages_;  // each cuts the pieces of the one before
  bool ignore_merges_ = false;
  bool add_bos_ = false;
  bool nfc_ = false;
};

}  // namespace tq
