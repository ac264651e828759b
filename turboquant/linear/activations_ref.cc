// The int16 form of a row, in plain loops: the specification.
#include <algorithm>
#include <bit>
#include <cmath>

#include "turboquant/linear/activations.h"
#include "turboquant/linear/weight.h"

namespace tq {

void QuantizeRowRef(const float* x, int64_t num_blocks, int16_t* codes, float* scales,
                    int32_t* sums, float* scaled_sums) {
  for (int64_t b = 0; b < num_blocks; ++b, x += kBlockLen, codes += kBlockLen) {
    // The bits of |x| order like the values, with NaN above infinity.
    uint32_t max_bits = 0;
    for (int i = 0; i < kBlockLen; ++i) {
      max_bits = std::max(max_bits, std::bit_cast<uint32_t>(x[i]) & 0x7FFFFFFFu);
    }
    const float max = std::bit_cast<float>(max_bits);
    const bool finite = max_bits < 0x7F800000u;
    const bool zero = !finite || max < 1e-30f;
    const float inverse = zero ? 0.0f : 32767.0f / max;
    int32_t half[2] = {};
    for (int i = 0; i < kBlockLen; ++i) {
      codes[i] = zero ? int16_t{0} : static_cast<int16_t>(std::nearbyint(x[i] * inverse));
      half[i / (kBlockLen / 2)] += codes[i];
    }
    scales[b] = finite ? (zero ? 0.0f : max / 32767.0f) : std::bit_cast<float>(0x7FC00000u);
    sums[2 * b] = half[0];
    sums[2 * b + 1] = half[1];
    scaled_sums[b] = scales[b] * static_cast<float>(half[0] + half[1]);
  }
}

}  // namespace tq
