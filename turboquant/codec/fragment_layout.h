// The order of codes inside a block on a CUDA device: that of the tensor cores' fragments.
//
// Same sizes and the same sections as record_layout.h; only the order inside K codes, V codes, open
// rows and log8 scales differs. A 16 x 32 fragment of 8-bit numbers is 4 registers of 4 bytes in
// each of 32 lanes; lane = 4 r + c. What is a row and what is the depth k:
//   K: rows = tokens, k = channels. Fragment (t, j) = tokens 16 t.. x channels 32 j..
//      register i, byte b: token 16 t + r + 8 (i & 1), channel 32 j + 4 c + b + 16 (i >> 1)
//   V: rows = channels, k = tokens. Fragment (m, s) = channels 16 m.. x tokens 32 s..
//      register i, byte b: channel 16 m + r + 8 (i & 1),
//      token 32 s + 16 (i >> 1) + {2 c, 2 c + 1, 2 c + 8, 2 c + 9}[b]
//   which is the order in which the lanes hold the weights of tokens after QK.
// Fragments are consumed in the order K: t, then j; V: m / 4, then s, then m % 4. The registers of
// a lane in that order are its stream; 4 codes of each.
//
// 8 bit: 16 bytes a lane and fragment, [fragment][lane][16], so that copies stay linear and a warp
// reads 512 consecutive bytes. Less: words of 8 nibbles, low half = an even register of the stream,
// high half = the odd one behind it, as byte permutes want their selectors:
//   4 bit: a word has registers 2 w, 2 w + 1.
//   2 bit: registers 4 w, 4 w + 1 in bits 0-1 of the nibbles, 4 w + 2, 4 w + 3 in bits 2-3;
//          but with the uniform book, which needs no permute, bytes that are masked where they are:
//          byte b of word w has byte b of registers 4 w, 4 w + 2, 4 w + 1, 4 w + 3 from bit 0 up.
//   3 bit: words 3 g .. 3 g + 2 have registers 8 g .. 8 g + 5 in bits 0-2; bits 3 of the three
//   words
//          are bits 0, 1, 2 of the codes of registers 8 g + 6, 8 g + 7.
// Words of all lanes lie in 16-byte pieces: word w of a lane is at ((w / 4 * 32 + lane) * 4 + w %
// 4) x 4 bytes. Scales and offsets, in each plane of 64: token 16 t + 8 h + r is number
// 8 r + 2 t + h.
//
// FP8 has the order of 8-bit codes. A 16 x 16 fragment of 16-bit numbers is 4 registers of 2:
//   K: fragment (t, j) = tokens 16 t.. x channels 16 j.., consumed t, then j
//      register i, half b: token 16 t + r + 8 (i & 1), channel 16 j + 2 c + b + 8 (i >> 1)
//   V: fragment (m, s) = channels 16 m.. x tokens 16 s.., consumed m, then s
//      register i, half b: channel 16 m + r + 8 (i & 1), token 16 s + 2 c + b + 8 (i >> 1)
#pragma once

#include <cstdint>

#include "turboquant/codec/codec.h"
#include "turboquant/codec/record_layout.h"

