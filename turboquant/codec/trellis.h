// Trellis-coded levels: better than Lloyd-Max at the same bits, because the level of an element
// depends on the symbols of its neighbours too. docs/decisions/trellis-tables.md has the figures.
//
// A stream is the `depth` of one lane (record_layout.h): n elements, one symbol of `bits` bits
// each, kept and packed as ordinary codes. The trellis visits the depths 0, 4, 8 ... then 1, 5 ...
// and closes to a ring (tail-biting, so there is no start to pay for):
//   state(i) = low 8 bits of u(i) | u(i+1) << bits | u(i+2) << 2 bits | u(i+3) << 3 bits
//   level(i) = next[state(i) >> bits & 15] + mix[(state(i) ^ state(i) >> 4) & 15]
// with i the place in that order, modulo n. Steps of 4 in depth let a kernel combine whole cells,
// byte by byte; two tables of 16 entries let it look levels up without a gather.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tq {

inline constexpr int kTrellisStates = 256;
inline constexpr int kMaxTrellisLevel = 63;  // of any table

struct TrellisTable {
  int bits = 0;
  int8_t next[16] = {}, mix[16] = {};
  int8_t level[kTrellisStates] = {};  // the sum of both for every state
  float unit = 0;                     // level 1 in units of sigma: x is about unit * level
  // The largest |level|. K tiles hold level + offset, which is not negative.
  int offset = 0;
  // As in CodebookTable: how many products of a pair of levels with a pair of digits fit int16.
  int max_k_sums = 0, max_v_sums = 0;
};

// For bits 2, 3, 4.
const TrellisTable& GetTrellis(int bits);

// Depth of the i-th element that the trellis of n elements visits.
inline constexpr int TrellisDepth(int i, int n) {
  return i % (n / 4) * 4 + i / (n / 4);
}

// Symbols that come near the smallest sum of (x - unit * level)^2, and their levels; all arrays are
// n long and in order of depth. x is in units of sigma, free of NaN; infinity is the outermost
// level. Elements from num_valid on do not count: their symbols serve the others. n is a multiple
// of 16 up to 512. A pure function: the same bytes from reference and vectors on every instruction
// set.
void TrellisEncode(int bits, const float* x, int num_valid, int n, uint8_t* symbols,
                   int8_t* levels);

// The levels of n symbols, in order of depth.
void TrellisDecodeRef(int bits, const uint8_t* symbols, int n, int8_t* levels);

// Turns a tile of symbols (num_groups x num_quads cells of 64 bytes, as UnpackCodes gives them with
// an identity table; num_quads = n / 4) into bytes level + add, in place.
void TrellisLevels(int bits, uint8_t* tile, int num_groups, int num_quads, int add);
void TrellisLevelsRef(int bits, uint8_t* tile, int num_groups, int num_quads, int add);
void TrellisLevelsSimd(int bits, uint8_t* tile, int num_groups, int num_quads, int add);

// UnpackCodes and TrellisLevels in one: from packed symbols (num_groups x num_quads cells) to bytes
// level + add. Kernels inline it from trellis-inl.h.
void UnpackTrellis(int bits, const uint8_t* packed, int num_groups, int num_quads, int add,
                   uint8_t* tile);
void UnpackTrellisRef(int bits, const uint8_t* packed, int num_groups, int num_quads, int add,
                      uint8_t* tile);
void UnpackTrellisSimd(int bits, const uint8_t* packed, int num_groups, int num_quads, int add,
                       uint8_t* tile);

}  // namespace tq
