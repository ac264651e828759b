#include "turboquant/codec/fragment_layout.h"

#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <vector>

#include "turboquant/codec/fp8.h"
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

TEST(FragmentLayout, HalvesAreThoseOfTheTensorCores) {
  const int dim = 128;
  for (int lane = 0; lane < 32; ++lane) {
    const int r = lane / 4, c = lane % 4;
    for (int i = 0; i < 4; ++i) {
      for (int b = 0; b < 2; ++b) {
        const int row = r + 8 * (i & 1), k = 2 * c + b + 8 * (i >> 1);
        const size_t in_fragment = static_cast<size_t>(lane) * 16 + i * 4 + b * 2;
        for (int t = 0; t < 4; ++t) {
          for (int j = 0; j < dim / 16; ++j) {
            EXPECT_EQ(FragmentHalfByte(Side::kK, dim, 16 * t + row, 16 * j + k),
                      static_cast<size_t>(t * dim / 16 + j) * 512 + in_fragment);
            EXPECT_EQ(FragmentHalfByte(Side::kV, dim, 16 * t + k, 16 * j + row),
                      static_cast<size_t>(j * 4 + t) * 512 + in_fragment);
          }
        }
      }
    }
  }
}

// The kernel's view of FP8 keys: a word of 8-bit order gives registers of two 16 x 16 products, and
// the queries' halves lie so that both sides of a product mean the same channel.
TEST(FragmentLayout, WordsOfFP8MeetTheirQueries) {
  const int dim = 64;
  for (int t = 0; t < kPageLen; ++t) {
    for (int c = 0; c < dim; ++c) {
      const FragmentSlot s = FragmentOf(Side::kK, dim, t, c);
      const int k_step = c / 16, reg = s.reg % 4;
      EXPECT_EQ(k_step % 2, reg / 2);  // registers 0, 1 and 2, 3 are one product each
      // Bytes 0, 2 are the first register of the pair, k = 2 c, 2 c + 1; bytes 1, 3 the other.
      const int place = s.lane % 4 * 4 + s.byte % 2 * 2 + s.byte / 2;
      EXPECT_EQ(FragmentQueryIndex(true, c % 16), place);
    }
  }
  for (int k = 0; k < 16; ++k) {  // of 16-bit numbers
    const int lane = k % 8 / 2, half = k / 8;
    EXPECT_EQ(FragmentQueryIndex(false, k), 4 * lane + 2 * half + k % 2);
  }
}

TEST(FragmentLayout, WordsOfFP8BecomeHalves) {
  for (uint32_t a = 0; a < 256; ++a) {
    if (a % 128 == 127) continue;  // NaN
    const uint32_t b = (a * 37 + 11) % 256;
    const uint32_t word = a | b << 8 | b << 16 | a << 24;
    const uint32_t even = HalvesOfEvenFP8(word), odd = HalvesOfOddFP8(word);
    const auto half = [](uint32_t h) { return kFP8ToHalf * F32FromF16(static_cast<f16_t>(h)); };
    EXPECT_EQ(half(even & 0xffff), F32FromFP8(static_cast<uint8_t>(a)));
    EXPECT_EQ(half(odd >> 16), F32FromFP8(static_cast<uint8_t>(a)));
    EXPECT_EQ(even >> 16, odd & 0xffff);
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
      seen.clear();
      for (int t = 0; t < kPageLen; ++t) {
        for (int c = 0; c < dim; ++c) seen.insert(FragmentHalfByte(side, dim, t, c));
      }
      EXPECT_EQ(seen.size(), static_cast<size_t>(kPageLen) * dim);
      EXPECT_LT(*seen.rbegin(), static_cast<size_t>(kPageLen) * dim * 2);
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
      ASSERT_EQ(to[l.k_scales + static_cast<size_t>(FragmentScaleIndex(t))],
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
  for (const char* preset : {"k4v4", "k3v2", "k2v3", "k2v4-anchor2", "k8v4", "k8v8-anchor1", "f16",
                             "bf16", "fp8", "k16vfp8", "k3v3-trellis", "k4v4-group32",
                             "k8v3-group16", "k2v2-group128", "k6v5", "k5v5-group64"}) {
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
  for (const auto& [preset, recent] : {std::pair{"k3v2", RecentType::kQ8},
                                       {"k3v2", RecentType::kF16},
                                       {"kfp8vbf16", RecentType::kQ8}}) {
    for (const int dim : {64, 128, 256, 80}) {
      const OpenLayout l = OpenLayout::For(*ParsePreset(preset), recent, dim);
      const std::vector<std::byte> from = RandomBytes(l.bytes, 4);
      std::vector<std::byte> device(l.bytes), back(l.bytes);
      OpenToFragments(l, dim, from.data(), device.data());
      OpenFromFragments(l, dim, device.data(), back.data());
      EXPECT_EQ(back, from) << dim;
      EXPECT_EQ(device != from, HasFragmentOrder(dim)) << dim;
    }
  }
}

}  // namespace
}  // namespace tq
