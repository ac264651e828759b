// Which side of a corpus a request or a document stands on: decided by what it is, a seed and a
// share, never by what else was kept of the log.
//
//   Note(everything that is read) ▶ Decide ▶ IsHeldOut(whatever was kept)
//
// So a small sample of a log and a large one, drawn in any order of its files, agree on every
// request: what one command calibrates on, no other with the same seed and share takes for held
// out.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace tq {

// What tells requests and documents apart, and what makes them alike.
struct CorpusIdentity {
  // Hashes of the first 256, 512, 1024... bytes of a request's first message, or of the first 1, 2,
  // 4... atoms of a document, as far as it has them.
  std::vector<uint64_t> beginnings;
  uint64_t whole = 0;    // the first message, or the document
  uint64_t content = 0;  // everything that is said
  int64_t bytes = 0;     // of everything
  int64_t length = 0;    // of what `beginnings` are beginnings of
  bool is_document = false;

  static constexpr int64_t kFirstBeginning =
      256;  // shorter ones are common to all sorts of requests
  static constexpr int64_t kDocumentAtom = int64_t{16} << 10;
  // Sets whole, length and beginnings.
  void SetText(std::string_view text);
};

// The order that a seed gives to hashes.
uint64_t MixHash(uint64_t hash, uint64_t seed);

class CorpusDivider {
 public:
  // In any order, any number of times.
  void Note(const CorpusIdentity& identity);
  // share: of the bytes, in 0..0.9.
  void Decide(double share, uint64_t seed);

  bool IsHeldOut(const CorpusIdentity& identity) const;
  // All that was noted is one document, or one request: it has no sides.
  bool is_one() const { return units_.size() == 1; }
  // How the parts were made, where it is not by how requests and documents begin.
  const std::string& note() const { return note_; }

 private:
  // What stands on one side: the hash of a beginning, of a first message, of a content.
  enum class Unit { kBeginning, kWhole, kContent };
  struct Alike {
    int64_t count = 0, median_length = 0;
  };

  uint64_t UnitOf(const CorpusIdentity& identity) const;
  void FindAlike();
  void ChooseUnits(double share, uint64_t seed);

  // Those with the smallest hashes of everything noted: the same whatever the order.
  std::map<uint64_t, CorpusIdentity> reference_;
  std::map<uint64_t, Alike> alike_;  // by beginning, of the reference
  Unit unit_ = Unit::kBeginning;
  std::map<uint64_t, int64_t> units_;  // bytes, of the reference
  bool by_choice_ = false;             // few units: chosen_; else by the hash
  std::set<uint64_t> chosen_;
  uint64_t seed_ = 0, limit_ = 0;  // hashes of units below are held out
  std::string note_;
};

}  // namespace tq
