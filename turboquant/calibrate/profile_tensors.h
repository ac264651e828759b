// The vectors and matrices of a profile: tensors.safetensors (docs/formats/profile.md).
#pragma once

#include <string>
#include <vector>

#include "turboquant/base/safetensors.h"
#include "turboquant/base/status.h"
#include "turboquant/calibrate/profile.h"

namespace tq {

// "layers.N.what".
std::string TensorName(int layer, const char* what);

// Fills k_means and tensors of a profile whose model and formats are set. Tensors that its formats
// do not use are left out. kInvalidArgument: a shape that does not fit; kNotFound: q_rms beside a
// q_mean is missing.
Status ReadTensors(const SafetensorsFile& file, Profile* profile);

// What ReadTensors reads.
void AddTensors(const Profile& profile, std::vector<SafetensorsSource>* sources);

}  // namespace tq
