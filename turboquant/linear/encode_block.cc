// The search for scales, for all block types: encode_fit.h tries guesses, this file makes them.
//
// A group of inputs that share a scale is fitted by itself first: guesses of scale (and minimum),
// the codes that follow from each, then the best scale for these codes by least squares. In K types
// scales and minima of groups are small integers times one f16 number a block; the integers are
// chosen by the error that they cause, then the f16 numbers by least squares, twice.
#include "turboquant/linear/encode_block.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "turboquant/base/numeric.h"
#include "turboquant/linear/encode_fit.h"
#include "turboquant/linear/file_block.h"

namespace tq {
namespace {

constexpr float kTiny = 1e-20f;  // groups of smaller values are zero in every type
constexpr float kHuge = 1e12f;   // beyond what any type holds; squares of it are still finite
constexpr int kMaxGroups = kMaxBlockLen / 16;
constexpr int kRefinements = 2;  // of the f16 numbers of a K block

// What integers of a group may be.
struct IntegerRange {
  int low, high;
};
IntegerRange ScaleRange(WeightType type) {
  switch (type) {
    case WeightType::kQ2_K: return {0, 15};
    case WeightType::kQ3_K: return {-32, 31};
    case WeightType::kQ6_K: return {-128, 127};
    default: return {0, 63};
  }
}
int MaxMinimum(WeightType type) {
  return type == WeightType::kQ2_K ? 15 : 63;
}

struct GroupFit {
  float scale = 0, minimum = 0;
  float error = std::numeric_limits<float>::infinity();  // up to what all guesses share
};

// The best of guesses: the codes of each, then scale and minimum by least squares.
class Guesses {
 public:
  // `min_bound`: minima above it are moved to it.
  Guesses(const FitGroup& group, bool has_min, float min_bound)
      : group_(group), has_min_(has_min), min_bound_(min_bound) {
    for (int k = 0; k < group.n; ++k) {
      sum_w_ += group.w[k];
      sum_wx_ += group.w[k] * group.x[k];
    }
  }

  void Add(float inverse, float minimum) {
    inverse_.v[count_] = inverse;
    minimum_.v[count_] = minimum;
    if (++count_ == kFitLanes) Try();
  }
  const GroupFit& Best() {
    if (count_ > 0) {
      for (int i = count_; i < kFitLanes; ++i) {  // the first guess once more
        inverse_.v[i] = inverse_.v[0];
        minimum_.v[i] = minimum_.v[0];
      }
      Try();
    }
    return best_;
  }

 private:
  void Try() {
    count_ = 0;
    FitSums s;
    FitCodes(group_, inverse_, minimum_, s);
    FitLanes scale, minimum, error;
    for (int i = 0; i < kFitLanes; ++i) {
      const float wc = s.wc.v[i], wcc = s.wcc.v[i], wxc = s.wxc.v[i];
      float m = 0, d = wxc / wcc;
      if (has_min_) {
        const float both = (sum_w_ * wxc - sum_wx_ * wc) / (sum_w_ * wcc - wc * wc);
        const float m_of_both = (sum_wx_ - both * wc) / sum_w_;
        const bool bounded = !(m_of_both <= min_bound_);  // also where all codes are equal
        m = bounded ? min_bound_ : m_of_both;
        d = bounded ? (wxc - min_bound_ * wc) / wcc : both;
      }
      scale.v[i] = d;
      minimum.v[i] = m;
      // Of w (x - d c - m)^2 what depends on the guess.
      error.v[i] = d * d * wcc + m * m * sum_w_ + 2 * (d * m * wc - d * wxc - m * sum_wx_);
    }
    for (int i = 0; i < kFitLanes; ++i) {
      if (std::isfinite(scale.v[i]) && error.v[i] < best_.error) {
        best_ = {scale.v[i], minimum.v[i], error.v[i]};
      }
    }
  }

