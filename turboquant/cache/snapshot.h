// One sequence of a cache as a file, and back. docs/formats/cache_file.md has the bytes.
//
// A file holds what a sequence is made of: its open and sealed slots as they are, the tokens, the
// logits after the last one, and in words for which model and formats it was made. A sequence that
// was restored goes on as the saved one would have, bit for bit, rollback included.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "turboquant/base/mapped_file.h"
#include "turboquant/base/status.h"
#include "turboquant/cache/cache.h"

namespace tq {

inline constexpr uint32_t kSnapshotVersion = 1;
inline constexpr char kSnapshotMagic[8] = "TQCACHE";
inline constexpr char kSnapshotLayout[] = "cpu";  // order of the values inside a slot

// What belongs to a sequence and is not in the cache.
struct SnapshotMeta {
  uint64_t structure_hash = 0;  // of the model: Model::CacheHash()
  std::string model, kv;        // names for messages, at most 4096 bytes each
  std::vector<int32_t> tokens;  // as many as the sequence has
  std::vector<float> logits;    // after the last token, or empty
};

// Everything that decides what the bytes of a slot mean and which slots there are, a line for each
// thing: shape, window, seed, centres, formats by layer and head. Two caches with equal texts can
// read each other's slots.
std::string DescribeFormats(const CacheConfig& config);

// Writes to a temporary name and renames: the file is complete or not there.
Status SaveSnapshot(const KvCache& cache, SeqId seq, const SnapshotMeta& meta,
                    const std::string& path);

// A file that has been read and checked as far as that goes without a cache: version, sizes, sums.
class Snapshot {
 public:
  // kNotFound; kInvalidArgument: not a cache file; kUnsupported: another version or layout;
  // kDataLoss: truncated or damaged. The file must not change while the snapshot lives.
  static Result<Snapshot> Open(const std::string& path);
  // `bytes` must outlive the snapshot; `name` is for messages.
  static Result<Snapshot> Parse(std::span<const std::byte> bytes, const std::string& name);

  // A new sequence of `cache` with the contents of the file. kInvalidArgument when the file was
  // saved for another model or other formats (both sides named); on any error the cache is as it
  // was.
  Result<SeqId> Restore(KvCache& cache, uint64_t structure_hash) const;

  const SnapshotMeta& meta() const { return meta_; }
  const std::string& formats() const { return formats_; }  // DescribeFormats() of the saved cache
  int64_t length() const { return static_cast<int64_t>(meta_.tokens.size()); }
  int64_t num_open() const { return num_open_; }
  int64_t num_sealed() const { return num_sealed_; }
  int64_t num_window() const { return num_window_; }
  size_t slot_bytes() const { return open_.size() + sealed_.size() + window_.size(); }
  size_t file_bytes() const { return file_bytes_; }
  bool exact() const { return exact_; }  // see KvCache::IsExact

 private:
  Snapshot() = default;
  std::unique_ptr<MappedFile> file_;  // empty after Parse
  std::string name_, formats_;
  SnapshotMeta meta_;
  std::vector<uint8_t> blocks_;  // which forms each block has: kHasOpen, kHasSealed, kHasWindow
  std::span<const std::byte> open_, sealed_, window_;  // slots in the order of the blocks
  size_t open_slot_bytes_ = 0, sealed_slot_bytes_ = 0, window_slot_bytes_ = 0, file_bytes_ = 0;
  int64_t num_open_ = 0, num_sealed_ = 0, num_window_ = 0;
  bool exact_ = true;
};

}  // namespace tq
