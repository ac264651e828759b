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

// What the stored numbers are. Rows of the open window are of one of these types too; kInt there
// means int8 with one float32 scale a row.
enum class ValueType : uint8_t { kInt, kF16, kBF16, kFP8 };  // kFP8: e4m3, no infinities

enum class Rotate : uint8_t { kNone, kHadamard, kMatrix };  // kMatrix: from a profile
enum class ScaleType : uint8_t { kNone, kLog8, kF16 };      // kNone: float values carry their own
enum class Zero : uint8_t { kSymmetric, kAffine };          // affine: an offset for each group
enum class Codebook : uint8_t { kNone, kUniform, kLloyd, kCalibrated, kTrellis };
enum class Gain : uint8_t { kNone, kNorm, kUnbiased };
enum class Center : uint8_t { kNone, kRopeMean };

// Which of the two vectors of a token: some axes and all byte orders depend on it.
enum class Side : uint8_t { kK, kV };

inline constexpr int kGroupHead = 0;  // group_len: the whole head vector shares one scale

struct Codec {
  ValueType type = ValueType::kF16;
  int bits = 16;  // kInt: 2, 3, 4, 5, 6, 8; kF16 and kBF16: 16; kFP8: 8
  Rotate rotate = Rotate::kNone;
  int group_len = kGroupHead;  // values that share a scale: kGroupHead, 16, 32, 64 or 128
  ScaleType scale = ScaleType::kNone;
  Zero zero = Zero::kSymmetric;
  Codebook codebook = Codebook::kNone;
  Gain gain = Gain::kNone;
  Center center = Center::kNone;  // K only

  constexpr bool is_f16() const { return type == ValueType::kF16; }
  // Float rows are final: sealing copies them.
  constexpr bool is_float() const { return type != ValueType::kInt; }
  // Scales other than one log8 byte a token.
  constexpr bool is_grouped() const {
    return group_len != kGroupHead || zero == Zero::kAffine || scale == ScaleType::kF16;
  }
  friend bool operator==(const Codec&, const Codec&) = default;
};

// The defaults of an integer width: rotation on, log8 scale; code book uniform at 2 bits and from 5
// on, Lloyd-Max at 3 and 4; gain `norm` below 6 bits. 16 gives f16. Setting center on K turns its
// gain to `unbiased` (see WithCenter). kUnsupported lists the registered widths.
Result<Codec> DefaultCodec(int bits);
Codec FloatCodec(ValueType type);
Codec WithCenter(Codec k, Center center);
// The plain grouped family: no rotation, uniform book, affine, f16 scales.
Codec WithGroups(Codec codec, int group_len);

// kUnsupported when a combination of axes has no kernel; the message lists what is supported.
Status ValidateCodec(const Codec& codec, Side side);

inline constexpr int kMaxAnchors = 4;

// K and V of one layer and KV head.
struct HeadFormat {
  Codec k, v;
  // Tokens of a sealed block that are kept better: residual rows of K and V (anchor.h).
  int anchors = 0;      // 0 to kMaxAnchors
  int anchor_bits = 4;  // 4 or 8
  friend bool operator==(const HeadFormat&, const HeadFormat&) = default;
};
Status ValidateFormat(const HeadFormat& format);

// `f16`, `bf16`, `fp8`, `k<a>v<b>` with a, b in {2, 3, 4, 5, 6, 8, 16, bf16, fp8}, with suffixes
// `-trellis`, `-group16` to `-group128`, `-anchor1` to `-anchor4`; any case. kInvalidArgument for
// what is not a preset, kUnsupported for one whose combination has no kernel.
Result<HeadFormat> ParsePreset(std::string_view name);
// The shortest preset name that gives this format, e.g. "k3v2" or "f16"; calibrated axes (center,
// matrix, calibrated books) have no name of their own.
std::string PresetName(const HeadFormat& format);

const char* Name(ValueType v);
const char* Name(Rotate v);
const char* Name(ScaleType v);
const char* Name(Zero v);
const char* Name(Codebook v);
const char* Name(Gain v);
const char* Name(Center v);

// One row for each type of stored number; drives the test grid, the bench grid and tq info.
struct FormatInfo {
  ValueType type;
  int bits;
  const char* name;        // "int3", "f16"
  const char* token;       // in presets: "3", "16"
  const char* arithmetic;  // what the attention kernels multiply
  std::span<const Codebook> codebooks;
  Codec codec() const;  // its defaults
};
std::span<const FormatInfo> RegisteredFormats();

}  // namespace tq