  const FitGroup& group_;
  const bool has_min_;
  const float min_bound_;
  float sum_w_ = 0, sum_wx_ = 0;
  FitLanes inverse_, minimum_;
  int count_ = 0;
  GroupFit best_;
};

// A scale of either sign: codes reach one further on the low side.
GroupFit FitSymmetric(const FitGroup& g) {
  float extreme = 0;
  for (int k = 0; k < g.n; ++k) extreme = std::max(extreme, std::abs(g.x[k]));
  if (extreme < kTiny) return {0, 0, 0};
  Guesses coarse(g, false, 0);
  for (int i = 0; i < 2 * kFitLanes; ++i) {
    // The largest weight gets 0.6 to 1.125 times the lowest code.
    const float reach = -g.low * (0.6f + 0.035f * static_cast<float>(i % kFitLanes));
    coarse.Add((i < kFitLanes ? reach : -reach) / extreme, 0);
  }
  const GroupFit found = coarse.Best();
  if (found.scale == 0) return {0, 0, 0};
  Guesses fine(g, false, 0);
  for (int i = 0; i < kFitLanes; ++i) {
    fine.Add((1 + 0.004f * static_cast<float>(i - kFitLanes / 2)) / found.scale, 0);
  }
  const GroupFit& refined = fine.Best();
  return refined.error < found.error ? refined : found;
}

// A scale above 0 and a minimum of at most `min_bound`.
GroupFit FitAffine(const FitGroup& g, float min_bound) {
  float low = g.x[0], high = g.x[0];
  for (int k = 1; k < g.n; ++k) {
    low = std::min(low, g.x[k]);
    high = std::max(high, g.x[k]);
  }
  low = std::min(low, min_bound);
  const float range = high - low;
  if (range < kTiny) return {0, low, 0};  // also all of one value
  // How far the ends of the range are moved in, as shares of it.
  constexpr float kMoves[] = {-0.04f, 0, 0.04f, 0.08f, 0.13f, 0.18f, 0.24f, 0.32f};
  Guesses coarse(g, true, min_bound);
  for (const float from_low : kMoves) {
    for (const float from_high : kMoves) {
      coarse.Add(g.high / (range * (1 - from_low - from_high)), low + from_low * range);
    }
  }
  const GroupFit found = coarse.Best();
  if (!(found.scale > 0)) return {0, low, 0};
  constexpr float kScales[] = {0.98f, 0.99f, 1, 1.01f, 1.02f};
  constexpr float kShifts[] = {-0.3f, 0, 0.3f};  // in steps
  GroupFit best = found;
  for (int round = 0; round < 2; ++round) {
    Guesses fine(g, true, min_bound);
    for (const float scale : kScales) {
      for (const float shift : kShifts) {
        fine.Add(scale / best.scale, best.minimum + shift * best.scale);
      }
    }
    const GroupFit& refined = fine.Best();
    if (!(refined.error < best.error && refined.scale > 0)) break;
    best = refined;
  }
  return best;
}

float Inverse(float scale) {
  return std::abs(scale) < kTiny ? 0.f : 1 / scale;
}

// The codes of a group for numbers as they are stored, offset added.
void SetCodes(const FitGroup& g, float scale, float minimum, int offset, uint8_t* codes) {
  const float inverse = Inverse(scale);
  for (int k = 0; k < g.n; ++k) {
    const float level = std::nearbyint((g.x[k] - minimum) * inverse);
    codes[k] = static_cast<uint8_t>(static_cast<int>(std::clamp(level, g.low, g.high)) + offset);
  }
}

Status ToF16(float value, WeightType type, f16_t* out) {
  *out = F16FromF32(value);
  if ((*out & 0x7C00u) != 0x7C00u) return OkStatus();
  return InvalidArgument("a scale or minimum of ", value, " does not fit into the f16 of ",
                         WeightTypeName(type));
}

// Types with one scale (and minimum) a block.
Status EncodeSimple(WeightType type, const FitGroup& g, FileBlock& block) {
  const WeightLayout& f = LayoutOf(type);
  const GroupFit fit =
      f.has_min ? FitAffine(g, std::numeric_limits<float>::infinity()) : FitSymmetric(g);
  TQ_RETURN_IF_ERROR(ToF16(fit.scale, type, &block.d));
  const float scale = F32FromF16(block.d);
  float minimum = fit.minimum;
  if (f.has_min) {
    // The rounded scale wants a minimum of its own.
    SetCodes(g, scale, minimum, 0, block.codes);
    float sum_w = 0, sum = 0;
    for (int k = 0; k < g.n; ++k) {
      sum_w += g.w[k];
      sum += g.w[k] * (g.x[k] - scale * static_cast<float>(block.codes[k]));
    }
    minimum = sum / sum_w;
  }
  TQ_RETURN_IF_ERROR(ToF16(minimum, type, &block.m));
  SetCodes(g, scale, F32FromF16(block.m), f.offset, block.codes);
  return OkStatus();
}

// A block of groups whose scales and minima are integers times d and m.
class KBlock {
 public:
  KBlock(WeightType type, const float* x, const float* w, FileBlock& block)
      : type_(type), f_(LayoutOf(type)), scales_(ScaleRange(type)), block_(block) {
    num_groups_ = f_.block_len / f_.group_len;
    const int codes = 1 << (f_.low_bits + f_.high_bits);
    for (int g = 0; g < num_groups_; ++g) {
      const int first = g * f_.group_len;
      groups_[g] = {x + first, w + first, f_.group_len, static_cast<float>(-f_.offset),
                    static_cast<float>(codes - 1 - f_.offset)};
    }
  }

