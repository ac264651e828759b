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
