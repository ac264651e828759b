// Reconstruction levels as small integers, so that attention multiplies them as they are.
//
// The Lloyd-Max levels of N(0, 1) (Max 1960) divided by one unit and rounded; the unit is chosen
// so that the mean squared error grows by less than 0.3 % (codebook_test.cc) while the integers
// stay small: products of two or more codes then fit into 16 bits before they are widened.
#pragma once

#include <cstdint>
#include <span>

#include "turboquant/codec/codec.h"

namespace tq {

inline constexpr int kMaxLevels = 64;
inline constexpr int kMaxLevel = 63;    // |level|, so that level + offset fits 7 bits
inline constexpr int kMaxKDigit = 127;  // |digit| of a query
inline constexpr int kMaxVDigit = 255;  // digit of a softmax weight, not negative

struct CodebookTable {
  int num_levels = 0;
  // Ascending, then the last one again; value = scale * level.
  int8_t levels[kMaxLevels] = {};
  float thresholds[kMaxLevels - 1] = {};  // code = number of thresholds below x / reference
  // Level 1 in units of the reference, which is rms(x), or max|x| for books of 5 and 6 bits.
  float unit = 0;
  bool absmax = false;
  // K levels are stored as level + offset >= 0; offset * sum(query digits) is subtracted once.
  int offset = 0;
  // How many products of a code pair with a digit pair can be summed in int16.
  int max_k_sums = 0, max_v_sums = 0;
};

// For bits 2 to 6. TQ_CHECKs that the codec was validated. Not for calibrated books and trellises.
const CodebookTable& GetCodebook(Codebook kind, int bits);

// The book of a codec with levels (not 8 bits, not a trellis): `calibrated` where it says so.
const CodebookTable& BookOf(const Codec& codec, const CodebookTable* calibrated);

// A calibrated book: 2^bits ascending levels in units of rms(x). They are rounded to integers of
// one common unit. kInvalidArgument when they are not finite, not ascending, too many, or so far
// apart that two of them round to one integer.
Result<CodebookTable> MakeCodebook(std::span<const float> levels);

}  // namespace tq
