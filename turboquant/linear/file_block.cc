// Layouts as ggml defines them (ggml-common.h, ggml-quants.c), tested against the `gguf` package.
#include "turboquant/linear/file_block.h"

#include <cstring>

namespace tq {
namespace {

// Bytes as unsigned numbers.
struct Bytes {
  const std::byte* p;
  int operator[](int i) const { return std::to_integer<int>(p[i]); }
  Bytes operator+(int n) const { return {p + n}; }
  f16_t half(int at) const {
    f16_t h;
    std::memcpy(&h, p + at, sizeof h);
    return h;
  }
};

uint8_t U8(int n) {
  return static_cast<uint8_t>(n);
}

// 32 codes: input i in the low half of byte i, input i + 16 in the high half.
void ReadNibbles(Bytes q, uint8_t* codes) {
  for (int i = 0; i < 16; ++i) {
    codes[i] = U8(q[i] & 15);
    codes[i + 16] = U8(q[i] >> 4);
  }
}

// Fifth bits of 32 codes, bit i of a 32-bit number for input i.
void AddFifthBits(Bytes q, uint8_t* codes) {
  for (int i = 0; i < 32; ++i) codes[i] = U8(codes[i] | (q[i / 8] >> (i % 8) & 1) << 4);
}

// 256 codes in K order: bytes 32 n .. 32 n + 31 hold the inputs from 256 / bits_per_byte... on,
// the lowest bits first.
void ReadPairs(Bytes q, uint8_t* codes) {
  for (int k = 0; k < 256; ++k) codes[k] = U8(q[k / 128 * 32 + k % 32] >> (k % 128 / 32 * 2) & 3);
}
void ReadKNibbles(Bytes q, uint8_t* codes) {
  for (int k = 0; k < 256; ++k) codes[k] = U8(q[k / 64 * 32 + k % 32] >> (k % 64 / 32 * 4) & 15);
}
// Bit k / 32 of byte k % 32, at bit `place` of the code.
void AddKBits(Bytes q, int place, uint8_t* codes) {
  for (int k = 0; k < 256; ++k) codes[k] = U8(codes[k] | (q[k % 32] >> (k / 32) & 1) << place);
}

// The 6-bit scales and minima of Q4_K and Q5_K, eight of each in 12 bytes.
void ReadScalesAndMins(Bytes q, FileBlock& block) {
  for (int i = 0; i < 4; ++i) {
    block.scales[i] = static_cast<int8_t>(q[i] & 63);
    block.mins[i] = U8(q[i + 4] & 63);
    block.scales[i + 4] = static_cast<int8_t>((q[i + 8] & 15) | q[i] >> 6 << 4);
    block.mins[i + 4] = U8(q[i + 8] >> 4 | q[i + 4] >> 6 << 4);
  }
}

void ReadQ2K(Bytes q, FileBlock& block) {
  for (int g = 0; g < 16; ++g) {
    block.scales[g] = static_cast<int8_t>(q[g] & 15);
    block.mins[g] = U8(q[g] >> 4);
  }
  ReadPairs(q + 16, block.codes);
  block.d = q.half(80);
  block.m = q.half(82);
}

void ReadQ3K(Bytes q, FileBlock& block) {
  ReadPairs(q + 32, block.codes);
  AddKBits(q, 2, block.codes);
  const Bytes s = q + 96;
  for (int g = 0; g < 16; ++g) {
    const int low = g < 8 ? s[g] & 15 : s[g - 8] >> 4;
    const int high = s[8 + g % 4] >> (g / 4 * 2) & 3;
    block.scales[g] = static_cast<int8_t>((low | high << 4) - 32);
  }
  block.d = q.half(108);
}

void ReadQ6K(Bytes q, FileBlock& block) {
  for (int k = 0; k < 256; ++k) {
    const int half = k / 128, i = k % 128, l = i % 32;
    const int low = q[half * 64 + i % 64] >> (i / 64 * 4) & 15;
    const int high = q[128 + half * 32 + l] >> (i / 32 * 2) & 3;
    block.codes[k] = U8(low | high << 4);
  }
  std::memcpy(block.scales, q.p + 192, 16);
  block.d = q.half(208);
}

// Rank of a number of E2M1 (see kFloat4Levels) from its bits, sign and magnitude.
uint8_t RankOfFloat4(int bits) {
  return U8(bits < 8 ? 8 + bits : 15 - bits);
}

void ReadMXFP4(Bytes q, FileBlock& block) {
  block.exponent = U8(q[0]);
  ReadNibbles(q + 1, block.codes);
  for (int k = 0; k < kBlockLen; ++k) block.codes[k] = RankOfFloat4(block.codes[k]);
}

// The same for writing, into bytes that are all zero.
struct OutBytes {
  std::byte* p;
  void Or(int i, int bits) const { p[i] |= static_cast<std::byte>(bits); }
  OutBytes operator+(int n) const { return {p + n}; }
  void half(int at, f16_t h) const { std::memcpy(p + at, &h, sizeof h); }
};

void WriteNibbles(const uint8_t* codes, OutBytes q) {
  for (int i = 0; i < 16; ++i) q.Or(i, (codes[i] & 15) | (codes[i + 16] & 15) << 4);
}
void WriteFifthBits(const uint8_t* codes, OutBytes q) {
  for (int i = 0; i < 32; ++i) q.Or(i / 8, (codes[i] >> 4 & 1) << (i % 8));
}
void WritePairs(const uint8_t* codes, OutBytes q) {
  for (int k = 0; k < 256; ++k) q.Or(k / 128 * 32 + k % 32, (codes[k] & 3) << (k % 128 / 32 * 2));
}
void WriteKNibbles(const uint8_t* codes, OutBytes q) {
  for (int k = 0; k < 256; ++k) q.Or(k / 64 * 32 + k % 32, (codes[k] & 15) << (k % 64 / 32 * 4));
}
void WriteKBits(const uint8_t* codes, int place, OutBytes q) {
  for (int k = 0; k < 256; ++k) q.Or(k % 32, (codes[k] >> place & 1) << (k / 32));
}

void WriteScalesAndMins(const FileBlock& block, OutBytes q) {
  for (int i = 0; i < 4; ++i) {
    const int scale = block.scales[i + 4], min = block.mins[i + 4];
    q.Or(i, block.scales[i] | scale >> 4 << 6);
    q.Or(i + 4, block.mins[i] | min >> 4 << 6);
    q.Or(i + 8, (scale & 15) | (min & 15) << 4);
  }
}

void WriteQ2K(const FileBlock& block, OutBytes q) {
  for (int g = 0; g < 16; ++g) q.Or(g, block.scales[g] | block.mins[g] << 4);
  WritePairs(block.codes, q + 16);
  q.half(80, block.d);
  q.half(82, block.m);
}

void WriteQ3K(const FileBlock& block, OutBytes q) {
  WritePairs(block.codes, q + 32);
  WriteKBits(block.codes, 2, q);
  const OutBytes s = q + 96;
  for (int g = 0; g < 16; ++g) {
    const int scale = block.scales[g] + 32;
    s.Or(g % 8, g < 8 ? scale & 15 : (scale & 15) << 4);
    s.Or(8 + g % 4, scale >> 4 << (g / 4 * 2));
  }
  q.half(108, block.d);
}

void WriteQ6K(const FileBlock& block, OutBytes q) {
  for (int k = 0; k < 256; ++k) {
    const int half = k / 128, i = k % 128, l = i % 32;
    q.Or(half * 64 + i % 64, (block.codes[k] & 15) << (i / 64 * 4));
    q.Or(128 + half * 32 + l, (block.codes[k] >> 4 & 3) << (i / 32 * 2));
  }
  std::memcpy(q.p + 192, block.scales, 16);
  q.half(208, block.d);
}

}  // namespace

void ReadFileBlock(WeightType type, const std::byte* bytes, FileBlock& block) {
  const Bytes q = {bytes};
  switch (type) {
    case WeightType::kF32:
    case WeightType::kF16:
    case WeightType::kBF16: TQ_CHECK(false); break;
    case WeightType::kQ4_0:
      block.d = q.half(0);
      ReadNibbles(q + 2, block.codes);
      break;
    case WeightType::kQ4_1:
      block.d = q.half(0);
      block.m = q.half(2);
      ReadNibbles(q + 4, block.codes);
      break;
    case WeightType::kQ5_0:
      block.d = q.half(0);
      ReadNibbles(q + 6, block.codes);
      AddFifthBits(q + 2, block.codes);
      break;
    case WeightType::kQ5_1:
      block.d = q.half(0);
      block.m = q.half(2);
      ReadNibbles(q + 8, block.codes);
      AddFifthBits(q + 4, block.codes);
      break;
    case WeightType::kQ8_0:
      block.d = q.half(0);
      for (int i = 0; i < 32; ++i) block.codes[i] = U8(q[2 + i] ^ 128);
      break;
    case WeightType::kQ2_K: ReadQ2K(q, block); break;
    case WeightType::kQ3_K: ReadQ3K(q, block); break;
    case WeightType::kQ4_K:
    case WeightType::kQ5_K: {
      const bool five = type == WeightType::kQ5_K;
      block.d = q.half(0);
      block.m = q.half(2);
      ReadScalesAndMins(q + 4, block);
      ReadKNibbles(q + (five ? 48 : 16), block.codes);
      if (five) AddKBits(q + 16, 4, block.codes);
      break;
    }
    case WeightType::kQ6_K: ReadQ6K(q, block); break;
    case WeightType::kMXFP4: ReadMXFP4(q, block); break;
  }
}

void WriteFileBlock(WeightType type, const FileBlock& block, std::byte* bytes) {
  std::memset(bytes, 0, static_cast<size_t>(WeightBlockBytes(type)));
  const OutBytes q = {bytes};
  switch (type) {
    case WeightType::kF32:
    case WeightType::kF16:
    case WeightType::kBF16:
    case WeightType::kMXFP4: TQ_CHECK(false); break;  // read only
    case WeightType::kQ4_0:
      q.half(0, block.d);
      WriteNibbles(block.codes, q + 2);
      break;
    case WeightType::kQ4_1:
      q.half(0, block.d);
      q.half(2, block.m);
      WriteNibbles(block.codes, q + 4);
      break;
    case WeightType::kQ5_0:
      q.half(0, block.d);
      WriteNibbles(block.codes, q + 6);
      WriteFifthBits(block.codes, q + 2);
      break;
    case WeightType::kQ5_1:
      q.half(0, block.d);
      q.half(2, block.m);
      WriteNibbles(block.codes, q + 8);
      WriteFifthBits(block.codes, q + 4);
      break;
    case WeightType::kQ8_0:
      q.half(0, block.d);
      for (int i = 0; i < 32; ++i) q.Or(2 + i, block.codes[i] ^ 128);
      break;
    case WeightType::kQ2_K: WriteQ2K(block, q); break;
    case WeightType::kQ3_K: WriteQ3K(block, q); break;
    case WeightType::kQ4_K:
    case WeightType::kQ5_K: {
      const bool five = type == WeightType::kQ5_K;
      q.half(0, block.d);
      q.half(2, block.m);
      WriteScalesAndMins(block, q + 4);
      WriteKNibbles(block.codes, q + (five ? 48 : 16));
      if (five) WriteKBits(block.codes, 4, q + 16);
      break;
    }
    case WeightType::kQ6_K: WriteQ6K(block, q); break;
  }
}

float ReadFloat(WeightType type, const std::byte* p) {
  if (type == WeightType::kF32) {
    float f;
    std::memcpy(&f, p, sizeof f);
    return f;
  }
  uint16_t h;
  std::memcpy(&h, p, sizeof h);
  return type == WeightType::kF16 ? F32FromF16(h) : F32FromBF16(h);
}

void DequantizeFileRow(WeightType type, const std::byte* bytes, std::span<float> out) {
  const WeightLayout& f = LayoutOf(type);
  TQ_CHECK(out.size() % static_cast<size_t>(f.block_len) == 0);
  if (!IsBlockType(type)) {
    for (size_t i = 0; i < out.size(); ++i) {
      out[i] = ReadFloat(type, bytes + i * static_cast<size_t>(f.block_bytes));
    }
    return;
  }
  FileBlock block;
  for (size_t first = 0; first < out.size(); first += f.block_len, bytes += f.block_bytes) {
    ReadFileBlock(type, bytes, block);
    if (f.is_float4) {
      const float scale = Float4Scale(block.exponent);
      for (int k = 0; k < f.block_len; ++k) {
        out[first + k] = scale * static_cast<float>(kFloat4Levels[block.codes[k]]);
      }
      continue;
    }
    const float d = F32FromF16(block.d), m = F32FromF16(block.m);
    for (int k = 0; k < f.block_len; ++k) {
      const int g = k / f.group_len;
      const bool has_groups = f.scale_bytes > 0;
      const float scale = has_groups ? d * static_cast<float>(block.scales[g]) : d;
      const float minimum = has_groups ? -(m * static_cast<float>(block.mins[g])) : m;
      const float value = scale * static_cast<float>(block.codes[k] - f.offset);
      out[first + k] = f.has_min ? value + minimum : value;
    }
  }
}

}  // namespace tq
