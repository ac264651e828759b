// Byte-level BPE. Tokens and merges are kept as raw bytes: the "byte alphabet" of the vocabulary
// file (one printable character for each byte) is undone when it is loaded.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "runtime/tokenizer/pre_tokenizer.h"
#include "runtime/tokenizer/tokenizer.h"

namespace tq {

// Pair of tokens -> its rank (lower merges first) and the token it becomes. Open addressing: a
// long text asks millions of times, mostly for pairs that are not there.
class MergeTable {
 public:
  struct Merge {
    int32_t rank = -1;  // -1: these two do not merge
    TokenId token = -1;
  };
  void Reserve(size_t num_merges);
  void Add(TokenId left, TokenId right, Merge merge);  // the first of two equal pairs stays
  Merge Find(TokenId left, TokenId right) const;

 private:
  struct Slot {
    uint64_t key = 0;
    Merge merge;
  };
  size_t SlotOf(uint64_t key) const;
  std::vector<Slot> slots_ = std::vector<Slot>(1);
};

// Finds special tokens in text: a trie over their bytes.
class SpecialTokens {
 public:
  void Add(std::string_view text, TokenId id, bool control);
  struct Match {
    size_t begin = 0, size = 0;
    TokenId id = -1;  // -1: none
  };
  // The first at or behind `from`; of several that begin there, the longest. Control tokens only
  // if `with_control`.
  Match Find(std::string_view text, size_t from, bool with_control) const;

 private:
  struct Node {
    std::map<char, size_t> next;
    TokenId id = -1;
    bool control = false;
  };
  std::vector<Node> nodes_ = std::vector<Node>(1);
  std::array<bool, 256> begins_{};
};

class BpeTokenizer final : public Tokenizer {
 public:
  static Result<std::unique_ptr<Tokenizer>> FromGguf(const GgufFile& file);

  std::vector<TokenId> Encode(std::string_view text, const EncodeOptions& options) const override;
  std::string TokenBytes(TokenId id) const override;
  bool IsSpecial(TokenId id) const override;

 private:
  struct Work;
  BpeTokenizer() = default;
  Status LoadVocabulary(const GgufFile& file);
  Status LoadMerges(const std::vector<std::string>& merges);
  Status LoadSpecials(const GgufFile& file);
  void EncodeText(std::string_view text, Work& work) const;
  void EncodePiece(std::string_view piece, Work& work) const;
  void MergePiece(std::string_view piece, Work& work) const;

  std::unique_ptr<PreTokenizer> pre_tokenizer_;
  std::vector<std::string> bytes_;   // by token
  std::vector<uint8_t> is_special_;  // by token; control and unknown tokens
  std::array<TokenId, 256> byte_tokens_{};
  std::unordered_map<std::string_view, TokenId> by_bytes_;  // into bytes_; no special tokens
  MergeTable merges_;
  SpecialTokens specials_;
  bool add_bos_ = false;
};

}  // namespace tq
