// Finds the longest recorded beginning of a list of tokens, so that it need not be computed again.
//
// Sharing a prefix is exact only where the open blocks at the cut are still known: sealed codes do
// not tell what the rows of the window were. So prefixes end at boundaries that were recorded while
// the sequence was there: the end of a prompt, the end of a turn, a breakpoint. A boundary holds a
// fork of the sequence as it was, open blocks included; going on from a fork of that equals going
// on from the same tokens computed again, bit for bit.
#pragma once

#include <array>
#include <cstdint>
#include <list>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "turboquant/base/status.h"
#include "turboquant/cache/cache.h"

namespace tq {

class PrefixIndex {
 public:
  // `cache` must outlive the index. `max_bytes` bounds bytes(). `hash_bits`: tests use few.
  PrefixIndex(KvCache& cache, size_t max_bytes, int hash_bits = 64);
  PrefixIndex(const PrefixIndex&) = delete;
  PrefixIndex& operator=(const PrefixIndex&) = delete;
  ~PrefixIndex() { Trim(0); }

  // Records where `seq` ends now; `tokens` are all of its tokens. One that is there already counts
  // as used. Boundaries that were used longest ago make room. kFailedPrecondition during an append
  // and for a sequence that is not exact (KvCache::IsExact); kResourceExhausted when it alone is
  // above max_bytes: nothing has changed then.
  Status Record(SeqId seq, std::span<const int32_t> tokens);

  // Length of the longest boundary that `tokens` begin with; 0: there is none.
  int64_t Match(std::span<const int32_t> tokens) const;
  struct Hit {
    SeqId seq = 0;  // a fork; the caller appends to it and frees it
    int64_t length = 0;
  };
  // A fork of that boundary, which counts as used.
  std::optional<Hit> Find(std::span<const int32_t> tokens);

  // Drops boundaries, those used longest ago first, until bytes() is at most max_bytes.
  void Trim(size_t max_bytes);

  int64_t size() const { return static_cast<int64_t>(boundaries_.size()); }
  size_t max_bytes() const { return max_bytes_; }
  // All slots that boundaries hold, each counted once, whether or not a live sequence shares it,
  // and token ids.
  size_t bytes() const { return slot_bytes_ + token_bytes_; }
  size_t slot_bytes() const { return slot_bytes_; }
  size_t token_bytes() const { return token_bytes_; }

 private:
  // The tokens of the boundaries form a tree with a node for each full block; a node is found by
  // the hash chain of its tokens from the root and confirmed by comparing parent and tokens.
  struct Node;
  struct Boundary {
    SeqId seq = 0;
    int64_t length = 0;
    Node* node = nullptr;       // of the last full block
    std::vector<int32_t> tail;  // the tokens behind it, fewer than a block
  };
  using Boundaries = std::list<Boundary>;
  struct Node {
    Node* parent = nullptr;
    uint64_t hash = 0;  // of the chain up to and with this block
    std::array<int32_t, kPageLen> tokens{};
    int num_children = 0;
    std::vector<Boundaries::iterator> boundaries;  // that end in the next block
  };

  uint64_t ChainHash(uint64_t hash, std::span<const int32_t> block) const;
  Node* FindChild(const Node* parent, uint64_t hash, std::span<const int32_t> block) const;
  // The longest boundary that `tokens` begin with; end() when there is none.
  Boundaries::const_iterator Longest(std::span<const int32_t> tokens) const;
  void Drop(Boundaries::iterator boundary);
  void CountSlots(SeqId seq, int64_t length, int by);

  KvCache& cache_;
  size_t max_bytes_;
  uint64_t hash_mask_;
  size_t slot_bytes_ = 0, token_bytes_ = 0;
  Boundaries boundaries_;  // the last used first
  Node root_;
  std::unordered_multimap<uint64_t, Node> nodes_;      // by hash; addresses are stable
  std::unordered_map<const std::byte*, int> holders_;  // boundaries that hold a slot
};

}  // namespace tq
