#include "runtime/evaluate/corpus_sample.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "turboquant/base/numeric.h"

namespace tq {
namespace {

constexpr int64_t kBytesPerRequest = 512;  // what one takes beside its text
constexpr size_t kMaxMembers = 64;         // variants of one conversation
constexpr size_t kMinSharedBytes = 256;    // shorter beginnings are common to all sorts of requests
constexpr double kSameUnit = 0.5;          // requests that share so much stay on one side
constexpr int64_t kMaxGapBytes = 4096;

void Append(const ChatMessage& m, std::string* out) {
  *out += m.role + "\x1f" + m.content + "\x1e";
}

// What a request says, with its answer, system messages aside: a later turn of a conversation
// begins with the earlier ones.
std::string Canonical(const CorpusItem& item) {
  if (item.kind == CorpusItem::Kind::kText) return item.text;
  std::string out = item.text;
  for (const ChatMessage& m : item.messages) {
    if (m.role != "system" && m.role != "developer") Append(m, &out);
  }
  if (!item.answer) return out;
  if (item.kind == CorpusItem::Kind::kCompletion) return out + item.answer->content;
  Append({"assistant", item.answer->content}, &out);
  return out;
}

// How a conversation begins: its first message that is not the system's.
uint64_t BeginningOf(const CorpusItem& item, uint64_t content) {
  for (const ChatMessage& m : item.messages) {
    if (m.role == "system" || m.role == "developer") continue;
    return Hash64(m.content.data(), m.content.size());
  }
  return content;
}

uint64_t HashOf(std::string_view text, uint64_t seed = 0) {
  return Hash64(text.data(), text.size(), seed);
}

uint64_t Mix(uint64_t hash, uint64_t seed) {
  return Hash64(&hash, sizeof hash, seed);
}

size_t CommonPrefix(std::string_view a, std::string_view b) {
  const size_t n = std::min(a.size(), b.size());
  return static_cast<size_t>(std::mismatch(a.begin(), a.begin() + n, b.begin()).first - a.begin());
}

int Root(std::vector<int>& parent, int i) {
  while (parent[i] != i) i = parent[i] = parent[parent[i]];
  return i;
}

void Unite(std::vector<int>& parent, int a, int b) {
  parent[std::max(Root(parent, a), Root(parent, b))] = std::min(Root(parent, a), Root(parent, b));
}

uint64_t HashItem(const CorpusItem& item, uint64_t hash) {
  const auto add = [&](const std::string& text) { hash = HashOf(text, Mix(text.size(), hash)); };
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

CorpusSample::CorpusSample(const CorpusOptions& options)
    : options_(options), budget_bytes_(options.max_tokens * kCorpusBytesPerToken) {}

uint64_t CorpusSample::KeyOf(const CorpusItem& item, uint64_t content) const {
  return Mix(BeginningOf(item, content), options_.seed);
}

bool CorpusSample::Wants(const CorpusItem& item) {
  if (limit_ == UINT64_MAX) return true;
  const bool wanted = KeyOf(item, HashOf(Canonical(item))) < limit_;
  not_sampled_ += !wanted;
  return wanted;
}

bool CorpusSample::AddRequest(CorpusItem item) {
  if (static_cast<int64_t>(item.bytes()) > budget_bytes_) return false;
  Kept kept;
  kept.content = HashOf(Canonical(item));
  const uint64_t key = KeyOf(item, kept.content);
  kept.item = std::move(item);
  Add(key, std::move(kept));
  return true;
}

void CorpusSample::BeginDocument(const std::string& name) {
  document_root_.push_back(static_cast<int>(documents_.size()));
  documents_.push_back(name);
}

bool CorpusSample::AddPiece(std::string text, int64_t offset, int64_t raw_bytes) {
  if (static_cast<int64_t>(text.size()) > budget_bytes_) return false;
  Kept kept;
  kept.content = HashOf(text);
  kept.document = static_cast<int>(documents_.size()) - 1;
  kept.offset = offset;
  kept.raw_bytes = raw_bytes;
  kept.item.text = std::move(text);
  const uint64_t key = Mix(kept.content, options_.seed);
  Add(key, std::move(kept));
  return true;
}

int64_t CorpusSample::BytesOf(const Kept& kept) {
  return static_cast<int64_t>(kept.item.bytes()) + (kept.document < 0 ? kBytesPerRequest : 0);
}

void CorpusSample::Add(uint64_t key, Kept kept) {
  if (key >= limit_) {
    ++not_sampled_;
    return;
  }
  std::vector<Kept>& members = groups_[key].members;
  const std::string text = Canonical(kept.item);
  for (Kept& other : members) {
    if (other.content == kept.content) {
      ++duplicates_;
      if (other.document >= 0 && kept.document >= 0) {
        Unite(document_root_, other.document, kept.document);
      }
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
  if (members.size() > kMaxMembers) {
    const auto last = std::max_element(members.begin(), members.end(),
                                       [](auto& a, auto& b) { return a.content < b.content; });
    kept_bytes_ -= BytesOf(*last);
    members.erase(last);
    ++not_sampled_;
  }
  Evict();
}

void CorpusSample::Evict() {
  while (kept_bytes_ > budget_bytes_ && groups_.size() > 1) {
    const auto last = std::prev(groups_.end());
    limit_ = last->first;
    for (const Kept& k : last->second.members) kept_bytes_ -= BytesOf(k);
    not_sampled_ += static_cast<int64_t>(last->second.members.size());
    groups_.erase(last);
  }
  std::vector<Kept>& members = groups_.begin()->second.members;
  while (kept_bytes_ > budget_bytes_ && members.size() > 1) {
    kept_bytes_ -= BytesOf(members.back());
    members.pop_back();
    ++not_sampled_;
  }
}

// In the order of their texts, those with a common beginning stand together, the longer behind.
void CorpusSample::DropSharedPrefixes(std::vector<Kept>* kept) {
  std::vector<std::pair<std::string, size_t>> texts;
  std::vector<int> parent(kept->size());
  std::iota(parent.begin(), parent.end(), 0);
  std::unordered_map<uint64_t, size_t> beginnings;
  for (size_t i = 0; i < kept->size(); ++i) {
    const Kept& k = (*kept)[i];
    if (k.document >= 0) continue;
    texts.emplace_back(Canonical(k.item), i);
    const auto [at, fresh] = beginnings.emplace(BeginningOf(k.item, k.content), i);
    if (!fresh) Unite(parent, static_cast<int>(at->second), static_cast<int>(i));
  }
  std::sort(texts.begin(), texts.end());
  std::vector<bool> dropped(kept->size());
  for (size_t i = 1, last = 0; i < texts.size(); ++i) {
    const std::string &a = texts[last].first, &b = texts[i].first;
    const size_t common = CommonPrefix(a, b), shorter = std::min(a.size(), b.size());
    const auto shares = [&](double share) {
      return common >= kMinSharedBytes &&
             static_cast<double>(common) >= share * static_cast<double>(shorter);
    };
    if (shares(kSameUnit)) {
      Unite(parent, static_cast<int>(texts[last].second), static_cast<int>(texts[i].second));
    }
    if (!shares(options_.shared_prefix) && common < a.size()) {
      last = i;
      continue;
    }
    ++shared_prefix_;
    const bool keep_new = b.size() >= a.size();
    dropped[texts[keep_new ? last : i].second] = true;
    if (keep_new) last = i;
  }
  // Documents are units too, behind those of the requests.
  const int first_document = static_cast<int>(kept->size());
  std::vector<Kept> out;
  for (size_t i = 0; i < kept->size(); ++i) {
    if (dropped[i]) continue;
    Kept& k = (*kept)[i];
    k.unit = k.document >= 0 ? first_document + Root(document_root_, k.document)
                             : Root(parent, static_cast<int>(i));
    out.push_back(std::move(k));
  }
  *kept = std::move(out);
}

// Pieces that follow one another in their file become one text again.
std::vector<CorpusSample::Kept> CorpusSample::JoinPieces(std::vector<Kept> kept) const {
  std::stable_sort(kept.begin(), kept.end(), [](const Kept& a, const Kept& b) {
    return std::pair(a.document, a.offset) < std::pair(b.document, b.offset);
  });
  std::vector<Kept> out;
  for (Kept& k : kept) {
    if (k.document >= 0 && !out.empty() && out.back().document == k.document &&
        out.back().offset + out.back().raw_bytes == k.offset) {
      out.back().item.text += k.item.text;
      out.back().raw_bytes += k.raw_bytes;
      continue;
    }
    if (k.document >= 0) {
      k.item.name = documents_[k.document];
      if (k.offset > 0) k.item.name += StrCat(", from byte ", k.offset);
    }
    out.push_back(std::move(k));
  }
  for (Kept& k : out) {
    if (k.document >= 0) k.content = HashOf(k.item.text);
  }
  return out;
}

void CorpusSample::SplitOne(std::vector<Kept> kept, std::vector<Kept>* calibration,
                            std::vector<Kept>* held_out, CorpusReport* report) const {
  if (kept.size() == 1 && kept[0].document < 0) {
    report->notes.push_back("there is one request only: nothing is held out");
    *calibration = std::move(kept);
    return;
  }
  int64_t total = 0;
  for (const Kept& k : kept) total += static_cast<int64_t>(k.item.bytes());
  const int64_t gap = std::min(kMaxGapBytes, total / 20);
  const int64_t end =
      static_cast<int64_t>((1 - options_.held_out_share) * static_cast<double>(total)) - gap / 2;
  // Cuts of one text, at a line if one ends nearby.
  const auto cut_at = [](const std::string& text, int64_t at) {
    if (at <= 0) return size_t{0};
    size_t pos = std::min(static_cast<size_t>(at), text.size());
    const size_t line = text.find('\n', pos);
    if (line != std::string::npos && line < pos + 1024) pos = line + 1;
    while (pos < text.size() && (static_cast<uint8_t>(text[pos]) & 0xC0) == 0x80) ++pos;
    return pos;
  };
  int64_t before = 0;
  for (Kept& k : kept) {
    const std::string text = k.item.text;
    const size_t first = before < end ? cut_at(text, end - before) : 0;
    const size_t second = before + static_cast<int64_t>(text.size()) > end + gap
                              ? cut_at(text, end + gap - before)
                              : text.size();
    before += static_cast<int64_t>(text.size());
    const auto take = [&](size_t from, size_t to, std::vector<Kept>* part) {
      if (to <= from) return;
      Kept copy = k;
      copy.item.text = text.substr(from, to - from);
      copy.content = HashOf(copy.item.text);
      part->push_back(std::move(copy));
    };
    take(0, first, calibration);
    take(std::max(first, second), text.size(), held_out);
  }
  report->notes.push_back(
      StrCat("there is one document only: its end is held out, ", gap,
             " bytes before it belong to neither part; held-out figures of other documents would "
             "be higher"));
}

void CorpusSample::Split(std::vector<Kept> kept, Corpus* corpus) {
  std::vector<Kept> calibration, held_out;
  struct Unit {
    uint64_t order = UINT64_MAX;
    int64_t bytes = 0;
  };
  std::map<int, Unit> units;
  const auto count_units = [&] {
    units.clear();
    for (const Kept& k : kept) {
      Unit& u = units[k.unit];
      u.bytes += static_cast<int64_t>(k.item.bytes());
      u.order = std::min(u.order, Mix(k.content, options_.seed + 1));
    }
  };
  count_units();
  if (units.size() == 1 && kept.size() > 1 && kept[0].document < 0 && options_.held_out_share > 0) {
    corpus->report.notes.push_back(
        "all requests begin alike: the parts share no request, but how requests begin");
    for (size_t i = 0; i < kept.size(); ++i) kept[i].unit = static_cast<int>(i);
    count_units();
  }
  if (options_.held_out_share <= 0) {
    calibration = std::move(kept);
  } else if (units.size() == 1) {
    SplitOne(std::move(kept), &calibration, &held_out, &corpus->report);
  } else {
    std::vector<std::pair<int, Unit>> order(units.begin(), units.end());
    std::sort(order.begin(), order.end(),
              [](const auto& a, const auto& b) { return a.second.order < b.second.order; });
    double total = 0;
    for (const auto& [id, unit] : order) total += static_cast<double>(unit.bytes);
    const double target = options_.held_out_share * total;
    double held = 0;
    std::set<int> chosen;
    for (const auto& [id, unit] : order) {
      // A unit that overshoots is left to the other part; a smaller one may still fit.
      if (held >= target || held + static_cast<double>(unit.bytes) > 1.2 * target) continue;
      held += static_cast<double>(unit.bytes);
      chosen.insert(id);
    }
    if (chosen.empty()) {
      const auto least = std::min_element(order.begin(), order.end(), [](auto& a, auto& b) {
        return a.second.bytes < b.second.bytes;
      });
      chosen.insert(least->first);
      held = static_cast<double>(least->second.bytes);
    }
    if (held < target / 2 || held > 2 * target) {
      corpus->report.notes.push_back(
          StrCat("the held-out part has ", static_cast<int64_t>(100 * held / total + 0.5),
                 " % of the bytes: documents and conversations are not divided"));
    }
    for (Kept& k : kept) {
      const bool is_held = chosen.contains(k.unit);
      (is_held ? held_out : calibration).push_back(std::move(k));
    }
  }
  const auto fill = [&](std::vector<Kept>* part, std::vector<CorpusItem>* items,
                        CorpusPart* counts) {
    std::stable_sort(part->begin(), part->end(), [&](const Kept& a, const Kept& b) {
      return Mix(a.content, options_.seed + 2) < Mix(b.content, options_.seed + 2);
    });
    for (Kept& k : *part) {
      counts->bytes += static_cast<int64_t>(k.item.bytes());
      ++(k.document >= 0 ? counts->texts : counts->requests);
      counts->with_answer += k.item.answer.has_value();
      items->push_back(std::move(k.item));
    }
  };
  CorpusReport& report = corpus->report;
  fill(&calibration, &corpus->calibration, &report.calibration);
  fill(&held_out, &corpus->held_out, &report.held_out);
  for (const CorpusItem& item : corpus->calibration) {
    report.calibration_hash = HashItem(item, report.calibration_hash);
  }
  report.hash = report.calibration_hash;
  for (const CorpusItem& item : corpus->held_out) report.hash = HashItem(item, report.hash);
}

void CorpusSample::Finish(Corpus* corpus) {
  std::vector<Kept> kept;
  for (auto& [key, group] : groups_) {
    for (Kept& k : group.members) kept.push_back(std::move(k));
  }
  groups_.clear();
  DropSharedPrefixes(&kept);
  corpus->report.duplicates = duplicates_;
  corpus->report.shared_prefix = shared_prefix_;
  corpus->report.not_sampled = not_sampled_;
  if (!kept.empty()) Split(JoinPieces(std::move(kept)), corpus);
}

}  // namespace tq
