// What is kept of a log while it streams by: the inner half of corpus.h.
//
// Conversations are kept by the smallest hashes of how they begin, pieces of text by the smallest
// hashes of themselves, as long as all of them fit a number of bytes. So every conversation has the
// same chance, however often it was logged, and what is kept does not depend on chance. The sides
// are those of corpus_divide.h, which do not depend on what is kept.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/evaluate/corpus.h"
#include "runtime/evaluate/corpus_divide.h"

namespace tq {

// More than any language needs on average: so many bytes are kept for a token of --max-tokens.
inline constexpr int64_t kCorpusBytesPerToken = 8;
// Kept while reading, however little is asked for: both sides should be among it.
inline constexpr int64_t kLeastStreamBytes = int64_t{8} << 20;

class CorpusSample {
 public:
  explicit CorpusSample(const CorpusOptions& options, int64_t least_bytes = kLeastStreamBytes);

  // To be called for every request. Its identity, for AddRequest; none: it would not be kept, as
  // the sample is by now; it is counted.
  std::optional<CorpusIdentity> Wants(const CorpusItem& item);
  // False: the item alone is larger than everything that may be kept.
  bool AddRequest(CorpusItem item, CorpusIdentity identity);
  // A file of text; the atoms that follow are its parts, at increasing offsets.
  void BeginDocument(const std::string& name);
  // `offset`, `raw_bytes`: where the atom lies in the file, whatever was redacted in it. Atoms must
  // not depend on options: a single document is divided between two of them, or in one.
  void AddAtom(const std::string& text, int64_t offset, int64_t raw_bytes);

  // Drops what begins like something longer, divides the rest, fills the two parts of *corpus and
  // the counts of its report. The last call.
  void Finish(Corpus* corpus);

 private:
  struct Kept {
    CorpusItem item;
    CorpusIdentity identity;     // of a request
    uint64_t content = 0;        // hash of the text without system messages
    uint64_t key = 0;            // the smallest are kept
    std::vector<int> documents;  // of a piece, that have it; the first read stands in front
    int64_t offset = 0;
    int64_t raw_bytes = 0;  // of a piece in its file
    std::vector<std::pair<int64_t, size_t>>
        atoms;  // its atoms begin there: in the file, in the text
    bool is_piece() const { return !documents.empty(); }
  };
  struct Document {
    std::string name;
    CorpusIdentity identity;
    int64_t raw_bytes = 0;
    int64_t num_atoms = 0;
  };
  struct Group {
    std::vector<Kept> members;
  };

  static int64_t BytesOf(const Kept& kept);
  uint64_t KeyOf(uint64_t hash) const { return MixHash(hash, options_.seed); }
  void EndPiece();
  // Sees to it that something of the document is kept.
  void KeepLeast(const Kept& piece);
  void EndDocument();
  void Add(Kept kept);
  // Drops what has the largest keys, as long as too much is kept.
  void Evict();
  // Of the group with the most members, one. False: all have a single one.
  bool EvictVariant();
  void DropLast(std::vector<Kept>* members);
  void DropSharedPrefixes(std::vector<Kept>* kept);
  std::vector<Kept> JoinPieces(std::vector<Kept> kept) const;
  // Of a single document the end is held out, behind a gap.
  void SplitDocument(std::vector<Kept> kept, std::vector<Kept>* calibration,
                     std::vector<Kept>* held_out, CorpusReport* report) const;
  bool IsHeldOut(const Kept& kept) const;
  void Divide(std::vector<Kept> kept, Corpus* corpus);
  static void Trim(int64_t max_bytes, std::vector<Kept>* side);

  const CorpusOptions& options_;
  CorpusDivider divider_;
  int64_t budget_bytes_, stream_bytes_, kept_bytes_ = 0;
  size_t atoms_of_piece_, few_groups_;
  uint64_t limit_ = UINT64_MAX;       // keys from here on are not kept
  std::map<uint64_t, Group> groups_;  // by key
  std::vector<Document> documents_;
  // As long as documents are few: of each its piece with the smallest key, which is kept whatever
  // else is; and by key the documents that have a piece, as bits.
  std::vector<Kept> least_;
  std::map<uint64_t, uint64_t> documents_of_;
  Kept piece_;  // that grows
  int64_t duplicates_ = 0, shared_prefix_ = 0, not_sampled_ = 0;
};

}  // namespace tq
