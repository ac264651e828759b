// What is kept of a log while it streams by, and how it is divided: the inner half of corpus.h.
//
// Conversations are kept by the smallest hashes of how they begin, pieces of text by the smallest
// hashes of themselves, as long as all of them fit a number of bytes. So every conversation has the
// same chance, however often it was logged, and what is kept does not depend on chance.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "runtime/evaluate/corpus.h"

namespace tq {

// More than any language needs on average: so many bytes are kept for a token of --max-tokens.
inline constexpr int64_t kCorpusBytesPerToken = 8;

class CorpusSample {
 public:
  explicit CorpusSample(const CorpusOptions& options);

  // False: a request of these texts would not be kept, as the sample is by now; it is counted.
  bool Wants(const CorpusItem& item);
  // False: the item alone is larger than everything that may be kept.
  bool AddRequest(CorpusItem item);
  // A file of text; the pieces that follow are its parts, at increasing offsets.
  void BeginDocument(const std::string& name);
  // `offset`, `raw_bytes`: where the piece lies in the file, whatever was redacted in it.
  bool AddPiece(std::string text, int64_t offset, int64_t raw_bytes);

  // Drops what begins like something longer, divides the rest, fills the two parts of *corpus and
  // the counts of its report. The last call.
  void Finish(Corpus* corpus);

 private:
  struct Kept {
    CorpusItem item;
    uint64_t content = 0;  // hash of the text without system messages
    int document = -1;     // of a piece
    int64_t offset = 0;
    int64_t raw_bytes = 0;  // of a piece in its file
    int unit = 0;           // what must stay on one side
  };
  struct Group {
    std::vector<Kept> members;
  };

  static int64_t BytesOf(const Kept& kept);
  uint64_t KeyOf(const CorpusItem& item, uint64_t content) const;
  void Add(uint64_t key, Kept kept);
  void Evict();
  void DropSharedPrefixes(std::vector<Kept>* kept);
  std::vector<Kept> JoinPieces(std::vector<Kept> kept) const;
  void Split(std::vector<Kept> kept, Corpus* corpus);
  // One document, or one request: nothing else can be held out.
  void SplitOne(std::vector<Kept> kept, std::vector<Kept>* calibration, std::vector<Kept>* held_out,
                CorpusReport* report) const;

  const CorpusOptions& options_;
  int64_t budget_bytes_, kept_bytes_ = 0;
  uint64_t limit_ = UINT64_MAX;       // keys from here on are not kept
  std::map<uint64_t, Group> groups_;  // by key
  std::vector<std::string> documents_;
  std::vector<int> document_root_;  // documents that share a piece are one
  int64_t duplicates_ = 0, shared_prefix_ = 0, not_sampled_ = 0;
};

}  // namespace tq
