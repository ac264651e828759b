#include "runtime/evaluate/corpus_divide.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "turboquant/base/numeric.h"

namespace tq {
namespace {

constexpr size_t kReference = 1024;  // enough to see what many requests begin with
constexpr size_t kFewUnits = 64;     // so few are chosen one by one, to meet the share
// A beginning of less than this of its texts is a template that they share, not one text.
constexpr int64_t kTimesBeginning = 4;

}  // namespace

uint64_t MixHash(uint64_t hash, uint64_t seed) {
  return Hash64(&hash, sizeof hash, seed);
}

void CorpusIdentity::SetText(std::string_view text) {
  length = static_cast<int64_t>(text.size());
  whole = Hash64(text.data(), text.size());
  beginnings.clear();
  for (int64_t n = kFirstBeginning; n <= length; n *= 2) {
    beginnings.push_back(Hash64(text.data(), static_cast<size_t>(n), static_cast<uint64_t>(n)));
  }
}

void CorpusDivider::Note(const CorpusIdentity& identity) {
  const bool full = reference_.size() >= kReference;
  if (full && identity.content > std::prev(reference_.end())->first) return;
  const auto [at, is_new] = reference_.emplace(identity.content, identity);
  if (!is_new) {
    // The same is said under another system prompt, with other calls of tools, or with the prompt
    // ending elsewhere: which of them came first must not matter.
    CorpusIdentity& known = at->second;
    const int64_t bytes = std::max(known.bytes, identity.bytes);
    const auto order = [](const CorpusIdentity& i) { return std::pair(i.whole, i.is_document); };
    if (order(identity) < order(known)) known = identity;
    known.bytes = bytes;
  } else if (full) {
    reference_.erase(std::prev(reference_.end()));
  }
}

void CorpusDivider::FindAlike() {
  std::map<uint64_t, std::vector<int64_t>> lengths;
  for (const auto& [content, identity] : reference_) {
    for (const uint64_t b : identity.beginnings) lengths[b].push_back(identity.length);
  }
  for (auto& [beginning, of] : lengths) {
    const auto middle = of.begin() + static_cast<std::ptrdiff_t>(of.size() / 2);
    std::nth_element(of.begin(), middle, of.end());
    alike_[beginning] = {static_cast<int64_t>(of.size()), *middle};
  }
}

// The shortest beginning that is no template of many different texts.
uint64_t CorpusDivider::UnitOf(const CorpusIdentity& identity) const {
  if (unit_ == Unit::kContent) return identity.content;
  if (unit_ == Unit::kWhole) return identity.whole;
  int64_t length =
      identity.is_document ? CorpusIdentity::kDocumentAtom : CorpusIdentity::kFirstBeginning;
  for (const uint64_t b : identity.beginnings) {
    const auto at = alike_.find(b);
    if (at == alike_.end() || at->second.count < 2 ||
        kTimesBeginning * length >= at->second.median_length) {
      return b;
    }
    length *= 2;
  }
  return identity.whole;
}

void CorpusDivider::Decide(double share, uint64_t seed) {
  FindAlike();
  for (const Unit unit : {Unit::kBeginning, Unit::kWhole, Unit::kContent}) {
    unit_ = unit;
    units_.clear();
    for (const auto& [content, identity] : reference_) units_[UnitOf(identity)] += identity.bytes;
    if (units_.size() > 1) break;
  }
  if (unit_ != Unit::kBeginning && units_.size() > 1) {
    note_ = reference_.begin()->second.is_document
                ? "all documents begin alike: the parts share no document, but how they begin"
                : "all requests begin alike: the parts share no request, but how requests begin";
  }
  ChooseUnits(share, seed);
}

void CorpusDivider::ChooseUnits(double share, uint64_t seed) {
  seed_ = seed + 1;
  limit_ = static_cast<uint64_t>(std::ldexp(share, 64));
  by_choice_ = units_.size() <= kFewUnits && share > 0;
  if (!by_choice_) return;
  std::vector<std::pair<uint64_t, uint64_t>> order;  // hash, unit
  double total = 0;
  for (const auto& [unit, bytes] : units_) {
    order.emplace_back(MixHash(unit, seed_), unit);
    total += static_cast<double>(bytes);
  }
  std::sort(order.begin(), order.end());
  const double target = share * total;
  double held = 0;
  for (const auto& [hash, unit] : order) {
    const auto bytes = static_cast<double>(units_[unit]);
    // A unit that overshoots is left to the other part; a smaller one may still fit.
    if (held >= target || held + bytes > 1.2 * target) continue;
    if (chosen_.size() + 1 == units_.size()) break;
    held += bytes;
    chosen_.insert(unit);
  }
  if (chosen_.empty() && units_.size() > 1) {
    chosen_.insert(std::min_element(units_.begin(), units_.end(), [](auto& a, auto& b) {
                     return a.second < b.second;
                   })->first);
  }
}

bool CorpusDivider::IsHeldOut(const CorpusIdentity& identity) const {
  const uint64_t unit = UnitOf(identity);
  if (by_choice_ && units_.contains(unit)) return chosen_.contains(unit);
  return MixHash(unit, seed_) < limit_;
}

}  // namespace tq
