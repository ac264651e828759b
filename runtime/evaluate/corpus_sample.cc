#include "runtime/evaluate/corpus_sample.h"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

#include "turboquant/base/numeric.h"

namespace tq {
namespace {

constexpr int64_t kBytesPerRequest = 512;  // what one takes beside its text
constexpr size_t kMaxMembers = 64;         // variants of one conversation
constexpr size_t kMinSharedBytes = 256;    // shorter beginnings are common to all sorts of requests
constexpr int64_t kMaxGapBytes = 4096;
// So many groups are kept, of whatever length, that the smaller side is among them: of a side with
// this share of all, 16 are to be expected, and none has a chance of 1 in 9 million.
constexpr double kGroupsOfSide = 16;
constexpr size_t kFewGroups = 64, kManyGroups = 1024;
constexpr int64_t kMostStreamBytes = int64_t{128} << 20;  // but not more than this for it
constexpr size_t kFewDocuments = 64;                      // bits of a number
constexpr size_t kMostPieces = size_t{1} << 16;           // of which the documents are known

bool IsOfSystem(const ChatMessage& m) {
  return m.role == "system" || m.role == "developer";
}

// Whether there is something beside the system's messages, which many requests share.
bool SaysMoreThanSystem(const CorpusItem& item) {
  return std::any_of(item.messages.begin(), item.messages.end(),
                     [](const ChatMessage& m) { return !IsOfSystem(m) && !m.content.empty(); });
}

void Append(const ChatMessage& m, std::string* out) {
  *out += m.role + "\x1f" + m.content + "\x1e";
}

// What a request says, with its answer, system messages aside unless there is nothing else: a later
// turn of a conversation begins with the earlier ones.
std::string Canonical(const CorpusItem& item) {
  if (item.kind == CorpusItem::Kind::kText) return item.text;
  std::string out = item.text;
  const bool says_more = SaysMoreThanSystem(item);
  for (const ChatMessage& m : item.messages) {
    if (!says_more || !IsOfSystem(m)) Append(m, &out);
  }
  if (!item.answer) return out;
  if (item.kind == CorpusItem::Kind::kCompletion) return out + item.answer->content;
  Append({"assistant", item.answer->content}, &out);
  return out;
}

// How a conversation begins: its first message that is not the system's, unless there is no other,
// or its prompt.
std::string_view BeginningOf(const CorpusItem& item) {
  const bool says_more = SaysMoreThanSystem(item);
  for (const ChatMessage& m : item.messages) {
    if (!m.content.empty() && !(says_more && IsOfSystem(m))) return m.content;
  }
  return item.text;
}

uint64_t HashOf(std::string_view text, uint64_t seed = 0) {
  return Hash64(text.data(), text.size(), seed);
}

size_t CommonPrefix(std::string_view a, std::string_view b) {
  const size_t n = std::min(a.size(), b.size());
  return static_cast<size_t>(std::mismatch(a.begin(), a.begin() + n, b.begin()).first - a.begin());
}

uint64_t HashItem(const CorpusItem& item, uint64_t hash) {
  const auto add = [&](const std::string& text) {
    hash = HashOf(text, MixHash(text.size(), hash));
  };
  for (const ChatMessage& m : item.messages) {
    add(m.role);
    add(m.content);
  }
  add(item.text);
  if (item.answer) {
    add(item.answer->content);
    add(item.answer->tool_calls);
  }
  return hash;
}

}  // namespace

size_t CorpusItem::bytes() const {
  size_t n = text.size();
  for (const ChatMessage& m : messages) n += m.content.size();
  if (answer) n += answer->content.size() + answer->tool_calls.size();
  return n;
}

CorpusSample::CorpusSample(const CorpusOptions& options, int64_t least_bytes)
    : options_(options),
      budget_bytes_(options.max_tokens * kCorpusBytesPerToken),
      stream_bytes_(std::max(budget_bytes_, least_bytes)),
      atoms_of_piece_(static_cast<size_t>(std::clamp<int64_t>(
          options.context_len * kCorpusBytesPerToken / CorpusIdentity::kDocumentAtom, 1,
          budget_bytes_ / CorpusIdentity::kDocumentAtom + 1))) {
  const double side = std::min(options.held_out_share, 1 - options.held_out_share);
  few_groups_ = side <= 0 ? kFewGroups
                          : static_cast<size_t>(std::clamp(kGroupsOfSide / side, double{kFewGroups},
                                                           double{kManyGroups}));
}

std::optional<CorpusIdentity> CorpusSample::Wants(const CorpusItem& item) {
  CorpusIdentity identity;
  identity.SetText(BeginningOf(item));
  identity.content = HashOf(Canonical(item));
  identity.bytes = static_cast<int64_t>(item.bytes());
  divider_.Note(identity);
  if (KeyOf(identity.whole) < limit_) return identity;
  ++not_sampled_;
  return std::nullopt;
}

bool CorpusSample::AddRequest(CorpusItem item, CorpusIdentity identity) {
  if (static_cast<int64_t>(item.bytes()) > budget_bytes_) return false;
  Kept kept;
  kept.identity = std::move(identity);
  kept.content = kept.identity.content;
  kept.key = KeyOf(kept.identity.whole);
  kept.item = std::move(item);
  Add(std::move(kept));
  return true;
}

void CorpusSample::BeginDocument(const std::string& name) {
  EndDocument();
  if (documents_.size() == kFewDocuments) {
    least_ = {};
    documents_of_.clear();
  }
  Document& d = documents_.emplace_back();
  d.name = name;
  d.identity.is_document = true;
}

void CorpusSample::AddAtom(const std::string& text, int64_t offset, int64_t raw_bytes) {
  Document& d = documents_.back();
  d.raw_bytes = offset + raw_bytes;
  d.identity.bytes += static_cast<int64_t>(text.size());
  d.identity.length = d.identity.bytes;
  d.identity.whole = HashOf(text, d.identity.whole);
  ++d.num_atoms;
  // Those that a longer document could begin with: full ones.
  if (raw_bytes >= CorpusIdentity::kDocumentAtom / 2 && (d.num_atoms & (d.num_atoms - 1)) == 0) {
    d.identity.beginnings.push_back(d.identity.whole);
  }
  if (piece_.offset + piece_.raw_bytes != offset || piece_.atoms.size() >= atoms_of_piece_) {
    EndPiece();
  }
  if (piece_.atoms.empty()) {
    piece_.documents = {static_cast<int>(documents_.size()) - 1};
    piece_.offset = offset;
  }
  piece_.atoms.emplace_back(offset, piece_.item.text.size());
  piece_.item.text += text;
  piece_.raw_bytes += raw_bytes;
}

void CorpusSample::EndPiece() {
  Kept kept = std::exchange(piece_, {});
  if (kept.atoms.empty()) return;
  kept.content = HashOf(kept.item.text);
  kept.key = KeyOf(kept.content);
  if (documents_.size() <= kFewDocuments) KeepLeast(kept);
  Add(std::move(kept));
}

void CorpusSample::KeepLeast(const Kept& piece) {
  least_.resize(documents_.size());
  Kept& least = least_.back();
  if (!least.is_piece() || piece.key < least.key) least = piece;
  // Whoever else has it may have let it go by then. The smallest keys, as the least ones are.
  documents_of_[piece.key] |= uint64_t{1} << (documents_.size() - 1);
  if (documents_of_.size() > kMostPieces) documents_of_.erase(std::prev(documents_of_.end()));
}

void CorpusSample::EndDocument() {
  EndPiece();
  if (documents_.empty() || documents_.back().num_atoms == 0) return;
  Document& d = documents_.back();
  d.identity.content = d.identity.whole;
  divider_.Note(d.identity);
}

int64_t CorpusSample::BytesOf(const Kept& kept) {
  return static_cast<int64_t>(kept.item.bytes()) + (kept.is_piece() ? 0 : kBytesPerRequest);
}

void CorpusSample::Add(Kept kept) {
  if (kept.key >= limit_) {
    ++not_sampled_;
    return;
  }
  std::vector<Kept>& members = groups_[kept.key].members;
  const std::string text = Canonical(kept.item);
  for (Kept& other : members) {
    if (other.content == kept.content) {
      ++duplicates_;
      other.documents.insert(other.documents.end(), kept.documents.begin(), kept.documents.end());
      return;
    }
    const std::string known = Canonical(other.item);
    if (known.starts_with(text)) {
      ++shared_prefix_;
      return;
    }
    if (!text.starts_with(known)) continue;
    ++shared_prefix_;
    kept_bytes_ += BytesOf(kept) - BytesOf(other);
    other = std::move(kept);
    Evict();
    return;
  }
  kept_bytes_ += BytesOf(kept);
  members.push_back(std::move(kept));
  if (members.size() > kMaxMembers) DropLast(&members);
  Evict();
}

void CorpusSample::Evict() {
  while (kept_bytes_ > stream_bytes_) {
    const bool few = groups_.size() <= few_groups_;
    if (few && EvictVariant()) continue;
    if (groups_.size() == 1 || (few && kept_bytes_ <= kMostStreamBytes)) return;
    const auto last = std::prev(groups_.end());
    limit_ = last->first;
    for (const Kept& k : last->second.members) kept_bytes_ -= BytesOf(k);
    not_sampled_ += static_cast<int64_t>(last->second.members.size());
    groups_.erase(last);
  }
}

bool CorpusSample::EvictVariant() {
  const auto most = std::max_element(groups_.begin(), groups_.end(), [](auto& a, auto& b) {
    return a.second.members.size() < b.second.members.size();
  });
  if (most->second.members.size() < 2) return false;
  DropLast(&most->second.members);
  return true;
}

// Of the members, the one with the largest hash: the same in whatever order they come.
void CorpusSample::DropLast(std::vector<Kept>* members) {
  const auto last =
      std::max_element(members->begin(), members->end(),
                       [](const Kept& a, const Kept& b) { return a.content < b.content; });
  kept_bytes_ -= BytesOf(*last);
  members->erase(last);
  ++not_sampled_;
}

// In the order of their texts, those with a common beginning stand together, the longer behind.
void CorpusSample::DropSharedPrefixes(std::vector<Kept>* kept) {
  std::vector<std::pair<std::string, size_t>> texts;
  for (size_t i = 0; i < kept->size(); ++i) {
    if (!(*kept)[i].is_piece()) texts.emplace_back(Canonical((*kept)[i].item), i);
  }
  std::sort(texts.begin(), texts.end());
  std::vector<bool> dropped(kept->size());
  for (size_t i = 1, last = 0; i < texts.size(); ++i) {
    const std::string &a = texts[last].first, &b = texts[i].first;
    const size_t common = CommonPrefix(a, b), shorter = std::min(a.size(), b.size());
    const bool is_shared =
        common == a.size() ||
        (common >= kMinSharedBytes &&
         static_cast<double>(common) >= options_.shared_prefix * static_cast<double>(shorter));
    if (!is_shared) {
      last = i;
      continue;
    }
    ++shared_prefix_;
    const bool keep_new = b.size() >= a.size();
    dropped[texts[keep_new ? last : i].second] = true;
    if (keep_new) last = i;
  }
  std::vector<Kept> out;
  for (size_t i = 0; i < kept->size(); ++i) {
    if (!dropped[i]) out.push_back(std::move((*kept)[i]));
  }
  *kept = std::move(out);
}

// Pieces that follow one another in their file become one text again.
std::vector<CorpusSample::Kept> CorpusSample::JoinPieces(std::vector<Kept> kept) const {
  const auto place = [](const Kept& k) {
    return std::pair(k.is_piece() ? k.documents.front() : -1, k.offset);
  };
  std::stable_sort(kept.begin(), kept.end(),
                   [&](const Kept& a, const Kept& b) { return place(a) < place(b); });
  std::vector<Kept> out;
  for (Kept& k : kept) {
    if (k.is_piece() && !out.empty() &&
        place(k) == std::pair(place(out.back()).first, out.back().offset + out.back().raw_bytes)) {
      out.back().item.text += k.item.text;
      out.back().raw_bytes += k.raw_bytes;
      continue;
    }
    if (k.is_piece()) {
      k.item.name = documents_[static_cast<size_t>(k.documents.front())].name;
      if (k.offset > 0) k.item.name += StrCat(", from byte ", k.offset);
    }
    out.push_back(std::move(k));
  }
  for (Kept& k : out) {
    if (k.is_piece()) k.content = HashOf(k.item.text);
  }
  return out;
}

void CorpusSample::SplitDocument(std::vector<Kept> kept, std::vector<Kept>* calibration,
                                 std::vector<Kept>* held_out, CorpusReport* report) const {
  const int64_t total = documents_[static_cast<size_t>(kept[0].documents.front())].raw_bytes;
  const int64_t gap = std::min(kMaxGapBytes, total / 20);
  const int64_t end =
      static_cast<int64_t>((1 - options_.held_out_share) * static_cast<double>(total)) - gap / 2;
  for (Kept& k : kept) {
    const std::string text = std::move(k.item.text);
    // Where a place of the file stands in the text: in an atom as far as in the file, at a line if
    // one ends nearby.
    const auto cut_at = [&](int64_t place) {
      if (place <= k.offset) return size_t{0};
      size_t a = k.atoms.size() - 1;
      while (k.atoms[a].first > place) --a;
      const bool is_last = a + 1 == k.atoms.size();
      const size_t first = k.atoms[a].second, last = is_last ? text.size() : k.atoms[a + 1].second;
      const int64_t raw =
          (is_last ? k.offset + k.raw_bytes : k.atoms[a + 1].first) - k.atoms[a].first;
      const double share = static_cast<double>(place - k.atoms[a].first) / static_cast<double>(raw);
      if (share >= 1) return text.size();
      size_t pos = first + static_cast<size_t>(share * static_cast<double>(last - first));
      const size_t line = text.find('\n', pos);
      if (line < std::min(pos + 1024, last)) pos = line + 1;
      while (pos < text.size() && (static_cast<uint8_t>(text[pos]) & 0xC0) == 0x80) ++pos;
      return pos;
    };
    const auto take = [&](size_t from, size_t to, std::vector<Kept>* part) {
      if (to <= from) return;
      Kept copy = k;
      copy.item.text = text.substr(from, to - from);
      const int64_t behind = k.offset + k.raw_bytes;
      copy.offset = from == 0 ? k.offset : end + gap;
      copy.raw_bytes = (to == text.size() ? behind : end) - copy.offset;
      part->push_back(std::move(copy));
    };
    const size_t first = cut_at(end);
    take(0, first, calibration);
    take(std::max(first, cut_at(end + gap)), text.size(), held_out);
  }
  report->notes.push_back(
      StrCat("there is one document only: its end is held out, ", gap,
             " bytes before it belong to neither part; held-out figures of other documents would "
             "be higher"));
}

// A piece that documents of both sides have is nothing new to the calibration.
bool CorpusSample::IsHeldOut(const Kept& kept) const {
  if (!kept.is_piece()) return divider_.IsHeldOut(kept.identity);
  return std::all_of(kept.documents.begin(), kept.documents.end(), [&](int d) {
    return divider_.IsHeldOut(documents_[static_cast<size_t>(d)].identity);
  });
}

// Leaves those with the smallest keys, up to so many bytes, but one at least. It ends with the
// first that does not fit, as filling up with short ones would favour these; what is too long by
// itself never could be taken.
void CorpusSample::Trim(int64_t max_bytes, std::vector<Kept>* side) {
  std::stable_sort(side->begin(), side->end(),
                   [](const Kept& a, const Kept& b) { return a.key < b.key; });
  int64_t bytes = 0;
  std::vector<Kept> out;
  for (Kept& k : *side) {
    if (BytesOf(k) > max_bytes) continue;
    if (bytes + BytesOf(k) > max_bytes) break;
    bytes += BytesOf(k);
    out.push_back(std::move(k));
  }
  if (out.empty() && !side->empty()) {
    out.push_back(std::move(*std::min_element(
        side->begin(), side->end(), [](auto& a, auto& b) { return BytesOf(a) < BytesOf(b); })));
    Kept& k = out.front();
    if (k.is_piece()) {
      auto cut = static_cast<size_t>(std::max<int64_t>(max_bytes, 1));
      while (cut < k.item.text.size() && (static_cast<uint8_t>(k.item.text[cut]) & 0xC0) == 0x80) {
        ++cut;
      }
      k.item.text.resize(std::min(cut, k.item.text.size()));
    }
  }
  *side = std::move(out);
}

void CorpusSample::Divide(std::vector<Kept> kept, Corpus* corpus) {
  CorpusReport& report = corpus->report;
  divider_.Decide(options_.held_out_share, options_.seed);
  std::vector<Kept> calibration, held_out;
  if (options_.held_out_share <= 0) {
    calibration = std::move(kept);
  } else if (divider_.is_one() && kept[0].is_piece()) {
    SplitDocument(std::move(kept), &calibration, &held_out, &report);
  } else if (divider_.is_one()) {
    report.notes.push_back("there is one request only: nothing is held out");
    calibration = std::move(kept);
  } else {
    if (!divider_.note().empty()) report.notes.push_back(divider_.note());
    for (Kept& k : kept) (IsHeldOut(k) ? held_out : calibration).push_back(std::move(k));
  }
  const auto bytes_of = [](const std::vector<Kept>& side) {
    int64_t bytes = 0;
    for (const Kept& k : side) bytes += BytesOf(k);
    return bytes;
  };
  // What is asked for of both parts by their share, and what one of them lacks of the other.
  const int64_t held_bytes = bytes_of(held_out), other_bytes = bytes_of(calibration);
  const size_t before = held_out.size() + calibration.size();
  if (held_bytes + other_bytes > budget_bytes_) {
    const auto share =
        static_cast<int64_t>(options_.held_out_share * static_cast<double>(budget_bytes_));
    Trim(std::max(share, budget_bytes_ - other_bytes), &held_out);
    Trim(std::max(budget_bytes_ - share, budget_bytes_ - held_bytes), &calibration);
  }
  not_sampled_ += static_cast<int64_t>(before - held_out.size() - calibration.size());
  calibration = JoinPieces(std::move(calibration));
  held_out = JoinPieces(std::move(held_out));
  const auto fill = [&](std::vector<Kept>* part, std::vector<CorpusItem>* items,
                        CorpusPart* counts) {
    std::stable_sort(part->begin(), part->end(), [&](const Kept& a, const Kept& b) {
      return MixHash(a.content, options_.seed + 2) < MixHash(b.content, options_.seed + 2);
    });
    for (Kept& k : *part) {
      counts->bytes += static_cast<int64_t>(k.item.bytes());
      ++(k.is_piece() ? counts->texts : counts->requests);
      counts->with_answer += k.item.answer.has_value();
      items->push_back(std::move(k.item));
    }
  };
  fill(&calibration, &corpus->calibration, &report.calibration);
  fill(&held_out, &corpus->held_out, &report.held_out);
  const double total =
      static_cast<double>(report.calibration.bytes) + static_cast<double>(report.held_out.bytes);
  const double share = static_cast<double>(report.held_out.bytes) / std::max(1.0, total);
  if (!divider_.is_one() &&
      (share < options_.held_out_share / 2 || share > 2 * options_.held_out_share)) {
    report.notes.push_back(StrCat("the held-out part has ", static_cast<int64_t>(100 * share + 0.5),
                                  " % of the bytes: documents and conversations are not divided"));
  }
  for (const CorpusItem& item : corpus->calibration) {
    report.calibration_hash = HashItem(item, report.calibration_hash);
  }
  report.hash = report.calibration_hash;
  for (const CorpusItem& item : corpus->held_out) report.hash = HashItem(item, report.hash);
}

void CorpusSample::Finish(Corpus* corpus) {
  EndDocument();
  std::vector<Kept> kept;
  // Documents of which nothing else is left.
  for (Kept& least : least_) {
    if (!least.is_piece() || groups_.contains(least.key)) continue;
    const int own = least.documents.front();
    const auto of = documents_of_.find(least.key);
    for (int d = 0; of != documents_of_.end() && d < static_cast<int>(documents_.size()); ++d) {
      if (d != own && (of->second >> d & 1) != 0) least.documents.push_back(d);
    }
    --not_sampled_;
    groups_[least.key].members.push_back(std::move(least));
  }
  for (auto& [key, group] : groups_) {
    for (Kept& k : group.members) kept.push_back(std::move(k));
  }
  groups_.clear();
  DropSharedPrefixes(&kept);
  corpus->report.duplicates = duplicates_;
  corpus->report.shared_prefix = shared_prefix_;
  if (!kept.empty()) Divide(std::move(kept), corpus);
  corpus->report.not_sampled = not_sampled_;
}

}  // namespace tq
