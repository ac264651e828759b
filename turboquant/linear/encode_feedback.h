// Encoding that lets later columns make good the errors of earlier ones.
//
// When inputs of columns are related, the error of a weight can be taken up by the weights behind
// it in its row: with H the second moments of the inputs and U the upper triangle with U^T U =
// H^-1, a weight that is off by e U_jj moves every later weight k by -e U_jk, which keeps the row's
// output as near as it can be (Frantar et al., GPTQ, 2022). Blocks get their scales, by the search
// of encode_block.h, when their turn comes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "turboquant/base/status.h"
#include "turboquant/linear/weight.h"

namespace tq {

// `moments`: [n][n] second moments of the inputs, of which the lower triangle is read; replaced by
// U, row by row, zero below the diagonal. `damping` x the mean of the diagonal is added to the
// diagonal: directions that no input had stay free of corrections that blow up. About n^3 / 1.5
// multiplications in double precision. kInvalidArgument: a size that is no square, moments that are
// no such matrix.
Status InverseFactor(std::span<double> moments, int64_t n, double damping);

// As EncodeFileRow for rows of n values each, block types only. `rows` is changed on the way.
// `factor`: U as floats, [n][n].
Status EncodeFileRowsWithFeedback(WeightType type, std::span<float> rows, int64_t n,
                                  std::span<const float> importance, std::span<const float> factor,
                                  std::span<std::byte> out);

}  // namespace tq
