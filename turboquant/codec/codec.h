// What a number format is, and the one list of those that exist.
//
// A codec says how the K or the V vectors of one layer and KV head are stored once they have left
// the recent window. K and V are chosen apart, per layer and KV head. Read record_layout.h for
// where the bytes lie, encode.h and decode.h for how they are made and read.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "turboquant/base/status.h"

namespace tq {

// The other values of these axes in docs/formats/profile.md are refused as unsupported by name.
enum class Rotate : uint8_t { kNone, kHadamard };
enum class ScaleType : uint8_t { kNone, kLog8 };  // kNone: f16 values carry their own
enum class Zero : uint8_t { kSymmetric };
enum class Codebook : uint8_t { kNone, kUniform, kLloyd };
enum class Gain : uint8_t { kNone, kNorm, kUnbiased };
enum class Center : uint8_t { kNone, kRopeMean };

// Which of the two vectors of a token: some axes and all byte orders depend on it.
enum class Side : uint8_t { kK, kV };

inline constexpr int kGroupHead = 0;  // group_len: the whole head vector shares one scale

struct Codec {
  int bits = 16;  // 2, 3, 4, 8, or 16 = f16
  Rotate rotate = Rotate::kNone;
  int group_len = kGroupHead;  // values that share a scale
  ScaleType scale = ScaleType::kNone;
  Zero zero = Zero::kSymmetric;
  Codebook codebook = Codebook::kNone;
  Gain gain = Gain::kNone;
  Center center = Center::kNone;  // K only

  constexpr bool is_f16() const { return bits == 16; }
  friend bool operator==(const Codec&, const Codec&) = default;
};

// The defaults of a bit width: rotation on, log8 scale, uniform at 2 and 8 bits, Lloyd-Max at 3
// and 4; gain `norm` up to 4 bits. Setting center on K turns its gain to `unbiased` (see
// WithCenter). kUnsupported lists the registered widths.
Result<Codec> DefaultCodec(int bits);
Codec WithCenter(Codec k, Center center);

// kUnsupported when a combination of axes has no kernel; the message lists what is supported.
Status ValidateCodec(const Codec& codec, Side side);

// K and V of one layer and KV head.
struct HeadFormat {
  Codec k, v;
  friend bool operator==(const HeadFormat&, const HeadFormat&) = default;
};

// `f16`, `k<a>v<b>` with a, b in {2, 3, 4, 8, 16}; any case. kInvalidArgument for what is not a
// preset, kUnsupported for presets that are planned but have no kernel.
Result<HeadFormat> ParsePreset(std::string_view name);
// The shortest preset name that gives the bits of this format, e.g. "k3v2" or "f16".
std::string PresetName(const HeadFormat& format);

const char* Name(Rotate v);
const char* Name(ScaleType v);
const char* Name(Zero v);
const char* Name(Codebook v);
const char* Name(Gain v);
const char* Name(Center v);

// One row for each bit width that has kernels; drives the test grid, the bench grid and tq info.
struct FormatInfo {
  int bits;
  const char* name;        // "int3", "f16"
  const char* arithmetic;  // what the attention kernels multiply
  std::span<const Codebook> codebooks;
};
std::span<const FormatInfo> RegisteredFormats();

}  // namespace tq
