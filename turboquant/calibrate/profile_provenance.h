// What a profile says of itself: how its formats were found, and what was measured.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "turboquant/base/status.h"
#include "turboquant/calibrate/profile.h"
#include "turboquant/calibrate/profile_fields.h"

namespace tq {

// From the object "turboquant" of the file `name` into *profile, whose model is set.
Status ReadProvenance(Fields& top, const std::string& name, Profile* profile);

nlohmann::ordered_json QualityToJson(const ProfileQuality& quality);

// What ReadProvenance reads, but for what is computed from the formats.
void AddProvenance(const Profile& profile, nlohmann::ordered_json* json);

}  // namespace tq
