// The inner loops of encode_block.cc: 16 guesses of a scale and a minimum tried at once on the
// inputs that share them. Guesses are the lanes, inputs come one after the other, so that every
// instruction set gives the same bits.
#pragma once

#include "turboquant/linear/weight.h"

namespace tq {

inline constexpr int kFitLanes = 16;

// Inputs that share a scale.
struct FitGroup {
  const float* x = nullptr;
  const float* w = nullptr;  // importance of each, >= 0
  int n = 0;
  float low = 0, high = 0;  // least and largest code
};

struct alignas(64) FitLanes {
  float v[kFitLanes];
};

// With the codes c = clamp(round((x - minimum) * inverse)) of each guess: sums over the group of
// w c, w c c and w x c.
struct FitSums {
  FitLanes wc, wcc, wxc;
};
void FitCodesRef(const FitGroup& g, const FitLanes& inverse, const FitLanes& minimum, FitSums& out);
void FitCodesSimd(const FitGroup& g, const FitLanes& inverse, const FitLanes& minimum,
                  FitSums& out);

// The sum of w (x - scale c - minimum)^2 with the same codes, for scales as they will be stored;
// `inverse` is 1 / scale, 0 for a scale of 0.
void FitErrorRef(const FitGroup& g, const FitLanes& scale, const FitLanes& inverse,
                 const FitLanes& minimum, FitLanes& error);
void FitErrorSimd(const FitGroup& g, const FitLanes& scale, const FitLanes& inverse,
                  const FitLanes& minimum, FitLanes& error);

// Those in use: ref for TQ_ISA=ref.
void FitCodes(const FitGroup& g, const FitLanes& inverse, const FitLanes& minimum, FitSums& out);
void FitError(const FitGroup& g, const FitLanes& scale, const FitLanes& inverse,
              const FitLanes& minimum, FitLanes& error);

}  // namespace tq
