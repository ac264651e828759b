// Any numbers as a block of vectors: every instruction set writes the bytes of the reference, and
// what comes back is finite.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "turboquant/base/isa.h"
#include "turboquant/codec/decode.h"
#include "turboquant/codec/encode.h"

namespace {

struct Block {
  tq::AlignedBuffer<std::byte> open;
  tq::AlignedBuffer<uint8_t> codes;
  float open_scales[tq::kPageLen] = {};
  std::vector<uint8_t> scales;
  tq::bf16_t base = 0, bound = 0;
};

Block Encode(const tq::Codec& codec, tq::Side side, int dim, tq::ValueType open_type,
             const std::vector<float>& x) {
  Block b;
  b.open.Resize(tq::ValueBytes(tq::OpenBits(open_type), dim));
  b.codes.Resize(tq::ValueBytes(codec.bits, dim));
  b.scales.resize(tq::ScaleBytes(codec, dim));
  const tq::Rotation rotation(codec.rotate, dim, 0, 0, 0, side);
  tq::WriteCounters counters;
  tq::WriteOpenRows({side, dim, open_type, &rotation, nullptr, nullptr}, x.data(),
                    static_cast<size_t>(dim), 0, 0, tq::kPageLen, b.open.data(), b.open_scales,
                    &counters);
  tq::SealSide(codec, nullptr, {side, dim, open_type, b.open.data(), b.open_scales}, b.codes.data(),
               b.scales.data(), &b.base, &b.bound);
  return b;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 4) return 0;
  const auto formats = tq::RegisteredFormats();
  const tq::FormatInfo& format = formats[data[0] % formats.size()];
  tq::Codec codec = format.codec();
  const tq::Codebook book = format.codebooks[data[1] % format.codebooks.size()];
  if (book != tq::Codebook::kCalibrated) codec.codebook = book;
  const int groups[] = {tq::kGroupHead, 16, 32, 64, 128};
  if (data[1] >= 128 && book == tq::Codebook::kUniform) {
    codec = tq::WithGroups(codec, groups[data[1] % 5]);
    if (data[2] % 4 >= 2) codec.scale = tq::ScaleType::kLog8;
  }
  const tq::Side side = data[2] % 2 == 0 ? tq::Side::kK : tq::Side::kV;
  const tq::ValueType open_type =
      tq::OpenType(codec, data[2] >= 128 ? tq::RecentType::kF16 : tq::RecentType::kQ8);
  const int dims[] = {2, 16, 59, 64, 80, 128};
  const int dim = dims[data[3] % 6];
  // The rest are the bits of floats, repeated to fill the block.
  std::vector<float> x(static_cast<size_t>(tq::kPageLen) * dim, 1.f);
  for (size_t i = 0; size > 4 && i < x.size() * sizeof(float); ++i) {
    reinterpret_cast<uint8_t*>(x.data())[i] = data[4 + i % (size - 4)];
  }
  TQ_CHECK(tq::ForceIsa("ref").ok());
  const Block want = Encode(codec, side, dim, open_type, x);
  for (const std::string& isa : tq::AvailableIsas()) {
    TQ_CHECK(tq::ForceIsa(isa).ok());
    const Block got = Encode(codec, side, dim, open_type, x);
    TQ_CHECK(std::memcmp(want.open.data(), got.open.data(), want.open.size()) == 0);
    TQ_CHECK(std::memcmp(want.codes.data(), got.codes.data(), want.codes.size()) == 0);
    TQ_CHECK(want.scales == got.scales);
    TQ_CHECK(want.base == got.base && want.bound == got.bound);
  }
  tq::ResetIsa();
  std::vector<float> y(x.size());
  tq::DecodeSealedSide(codec, nullptr, side, dim, want.codes.data(), want.scales.data(), want.base,
                       y.data());
  for (const float v : y) TQ_CHECK(std::isfinite(v));
  return 0;
}
