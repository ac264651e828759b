// Writes GGUF files (version 3): metadata first, then tensors one at a time, so that memory is
// bounded by what the caller holds of one tensor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/formats/gguf.h"
#include "runtime/formats/gguf_metadata.h"
#include "turboquant/base/file.h"
#include "turboquant/base/sinks.h"
#include "turboquant/base/status.h"

namespace tq {

// A tensor as the header lists it. Numbers are written as they are.
struct GgufTensorEntry {
  std::string name;
  uint32_t type = 0;            // GgmlType
  std::vector<uint64_t> shape;  // ggml order: shape[0] is the contiguous dimension
  uint64_t offset = 0;          // from the begin of the data
};

// The bytes before the data, padded to `alignment` if there are tensors. Nothing is checked.
std::string GgufHeaderBytes(const GgufMetadata& metadata, std::span<const GgufTensorEntry> tensors,
                            uint64_t alignment, uint32_t version = 3);

// A tensor that is to be written.
struct GgufTensorPlan {
  std::string name;
  GgmlType type = GgmlType::kF32;
  std::vector<int64_t> shape;
};

class GgufWriter {
 public:
  // Makes a temporary file beside `path`, reserves the room of the whole file where the file system
  // can, and writes the header. Tensors start at multiples of the metadata's general.alignment, or
  // of 32. kInvalidArgument: a name that is empty, too long or there twice, a shape without values
  // or with rows that are no whole blocks, an alignment that is none; errors of AtomicFile.
  static Result<GgufWriter> Create(const std::string& path, const GgufMetadata& metadata,
                                   std::vector<GgufTensorPlan> tensors);

  // The next bytes of the tensors' data, in the order of `tensors`, in pieces of any size that do
  // not reach beyond the end of a tensor. After an error the file cannot be finished.
  Status Write(std::span<const std::byte> bytes);
  // Renames the file to its name. kFailedPrecondition: a tensor is not whole.
  Status Commit();

  // Of the whole file.
  uint64_t file_bytes() const { return file_bytes_; }

 private:
  explicit GgufWriter(AtomicFile file) : file_(std::move(file)) {}
  // Pads up to the next tensor when the present one is whole.
  Status FinishTensor();

  AtomicFile file_;
  uint64_t alignment_ = 0, file_bytes_ = 0;
  std::vector<std::string> names_;
  std::vector<uint64_t> sizes_;
  size_t tensor_ = 0;     // that is being written
  uint64_t written_ = 0;  // of it
};

// All tensors of `file` (a GGUF file, whole or split, or a folder) as they are, with `metadata`:
// the way to add something to a model's metadata. `path` may be the file itself. Reports bytes.
Status CopyGguf(const GgufFile& file, const GgufMetadata& metadata, const std::string& path,
                const ProgressSink& progress = {});

}  // namespace tq
