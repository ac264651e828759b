// From floats to the blocks of a file: scales, minima and codes that keep the weighted squared
// error small.
//
// A weight that is multiplied with large inputs deserves a smaller error: with the importance of a
// column being the mean square of its input, the sum of importance x (weight - stored)^2 over a row
// is what the row's output is off by, squared, as far as inputs of different columns are unrelated.
// Scales are not taken from the largest weight but searched: a smaller one clips a few weights and
// serves all others better.
#pragma once

#include <cstddef>
#include <span>

#include "turboquant/base/status.h"
#include "turboquant/linear/weight.h"

namespace tq {

// One row. `importance` has a positive weight for each value, or is empty: all are equal. `out` has
// the row's bytes. Float types are rounded. The same bits on every instruction set.
// kInvalidArgument: sizes that do not agree, a value that is not finite or too large for the type's
// f16 numbers. kUnsupported: a type that is not IsWritable.
Status EncodeFileRow(WeightType type, std::span<const float> values,
                     std::span<const float> importance, std::span<std::byte> out);

}  // namespace tq
