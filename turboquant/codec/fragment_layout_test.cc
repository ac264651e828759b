#include "turboquant/codec/fragment_layout.h"

#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <vector>

#include "turboquant/codec/pack.h"

namespace tq {
namespace {

std::vector<std::byte> RandomBytes(size_t n, uint64_t seed) {
  std::vector<std::byte> bytes(n);
  for (std::byte& b : bytes) b = static_cast<std::byte>(SplitMix64(seed) >> 56);
  return bytes;
}

// What the tensor cores define, written out: a register of a lane holds these 4 rows and depths.
TEST(FragmentLayout, SlotsAreThoseOfTheTensorCores) {
  const int dim = 128;
  for (int lane = 0; lane < 32; ++lane) {
    const int r = lane / 4, c = lane % 4;
    for (int i = 0; i < 4; ++i) {
      for (int b = 0; b < 4; ++b) {
        for (int t = 0; t < 4; ++t) {
          for (int j = 0; j < dim / 32; ++j) {
            const FragmentSlot s = FragmentOf(Side::kK, dim, 16 * t + r + 8 * (i & 1),
                                              32 * j + 4 * c + b + 16 * (i >> 1));
            EXPECT_EQ(s.lane, lane);
            EXPECT_EQ(s.reg, (t * 4 + j) * 4 + i);
            EXPECT_EQ(s.byte, b);
          }
        }
        const int tokens[4] = {2 * c, 2 * c + 1, 2 * c + 8, 2 * c + 9};
        for (int m = 0; m < dim / 16; ++m) {
          for (int step = 0; step < 2; ++step) {
            const FragmentSlot s = FragmentOf(Side::kV, dim, 32 * step + 16 * (i >> 1) + tokens[b],
                                              16 * m + r + 8 * (i & 1));
            EXPECT_EQ(s.lane, lane);
            EXPECT_EQ(s.reg, ((m / 4 * 2 + step) * 4 + m % 4) * 4 + i);
            EXPECT_EQ(s.byte, b);
          }
        }
      }
    }
  }
}

TEST(FragmentLayout, EveryValueHasItsOwnByte) {
  for (const int dim : {64, 128, 256}) {
    for (const Side side : {Side::kK, Side::kV}) {
      std::set<size_t> seen;
      for (int t = 0; t < kPageLen; ++t) {
        for (int c = 0; c < dim; ++c) seen.insert(FragmentByte(FragmentOf(side, dim, t, c)));
      }
      EXPECT_EQ(seen.size(), static_cast<size_t>(kPageLen) * dim);
      EXPECT_LT(*seen.rbegin(), static_cast<size_t>(kPageLen) * dim);
    }
  }
}

// Codes unpacked from words the way a kernel does it are those of the record.
TEST(FragmentLayout, WordsHoldTheCodesOfTheRecord) {
  const int dim = 128;
  for (const int bits : {2, 3, 4}) {
    HeadFormat format{*DefaultCodec(bits), *DefaultCodec(bits)};
    format.k.codebook = Codebook::kLloyd;  // uniform 2-bit codes are masked in place: below
    const RecordLayout l = RecordLayout::For(format, dim);
    const std::vector<std::byte> from = RandomBytes(l.bytes, static_cast<uint64_t>(bits));
    std::vector<std::byte> to(l.bytes);
    RecordToFragments(format, dim, from.data(), to.data());
    uint8_t identity[kMaxLevels];
    for (int i = 0; i < kMaxLevels; ++i) identity[i] = static_cast<uint8_t>(i);
    std::vector<uint8_t> codes(static_cast<size_t>(dim) * kPageLen);
    UnpackCodesRef(bits, reinterpret_cast<const uint8_t*>(from.data()) + l.k_codes, dim, identity,
                   codes.data());
    for (int t = 0; t < kPageLen; ++t) {
      for (int c = 0; c < dim; ++c) {
        const FragmentSlot s = FragmentOf(Side::kK, dim, t, c);
        const auto word = [&](int w) {
          uint32_t value;
          std::memcpy(&value, to.data() + l.k_codes + FragmentWordByte(s.lane, w), 4);
          return value;
        };
        // The two registers of a word of nibbles, as a kernel makes them.
        uint32_t nibbles = 0;
        if (bits == 4) nibbles = word(s.reg / 2);
        if (bits == 2) nibbles = word(s.reg / 4) >> (s.reg % 4 / 2 * 2) & 0x33333333u;
        if (bits == 3) {
          const int g = s.reg / 8 * 3, i = s.reg % 8 / 2;
          nibbles = i < 3 ? word(g + i) & 0x77777777u
                          : (word(g) >> 3 & 0x11111111u) | (word(g + 1) >> 2 & 0x22222222u) |
                                (word(g + 2) >> 1 & 0x44444444u);
        }
        const uint32_t selector = nibbles >> (s.reg % 2 * 16) & 0xffff;
        ASSERT_EQ(selector >> (4 * s.byte) & 15, codes[CodeIndex(t, c, dim)])
            << bits << " bits, token " << t << ", channel " << c;
      }
      ASSERT_EQ(to[l.k_scales + static_cast<size_t>(FragmentScaleByte(t))],
                from[l.k_scales + static_cast<size_t>(t)]);
    }
  }
}

TEST(FragmentLayout, UniformTwoBitCodesAreMaskedInPlace) {
  const int dim = 64;
  const HeadFormat format = *ParsePreset("k2v2");
  const RecordLayout l = RecordLayout::For(format, dim);
  const std::vector<std::byte> from = RandomBytes(l.bytes, 5);
  std::vector<std::byte> to(l.bytes);
  RecordToFragments(format, dim, from.data(), to.data());
  std::vector<uint8_t> codes(static_cast<size_t>(dim) * kPageLen);
  const uint8_t identity[kMaxLevels] = {0, 1, 2, 3};
  UnpackCodesRef(2, reinterpret_cast<const uint8_t*>(from.data()) + l.v_codes, dim, identity,
                 codes.data());
  for (int t = 0; t < kPageLen; ++t) {
    for (int c = 0; c < dim; ++c) {
      const FragmentSlot s = FragmentOf(Side::kV, dim, t, c);
      uint32_t word;
      std::memcpy(&word, to.data() + l.v_codes + FragmentWordByte(s.lane, s.reg / 4), 4);
      // As the kernel: two masks of the word, two of the word shifted by 4.
      const uint32_t registers[4] = {word & 0x03030303u, word >> 4 & 0x03030303u,
                                     (word & 0x0c0c0c0cu) >> 2, (word >> 4 & 0x0c0c0c0cu) >> 2};
      ASSERT_EQ(registers[s.reg % 4] >> (8 * s.byte) & 255, codes[CodeIndex(c, t, kPageLen)]);
    }
  }
}

TEST(FragmentLayout, RecordsComeBackAsTheyWere) {
  for (const char* preset : {"k4v4", "k3v2", "k2v3", "k2v4-anchor2", "k8v4", "f16", "k3v3-trellis",
                             "k4v4-group32", "k6v5"}) {
    for (const int dim : {64, 128, 256, 80}) {
      const HeadFormat format = *ParsePreset(preset);
      const size_t bytes = RecordLayout::For(format, dim).bytes;
      const std::vector<std::byte> from = RandomBytes(bytes, 3);
      std::vector<std::byte> device(bytes), back(bytes);
      RecordToFragments(format, dim, from.data(), device.data());
      RecordFromFragments(format, dim, device.data(), back.data());
      EXPECT_EQ(back, from) << preset << " " << dim;
      const bool moved =
          HasFragmentOrder(dim) && (IsFragmentCodec(format.k) || IsFragmentCodec(format.v));
      EXPECT_EQ(device != from, moved) << preset << " " << dim;
    }
  }
}

TEST(FragmentLayout, OpenRowsComeBackAsTheyWere) {
  for (const RecentType recent : {RecentType::kQ8, RecentType::kF16}) {
    for (const int dim : {64, 128, 256, 80}) {
      const OpenLayout l = OpenLayout::For(*ParsePreset("k3v2"), recent, dim);
      const std::vector<std::byte> from = RandomBytes(l.bytes, 4);
      std::vector<std::byte> device(l.bytes), back(l.bytes);
      OpenToFragments(l, dim, from.data(), device.data());
      OpenFromFragments(l, dim, device.data(), back.data());
      EXPECT_EQ(back, from) << dim;
      EXPECT_EQ(device != from, recent == RecentType::kQ8 && HasFragmentOrder(dim)) << dim;
    }
  }
}

}  // namespace
}  // namespace tq
