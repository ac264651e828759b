// GGUF models in several files: NAME-00001-of-0000N.gguf holds the metadata, all hold tensors.
#pragma once

#include <span>
#include <string>

#include "runtime/formats/gguf.h"

namespace tq {

// One GGUF file as it is (gguf.cc), split or not.
Result<GgufContents> ReadGguf(std::span<const std::byte> bytes, const std::string& name);

// Adds the tensors of the other parts, which lie beside contents.path, and takes the split.* keys
// out; a whole file stays as it is. kInvalidArgument: not the first part, or its name does not say
// which part it is; kNotFound: a part is missing; kDataLoss: the parts do not belong together.
Status JoinSplitParts(GgufContents& contents);

}  // namespace tq
