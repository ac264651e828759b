#include "turboquant/codec/codec.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <optional>

namespace tq {
namespace {

constexpr std::array<Codebook, 4> kLowBitBooks = {Codebook::kUniform, Codebook::kLloyd,
                                                  Codebook::kCalibrated, Codebook::kTrellis};
constexpr std::array<Codebook, 1> kUniformBook = {Codebook::kUniform};
constexpr std::array<Codebook, 1> kFloatBooks = {Codebook::kNone};

constexpr std::array<FormatInfo, 9> kFormats = {{
    {ValueType::kInt, 2, "int2", "2", "8-bit levels x 8-bit digits, int32 sums", kLowBitBooks},
    {ValueType::kInt, 3, "int3", "3", "8-bit levels x 8-bit digits, int32 sums", kLowBitBooks},
    {ValueType::kInt, 4, "int4", "4", "8-bit levels x 8-bit digits, int32 sums", kLowBitBooks},
    {ValueType::kInt, 5, "int5", "5", "8-bit levels x 8-bit digits, int32 sums", kUniformBook},
    {ValueType::kInt, 6, "int6", "6", "8-bit levels x 8-bit digits, int32 sums", kUniformBook},
    {ValueType::kInt, 8, "int8", "8", "8-bit codes x 16-bit digits, int32 sums", kUniformBook},
    {ValueType::kFP8, 8, "fp8", "fp8", "float32 products and sums", kFloatBooks},
    {ValueType::kBF16, 16, "bf16", "bf16", "float32 products and sums", kFloatBooks},
    {ValueType::kF16, 16, "f16", "16", "float32 products and sums", kFloatBooks},
}};

constexpr int kGroupLens[] = {16, 32, 64, 128};

const FormatInfo* Find(ValueType type, int bits) {
  for (const FormatInfo& f : kFormats) {
    if (f.type == type && f.bits == bits) return &f;
  }
  return nullptr;
}

std::string Tokens() {
  std::string list;
  for (const FormatInfo& f : kFormats) list += StrCat(list.empty() ? "" : ", ", f.token);
  return list;
}

Status UnsupportedBits(int bits) {
  std::string list;
  for (const FormatInfo& f : kFormats) {
    if (f.type == ValueType::kInt) list += StrCat(f.bits, ", ");
  }
  return Unsupported("no codec with ", bits, " bits; supported: ", list, "16 (f16)");
}

std::string Lower(std::string_view text) {
  std::string lower;
  for (const char c : text) lower += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return lower;
}

// Takes one of the format tokens, or any number of digits, off the front of *text.
std::string_view TakeToken(std::string_view* text) {
  for (const FormatInfo& f : kFormats) {
    if (std::isalpha(static_cast<unsigned char>(f.token[0])) && text->starts_with(f.token)) {
      const std::string_view token = f.token;
      text->remove_prefix(token.size());
      return token;
    }
  }
  size_t n = 0;
  while (n < text->size() && n < 4 && std::isdigit(static_cast<unsigned char>((*text)[n]))) ++n;
  const std::string_view token = text->substr(0, n);
  text->remove_prefix(n);
  return token;
}

Result<Codec> CodecOfToken(std::string_view token) {
  for (const FormatInfo& f : kFormats) {
    if (token == f.token) return f.codec();
  }
  int bits = 0;
  std::from_chars(token.data(), token.data() + token.size(), bits);
  return UnsupportedBits(bits);
}

const char* TokenOf(const Codec& c) {
  const FormatInfo* f = Find(c.type, c.bits);
  return f == nullptr ? "?" : f->token;
}

// The number behind `word` in a suffix such as "group32"; nullopt when the word is another.
std::optional<int> SuffixNumber(std::string_view suffix, std::string_view word) {
  if (!suffix.starts_with(word)) return std::nullopt;
  suffix.remove_prefix(word.size());
  int n = 0;
  const auto r = std::from_chars(suffix.data(), suffix.data() + suffix.size(), n);
  if (r.ec != std::errc() || r.ptr != suffix.data() + suffix.size()) return std::nullopt;
  return n;
}

}  // namespace

std::span<const FormatInfo> RegisteredFormats() {
  return kFormats;
}

Codec FormatInfo::codec() const {
  return type == ValueType::kInt ? *DefaultCodec(bits) : FloatCodec(type);
}

Codec FloatCodec(ValueType type) {
  Codec c;
  c.type = type;
  c.bits = type == ValueType::kFP8 ? 8 : 16;
  return c;
}

Result<Codec> DefaultCodec(int bits) {
  if (bits == 16) return FloatCodec(ValueType::kF16);
  if (Find(ValueType::kInt, bits) == nullptr) return UnsupportedBits(bits);
  Codec c;
  c.type = ValueType::kInt;
  c.bits = bits;
  c.rotate = Rotate::kHadamard;
  c.scale = ScaleType::kLog8;
  c.codebook = bits == 3 || bits == 4 ? Codebook::kLloyd : Codebook::kUniform;
  c.gain = bits < 6 ? Gain::kNorm : Gain::kNone;
  return c;
}

Codec WithCenter(Codec k, Center center) {
  k.center = center;
  if (!k.is_float() && k.bits < 6 && k.zero == Zero::kSymmetric) {
    k.gain = center == Center::kNone ? Gain::kNorm : Gain::kUnbiased;
  }
  return k;
}

Codec WithGroups(Codec c, int group_len) {
  if (c.is_float()) return c;
  c.rotate = Rotate::kNone;
  c.group_len = group_len;
  c.scale = ScaleType::kF16;
  c.zero = Zero::kAffine;
  c.codebook = Codebook::kUniform;
  c.gain = Gain::kNone;
  return c;
}

Status ValidateCodec(const Codec& c, Side side) {
  const FormatInfo* format = Find(c.type, c.bits);
  if (format == nullptr) {
    return c.is_float() ? Unsupported(Name(c.type), " with ", c.bits, " bits; it has ",
                                      FloatCodec(c.type).bits)
                        : UnsupportedBits(c.bits);
  }
  bool book_ok = false;
  std::string books;
  for (const Codebook b : format->codebooks) {
    book_ok |= b == c.codebook;
    books += StrCat(books.empty() ? "" : ", ", Name(b));
  }
  if (!book_ok) {
    return Unsupported("codebook '", Name(c.codebook), "' with ", format->name,
                       "; supported: ", books);
  }
  if (c.is_float()) {
    if (c.rotate != Rotate::kNone || c.scale != ScaleType::kNone || c.is_grouped() ||
        c.gain != Gain::kNone) {
      return Unsupported(format->name,
                         " has no rotation, scale, groups, offset or gain; supported: rotate none, "
                         "scale none, group_len head, zero symmetric, gain none");
    }
  } else {
    if (c.scale == ScaleType::kNone) {
      return Unsupported("scale 'none' with ", format->name, "; supported: log8, f16");
    }
    if (c.group_len != kGroupHead && std::find(std::begin(kGroupLens), std::end(kGroupLens),
                                               c.group_len) == std::end(kGroupLens)) {
      return Unsupported("group_len ", c.group_len,
                         "; supported: head (the whole vector), 16, 32, 64, 128");
    }
    if (c.is_grouped() && c.codebook == Codebook::kTrellis) {
      return Unsupported(
          "codebook 'trellis' with groups, an offset or f16 scales; supported: group_len head, "
          "zero symmetric, scale log8");
    }
    if (c.zero == Zero::kAffine && (c.gain != Gain::kNone || c.codebook != Codebook::kUniform)) {
      return Unsupported("zero 'affine' with codebook '", Name(c.codebook), "' and gain '",
                         Name(c.gain), "'; supported: codebook uniform, gain none");
    }
    if (c.gain != Gain::kNone && c.bits >= 6) {
      return Unsupported("gain '", Name(c.gain), "' at ", c.bits, " bits; supported: none");
    }
  }
  if (c.center != Center::kNone && side == Side::kV) {
    return Unsupported("center '", Name(c.center), "' on V; it exists for K only");
  }
  return OkStatus();
}

Status ValidateFormat(const HeadFormat& f) {
  TQ_RETURN_IF_ERROR(ValidateCodec(f.k, Side::kK).WithContext("K"));
  TQ_RETURN_IF_ERROR(ValidateCodec(f.v, Side::kV).WithContext("V"));
  if (f.anchors < 0 || f.anchors > kMaxAnchors) {
    return Unsupported(f.anchors, " anchors a block; supported: 0 to ", kMaxAnchors);
  }
  if (f.anchors > 0 && f.anchor_bits != 4 && f.anchor_bits != 8) {
    return Unsupported("anchor rows of ", f.anchor_bits, " bits; supported: 4, 8");
  }
  if (f.anchors > 0 && (f.k.is_float() || f.v.is_float())) {
    return Unsupported("anchors beside ", f.k.is_float() ? "K " : "V ",
                       Name(f.k.is_float() ? f.k.type : f.v.type),
                       "; they are residuals of integer codes on both sides");
  }
  return OkStatus();
}

Result<HeadFormat> ParsePreset(std::string_view name) {
  const std::string lower = Lower(name);
  const auto unknown = [&] {
    return InvalidArgument("'", name, "' is not a cache format; use f16, bf16, fp8 or k<a>v<b> ",
                           "with a and b in ", Tokens(),
                           ", e.g. k8v4, k4v4, k3v2, k3v2-trellis, k4v4-group32, or the folder of "
                           "a profile");
  };
  std::string_view rest = lower;
  HeadFormat f;
  if (rest == "f16" || rest == "fp16") return f;
  if (rest == "bf16" || rest == "fp8") {
    f.k = f.v = FloatCodec(rest == "fp8" ? ValueType::kFP8 : ValueType::kBF16);
    return f;
  }
  const auto take = [&](char letter, Result<Codec>* codec) {
    if (rest.empty() || rest.front() != letter) return false;
    rest.remove_prefix(1);
    const std::string_view token = TakeToken(&rest);
    *codec = CodecOfToken(token);
    return !token.empty();
  };
  Result<Codec> k = Codec{}, v = Codec{};
  if (!take('k', &k) || !take('v', &v)) return unknown();
  if (!rest.empty() && rest.front() != '-') return unknown();
  for (const auto* codec : {&k, &v}) {
    TQ_RETURN_IF_ERROR(codec->status().WithContext(StrCat("'", name, "'")));
  }
  f.k = *k;
  f.v = *v;
  while (!rest.empty()) {
    rest.remove_prefix(1);
    const std::string_view suffix = rest.substr(0, rest.find('-'));
    rest.remove_prefix(suffix.size());
    if (suffix == "trellis") {
      for (Codec* c : {&f.k, &f.v}) {
        if (!c->is_float() && c->bits <= 4) c->codebook = Codebook::kTrellis;
      }
      if (f.k.codebook != Codebook::kTrellis && f.v.codebook != Codebook::kTrellis) {
        return Unsupported("'", name, "': trellis codes have 2, 3 or 4 bits");
      }
    } else if (const auto group = SuffixNumber(suffix, "group")) {
      f.k = WithGroups(f.k, *group);
      f.v = WithGroups(f.v, *group);
    } else if (const auto anchors = SuffixNumber(suffix, "anchor")) {
      f.anchors = *anchors;
    } else {
      return InvalidArgument("'", name, "': the suffix '-", suffix,
                             "' is not known; use -trellis, -group16, -group32, -group64, "
                             "-group128, -anchor1 to -anchor",
                             kMaxAnchors);
    }
  }
  TQ_RETURN_IF_ERROR(ValidateFormat(f).WithContext(StrCat("'", name, "'")));
  return f;
}

std::string PresetName(const HeadFormat& f) {
  std::string name = f.k.is_float() && f.k.type == f.v.type
                         ? Name(f.k.type)
                         : StrCat("k", TokenOf(f.k), "v", TokenOf(f.v));
  if (f.k.codebook == Codebook::kTrellis || f.v.codebook == Codebook::kTrellis) name += "-trellis";
  const Codec& grouped = f.k.is_grouped() ? f.k : f.v;
  if (grouped.is_grouped()) {
    name += grouped.group_len == kGroupHead ? std::string("-grouphead")
                                            : StrCat("-group", grouped.group_len);
  }
  if (f.anchors > 0) name += StrCat("-anchor", f.anchors);
  return name;
}

const char* Name(ValueType v) {
  switch (v) {
    case ValueType::kInt: return "int";
    case ValueType::kF16: return "f16";
    case ValueType::kBF16: return "bf16";
    case ValueType::kFP8: return "fp8";
  }
  return "?";
}
const char* Name(Rotate v) {
  switch (v) {
    case Rotate::kNone: return "none";
    case Rotate::kHadamard: return "hadamard";
    case Rotate::kMatrix: return "matrix";
  }
  return "?";
}
const char* Name(ScaleType v) {
  switch (v) {
    case ScaleType::kNone: return "none";
    case ScaleType::kLog8: return "log8";
    case ScaleType::kF16: return "f16";
  }
  return "?";
}
const char* Name(Zero v) {
  return v == Zero::kSymmetric ? "symmetric" : "affine";
}
const char* Name(Codebook v) {
  switch (v) {
    case Codebook::kNone: return "none";
    case Codebook::kUniform: return "uniform";
    case Codebook::kLloyd: return "lloyd";
    case Codebook::kCalibrated: return "calibrated";
    case Codebook::kTrellis: return "trellis";
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
