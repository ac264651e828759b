// How much memory a run may take, and the refusal of what cannot fit before anything is loaded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "cli/common.h"
#include "cli/kv_choice.h"
#include "turboquant/base/status.h"
#include "turboquant/calibrate/profile.h"
#include "turboquant/plan/cache_plan.h"
#include "turboquant/plan/devices.h"

namespace tq::cli {

// What this machine can still give a process: available memory, and no more than the control group
// allows. `limit` (a size such as 2GiB; empty = none) takes its place.
Result<size_t> MemoryLimit(const std::string& limit);

// This machine as one to plan for.
Result<Machine> HostMachine(const std::string& limit);

// One preset or profile folder of --kv as the planner knows it.
Result<CacheFormat> PlanFormat(const std::string& kv, const CacheWindow& window);
CacheFormat PlanFormat(const Profile& profile, const std::string& name, const CacheWindow& window);

// kResourceExhausted when the model, its cache of `context` tokens and all else need more than the
// limit: both numbers, and the longest context that fits. Reads the file's header only. A context
// that was not asked for (0: the trained one) is refused under an explicit limit and else only
// mentioned, since most runs stay shorter.
Status CheckMemory(const ModelFlags& model, const KvFlags& kv, int64_t context,
                   const std::string& limit, const OutputFlags& output);

}  // namespace tq::cli
