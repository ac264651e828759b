// Which text a profile was calibrated on, in a form that recognizes the text and does not tell it.
//
// A sketch is a bitmap of hashes of a sample of the text's pieces of kPiece tokens, taken at every
// position, so that neither the cut into windows nor the order nor what else is read matters. One
// bit in eight is set, by decoys where pieces are few: one piece that is found says nothing (every
// eighth piece of any text is), many that are found say that the text was read.
// docs/decisions/what-was-calibrated-on.md has the reasons.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "turboquant/base/status.h"

namespace tq {

// Of some text's pieces those that another text's sketch knows.
struct TextOverlap {
  int64_t pieces = 0, found = 0;              // of the text, as far as the sketch samples them
  static constexpr double kByChance = 0.125;  // share of any other text's that are found

  // About the share of the text that the other one holds too, 0..1.
  double share() const;
  // Fewer than one text in 10,000 would have so many by chance (Chernoff's bound).
  bool certain() const;
};

class TextSketch {
 public:
  static constexpr size_t kPiece = 24;  // tokens: longer than phrases that people repeat
  using Windows = std::span<const std::vector<int32_t>>;

  TextSketch() = default;  // of no text
  explicit TextSketch(Windows windows);

  bool empty() const;
  TextOverlap With(Windows windows) const;

  // "7:" and the bitmap in hexadecimal; "" of no text.
  std::string ToString() const;
  // kInvalidArgument: not of this form, or another share of the bits is set.
  static Result<TextSketch> Parse(std::string_view text);

  friend bool operator==(const TextSketch&, const TextSketch&) = default;

 private:
  static constexpr size_t kBits = 8192, kSet = kBits / 8;

  static size_t At(uint64_t hash) { return (hash >> 48) % kBits; }
  bool HasBit(uint64_t hash) const { return (bitmap_[At(hash) / 8] >> (At(hash) % 8)) & 1; }
  void SetBit(uint64_t hash) {
    uint8_t& byte = bitmap_[At(hash) / 8];
    byte = static_cast<uint8_t>(byte | 1u << (At(hash) % 8));
  }
  size_t CountBits() const;

  int sampling_ = 0;  // one piece in 2^sampling_
  std::array<uint8_t, kBits / 8> bitmap_{};
};

}  // namespace tq
