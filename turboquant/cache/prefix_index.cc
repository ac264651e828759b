#include "turboquant/cache/prefix_index.h"

#include <algorithm>
#include <utility>

#include "turboquant/base/numeric.h"

namespace tq {
namespace {

constexpr size_t kBlock = kPageLen;

}  // namespace

PrefixIndex::PrefixIndex(KvCache& cache, size_t max_bytes, int hash_bits)
    : cache_(cache),
      max_bytes_(max_bytes),
      hash_mask_(hash_bits >= 64 ? ~uint64_t{0} : (uint64_t{1} << hash_bits) - 1) {}

uint64_t PrefixIndex::ChainHash(uint64_t hash, std::span<const int32_t> block) const {
  return Hash64(block.data(), block.size_bytes(), hash) & hash_mask_;
}

PrefixIndex::Node* PrefixIndex::FindChild(const Node* parent, uint64_t hash,
                                          std::span<const int32_t> block) const {
  const auto [first, last] = nodes_.equal_range(hash);
  for (auto it = first; it != last; ++it) {
    if (it->second.parent == parent && std::ranges::equal(it->second.tokens, block)) {
      return const_cast<Node*>(&it->second);
    }
  }
  return nullptr;
}

PrefixIndex::Boundaries::const_iterator PrefixIndex::Longest(
    std::span<const int32_t> tokens) const {
  auto longest = boundaries_.cend();
  size_t best_tail = 0;
  for (const Node* node = &root_; node != nullptr;) {
    // Deeper nodes are longer than any tail of the nodes above.
    bool found = false;
    for (const Boundaries::const_iterator b : node->boundaries) {
      if (b->tail.size() > tokens.size() || (found && b->tail.size() <= best_tail) ||
          !std::ranges::equal(b->tail, tokens.first(b->tail.size()))) {
        continue;
      }
      longest = b;
      best_tail = b->tail.size();
      found = true;
    }
    if (tokens.size() < kBlock) break;
    const std::span<const int32_t> block = tokens.first(kBlock);
    node = FindChild(node, ChainHash(node->hash, block), block);
    tokens = tokens.subspan(kBlock);
  }
  return longest;
}

int64_t PrefixIndex::Match(std::span<const int32_t> tokens) const {
  const auto b = Longest(tokens);
  return b == boundaries_.cend() ? 0 : b->length;
}

std::optional<PrefixIndex::Hit> PrefixIndex::Find(std::span<const int32_t> tokens) {
  const auto b = Longest(tokens);
  if (b == boundaries_.cend()) return std::nullopt;
  boundaries_.splice(boundaries_.begin(), boundaries_, b);
  const Result<SeqId> fork = cache_.Fork(b->seq);
  TQ_CHECK(fork.ok());  // nobody else knows the sequence
  return Hit{*fork, b->length};
}

void PrefixIndex::CountSlots(SeqId seq, int64_t length, int by) {
  const auto count = [&](const std::byte* slot, size_t bytes) {
    if (slot == nullptr) return;
    int& holders = holders_[slot];
    if (holders == 0) slot_bytes_ += bytes;
    holders += by;
    if (holders > 0) return;
    slot_bytes_ -= bytes;
    holders_.erase(slot);
  };
  for (int64_t b = 0; b < DivCeil<int64_t>(length, kPageLen); ++b) {
    count(cache_.OpenSlot(seq, b), cache_.open_slot_bytes());
    count(cache_.SealedSlot(seq, b), cache_.sealed_slot_bytes());
    count(cache_.WindowSlot(seq, b), cache_.window_slot_bytes());
  }
}

Status PrefixIndex::Record(SeqId seq, std::span<const int32_t> tokens) {
  TQ_ASSIGN_OR_RETURN(const int64_t length, cache_.Length(seq));
  if (tokens.size() != static_cast<size_t>(length)) {
    return InvalidArgument("prefix: ", tokens.size(), " token ids for a sequence of ", length,
                           " tokens");
  }
  if (length == 0) return InvalidArgument("prefix: a sequence without tokens has no prefix");
  if (!cache_.IsExact(seq)) {
    return FailedPrecondition("prefix: sequence ", seq,
                              " has blocks that were re-opened from their codes, so going on from "
                              "it would not equal computing it again");
  }
  if (const auto b = Longest(tokens); b != boundaries_.cend() && b->length == length) {
    boundaries_.splice(boundaries_.begin(), boundaries_, b);
    return OkStatus();
  }
  size_t alone = tokens.size_bytes();
  for (int64_t b = 0; b < DivCeil<int64_t>(length, kPageLen); ++b) {
    if (cache_.OpenSlot(seq, b) != nullptr) alone += cache_.open_slot_bytes();
    if (cache_.SealedSlot(seq, b) != nullptr) alone += cache_.sealed_slot_bytes();
    if (cache_.WindowSlot(seq, b) != nullptr) alone += cache_.window_slot_bytes();
  }
  if (alone > max_bytes_) {
    return ResourceExhausted("prefix: a boundary at ", length, " tokens takes ", alone,
                             " bytes; the limit is ", max_bytes_);
  }
  TQ_ASSIGN_OR_RETURN(const SeqId fork, cache_.Fork(seq));

  Node* node = &root_;
  for (; tokens.size() >= kBlock; tokens = tokens.subspan(kBlock)) {
    const std::span<const int32_t> block = tokens.first(kBlock);
    const uint64_t hash = ChainHash(node->hash, block);
    Node* child = FindChild(node, hash, block);
    if (child == nullptr) {
      child = &nodes_.emplace(hash, Node{})->second;
      child->parent = node;
      child->hash = hash;
      std::ranges::copy(block, child->tokens.begin());
      ++node->num_children;
      token_bytes_ += block.size_bytes();
    }
    node = child;
  }
  boundaries_.push_front({fork, length, node, {tokens.begin(), tokens.end()}});
  node->boundaries.push_back(boundaries_.begin());
  token_bytes_ += tokens.size_bytes();
  CountSlots(fork, length, 1);
  Trim(max_bytes_);
  return OkStatus();
}

void PrefixIndex::Drop(Boundaries::iterator boundary) {
  CountSlots(boundary->seq, boundary->length, -1);
  TQ_CHECK(cache_.Free(boundary->seq).ok());
  token_bytes_ -= boundary->tail.size() * sizeof(int32_t);
  Node* node = boundary->node;
  std::erase(node->boundaries, boundary);
  boundaries_.erase(boundary);
  // Blocks that lead to no boundary any more.
  while (node != &root_ && node->boundaries.empty() && node->num_children == 0) {
    Node* parent = node->parent;
    const auto [first, last] = nodes_.equal_range(node->hash);
    nodes_.erase(std::find_if(first, last, [&](const auto& n) { return &n.second == node; }));
    token_bytes_ -= kBlock * sizeof(int32_t);
    --parent->num_children;
    node = parent;
  }
}

void PrefixIndex::Trim(size_t max_bytes) {
  while (bytes() > max_bytes) Drop(std::prev(boundaries_.end()));
}

}  // namespace tq
