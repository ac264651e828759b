// The bytes are cut at each "\n---\n": config.json, tokenizer.json, tokenizer_config.json, the
// index (empty: none), and what is left is a safetensors file. An error, or a model whose every
// tensor can be put together, and perhaps a tokenizer that encodes.
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "runtime/formats/memory_folder_for_test.h"
#include "runtime/tokenizer/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string rest(reinterpret_cast<const char*>(data), size);
  tq::MemoryFolder folder;
  const std::string cut = "\n---\n";
  for (const char* name :
       {"config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors.index.json"}) {
    const size_t end = rest.find(cut);
    if (end == std::string::npos) break;
    if (end > 0) folder.files[name] = rest.substr(0, end);
    rest.erase(0, end + cut.size());
  }
  folder.files["model.safetensors"] = rest;
  tq::Result<tq::GgufContents> contents = tq::ReadHuggingFaceFolder(folder, "fuzz");
  if (!contents.ok()) {
    TQ_CHECK(!contents.status().message().empty());
    return 0;
  }
  const auto file = tq::GgufFile::FromContents(*std::move(contents));
  if (!file.ok()) return 0;
  volatile size_t sum = 0;
  for (const tq::GgufTensor& tensor : file->tensors()) {
    const tq::TensorData bytes = file->Data(tensor);
    TQ_CHECK(bytes.bytes().size() == tensor.num_bytes() && !bytes.bytes().empty());
    sum = sum + static_cast<size_t>(bytes.bytes().front()) +
          static_cast<size_t>(bytes.bytes().back());
  }
  const auto tokenizer = tq::Tokenizer::FromGguf(*file);
  if (!tokenizer.ok()) return 0;
  for (const tq::TokenId id : (*tokenizer)->Encode("ab <s> \xff caf\xC3\xA9 12\n")) {
    TQ_CHECK(id >= 0 && id < (*tokenizer)->vocab_size());
  }
  return 0;
}
