#include "turboquant/codec/group_scales.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "turboquant/codec/log8.h"

namespace tq {
namespace {

constexpr int kOffsetSteps = 8;  // of a level step, with log8

f16_t ReadF16(const uint8_t* p) {
  f16_t h;
  std::memcpy(&h, p, sizeof h);
  return h;
}

void WriteF16(f16_t h, uint8_t* p) {
  std::memcpy(p, &h, sizeof h);
}

float LoadOne(const Codec& c, int num_groups, int group, int token, const uint8_t* bytes,
              float base, float* offset) {
  const size_t i = static_cast<size_t>(group) * kPageLen + token;
  const size_t plane = static_cast<size_t>(num_groups) * kPageLen;
  const bool affine = c.zero == Zero::kAffine;
  *offset = 0;
  if (c.scale == ScaleType::kF16) {
    if (affine) *offset = base * F32FromF16(ReadF16(bytes + 2 * (plane + i)));
    return base * F32FromF16(ReadF16(bytes + 2 * i));
  }
  const float scale = base * Log8Table()[bytes[i]];
  if (affine) {
    *offset = scale * static_cast<float>(LevelStep(c)) *
              static_cast<float>(static_cast<int8_t>(bytes[plane + i])) / kOffsetSteps;
  }
  return scale;
}

}  // namespace

void LoadGroupScales(const Codec& codec, int num_groups, const uint8_t* bytes, float base,
                     float* scale, float* offset) {
  for (int g = 0; g < num_groups; ++g) {
    for (int t = 0; t < kPageLen; ++t) {
      scale[g * kPageLen + t] =
          LoadOne(codec, num_groups, g, t, bytes, base, &offset[g * kPageLen + t]);
    }
  }
}

float GroupBase(const Codec& codec, int num_groups, const float* scale, const float* offset,
                bf16_t* base) {
  float largest = 0;
  const bool log8_affine = codec.scale == ScaleType::kLog8 && codec.zero == Zero::kAffine;
  for (int i = 0; i < num_groups * kPageLen; ++i) {
    float s = scale[i];
    if (log8_affine) {
      // An offset beyond 127 eighths of a step widens the step.
      s = std::max(
          s, std::fabs(offset[i]) * kOffsetSteps / (127.f * static_cast<float>(LevelStep(codec))));
    }
    largest = std::max(largest, s);
    if (codec.scale == ScaleType::kF16) largest = std::max(largest, std::fabs(offset[i]));
  }
  *base = Log8Base(largest);
  return F32FromBF16(*base);
}

void StoreGroupScale(const Codec& c, int num_groups, int group, int token, float base, float* scale,
                     float* offset, uint8_t* bytes) {
  const size_t i = static_cast<size_t>(group) * kPageLen + token;
  const size_t plane = static_cast<size_t>(num_groups) * kPageLen;
  const bool affine = c.zero == Zero::kAffine;
  const bool round_up = affine || c.bits == 8;
  if (c.scale == ScaleType::kF16) {
    const float relative = base > 0 ? *scale / base : 0.f;
    f16_t h = F16FromF32(relative);
    if (round_up && F32FromF16(h) < relative) ++h;
    WriteF16(h, bytes + 2 * i);
    if (affine) WriteF16(F16FromF32(base > 0 ? *offset / base : 0.f), bytes + 2 * (plane + i));
  } else {
    float s = *scale;
    const float step = static_cast<float>(LevelStep(c));
    if (affine) s = std::max(s, std::fabs(*offset) * kOffsetSteps / (127.f * step));
    bytes[i] = round_up ? Log8EncodeUp(s, base) : Log8Encode(s, base);
    if (affine) {
      const float stored = base * Log8Table()[bytes[i]];
      const float eighths =
          stored > 0 ? std::nearbyint(*offset * kOffsetSteps / (stored * step)) : 0;
      bytes[plane + i] =
          static_cast<uint8_t>(static_cast<int8_t>(std::clamp(eighths, -127.f, 127.f)));
    }
  }
  *scale = LoadOne(c, num_groups, group, token, bytes, base, offset);
}

}  // namespace tq
