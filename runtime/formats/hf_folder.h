// A Hugging Face folder (config.json, *.safetensors, tokenizer.json ...) shown as the GGUF file
// that llama.cpp's converter would make of it: the same metadata keys, tensor names, shapes and
// values, in the element types of the checkpoint. Rows that GGUF keeps in another order are put
// together when a tensor is read; nothing is copied before.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "runtime/formats/gguf.h"

namespace tq {

// The files of one folder, on disk or (for tests and fuzzing) in memory.
class FolderFiles {
 public:
  virtual ~FolderFiles() = default;
  virtual bool Has(const std::string& name) const = 0;
  virtual Result<std::string> Read(const std::string& name) const = 0;
  // Bytes that stay as long as what is read from this folder.
  virtual Result<std::span<const std::byte>> Map(const std::string& name) = 0;
};

// kNotFound: a file that is missing, by name; kDataLoss: a damaged one, or an index and shards that
// disagree; kInvalidArgument: a key of config.json; kUnsupported: an architecture, a quantization
// (AWQ, GPTQ, FP8 ...), pickled weights or an element type, each with the way out. A folder without
// tokenizer.json has no tokenizer.* keys.
Result<GgufContents> ReadHuggingFaceFolder(FolderFiles& files, const std::string& name);
Result<GgufContents> OpenHuggingFaceFolder(const std::string& path);

// Paths of the weights that OpenHuggingFaceFolder reads, sorted: the files that
// model.safetensors.index.json names, else model.safetensors. Others in the folder are no part of
// the model. kNotFound: the folder has neither; kUnsupported: pickled weights only; kDataLoss: a
// damaged index.
Result<std::vector<std::string>> HuggingFaceWeightFiles(const std::string& path);

}  // namespace tq
