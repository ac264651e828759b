// Specification of the encoder's inner loops.
#include <cfloat>
#include <cmath>

#include "turboquant/codec/encode_kernels.h"

namespace tq {

float QuantizeRowRef(const float* x, int head_dim, int padded_dim, int8_t* q) {
  float largest = 0;
  for (int i = 0; i < head_dim; ++i) largest = std::fmax(largest, std::fabs(x[i]));
  const float scale = largest / 127.f;
  for (int i = 0; i < padded_dim; ++i) q[i] = 0;
  if (scale < FLT_MIN) return 0;
  const float inverse = 127.f / largest;
  for (int i = 0; i < head_dim; ++i) q[i] = static_cast<int8_t>(std::nearbyint(x[i] * inverse));
  return scale;
}

float BookReference(const CodebookTable& book, const RowSums& sums, int n) {
  return book.absmax ? static_cast<float>(sums.top)
                     : std::sqrt(static_cast<float>(sums.rr) / static_cast<float>(n));
}

void IntegerThresholds(const CodebookTable& book, float reference, int8_t* t) {
  for (int i = 0; i + 1 < book.num_levels; ++i) {
    const float threshold = std::floor(book.thresholds[i] * reference);
    t[i] = static_cast<int8_t>(threshold > 127 ? 127 : threshold < -128 ? -128 : threshold);
  }
}

RowSums CodeRowRef(const CodebookTable& book, const int8_t* row, int n, int padded_n,
                   uint8_t* codes) {
  RowSums sums;
  for (int i = 0; i < n; ++i) {
    sums.rr += row[i] * row[i];
    const int size = row[i] < 0 ? -row[i] : row[i];
    if (size > sums.top) sums.top = size;
  }
  int8_t thresholds[kMaxLevels];
  IntegerThresholds(book, BookReference(book, sums, n), thresholds);
  for (int i = 0; i < padded_n; ++i) {
    int code = 0;
    for (int t = 0; t + 1 < book.num_levels; ++t) code += row[i] > thresholds[t];
    codes[i] = static_cast<uint8_t>(code);
    if (i >= n) continue;
    sums.rl += row[i] * book.levels[code];
    sums.ll += book.levels[code] * book.levels[code];
  }
  if (sums.rr == 0) sums = {};
  return sums;
}

}  // namespace tq
