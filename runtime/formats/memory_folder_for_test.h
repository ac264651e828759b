// A model folder in memory, for tests and fuzz targets.
#pragma once

#include <map>
#include <string>

#include "runtime/formats/hf_folder.h"

namespace tq {

class MemoryFolder final : public FolderFiles {
 public:
  std::map<std::string, std::string> files;

  bool Has(const std::string& name) const override { return files.count(name) != 0; }
  Result<std::string> Read(const std::string& name) const override {
    const auto it = files.find(name);
    if (it == files.end()) return NotFound("cannot open '", name, "'");
    return it->second;
  }
  Result<std::span<const std::byte>> Map(const std::string& name) override {
    const auto it = files.find(name);
    if (it == files.end()) return NotFound("cannot open '", name, "'");
    return std::as_bytes(std::span(it->second));
  }
};

}  // namespace tq
