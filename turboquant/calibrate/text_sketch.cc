#include "turboquant/calibrate/text_sketch.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "turboquant/base/numeric.h"

namespace tq {
namespace {

constexpr int kLeastSampling = 4, kMostSampling = 48;
constexpr uint64_t kSeed = 0x7E87;  // not that of other hashes of the same tokens

// Hashes of the pieces whose lowest `sampling` bits are 0, each once.
std::vector<uint64_t> Pieces(TextSketch::Windows windows, int sampling) {
  const uint64_t mask = (uint64_t{1} << sampling) - 1;
  std::vector<uint64_t> hashes;
  for (const std::vector<int32_t>& w : windows) {
    for (size_t t = 0; t + TextSketch::kPiece <= w.size(); ++t) {
      const uint64_t hash = Hash64(w.data() + t, TextSketch::kPiece * sizeof(int32_t), kSeed);
      if ((hash & mask) == 0) hashes.push_back(hash);
    }
  }
  std::sort(hashes.begin(), hashes.end());
  hashes.erase(std::unique(hashes.begin(), hashes.end()), hashes.end());
  return hashes;
}

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

}  // namespace

double TextOverlap::share() const {
  if (pieces == 0) return 0;
  const double found_share = static_cast<double>(found) / static_cast<double>(pieces);
  return std::max(0.0, (found_share - kByChance) / (1 - kByChance));
}

bool TextOverlap::certain() const {
  if (share() <= 0) return false;
  const double p = static_cast<double>(found) / static_cast<double>(pieces);
  const double others = p < 1 ? (1 - p) * std::log((1 - p) / (1 - kByChance)) : 0;
  const double divergence = p * std::log(p / kByChance) + others;
  return static_cast<double>(pieces) * divergence > std::log(1e4);
}

TextSketch::TextSketch(Windows windows) {
  std::vector<uint64_t> hashes = Pieces(windows, kLeastSampling);
  int sampling = kLeastSampling;
  while (hashes.size() > kSet && sampling < kMostSampling) {
    const uint64_t bit = uint64_t{1} << sampling++;
    std::erase_if(hashes, [&](uint64_t h) { return (h & bit) != 0; });
  }
  if (hashes.empty()) return;
  sampling_ = sampling;
  for (const uint64_t h : hashes) SetBit(h);
  uint64_t decoy = Hash64(hashes.data(), hashes.size() * sizeof(uint64_t), kSeed);
  while (CountBits() < kSet) SetBit(SplitMix64(decoy));
}

bool TextSketch::empty() const {
  return sampling_ == 0;
}

size_t TextSketch::CountBits() const {
  size_t set = 0;
  for (const uint8_t byte : bitmap_) set += static_cast<size_t>(std::popcount(byte));
  return set;
}

TextOverlap TextSketch::With(Windows windows) const {
  TextOverlap overlap;
  if (empty()) return overlap;
  for (const uint64_t h : Pieces(windows, sampling_)) {
    ++overlap.pieces;
    overlap.found += HasBit(h);
  }
  return overlap;
}

std::string TextSketch::ToString() const {
  if (empty()) return "";
  std::string out = std::to_string(sampling_) + ":";
  for (const uint8_t byte : bitmap_) {
    out += "0123456789abcdef"[byte >> 4];
    out += "0123456789abcdef"[byte & 15];
  }
  return out;
}

Result<TextSketch> TextSketch::Parse(std::string_view text) {
  TextSketch sketch;
  if (text.empty()) return sketch;
  const size_t colon = text.find(':');
  int sampling = 0;
  bool good = colon == 1 || colon == 2;
  for (size_t i = 0; good && i < colon; ++i) {
    good = text[i] >= '0' && text[i] <= '9';
    sampling = 10 * sampling + (text[i] - '0');
  }
  good = good && sampling >= kLeastSampling && sampling <= kMostSampling &&
         text.size() == colon + 1 + 2 * sketch.bitmap_.size();
  for (size_t i = 0; good && i < sketch.bitmap_.size(); ++i) {
    const int high = HexDigit(text[colon + 1 + 2 * i]), low = HexDigit(text[colon + 2 + 2 * i]);
    good = high >= 0 && low >= 0;
    sketch.bitmap_[i] = static_cast<uint8_t>(high * 16 + low);
  }
  if (!good || sketch.CountBits() != kSet) {
    return InvalidArgument("a sketch of a text is a number from ", kLeastSampling, " to ",
                           kMostSampling, ", a colon and ", 2 * sketch.bitmap_.size(),
                           " hexadecimal digits, with ", kSet, " bits set");
  }
  sketch.sampling_ = sampling;
  return sketch;
}

}  // namespace tq