  Status Encode() {
    float widest = 0, deepest = 0;  // the largest scale, with its sign, and minimum
    for (int g = 0; g < num_groups_; ++g) {
      fits_[g] = f_.has_min ? FitAffine(groups_[g], 0) : FitSymmetric(groups_[g]);
      if (std::abs(fits_[g].scale) > std::abs(widest)) widest = fits_[g].scale;
      deepest = std::max(deepest, -fits_[g].minimum);
    }
    // The widest scale gets the integer that is farthest from 0.
    const int far = scales_.low < 0 ? scales_.low : scales_.high;
    TQ_RETURN_IF_ERROR(SetHalves(widest / static_cast<float>(far),
                                 deepest / static_cast<float>(MaxMinimum(type_))));
    for (int g = 0; g < num_groups_; ++g) {
      ChooseIntegers(g, static_cast<int>(std::nearbyint(fits_[g].scale * Inverse(d_))),
                     static_cast<int>(std::nearbyint(-fits_[g].minimum * Inverse(m_))));
    }
    for (int round = 0; round < kRefinements; ++round) {
      TQ_RETURN_IF_ERROR(Refit());
      for (int g = 0; g < num_groups_; ++g) ChooseIntegers(g, block_.scales[g], block_.mins[g]);
    }
    for (int g = 0; g < num_groups_; ++g) SetGroupCodes(g, f_.offset);
    return OkStatus();
  }

 private:
  Status SetHalves(float d, float m) {
    TQ_RETURN_IF_ERROR(ToF16(d, type_, &block_.d));
    TQ_RETURN_IF_ERROR(ToF16(m, type_, &block_.m));
    d_ = F32FromF16(block_.d);
    m_ = F32FromF16(block_.m);
    return OkStatus();
  }

  void SetGroupCodes(int g, int offset) {
    SetCodes(groups_[g], d_ * static_cast<float>(block_.scales[g]),
             -(m_ * static_cast<float>(block_.mins[g])), offset, block_.codes + g * f_.group_len);
  }

  // The integers around (scale, min) with the smallest error.
  void ChooseIntegers(int g, int scale, int min) {
    const int scale_steps = f_.has_min ? 5 : 15, min_steps = f_.has_min ? 3 : 1;
    int scales[kFitLanes], mins[kFitLanes];
    FitLanes step, inverse, minimum, error;
    int n = 0;
    for (int i = 0; i < scale_steps; ++i) {
      for (int j = 0; j < min_steps; ++j, ++n) {
        scales[n] = std::clamp(scale + i - scale_steps / 2, scales_.low, scales_.high);
        mins[n] = f_.has_min ? std::clamp(min + j - 1, 0, MaxMinimum(type_)) : 0;
      }
    }
    for (; n < kFitLanes; ++n) {
      scales[n] = std::clamp(scale, scales_.low, scales_.high);
      mins[n] = f_.has_min ? std::clamp(min, 0, MaxMinimum(type_)) : 0;
    }
    for (int i = 0; i < kFitLanes; ++i) {
      step.v[i] = d_ * static_cast<float>(scales[i]);
      inverse.v[i] = Inverse(step.v[i]);
      minimum.v[i] = -(m_ * static_cast<float>(mins[i]));
    }
    FitError(groups_[g], step, inverse, minimum, error);
    const auto best = std::min_element(error.v, error.v + kFitLanes) - error.v;
    block_.scales[g] = static_cast<int8_t>(scales[best]);
    block_.mins[g] = static_cast<uint8_t>(mins[best]);
  }

  // d and m by least squares for the integers and codes there are.
  Status Refit() {
    double aa = 0, ab = 0, bb = 0, ax = 0, bx = 0;  // of scale * code and -minimum
    for (int g = 0; g < num_groups_; ++g) {
      SetGroupCodes(g, 0);
      double wc = 0, wcc = 0, wxc = 0, w = 0, wx = 0;
      const FitGroup& group = groups_[g];
      for (int k = 0; k < group.n; ++k) {
        const float c = CodeAt(g, k);
        w += group.w[k];
        wx += group.w[k] * group.x[k];
        wc += group.w[k] * c;
        wcc += group.w[k] * c * c;
        wxc += group.w[k] * group.x[k] * c;
      }
      const double scale = block_.scales[g], min = -static_cast<double>(block_.mins[g]);
      aa += scale * scale * wcc;
      ab += scale * min * wc;
      bb += min * min * w;
      ax += scale * wxc;
      bx += min * wx;
    }
    if (!(aa > 0)) return OkStatus();
    const double determinant = aa * bb - ab * ab;
    double d = ax / aa, m = 0;
    if (bb > 0 && determinant > 1e-9 * aa * bb) {
      d = (ax * bb - bx * ab) / determinant;
      m = (bx * aa - ax * ab) / determinant;
      if (m < 0) {
        m = 0;
        d = ax / aa;
      }
    } else if (bb > 0) {
      return OkStatus();
    }
    if (f_.has_min && !(d > 0)) return OkStatus();
    return SetHalves(static_cast<float>(d), static_cast<float>(m));
  }

