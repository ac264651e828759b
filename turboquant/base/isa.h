// Which instruction set the kernels use. Chosen by Highway at run time; TQ_ISA forces one.
#pragma once

#include <string>
#include <vector>

#include "turboquant/base/status.h"

namespace tq {

// Applies the environment variable TQ_ISA (ref, sse4, avx2, avx3, avx3_vnni, neon...), once per
// process: call it before the first kernel. kInvalidArgument names what this machine has.
Status ApplyIsaFromEnvironment();

// "ref" selects the plain-loop reference of every kernel; anything else limits Highway to it.
Status ForceIsa(const std::string& name);
// Undoes ForceIsa.
void ResetIsa();

// True while the plain-loop reference is forced.
bool UseReferenceKernels();
// True where the AVX-512 set in use has VNNI and VBMI too ("avx3_vnni"): dot products and shuffles
// of bytes, which Highway's sets do not tell apart.
bool UseVnni();
// Name of the set in use, lower case: "ref", "avx2"...
std::string CurrentIsa();
// All that run here, best first, "ref" last.
std::vector<std::string> AvailableIsas();

}  // namespace tq
