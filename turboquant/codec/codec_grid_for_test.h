// Every codec that the registry allows, for test grids.
#pragma once

#include <string>
#include <vector>

#include "turboquant/base/status.h"
#include "turboquant/codec/codebook.h"
#include "turboquant/codec/codec.h"

namespace tq::testing_util {

struct GridCodec {
  Codec codec;
  std::string name;
};

// A skewed book, so that nothing relies on symmetry: Lloyd-Max-like steps, moved by a tenth.
inline std::vector<float> SkewedLevels(int bits) {
  std::vector<float> levels;
  const int n = 1 << bits;
  for (int i = 0; i < n; ++i) {
    const float x =
        (2.f * static_cast<float>(i) + 1 - static_cast<float>(n)) / static_cast<float>(n);
    levels.push_back(0.1f + (1.2f + 0.35f * static_cast<float>(bits)) * x);
  }
  return levels;
}

inline const CodebookTable* CalibratedBook(int bits) {
  static const CodebookTable books[] = {*MakeCodebook(SkewedLevels(2)),
                                        *MakeCodebook(SkewedLevels(3)),
                                        *MakeCodebook(SkewedLevels(4))};
  return bits >= 2 && bits <= 4 ? &books[bits - 2] : nullptr;
}

inline std::vector<GridCodec> AllCodecs() {
  std::vector<GridCodec> all;
  for (const FormatInfo& format : RegisteredFormats()) {
    for (const Codebook book : format.codebooks) {
      Codec base = format.codec();
      base.codebook = book;
      for (const int group : {kGroupHead, 16, 32, 64, 128}) {
        for (const ScaleType scale : {ScaleType::kNone, ScaleType::kLog8, ScaleType::kF16}) {
          for (const Zero zero : {Zero::kSymmetric, Zero::kAffine}) {
            Codec c = base;
            c.group_len = group;
            c.scale = scale;
            c.zero = zero;
            if (zero == Zero::kAffine) c.gain = Gain::kNone;
            if (!ValidateCodec(c, Side::kV).ok()) continue;
            all.push_back({c, StrCat(format.name, " ", Name(book), " group ", group, " ",
                                     Name(scale), " ", Name(zero))});
          }
        }
      }
    }
  }
  return all;
}

}  // namespace tq::testing_util
