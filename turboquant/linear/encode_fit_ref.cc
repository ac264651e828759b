// Guesses of scales tried on a group, in plain loops: the specification.
#include <algorithm>
#include <cmath>

#include "turboquant/linear/encode_fit.h"

namespace tq {

void FitCodesRef(const FitGroup& g, const FitLanes& inverse, const FitLanes& minimum,
                 FitSums& out) {
  for (int i = 0; i < kFitLanes; ++i) {
    float wc = 0, wcc = 0, wxc = 0;
    for (int k = 0; k < g.n; ++k) {
      const float level = std::nearbyint((g.x[k] - minimum.v[i]) * inverse.v[i]);
      const float c = std::min(std::max(level, g.low), g.high);
      const float weighted = g.w[k] * c;
      wc += weighted;
      wcc += weighted * c;
      wxc += weighted * g.x[k];
    }
    out.wc.v[i] = wc;
    out.wcc.v[i] = wcc;
    out.wxc.v[i] = wxc;
  }
}

void FitErrorRef(const FitGroup& g, const FitLanes& scale, const FitLanes& inverse,
                 const FitLanes& minimum, FitLanes& error) {
  for (int i = 0; i < kFitLanes; ++i) {
    float sum = 0;
    for (int k = 0; k < g.n; ++k) {
      const float level = std::nearbyint((g.x[k] - minimum.v[i]) * inverse.v[i]);
      const float c = std::min(std::max(level, g.low), g.high);
      const float difference = g.x[k] - minimum.v[i] - scale.v[i] * c;
      sum += difference * difference * g.w[k];
    }
    error.v[i] = sum;
  }
}

}  // namespace tq
