// Makes the sums of an edited cache file right, so that what lies behind them is reached.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>

#include "turboquant/base/numeric.h"

namespace tq::testing_util {

// Offsets in the header (docs/formats/cache_file.md).
inline constexpr size_t kSnapshotHeaderBytes = 256, kAtLength = 48, kAtOpenSlotBytes = 56,
                        kAtSealedSlotBytes = 64, kAtSections = 80, kAtWindowSlotBytes = 224,
                        kAtHeaderSum = 248;
inline constexpr size_t kNumSnapshotSections = 9, kBlocksSection = 5, kOpenSection = 6,
                        kSealedSection = 7, kWindowSection = 8;

inline uint64_t GetU64(const std::string& file, size_t at) {
  uint64_t n;
  std::memcpy(&n, file.data() + at, sizeof n);
  return n;
}
inline void PutU64(std::string* file, size_t at, uint64_t n) {
  std::memcpy(file->data() + at, &n, sizeof n);
}
inline uint64_t SectionBytes(const std::string& file, size_t section) {
  return GetU64(file, kAtSections + 16 * section);
}
// Where a section begins.
inline size_t SectionStart(const std::string& file, size_t section) {
  size_t at = kSnapshotHeaderBytes;
  for (size_t s = 0; s < section; ++s) at += SectionBytes(file, s);
  return at;
}

inline void FixSums(std::string* file) {
  if (file->size() < kSnapshotHeaderBytes) return;
  size_t at = kSnapshotHeaderBytes;
  for (size_t s = 0; s < kNumSnapshotSections; ++s) {
    const uint64_t bytes = SectionBytes(*file, s);
    if (bytes > file->size() - at) break;
    uint64_t sum = 0;
    const bool slots = s >= kOpenSection;
    constexpr size_t kAtSlotBytes[] = {kAtOpenSlotBytes, kAtSealedSlotBytes, kAtWindowSlotBytes};
    const uint64_t piece = slots ? GetU64(*file, kAtSlotBytes[s - kOpenSection]) : bytes;
    if (!slots) sum = Hash64(file->data() + at, bytes);
    for (uint64_t i = 0; slots && piece > 0 && piece <= bytes - i; i += piece) {
      sum = Hash64(file->data() + at + i, piece, sum);
    }
    PutU64(file, kAtSections + 16 * s + 8, sum);
    at += bytes;
  }
  PutU64(file, kAtHeaderSum, Hash64(file->data(), kAtHeaderSum));
}

}  // namespace tq::testing_util