  float CodeAt(int g, int k) const {
    // Codes of types without a minimum were written without their offset, as uint8_t.
    const uint8_t code = block_.codes[g * f_.group_len + k];
    return f_.has_min ? static_cast<float>(code) : static_cast<float>(static_cast<int8_t>(code));
  }

  const WeightType type_;
  const WeightLayout& f_;
  const IntegerRange scales_;
  FileBlock& block_;
  int num_groups_ = 0;
  FitGroup groups_[kMaxGroups];
  GroupFit fits_[kMaxGroups];
  float d_ = 0, m_ = 0;
};

Status EncodeFloats(WeightType type, std::span<const float> values, std::byte* out) {
  if (type == WeightType::kF32) {
    std::memcpy(out, values.data(), values.size_bytes());
    return OkStatus();
  }
  for (const float value : values) {
    const uint16_t h = type == WeightType::kF16 ? F16FromF32(value) : BF16FromF32(value);
    const uint16_t exponent = type == WeightType::kF16 ? 0x7C00u : 0x7F80u;
    if ((h & exponent) == exponent) {
      return InvalidArgument("a value of ", value, " does not fit into ", WeightTypeName(type));
    }
    std::memcpy(out, &h, sizeof h);
    out += sizeof h;
  }
  return OkStatus();
}

}  // namespace

Status EncodeFileRow(WeightType type, std::span<const float> values,
                     std::span<const float> importance, std::span<std::byte> out) {
  const WeightLayout& f = LayoutOf(type);
  const size_t blocks = values.size() / static_cast<size_t>(f.block_len);
  if (!IsWritable(type)) return Unsupported(f.name, " weights are read, not written");
  if (values.size() % static_cast<size_t>(f.block_len) != 0) {
    return InvalidArgument(f.name, " rows of ", values.size(),
                           " values: not a multiple of the block of ", f.block_len);
  }
  if (out.size() != blocks * static_cast<size_t>(f.block_bytes)) {
    return InvalidArgument(values.size(), " values of ", f.name, " take ",
                           blocks * static_cast<size_t>(f.block_bytes), " bytes; ", out.size(),
                           " were given");
  }
  if (!importance.empty() && importance.size() != values.size()) {
    return InvalidArgument(importance.size(), " importances for ", values.size(), " values");
  }
  for (size_t i = 0; i < values.size(); ++i) {
    if (!std::isfinite(values[i])) return InvalidArgument("value ", i, " of a row is not finite");
    if (IsBlockType(type) && std::abs(values[i]) > kHuge) {
      return InvalidArgument("value ", i, " of a row is ", values[i], ", too large for ", f.name);
    }
    if (!importance.empty() && !(importance[i] > 0 && std::isfinite(importance[i]))) {
      return InvalidArgument("importance ", i, " of a row is ", importance[i],
                             "; it must be above 0");
    }
  }
  if (!IsBlockType(type)) return EncodeFloats(type, values, out.data());
  float ones[kMaxBlockLen];
  std::fill(std::begin(ones), std::end(ones), 1.f);
  FileBlock block;
  for (size_t b = 0; b < blocks; ++b) {
    const size_t first = b * static_cast<size_t>(f.block_len);
    const float* x = values.data() + first;
    const float* w = importance.empty() ? ones : importance.data() + first;
    block = {};
    if (f.scale_bytes > 0) {
      TQ_RETURN_IF_ERROR(KBlock(type, x, w, block).Encode());
    } else {
      // Q8_0 has no use for -128: it would make the range lopsided.
      const int codes = 1 << (f.low_bits + f.high_bits);
      const float low = type == WeightType::kQ8_0 ? -127.f : static_cast<float>(-f.offset);
      const FitGroup group = {x, w, f.block_len, low, static_cast<float>(codes - 1 - f.offset)};
      TQ_RETURN_IF_ERROR(EncodeSimple(type, group, block));
    }
    WriteFileBlock(type, block, out.data() + b * static_cast<size_t>(f.block_bytes));
  }
  return OkStatus();
}

}  // namespace tq
