#include "turboquant/codec/codec.h"

#include <array>
#include <cctype>
#include <charconv>

namespace tq {
namespace {

constexpr std::array<Codebook, 2> kLowBitBooks = {Codebook::kUniform, Codebook::kLloyd};
constexpr std::array<Codebook, 1> kInt8Books = {Codebook::kUniform};
constexpr std::array<Codebook, 1> kFloatBooks = {Codebook::kNone};

constexpr std::array<FormatInfo, 5> kFormats = {{
    {2, "int2", "8-bit levels x 8-bit digits, int32 sums", kLowBitBooks},
    {3, "int3", "8-bit levels x 8-bit digits, int32 sums", kLowBitBooks},
    {4, "int4", "8-bit levels x 8-bit digits, int32 sums", kLowBitBooks},
    {8, "int8", "8-bit codes x 16-bit digits, int32 sums", kInt8Books},
    {16, "f16", "float32 products and sums", kFloatBooks},
}};

const FormatInfo* Find(int bits) {
  for (const FormatInfo& f : kFormats) {
    if (f.bits == bits) return &f;
  }
  return nullptr;
}

Status UnsupportedBits(int bits) {
  std::string list;
  for (const FormatInfo& f : kFormats) {
    list += (list.empty() ? "" : ", ") +
            (f.bits == 16 ? std::string("16 (f16)") : std::to_string(f.bits));
  }
  return Unsupported("no codec with ", bits, " bits; supported: ", list);
}

}  // namespace

std::span<const FormatInfo> RegisteredFormats() {
  return kFormats;
}

Result<Codec> DefaultCodec(int bits) {
  if (Find(bits) == nullptr) return UnsupportedBits(bits);
  Codec c;
  c.bits = bits;
  if (c.is_f16()) return c;
  c.rotate = Rotate::kHadamard;
  c.scale = ScaleType::kLog8;
  c.codebook = bits == 3 || bits == 4 ? Codebook::kLloyd : Codebook::kUniform;
  c.gain = bits <= 4 ? Gain::kNorm : Gain::kNone;
  return c;
}

Codec WithCenter(Codec k, Center center) {
  k.center = center;
  if (k.bits <= 4) k.gain = center == Center::kNone ? Gain::kNorm : Gain::kUnbiased;
  return k;
}

Status ValidateCodec(const Codec& c, Side side) {
  const FormatInfo* format = Find(c.bits);
  if (format == nullptr) return UnsupportedBits(c.bits);
  bool book_ok = false;
  std::string books;
  for (const Codebook b : format->codebooks) {
    book_ok |= b == c.codebook;
    books += (books.empty() ? "" : ", ") + std::string(Name(b));
  }
  if (!book_ok) {
    return Unsupported("codebook '", Name(c.codebook), "' at ", c.bits,
                       " bits; supported: ", books);
  }
  if (c.group_len != kGroupHead) {
    return Unsupported("group_len ", c.group_len, "; supported: head (the whole vector)");
  }
  const ScaleType scale = c.is_f16() ? ScaleType::kNone : ScaleType::kLog8;
  if (c.scale != scale) {
    return Unsupported("scale '", Name(c.scale), "' at ", c.bits,
                       " bits; supported: ", Name(scale));
  }
  if (c.gain != Gain::kNone && c.bits > 4) {
    return Unsupported("gain '", Name(c.gain), "' at ", c.bits, " bits; supported: none");
  }
  if (c.center != Center::kNone && side == Side::kV) {
    return Unsupported("center '", Name(c.center), "' on V; it exists for K only");
  }
  return OkStatus();
}

Result<HeadFormat> ParsePreset(std::string_view name) {
  std::string lower;
  for (const char c : name) lower += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  const auto unknown = [&] {
    return InvalidArgument("'", name,
                           "' is not a cache format; use f16 or k<a>v<b> with a and b in "
                           "2, 3, 4, 8, 16, e.g. k8v4, k4v4, k3v2, or the folder of a profile");
  };
  if (lower == "f16" || lower == "fp16") return HeadFormat{};
  if (lower == "bf16" || lower == "fp8") {
    return Unsupported("cache format '", lower,
                       "' has no kernel; supported: f16 and k<a>v<b> with a "
                       "and b in 2, 3, 4, 8, 16");
  }
  const char* p = lower.data();
  const char* end = p + lower.size();
  if (p == end || *p != 'k') return unknown();
  unsigned k_bits = 0, v_bits = 0;  // unsigned: no sign is accepted
  const auto k = std::from_chars(p + 1, end, k_bits);
  if (k.ec != std::errc() || k.ptr == end || *k.ptr != 'v') return unknown();
  const auto v = std::from_chars(k.ptr + 1, end, v_bits);
  if (v.ec != std::errc()) return unknown();
  if (v.ptr != end) {
    if (*v.ptr != '-') return unknown();
    return Unsupported("cache format '", name, "': the suffix '", std::string(v.ptr, end),
                       "' has no kernel; supported: plain k<a>v<b>");
  }
  HeadFormat f;
  TQ_ASSIGN_OR_RETURN(f.k, DefaultCodec(static_cast<int>(k_bits)));
  TQ_ASSIGN_OR_RETURN(f.v, DefaultCodec(static_cast<int>(v_bits)));
  return f;
}

std::string PresetName(const HeadFormat& f) {
  if (f.k.is_f16() && f.v.is_f16()) return "f16";
  return StrCat("k", f.k.bits, "v", f.v.bits);
}

const char* Name(Rotate v) {
  return v == Rotate::kNone ? "none" : "hadamard";
}
const char* Name(ScaleType v) {
  return v == ScaleType::kNone ? "none" : "log8";
}
const char* Name(Zero) {
  return "symmetric";
}
const char* Name(Codebook v) {
  switch (v) {
    case Codebook::kNone: return "none";
    case Codebook::kUniform: return "uniform";
    case Codebook::kLloyd: return "lloyd";
  }
  return "?";
}
const char* Name(Gain v) {
  switch (v) {
    case Gain::kNone: return "none";
    case Gain::kNorm: return "norm";
    case Gain::kUnbiased: return "unbiased";
  }
  return "?";
}
const char* Name(Center v) {
  return v == Center::kNone ? "none" : "rope_mean";
}

}  // namespace tq
