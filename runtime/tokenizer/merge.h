// Merging neighbours, the pair of lowest rank first, the leftmost of equals: the loop of every BPE.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "runtime/tokenizer/tokenizer.h"

namespace tq {

// Bytes longer than this are merged in parts: positions have 32 bits.
inline constexpr size_t kMaxPieceBytes = size_t{1} << 30;

struct MergeSymbol {
  TokenId token = -1;            // -1: characters without a token
  uint32_t begin = 0, size = 0;  // in the piece
  int32_t previous = -1, next = -1;
  bool gone = false;  // merged into the one on its left
};

struct MergeStep {
  int32_t rank = -1;  // -1: these two do not merge
  TokenId token = -1;
};

class MergeLoop {
 public:
  std::vector<MergeSymbol>& symbols() { return symbols_; }
  void Add(TokenId token, size_t begin, size_t size) {
    const auto i = static_cast<int32_t>(symbols_.size());
    symbols_.push_back(
        {token, static_cast<uint32_t>(begin), static_cast<uint32_t>(size), i - 1, i + 1, false});
  }

  // find(left, right): what two neighbours become. Afterwards ForEach visits what is left.
  template <typename Find>
  void Run(Find&& find) {
    if (symbols_.empty()) return;
    symbols_.back().next = -1;
    heap_.clear();
    // Candidates carry rank and position; one whose pair has changed meanwhile is recognized by its
    // rank.
    const auto step_at = [&](int32_t left) {
      const MergeSymbol& symbol = symbols_[static_cast<size_t>(left)];
      if (symbol.gone || symbol.next < 0) return MergeStep{};
      return find(symbol, symbols_[static_cast<size_t>(symbol.next)]);
    };
    const auto push = [&](int32_t left) {
      if (left < 0) return;
      const MergeStep step = step_at(left);
      if (step.rank < 0) return;
      heap_.push_back(static_cast<uint64_t>(step.rank) << 32 | static_cast<uint32_t>(left));
      std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
    };
    for (size_t i = 0; i + 1 < symbols_.size(); ++i) push(static_cast<int32_t>(i));
    while (!heap_.empty()) {
      std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
      const uint64_t candidate = heap_.back();
      heap_.pop_back();
      const auto left = static_cast<int32_t>(candidate & 0xFFFFFFFFu);
      const MergeStep step = step_at(left);
      if (step.rank != static_cast<int32_t>(candidate >> 32)) continue;
      MergeSymbol& symbol = symbols_[static_cast<size_t>(left)];
      MergeSymbol& right = symbols_[static_cast<size_t>(symbol.next)];
      symbol.token = step.token;
      symbol.size = right.begin + right.size - symbol.begin;
      symbol.next = right.next;
      right.gone = true;
      if (symbol.next >= 0) symbols_[static_cast<size_t>(symbol.next)].previous = left;
      push(symbol.previous);
      push(left);
    }
  }

  template <typename Visit>
  void ForEach(Visit&& visit) const {
    if (symbols_.empty()) return;
    for (int32_t i = 0; i >= 0; i = symbols_[static_cast<size_t>(i)].next) {
      visit(symbols_[static_cast<size_t>(i)]);
    }
  }

  void Clear() { symbols_.clear(); }

 private:
  std::vector<MergeSymbol> symbols_;
  std::vector<uint64_t> heap_;
};

// Pair of tokens -> what they become. Open addressing: a long text asks millions of times, mostly
// for pairs that are not there.
class MergeTable {
 public:
  void Reserve(size_t num_merges);
  void Add(TokenId left, TokenId right, MergeStep step);  // the first of two equal pairs stays
  MergeStep Find(TokenId left, TokenId right) const;

 private:
  struct Slot {
    uint64_t key = 0;
    MergeStep step;
  };
  size_t SlotOf(uint64_t key) const;
  std::vector<Slot> slots_ = std::vector<Slot>(1);
};

}  // namespace tq
