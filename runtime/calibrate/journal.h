// What has been measured so far, in a file: work that was interrupted goes on from there.
//
// Everything that comes after a measurement is a function of measurements, so a run with a journal
// ends in the same profile as one that was never interrupted.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "turboquant/base/status.h"

namespace tq {

class Journal {
 public:
  // Without a file: nothing is kept.
  Journal() = default;
  // A journal of other inputs (another hash) is begun anew, and *note says so. kDataLoss: the file
  // is there but is not a journal; kUnavailable, kPermissionDenied: it cannot be read.
  static Result<Journal> Open(const std::string& path, uint64_t inputs_hash, std::string* note);

  // nullptr: not measured yet. Valid until the next Put.
  const nlohmann::json* Find(const std::string& key) const;
  // Keeps several; the file is written once.
  Status Put(const std::vector<std::pair<std::string, nlohmann::json>>& values);
  // The value under `key`, or what `measure` gives, which is then kept.
  Result<nlohmann::json> Get(const std::string& key,
                             const std::function<Result<nlohmann::json>()>& measure);
  // Takes the file away: the work is done.
  void Remove();

 private:
  std::string path_;
  uint64_t inputs_hash_ = 0;
  nlohmann::json values_ = nlohmann::json::object();
};

}  // namespace tq
