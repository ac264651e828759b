#include "runtime/formats/hf_folder.h"

#include <filesystem>
#include <set>
#include <utility>

#include "runtime/formats/hf_config.h"
#include "runtime/formats/hf_tensors.h"
#include "runtime/formats/hf_tokenizer.h"
#include "turboquant/base/file.h"

namespace tq {
namespace {

constexpr const char *kConfig = "config.json", *kWeights = "model.safetensors",
                     *kIndex = "model.safetensors.index.json";

// Which tensor the index says is in which file.
Result<std::map<std::string, std::string>> ReadIndex(const FolderFiles& files) {
  TQ_ASSIGN_OR_RETURN(const std::string text, files.Read(kIndex));
  TQ_ASSIGN_OR_RETURN(const nlohmann::json root, ParseJsonObject(text, kIndex));
  const JsonObject index(root, kIndex);
  const nlohmann::json* weights = index.Find("weight_map");
  if (weights == nullptr || !weights->is_object() || weights->empty()) {
    return index.Wrong("weight_map", "an object with the file of each tensor");
  }
  std::map<std::string, std::string> out;
  for (auto it = weights->begin(); it != weights->end(); ++it) {
    const auto* file = it->get_ptr<const std::string*>();
    // Only files of this folder: a name is no path.
    if (file == nullptr || !file->ends_with(".safetensors") ||
        file->find_first_of("/\\") != std::string::npos) {
      return DataLoss("'", kIndex, "': the file of tensor '", it.key(),
                      "' is not the name of a safetensors file");
    }
    out[it.key()] = *file;
  }
  return out;
}

// The files with the weights; `index` is empty where there is none.
Result<std::set<std::string>> WeightFiles(const FolderFiles& files, const std::string& folder,
                                          std::map<std::string, std::string>* index) {
  std::set<std::string> names;
  if (files.Has(kIndex)) {
    TQ_ASSIGN_OR_RETURN(*index, ReadIndex(files));
    for (const auto& [tensor, file] : *index) names.insert(file);
  } else if (files.Has(kWeights)) {
    names.insert(kWeights);
  } else {
    for (const char* pickled :
         {"pytorch_model.bin", "pytorch_model.bin.index.json", "consolidated.00.pth"}) {
      if (!files.Has(pickled)) continue;
      return Unsupported(
          "'", folder, "' has its weights in '", pickled,
          "', a pickle, which can run any program when it is read and is not opened; "
          "take the model's safetensors files, or convert it: load it with "
          "transformers and call save_pretrained(..., safe_serialization=True)");
    }
    return NotFound("'", folder, "' has neither ", kWeights, " nor ", kIndex);
  }
  return names;
}

Result<std::vector<SafetensorsFile>> ReadShards(FolderFiles& files, const std::string& folder,
                                                size_t* bytes) {
  std::map<std::string, std::string> index;
  TQ_ASSIGN_OR_RETURN(const std::set<std::string> names, WeightFiles(files, folder, &index));
  std::vector<SafetensorsFile> shards;
  std::map<std::string, std::string> found;  // tensor -> file
  for (const std::string& name : names) {
    const Result<std::span<const std::byte>> map = files.Map(name);
    if (map.status().code() == StatusCode::kNotFound && !index.empty()) {
      return NotFound("'", name, "', which ", kIndex,
                      " names, is missing: ", map.status().message());
    }
    TQ_RETURN_IF_ERROR(map.status());
    *bytes += map->size();
    TQ_ASSIGN_OR_RETURN(SafetensorsFile shard, SafetensorsFile::Parse(*map, name));
    for (const SafetensorsTensor& tensor : shard.tensors()) {
      const auto [it, fresh] = found.emplace(tensor.name, name);
      if (!fresh) {
        return DataLoss("tensor '", tensor.name, "' is in both '", it->second, "' and '", name,
                        "'");
      }
      const auto promised = index.find(tensor.name);
      if (!index.empty() && (promised == index.end() || promised->second != name)) {
        return DataLoss("tensor '", tensor.name, "' of '", name, "' is ",
                        promised == index.end() ? "not" : "elsewhere", " in ", kIndex);
      }
    }
    shards.push_back(std::move(shard));
  }
  for (const auto& [tensor, file] : index) {
    if (found.count(tensor) == 0) {
      return DataLoss("'", file, "' has no tensor '", tensor, "', which ", kIndex, " puts there");
    }
  }
  return shards;
}

class DiskFolder final : public FolderFiles {
 public:
  explicit DiskFolder(std::string path) : path_(std::move(path)) {}
  bool Has(const std::string& name) const override { return FileExists(PathOf(name)); }
  Result<std::string> Read(const std::string& name) const override {
    return ReadFile(PathOf(name));
  }
  Result<std::span<const std::byte>> Map(const std::string& name) override {
    TQ_ASSIGN_OR_RETURN(MappedFile mapped, MappedFile::Open(PathOf(name)));
    maps.push_back(std::make_shared<MappedFile>(std::move(mapped)));
    return maps.back()->bytes();
  }
  std::vector<std::shared_ptr<MappedFile>> maps;

 private:
  std::string PathOf(const std::string& name) const {
    return (std::filesystem::path(path_) / name).string();
  }
  std::string path_;
};

Result<GgufContents> ReadFolder(FolderFiles& files, const std::string& name) {
  if (!files.Has(kConfig)) {
    return NotFound("there is no ", kConfig, "; name a GGUF file or a Hugging Face folder");
  }
  TQ_ASSIGN_OR_RETURN(const std::string text, files.Read(kConfig));
  TQ_ASSIGN_OR_RETURN(const nlohmann::json json, ParseJsonObject(text, kConfig));
  TQ_ASSIGN_OR_RETURN(HfConfig config, ReadHfConfig(json, kConfig));
  GgufContents contents;
  contents.path = name;
  contents.metadata = std::move(config.metadata);
  contents.metadata["general.name"] =
      std::filesystem::path(name + "/").parent_path().filename().string();
  TQ_ASSIGN_OR_RETURN(const std::vector<SafetensorsFile> shards,
                      ReadShards(files, name, &contents.file_bytes));
  TQ_ASSIGN_OR_RETURN(contents.tensors, ReadHfTensors(config, shards));
  TQ_RETURN_IF_ERROR(ReadHfTokenizer(files, json, config.vocab_size, contents.metadata));
  return contents;
}

}  // namespace

Result<GgufContents> ReadHuggingFaceFolder(FolderFiles& files, const std::string& name) {
  Result<GgufContents> contents = ReadFolder(files, name);
  if (!contents.ok()) return contents.status().WithContext(StrCat("cannot read '", name, "'"));
  return contents;
}

Result<GgufContents> OpenHuggingFaceFolder(const std::string& path) {
  DiskFolder files(path);
  TQ_ASSIGN_OR_RETURN(GgufContents contents, ReadHuggingFaceFolder(files, path));
  contents.maps = std::move(files.maps);
  return contents;
}

Result<std::vector<std::string>> HuggingFaceWeightFiles(const std::string& path) {
  std::map<std::string, std::string> index;
  TQ_ASSIGN_OR_RETURN(const std::set<std::string> names,
                      WeightFiles(DiskFolder(path), path, &index));
  std::vector<std::string> out;
  for (const std::string& name : names) {
    out.push_back((std::filesystem::path(path) / name).string());
  }
  return out;
}

}  // namespace tq