namespace tq {

class Rotation;

// Where a value sits in the streams of the lanes.
struct FragmentSlot {
  int lane = 0;
  int reg = 0;   // register of the lane's stream
  int byte = 0;  // of the register
};

inline constexpr FragmentSlot FragmentOf(Side side, int head_dim, int token, int channel) {
  if (side == Side::kK) {
    const int fragment = token / 16 * (head_dim / 32) + channel / 32;
    const int r = token % 8, half = token / 8 % 2, k = channel % 32;
    return {4 * r + k % 16 / 4, 4 * fragment + half + 2 * (k / 16), k % 4};
  }
  const int m = channel / 16, s = token / 32;
  const int fragment = (m / 4 * 2 + s) * 4 + m % 4;
  const int r = channel % 8, half = channel / 8 % 2, k = token % 32;
  const int in_half = k % 16;  // 2 c + {0, 1} or 2 c + 8 + {0, 1}
  return {4 * r + in_half % 8 / 2, 4 * fragment + half + 2 * (k / 16),
          in_half % 2 + in_half / 8 * 2};
}

// Byte of word w of a lane's stream.
inline constexpr size_t FragmentWordByte(int lane, int word) {
  return (static_cast<size_t>(word / 4 * 32 + lane) * 4 + word % 4) * 4;
}
// Byte of an 8-bit value.
inline constexpr size_t FragmentByte(const FragmentSlot& s) {
  return FragmentWordByte(s.lane, s.reg) + s.byte;
}

// Byte of a 16-bit value.
inline constexpr size_t FragmentHalfByte(Side side, int head_dim, int token, int channel) {
  const bool is_k = side == Side::kK;
  const int row = is_k ? token : channel, k = is_k ? channel : token;
  const int fragment = row / 16 * ((is_k ? head_dim : kPageLen) / 16) + k / 16;
  const int reg = row / 8 % 2 + k % 16 / 8 * 2;
  return FragmentWordByte(row % 8 * 4 + k % 8 / 2, 4 * fragment + reg) + k % 2 * 2;
}

// Where channel k of 16 lies among the queries' halves, such that a lane finds the four that belong
// to its registers of K at 4 c: k = 2 c, 2 c + 1, 2 c + 8, 2 c + 9 of 16-bit numbers; of FP8, bytes
// 0, 2, 1, 3 of a word (fp8.h).
inline constexpr int FragmentQueryIndex(bool fp8, int k) {
  return fp8 ? k / 4 * 4 + k % 2 * 2 + k / 2 % 2 : k % 8 / 2 * 4 + k % 2 + k / 8 * 2;
}

// Bits of a code: up to three single bits or one field, each at (word, shift).
struct FragmentField {
  int word = 0, shift = 0;
};
inline constexpr FragmentField FragmentFieldOf(int bits, bool in_place, int reg, int byte) {
  const int nibble = 4 * (byte + 4 * (reg % 2));
  if (in_place) return {reg / 4, 8 * byte + 4 * (reg % 2) + reg / 2 % 2 * 2};
  if (bits == 4) return {reg / 2, nibble};
  if (bits == 2) return {reg / 4, nibble + 2 * (reg / 2 % 2)};
  return {reg / 8 * 3 + reg % 8 / 2, nibble};  // 3 bits, registers 0 to 5 of 8
}
// 3 bits: true for the registers whose codes are spread over the spare bits: bit i is bit 3 of the
// nibble in word i of the group.
inline constexpr bool FragmentIsSpread(int bits, int reg) {
  return bits == 3 && reg % 8 >= 6;
}

// Number of a token in a plane of scales or offsets.
inline constexpr int FragmentScaleIndex(int token) {
  return 8 * (token % 8) + 2 * (token / 16) + token / 8 % 2;
}

// What the fragment order is defined for; everything else keeps the order of record_layout.h.
inline constexpr bool HasFragmentOrder(int head_dim) {
  return head_dim % 64 == 0;
}
inline constexpr bool IsFragmentCodec(const Codec& c) {
  return c.is_float() || ((c.bits <= 4 || c.bits == 8) && c.codebook != Codebook::kTrellis);
}

// What the device kernels read besides: rotated by signs and a Hadamard transform, or not at all.
inline constexpr bool IsDeviceCodec(const Codec& c) {
  return IsFragmentCodec(c) && c.rotate != Rotate::kMatrix;
}

// The same in words, for messages.
inline constexpr char kDeviceFormats[] =
    "f16, bf16, fp8 and k<a>v<b> with a and b in 2, 3, 4, 8, 16, bf16, fp8 (Hadamard rotation or "
    "none; log8 or f16 scales, a token or a group of 16 to 128 channels; uniform, lloyd or "
    "calibrated books)";

inline constexpr bool IsInPlaceCodec(const Codec& c) {
  return c.type == ValueType::kInt && c.bits == 2 && c.codebook == Codebook::kUniform &&
         !c.is_grouped();
}

// Sets bit c % 32 of words[c / 32] for every channel c whose sign the rotation flips; words:
// zeroed.
void PackSigns(const Rotation& rotation, uint32_t* words);

// Between the two orders, on the host. Open rows, and sealed sides of IsFragmentCodec; all other
// sections are copied as they are. from and to are whole open parts, or whole records.
void OpenToFragments(const OpenLayout& layout, int head_dim, const std::byte* from, std::byte* to);
void OpenFromFragments(const OpenLayout& layout, int head_dim, const std::byte* from,
                       std::byte* to);
void RecordToFragments(const HeadFormat& format, int head_dim, const std::byte* from,
                       std::byte* to);
void RecordFromFragments(const HeadFormat& format, int head_dim, const std::byte* from,
                         std::byte* to);

}  // namespace tq
