#include "runtime/calibrate/journal.h"

#include <cstdio>

#include "turboquant/base/file.h"

namespace tq {

Result<Journal> Journal::Open(const std::string& path, uint64_t inputs_hash, std::string* note) {
  Journal journal;
  journal.path_ = path;
  journal.inputs_hash_ = inputs_hash;
  if (path.empty() || !FileExists(path)) return journal;
  TQ_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  const nlohmann::json j = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!j.is_object() || !j.contains("inputs") || !j["inputs"].is_number_unsigned() ||
      !j.contains("measured") || !j["measured"].is_object()) {
    return DataLoss(path, " is not the state of a calibration; remove it to begin anew");
  }
  if (j["inputs"].get<uint64_t>() != inputs_hash) {
    *note = StrCat(path, " is of another model, other data or other flags: beginning anew");
    return journal;
  }
  journal.values_ = j["measured"];
  *note = StrCat("going on from ", path, ": ", journal.values_.size(), " measurements are there");
  return journal;
}

const nlohmann::json* Journal::Find(const std::string& key) const {
  const auto it = values_.find(key);
  return it == values_.end() ? nullptr : &*it;
}

Status Journal::Put(const std::vector<std::pair<std::string, nlohmann::json>>& values) {
  for (const auto& [key, value] : values) values_[key] = value;
  if (path_.empty()) return OkStatus();
  const nlohmann::json j = {{"inputs", inputs_hash_}, {"measured", values_}};
  return WriteFileAtomic(path_, j.dump() + "\n");
}

Result<nlohmann::json> Journal::Get(const std::string& key,
                                    const std::function<Result<nlohmann::json>()>& measure) {
  if (const nlohmann::json* known = Find(key)) return *known;
  TQ_ASSIGN_OR_RETURN(nlohmann::json value, measure());
  TQ_RETURN_IF_ERROR(Put({{key, value}}));
  return value;
}

void Journal::Remove() {
  if (!path_.empty()) std::remove(path_.c_str());
}

}  // namespace tq
